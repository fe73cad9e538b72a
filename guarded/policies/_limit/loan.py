"""What one call has of a stored limit; it stands where the `Pool` of a local one would."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from guarded._core.call import Call
from guarded._core.keys import Key
from guarded.policies._limit.core import Pool
from guarded.policies._limit.lease import Lease

if TYPE_CHECKING:
    from guarded.policies._limit.stored import StoredLimit


class Loan:
    """Permits that a call has, or is about to get.

    Attributes:
        seat: where callers of this process line up.
        lease: in the store; None while it has none.
        local: the pool of this process, where that had to do; None otherwise.
    """

    __slots__ = ("_home", "key", "lease", "local", "seat", "weight")

    def __init__(self, home: StoredLimit, key: Key, weight: int, seat: Pool) -> None:
        self._home = home
        self.key = key
        self.weight = weight
        self.seat = seat
        self.lease: Lease | None = None
        self.local: Pool | None = None

    @property
    def held(self) -> int:
        """Permits out, as the store said last."""
        return self._home.held

    @property
    def limit(self) -> int:
        """Permits there are."""
        return self._home.size

    @property
    def queue(self) -> Any:
        """Who waits in this process."""
        return self.seat.queue

    def give_back(self, weight: int) -> None:
        """Return the permits; an event loop does not wait for it."""
        lease, self.lease = self.lease, None
        if lease is not None:
            if asyncio._get_running_loop() is None:
                self._home.release(self.seat, lease)
            else:
                self._home.release_aside(self.seat, lease)
        elif self.local is not None:
            self.local.give_back(weight)

    async def give_back_async(self) -> None:
        """The same, waiting for the store to have heard."""
        lease, self.lease = self.lease, None
        if lease is not None:
            await self._home.release_async(self.seat, lease)
        elif self.local is not None:
            self.local.give_back(self.weight)

    def depart(self) -> None:
        """The call has done with it."""
        self.seat.depart()
        if self.local is not None:
            self.local.depart()


def borrows_from(call: Call | None, pool: Pool) -> bool:
    """Whether a call, or one around it, holds permits that callers get here: at this seat, or of this local pool."""
    while call is not None:
        node = call.held
        while node is not None:
            loan = node[0]
            if isinstance(loan, Loan) and (loan.local is pool or (loan.seat is pool and loan.lease is not None)):
                return True
            node = node[1]
        call = call.parent
    return False
