"""Limits on Redis: `LimitStore` over one script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from guarded.stores._redis.link import Script, Word
from guarded.stores._redis.memory import Memories
from guarded.stores.contract.limit import Full, Granted, Pledge

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
        self._memories = Memories()

    def acquire(self, pledge: Pledge, keep: float) -> Granted | Full:
        """See `LimitStore.acquire`."""
        return self._verdict(pledge, self._link.run(*self._step("acquire", pledge, pledge.limit, int(keep * _US))))

    async def acquire_async(self, pledge: Pledge, keep: float) -> Granted | Full:
        """See `LimitStore.acquire`."""
        step = self._step("acquire", pledge, pledge.limit, int(keep * _US))
        return self._verdict(pledge, await self._link.run_async(*step))

    def renew(self, pledge: Pledge) -> bool:
        """See `LimitStore.renew`."""
        return self._renewed(pledge, self._link.run(*self._step("renew", pledge)))

    def release(self, pledge: Pledge) -> bool:
        """See `LimitStore.release`."""
        self._memories.forget(pledge.owner)
        return bool(self._link.run(_SCRIPT, self._keys(pledge.pool), ["release", pledge.owner]))

    async def release_async(self, pledge: Pledge) -> bool:
        """See `LimitStore.release`."""
        self._memories.forget(pledge.owner)
        return bool(await self._link.run_async(_SCRIPT, self._keys(pledge.pool), ["release", pledge.owner]))

    def look(self, pool: tuple[str, str]) -> tuple[int, int]:
        """See `LimitStore.look`."""
        held, waiting = self._link.run(_SCRIPT, self._keys(pool), ["look", ""])
        return held, waiting

    async def look_async(self, pool: tuple[str, str]) -> tuple[int, int]:
        """See `LimitStore.look`."""
        held, waiting = await self._link.run_async(_SCRIPT, self._keys(pool), ["look", ""])
        return held, waiting

    def _step(self, step: str, pledge: Pledge, *more: Word) -> tuple[Script, list[str], list[Word]]:
        known = self._memories.known(pledge.owner if step == "renew" else pledge.pool)
        given: list[Word] = [step, pledge.owner, int(pledge.lease * _US), pledge.permits, known, *more]
        return _SCRIPT, self._keys(pledge.pool), given

    def _verdict(self, pledge: Pledge, reply: Any) -> Granted | Full:
        self._note(pledge, reply[2], holds=reply[0] == 1)
        if reply[0] == 1:
            return Granted(reply[1])
        return Full(reply[1], None if reply[3] < 0 else reply[3] / _US)

    def _renewed(self, pledge: Pledge, reply: Any) -> bool:
        self._note(pledge, reply[1], holds=reply[0] == 1)
        return bool(reply[0])

    def _note(self, pledge: Pledge, memory: bytes, *, holds: bool) -> None:
        self._memories.note(pledge.pool, pledge.owner, memory, pledge.lease, holds=holds)

    def _keys(self, pool: tuple[str, str]) -> list[str]:
        key = f"{self._prefix}{{{pool[0]}}}:{pool[1]}"
        return [key, f"{key}:more", f"{key}:queue", f"{key}:patience", f"{key}:memory"]
