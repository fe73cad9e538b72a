"""What `limit` asks of a store, sync and async.

A store lends permits: each holder has a lease by the store's clock, which it renews while it holds. When the lease has
ended, and not before, the permits are free, whatever became of the holder. Those that wait stand in a short queue, one
for each process, and ask again and again; nobody overtakes them, and one that does not ask any more loses its place.
Every method is one atomic step that raises when it cannot be made. Times are seconds.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable


class Pledge(NamedTuple):
    """What a caller brings when it wants permits.

    Attributes:
        owner: token of this caller; nobody else renews or releases its lease.
        pool: name of the limit, and a digest of the key where it has keys.
        permits: how many.
        limit: how many there are at once.
        lease: how long they stay with the owner without a renewal.
    """

    owner: str
    pool: tuple[str, str]
    permits: int
    limit: int
    lease: float


class Granted(NamedTuple):
    """The permits are the owner's; `held` are out now."""

    held: int


class Full(NamedTuple):
    """Not enough permits are free for one whose turn it is.

    Attributes:
        held: permits out.
        frees: seconds after which the next lease ends, should nobody renew or release it; None when nobody holds any.
    """

    held: int
    frees: float | None


@runtime_checkable
class LimitStore(Protocol):
    """Permits on loan."""

    def acquire(self, pledge: Pledge, keep: float) -> Granted | Full:
        """Take permits if they are free for this owner; it may ask again, also when it has them.

        Args:
            keep: seconds for which the store keeps the owner's place in the queue; 0 for no place.
        """
        ...

    def renew(self, pledge: Pledge) -> bool:
        """Start the lease over; False when it has ended, and the permits may be another's."""
        ...

    def release(self, pledge: Pledge) -> bool:
        """Give the permits, and any place in the queue, back; False when the lease had ended."""
        ...

    def look(self, pool: tuple[str, str]) -> tuple[int, int]:
        """Permits out, and processes that wait."""
        ...

    async def acquire_async(self, pledge: Pledge, keep: float) -> Granted | Full: ...

    async def release_async(self, pledge: Pledge) -> bool: ...

    async def look_async(self, pool: tuple[str, str]) -> tuple[int, int]: ...
