"""Records of idempotent calls in this process.

Finished records live in a bounded cache and are pushed out oldest-used first when it is full; marks of running
calls live apart and are never pushed out. Everything is behind one lock, under which no user code runs but that of
finalizers, whose calls are refused then.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import cachetools

from guarded._core import clock
from guarded._core.fork import after_fork
from guarded._core.monitor import Monitor
from guarded.policies._idempotent import records
from guarded.policies._idempotent.records import Record
from guarded.stores.contract.idempotent import Claim, Reply

MAX_RECORDS = 100_000


class _Finished(cachetools.TLRUCache[str, Record[Any]]):
    """Finished records, each with its own expiry, and how many were pushed out before it."""

    def __init__(self, max_records: int) -> None:
        super().__init__(max_records, ttu=lambda key, record, now: record.expires, timer=lambda: clock.monotonic())
        self.evicted = 0

    def popitem(self) -> tuple[str, Record[Any]]:
        """Called by the container when it is full."""
        self.evicted += 1
        return super().popitem()

    def clear(self) -> None:
        """Forget all; before cachetools 7.1 that goes through `popitem`, and would count."""
        evicted = self.evicted
        super().clear()
        self.evicted = evicted


class MemoryStore(Monitor):
    """Keeps idempotency records until the process ends.

    Args:
        max_records: finished records kept at most; the one used longest ago goes first. Must be 1 or more.
        name: what events call it.
    """

    durable = False

    def __init__(self, max_records: int = MAX_RECORDS, *, name: str = "memory") -> None:
        if type(max_records) is not int or max_records < 1:
            raise ValueError(f"max_records={max_records!r}: must be a whole number from 1 up")
        super().__init__()
        self.name = name
        self.max_records = max_records
        self._running: dict[str, Record[Any]] = {}
        self._finished = _Finished(max_records)
        after_fork(self, MemoryStore._forget_runs)

    def begin(self, key: str, claim: Claim) -> Reply[Any]:
        """See `IdempotentStore.begin`."""
        with self, self._lock:
            reply, record = records.begin(self._find(key), claim, clock.monotonic())
            if record is not None:
                self._running[key] = record
        return reply

    def complete(self, key: str, claim: Claim, payload: Any) -> bool:
        """See `IdempotentStore.complete`."""
        with self, self._lock:
            record = records.complete(self._find(key), claim, payload, clock.monotonic())
            if record is None:
                return False
            self._running.pop(key, None)
            self._finished[key] = record
        return True

    def renew(self, key: str, claim: Claim) -> bool:
        """See `IdempotentStore.renew`."""
        with self, self._lock:
            record = records.renew(self._find(key), claim, clock.monotonic())
            if record is None:
                return False
            self._running[key] = record
        return True

    def release(self, key: str, claim: Claim) -> bool:
        """See `IdempotentStore.release`."""
        with self, self._lock:
            if not records.may_release(self._find(key), claim, clock.monotonic()):
                return False
            del self._running[key]
        return True

    async def begin_async(self, key: str, claim: Claim) -> Reply[Any]:
        """Like `begin`; nothing here blocks."""
        return self.begin(key, claim)

    async def complete_async(self, key: str, claim: Claim, payload: Any) -> bool:
        """Like `complete`."""
        return self.complete(key, claim, payload)

    async def release_async(self, key: str, claim: Claim) -> bool:
        """Like `release`."""
        return self.release(key, claim)

    def _find(self, key: str) -> Record[Any] | None:
        running = self._running.get(key)
        return running if running is not None else self._finished.get(key)

    def clear(self) -> None:
        """Forget every finished record; runs in flight go on."""
        with self, self._lock:
            self._finished.clear()

    def snapshot(self) -> dict[str, int]:
        """Numbers of running and finished records, and of those pushed out before their time."""
        with self, self._lock:
            self._finished.expire()
            return {
                "running": len(self._running),
                "finished": len(self._finished),
                "evicted": self._finished.evicted,
            }

    def _forget_runs(self) -> None:
        Monitor.__init__(self)
        self._running = {}

    def __repr__(self) -> str:
        return f"MemoryStore(max_records={self.max_records})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(MemoryStore, name=self.name), (self.max_records,)  # records never travel
