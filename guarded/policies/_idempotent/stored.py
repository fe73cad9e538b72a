"""The records of `idempotent` behind a store that may fail.

Passes every step on to the store, and sees to its health. A key that cannot be begun there is, by `when_store_fails`,
refused, begun in the memory of this process, or begun nowhere; it ends where it was begun.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from guarded._core.call import current
from guarded.events.bus import Labelled
from guarded.stores import face_of
from guarded.stores.contract.idempotent import Claim, IdempotentStore, Reply, Started
from guarded.stores.health import Reported
from guarded.stores.memory import MemoryStore

ReplyT = TypeVar("ReplyT")


class Behind:
    """An `IdempotentStore` over the face of a store, for one policy.

    Attributes:
        durable: like the store.
        name: like the store.
    """

    def __init__(self, policy: Labelled, store: Any, mode: str) -> None:
        self._policy = policy
        self._store: IdempotentStore[Any] = face_of(store, "idempotent")
        self._health = store.health
        self._mode = mode
        self._memory = MemoryStore()
        self._elsewhere: dict[
            str, MemoryStore | None
        ] = {}  # by owner: where a run was begun in place of the store; None for nowhere
        self.durable = self._store.durable
        self.name: str = store.name

    def begin(self, key: str, claim: Claim) -> Reply[Any]:
        """See `IdempotentStore.begin`."""
        try:
            return self._step(self._store.begin, key, claim)
        except Reported:
            if self._mode == "closed":
                raise
            return self._begin_elsewhere(key, claim)

    async def begin_async(self, key: str, claim: Claim) -> Reply[Any]:
        """See `IdempotentStore.begin`."""
        try:
            return await self._step_async(self._store.begin_async, key, claim)
        except Reported:
            if self._mode == "closed":
                raise
            return self._begin_elsewhere(key, claim)

    def complete(self, key: str, claim: Claim, payload: Any) -> bool:
        """See `IdempotentStore.complete`."""
        if claim.owner in self._elsewhere:
            other = self._elsewhere.pop(claim.owner)
            return other is None or other.complete(key, claim, payload)
        return self._step(self._store.complete, key, claim, payload)

    async def complete_async(self, key: str, claim: Claim, payload: Any) -> bool:
        """See `IdempotentStore.complete`."""
        if claim.owner in self._elsewhere:
            return self.complete(key, claim, payload)
        return await self._step_async(self._store.complete_async, key, claim, payload)

    def renew(self, key: str, claim: Claim) -> bool:
        """See `IdempotentStore.renew`."""
        if claim.owner in self._elsewhere:
            other = self._elsewhere[claim.owner]
            return other is None or other.renew(key, claim)
        return self._step(self._store.renew, key, claim)

    async def renew_async(self, key: str, claim: Claim) -> bool:
        """See `IdempotentStore.renew`."""
        if claim.owner in self._elsewhere:
            return self.renew(key, claim)
        return await self._step_async(self._store.renew_async, key, claim)

    def release(self, key: str, claim: Claim) -> bool:
        """See `IdempotentStore.release`."""
        if claim.owner in self._elsewhere:
            other = self._elsewhere.pop(claim.owner)
            return other is None or other.release(key, claim)
        return self._step(self._store.release, key, claim)

    async def release_async(self, key: str, claim: Claim) -> bool:
        """See `IdempotentStore.release`."""
        if claim.owner in self._elsewhere:
            return self.release(key, claim)
        return await self._step_async(self._store.release_async, key, claim)

    def _begin_elsewhere(self, key: str, claim: Claim) -> Reply[Any]:
        if self._mode == "open":
            self._elsewhere[claim.owner] = None
            return Started()
        reply = self._memory.begin(key, claim)
        if isinstance(reply, Started):
            self._elsewhere[claim.owner] = self._memory
        return reply

    def _step(self, step: Callable[..., ReplyT], *args: Any) -> ReplyT:
        asked = self._health.may_ask()
        if asked is None:
            raise Reported("it has just failed and is not asked yet")
        try:
            reply = step(*args)
        except Exception as error:
            raise self._failed(asked, error) from error
        self._health.worked(asked, current.get(), self._policy)
        return reply

    async def _step_async(self, step: Callable[..., Awaitable[ReplyT]], *args: Any) -> ReplyT:
        asked = self._health.may_ask()
        if asked is None:
            raise Reported("it has just failed and is not asked yet")
        try:
            reply = await step(*args)
        except Exception as error:
            raise self._failed(asked, error) from error
        self._health.worked(asked, current.get(), self._policy)
        return reply

    def _failed(self, asked: int, error: Exception) -> Reported:
        self._health.failed(asked, current.get(), self._policy, error, self._mode)
        return Reported(type(error).__name__)
