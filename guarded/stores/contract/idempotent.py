"""What `idempotent` asks of a store, sync and async; a lease is renewed from a thread of its own.

A store keeps one record per key: running (an owner with a lease), or finished (a payload that lives `ttl`).
Every method is one atomic step that reads the store's own clock. A store that cannot be reached raises;
what it raises never reaches a guarded call as it is. Times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

from guarded.stores._threads import in_thread

PayloadT = TypeVar("PayloadT")


@dataclass(frozen=True, slots=True)
class Claim:
    """What a caller brings when it wants to run a key.

    Attributes:
        owner: token of this run; nobody else completes, renews or releases its record.
        fingerprint: digest of the arguments; None when they are not compared.
        lease: how long the record stays with its owner without a renewal; ``inf`` in a store that dies with it.
        ttl: how long a finished record lives, and how long one is remembered whose owner vanished.
        take_over: whether a record whose lease has run out may be taken; otherwise it is `Abandoned`.
    """

    owner: str
    fingerprint: str | None
    lease: float
    ttl: float
    take_over: bool = True


@dataclass(frozen=True, slots=True)
class Started:
    """The key is the caller's to run; `abandoned_for` tells how long ago the owner it was taken from began."""

    abandoned_for: float | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """Another owner runs the key; its lease has `left` seconds to go."""

    left: float


@dataclass(frozen=True, slots=True)
class Finished(Generic[PayloadT]):
    """The key was completed with `payload`, `age` seconds ago."""

    payload: PayloadT
    age: float


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The record was made with another fingerprint."""

    running: bool


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The record's owner began `age` seconds ago and let its lease run out."""

    age: float


Reply: TypeAlias = Started | Running | Finished[PayloadT] | Mismatch | Abandoned


@runtime_checkable
class IdempotentStore(Protocol[PayloadT]):
    """Records of idempotent calls.

    Attributes:
        name: what events call the store; holds no credential.
        durable: whether records outlive the process. A durable store keeps bytes, works with leases and may
            block; one that is not keeps any object and answers at once, so that async code calls its sync methods.
    """

    @property
    def name(self) -> str: ...

    @property
    def durable(self) -> bool: ...

    def begin(self, key: str, claim: Claim) -> Reply[PayloadT]:
        """Make the record running if nobody has it; the same owner asking again is `Started` again.

        A fingerprint that differs is a `Mismatch` in every state. Taking over is a compare-and-set on the old owner.
        """
        ...

    def complete(self, key: str, claim: Claim, payload: PayloadT) -> bool:
        """Finish the record; False, changing nothing, when another owner has it or it is finished.

        A record that is gone (expired, or the store was emptied) is written anew: nobody owns it.
        """
        ...

    def renew(self, key: str, claim: Claim) -> bool:
        """Start the lease over; False when the record is no longer this owner's."""
        ...

    def release(self, key: str, claim: Claim) -> bool:
        """Forget the running record; False when it is no longer this owner's."""
        ...

    async def begin_async(self, key: str, claim: Claim) -> Reply[PayloadT]: ...

    async def complete_async(self, key: str, claim: Claim, payload: PayloadT) -> bool: ...

    async def release_async(self, key: str, claim: Claim) -> bool: ...


class InThreads:
    """The async methods of a store whose client can only block: each runs in a worker thread."""

    async def begin_async(self: Any, key: str, claim: Claim) -> Any:
        return await in_thread(partial(self.begin, key, claim))

    async def complete_async(self: Any, key: str, claim: Claim, payload: Any) -> bool:
        return await in_thread(partial(self.complete, key, claim, payload))

    async def release_async(self: Any, key: str, claim: Claim) -> bool:
        return await in_thread(partial(self.release, key, claim))
