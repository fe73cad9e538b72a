"""A store on a Redis (6.2 and up) or Valkey server, for a fleet: rates, limits, circuits and idempotency records.

Every decision is one script on the server, by the server's clock, in one round trip; every key expires. Threads use the
sync client of redis-py, tasks its asyncio client, over the same scripts. Times are seconds.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from guarded._core.durations import Duration
from guarded.stores import StoreProblem
from guarded.stores._address import opened_again, public_name, read_times
from guarded.stores._redis.link import Link
from guarded.stores.health import PROBE, Health

if TYPE_CHECKING:
    from guarded.stores._redis.circuits import RedisCircuits
    from guarded.stores._redis.limits import RedisLimits
    from guarded.stores._redis.rates import RedisRates
    from guarded.stores._redis.records import RedisRecords

TIMEOUT = 0.25
LEASE = 10.0
PREFIX = "guarded:"


class RedisStore:
    """State shared by all processes that use the same server and prefix.

    Made by `guarded.stores.open_store`, so that there is one for each address in a process.

    Args:
        url: ``redis://[user:password@]host:port/db``, ``rediss://``, ``valkey://``, ``valkeys://`` or ``unix://path``.
        timeout: how long one step may take before the store counts as failed; default 250 ms.
        lease: how long a permit of a limit stays with a process that does not renew it; default 10 s.
        prefix: what every key begins with.
        probe: how often a failed store is tried; default 1 s.

    Raises:
        StoreProblem: a ValueError, naming every wrong option.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: Duration = TIMEOUT,
        lease: Duration = LEASE,
        prefix: str = PREFIX,
        probe: Duration = PROBE,
    ) -> None:
        problems: list[str] = []
        times = {"timeout": timeout, "lease": lease, "probe": probe}
        seconds = read_times(times, problems)
        if not isinstance(prefix, str) or "{" in prefix or "}" in prefix:
            problems.append(f"prefix={prefix!r}: must be text without braces, which tell a cluster where keys live")
        link = None
        try:
            link = Link(_for_redis_py(url), seconds.get("timeout", TIMEOUT))
        except ValueError as error:
            problems.append(f"url: {error}")
        if problems or link is None:
            raise StoreProblem("store: " + "; ".join(problems))
        self.prefix = prefix
        self.lease: float = seconds["lease"]
        self.link = link
        self.name: str = public_name(url)
        self.health: Health = Health(self.name, seconds["probe"])
        self._again = opened_again(url, {**times, "prefix": prefix}, _DEFAULTS)

    @cached_property
    def rates(self) -> RedisRates:
        """For `rate`."""
        from guarded.stores._redis.rates import RedisRates

        return RedisRates(self)

    @cached_property
    def limits(self) -> RedisLimits:
        """For `limit`."""
        from guarded.stores._redis.limits import RedisLimits

        return RedisLimits(self)

    @cached_property
    def circuits(self) -> RedisCircuits:
        """For `circuit`."""
        from guarded.stores._redis.circuits import RedisCircuits

        return RedisCircuits(self.link, self.prefix)

    @cached_property
    def idempotent(self) -> RedisRecords:
        """For `idempotent`."""
        from guarded.stores._redis.records import RedisRecords

        return RedisRecords(self.link, self.prefix, self.name)

    def close(self) -> None:
        """Close the connections that threads have left; those of event loops end with their loop."""
        self.link.close()

    def __repr__(self) -> str:
        return f"RedisStore({self.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return self._again, ()


_DEFAULTS = {"timeout": TIMEOUT, "lease": LEASE, "prefix": PREFIX, "probe": PROBE}
_OTHER_NAMES = {"valkey": "redis", "valkeys": "rediss"}


def _for_redis_py(url: str) -> str:
    scheme, colon, rest = url.partition(":")
    return _OTHER_NAMES.get(scheme.lower(), scheme.lower()) + colon + rest
