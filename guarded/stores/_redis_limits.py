"""Limits on Redis: `LimitStore` over one script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from guarded.stores._redis_link import Script, Word
from guarded.stores.contract_limit import Full, Granted, Pledge

if TYPE_CHECKING:
    from guarded.stores.redis import RedisStore

_US = 1_000_000
_SCRIPT: Final = Script("limit")


class RedisLimits:
    """See `LimitStore` for the methods."""

    def __init__(self, store: RedisStore) -> None:
        self._prefix = f"{store.prefix}limit:"
        self._link = store.link
        self.name = store.name
        self.lease = store.lease

    def acquire(self, pledge: Pledge, keep: float) -> Granted | Full:
        """See `LimitStore.acquire`."""
        return _verdict(self._link.run(*self._acquire(pledge, keep)))

    async def acquire_async(self, pledge: Pledge, keep: float) -> Granted | Full:
        """See `LimitStore.acquire`."""
        return _verdict(await self._link.run_async(*self._acquire(pledge, keep)))

    def renew(self, pledge: Pledge) -> bool:
        """See `LimitStore.renew`."""
        return bool(self._link.run(*self._renew(pledge)))

    async def renew_async(self, pledge: Pledge) -> bool:
        """See `LimitStore.renew`."""
        return bool(await self._link.run_async(*self._renew(pledge)))

    def release(self, pledge: Pledge) -> bool:
        """See `LimitStore.release`."""
        return bool(self._link.run(_SCRIPT, self._keys(pledge.pool), ["release", pledge.owner]))

    async def release_async(self, pledge: Pledge) -> bool:
        """See `LimitStore.release`."""
        return bool(await self._link.run_async(_SCRIPT, self._keys(pledge.pool), ["release", pledge.owner]))

    def look(self, pool: tuple[str, str]) -> tuple[int, int]:
        """See `LimitStore.look`."""
        held, waiting = self._link.run(_SCRIPT, self._keys(pool), ["look", ""])
        return held, waiting

    async def look_async(self, pool: tuple[str, str]) -> tuple[int, int]:
        """See `LimitStore.look`."""
        held, waiting = await self._link.run_async(_SCRIPT, self._keys(pool), ["look", ""])
        return held, waiting

    def _acquire(self, pledge: Pledge, keep: float) -> tuple[Script, list[str], list[Word]]:
        lease = int(pledge.lease * _US)
        given: list[Word] = ["acquire", pledge.owner, lease, pledge.permits, pledge.limit, int(keep * _US)]
        return _SCRIPT, self._keys(pledge.pool), given

    def _renew(self, pledge: Pledge) -> tuple[Script, list[str], list[Word]]:
        return _SCRIPT, self._keys(pledge.pool), ["renew", pledge.owner, int(pledge.lease * _US)]

    def _keys(self, pool: tuple[str, str]) -> list[str]:
        key = f"{self._prefix}{{{pool[0]}}}:{pool[1]}"
        return [key, f"{key}:more", f"{key}:queue", f"{key}:patience"]


def _verdict(reply: Any) -> Granted | Full:
    if reply[0] == 1:
        return Granted(reply[1])
    return Full(reply[1], None if reply[2] < 0 else reply[2] / _US)
