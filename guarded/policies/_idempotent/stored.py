"""The records of `idempotent` behind a store that may fail.

Passes every step on to the store, and sees to its health. A key that cannot be begun there is, by `when_store_fails`,
refused, begun in the memory of this process, or begun nowhere; it ends where it was begun. A process forked in the
middle of a run has no part in it: the run is its parent's.
"""

from __future__ import annotations

from typing import Any

from guarded._core.call import current
from guarded.events.bus import Labelled
from guarded.stores import face_of
from guarded.stores.contract.idempotent import Claim, IdempotentStore, Reply, Started
from guarded.stores.health import Access, Reported
from guarded.stores.memory import MemoryStore
from guarded.stores.owners import is_inherited


class Behind:
    """An `IdempotentStore` over the face of a store, for one policy.

    Attributes:
        durable: like the store.
        name: like the store.
    """

    def __init__(self, policy: Labelled, store: Any, mode: str) -> None:
        self._store: IdempotentStore[Any] = face_of(store, "idempotent")
        self._access = Access(policy, store.health, mode)
        self._memory = MemoryStore() if mode == "local" else None
        self._elsewhere: set[str] = set()  # owners of runs that were not begun in the store
        self.durable = self._store.durable
        self.name: str = store.name

    def begin(self, key: str, claim: Claim) -> Reply[Any]:
        """See `IdempotentStore.begin`."""
        try:
            return self._access.step(current.get(), self._store.begin, key, claim)
        except Reported:
            if self._access.mode == "closed":
                raise
            return self._begin_elsewhere(key, claim)

    async def begin_async(self, key: str, claim: Claim) -> Reply[Any]:
        """See `IdempotentStore.begin`."""
        try:
            return await self._access.step_async(current.get(), self._store.begin_async, key, claim)
        except Reported:
            if self._access.mode == "closed":
                raise
            return self._begin_elsewhere(key, claim)

    def _begin_elsewhere(self, key: str, claim: Claim) -> Reply[Any]:
        reply = Started() if self._memory is None else self._memory.begin(key, claim)
        if isinstance(reply, Started):
            self._elsewhere.add(claim.owner)
        return reply

    def complete(self, key: str, claim: Claim, payload: Any) -> bool:
        """See `IdempotentStore.complete`."""
        if claim.owner in self._elsewhere:
            self._elsewhere.discard(claim.owner)
            return self._memory is None or self._memory.complete(key, claim, payload)
        if is_inherited(claim.owner):
            return False
        return self._access.step(current.get(), self._store.complete, key, claim, payload)

    async def complete_async(self, key: str, claim: Claim, payload: Any) -> bool:
        """See `IdempotentStore.complete`."""
        if claim.owner in self._elsewhere:
            return self.complete(key, claim, payload)
        if is_inherited(claim.owner):
            return False
        return await self._access.step_async(current.get(), self._store.complete_async, key, claim, payload)

    def renew(self, key: str, claim: Claim) -> bool:
        """See `IdempotentStore.renew`."""
        if claim.owner in self._elsewhere:
            return self._memory is None or self._memory.renew(key, claim)
        return self._access.step(current.get(), self._store.renew, key, claim)

    def release(self, key: str, claim: Claim) -> bool:
        """See `IdempotentStore.release`."""
        if claim.owner in self._elsewhere:
            self._elsewhere.discard(claim.owner)
            return self._memory is None or self._memory.release(key, claim)
        if is_inherited(claim.owner):
            return False
        return self._access.step(current.get(), self._store.release, key, claim)

    async def release_async(self, key: str, claim: Claim) -> bool:
        """See `IdempotentStore.release`."""
        if claim.owner in self._elsewhere:
            return self.release(key, claim)
        if is_inherited(claim.owner):
            return False
        return await self._access.step_async(current.get(), self._store.release_async, key, claim)
