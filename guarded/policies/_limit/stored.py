"""A limit whose permits live in a store: leases there, and one place in the queue there for each process.

Callers of one process line up at a seat, a pool of one; who has it asks the store again and again, woken early when
a permit comes back in this process. The store lets nobody overtake the processes that ask. A caller that holds has a
lease, renewed in time; should it end all the same, `limit.lost` says so and the call's token fires, so that the body
learns of it at its next wait or checkpoint. While the store cannot be used the pools of this process take its place
(`when_store_fails`). Waits are seconds.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from guarded._core import clock, waiters
from guarded._core.call import Call
from guarded._core.fork import after_fork
from guarded._core.keys import Key, digest
from guarded._core.policy import Args, AsyncNext, Fn, Kwargs
from guarded._core.waiters import TaskWaiter, ThreadWaiter
from guarded.errors import Deadlock
from guarded.events.bus import bus
from guarded.events.model import INFO
from guarded.policies._limit.core import KeyedPools, LimitSnapshot, Pool
from guarded.policies._limit.lease import Lease, Leases
from guarded.policies._limit.loan import Loan, borrows_from
from guarded.policies._limit.shells import Needs
from guarded.policies._limit.wait import Gate
from guarded.stores import face_of
from guarded.stores.contract.limit import Full, Granted, LimitStore, Pledge
from guarded.stores.health import Access
from guarded.stores.owners import new_owner
from guarded.stores.upkeep import upkeep

if TYPE_CHECKING:
    from guarded.policies.limit import Limit

_FIRST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.004, 0.04, 1.5
_KEEP = 1.0  # a place in the store's queue outlives so long a silence of its process


class StoredLimit(Gate):
    """The way to permits in a store, and back."""

    __slots__ = ("__weakref__", "_access", "_asking", "_heads", "_seats", "_store", "blocks", "held", "leases")

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        options = limit.options
        self._store: LimitStore = face_of(options.store, "limit")
        self._access = Access(limit, options.store.health, options.when_store_fails)
        self.leases = Leases(limit, self._store, self._access, options.store.lease)
        self._reset()
        after_fork(self, StoredLimit._reset)

    def _reset(self) -> None:
        """Nobody of this process waits or holds."""
        options = self._limit.options
        room = _room(options.max_queue)
        self._seats: Pool | KeyedPools = Pool(1, room) if options.key is None else KeyedPools(1, room)
        if self._limit.local_pools.closed:  # before a reload, or in the parent process
            self._seats.close()
        self._heads: dict[Pool, ThreadWaiter | TaskWaiter] = {}
        self._asking: dict[Pool, float] = {}  # since when the one who has the seat waits
        self.held = 0
        self.blocks: list[Pool] = []  # loans of ``with`` blocks: one may be left where its context cannot be seen

    @property
    def size(self) -> int:
        """Permits there are, as this process knows it."""
        return self._limit.local_pools.limit

    def loan(self, key: Key, weight: int) -> Loan:
        """What a call is going to hold; `Loan.depart` has to follow."""
        seats = self._seats
        return Loan(self, key, weight, seats if isinstance(seats, Pool) else seats.enter(key))

    def enter(self, call: Call, pool: Any, weight: int, priority: int, max_wait: float) -> float:
        """Borrow permits, blocking this thread at most `max_wait` seconds; gives the seconds waited.

        Raises LimitFull, StoreError, Deadlock, DeadlineExceeded, Cancelled.
        """
        loan, since = cast("Loan", pool), clock.monotonic()
        pledge = self._pledge(loan)
        if not loan.seat.held and not loan.seat.closed:
            reply = self._access.ask(call, self._borrow, call, loan, pledge, 0.0)
            if reply is None or isinstance(reply, Granted):
                return 0.0 if reply is not None else self._do_without(call, loan, priority, max_wait)
        during = self._before_waiting(call, loan.seat, max_wait)
        waiters.refuse_on_loop_thread(f"waiting for limit {self._limit.label!r}", self._limit.label)
        self._tell_in_line(call, loan.seat)
        super().enter(call, loan.seat, 1, priority, max_wait)
        reply = None
        try:
            self._asking[loan.seat] = since
            for pause in _pauses():
                self._refuse_if_closed(call, loan, since)
                reply = self._access.ask(call, self._borrow, call, loan, pledge, _KEEP)
                if reply is None or isinstance(reply, Granted):
                    break
                waiter = ThreadWaiter()
                until = self._next_question(call, loan, reply, pause, since, max_wait)
                self._heads[loan.seat] = waiter
                waiters.wait(call, waiter, until, during)
        except BaseException as error:
            self._gave_up(call, loan, pledge, error, since)
            raise
        finally:
            self._leave_seat(loan.seat)
        return clock.monotonic() - since if reply else self._do_without(call, loan, priority, max_wait)

    async def enter_async(self, call: Call, pool: Any, weight: int, priority: int, max_wait: float) -> float:
        """Like `enter`, suspending the running task."""
        loan, since = cast("Loan", pool), clock.monotonic()
        pledge = self._pledge(loan)
        if not loan.seat.held and not loan.seat.closed:
            reply = await self._ask_once(call, loan, pledge)
            if reply is None or isinstance(reply, Granted):
                return 0.0 if reply is not None else await self._do_without_async(call, loan, priority, max_wait)
        during = self._before_waiting(call, loan.seat, max_wait)
        self._tell_in_line(call, loan.seat)
        await super().enter_async(call, loan.seat, 1, priority, max_wait)
        reply = None
        try:
            self._asking[loan.seat] = since
            for pause in _pauses():
                self._refuse_if_closed(call, loan, since)
                reply = await self._access.ask_async(call, self._borrow_async, call, loan, pledge, _KEEP)
                if reply is None or isinstance(reply, Granted):
                    break
                waiter = TaskWaiter()
                until = self._next_question(call, loan, reply, pause, since, max_wait)
                self._heads[loan.seat] = waiter
                await waiters.wait_async(call, waiter, until, during)
        except BaseException as error:
            self._gave_up(call, loan, pledge, error, since)
            raise
        finally:
            self._leave_seat(loan.seat)
        return clock.monotonic() - since if reply else await self._do_without_async(call, loan, priority, max_wait)

    async def _ask_once(self, call: Call, loan: Loan, pledge: Pledge) -> Granted | Full | None:
        try:
            return await self._access.ask_async(call, self._borrow_async, call, loan, pledge, 0.0)
        except BaseException:
            self._withdraw(pledge)  # it may have been granted all the same
            raise

    def _pledge(self, loan: Loan) -> Pledge:
        name = cast("str", self._limit.name)
        key = "" if loan.key is None else digest(name, loan.key)[:32]
        return Pledge(new_owner(), (name, key), loan.weight, self.size, self.leases.length)

    def _borrow(self, call: Call, loan: Loan, pledge: Pledge, keep: float) -> Granted | Full:
        """Ask the store, and begin to renew what it gives; where that cannot be, it is as if the store had failed."""
        reply = self._store.acquire(pledge, keep)
        self.held = reply.held
        if isinstance(reply, Granted):
            try:
                loan.lease = self.leases.begin(call, pledge)
            except BaseException:
                self._store.release(pledge)
                raise
        return reply

    async def _borrow_async(self, call: Call, loan: Loan, pledge: Pledge, keep: float) -> Granted | Full:
        """The same for the running task."""
        reply = await self._store.acquire_async(pledge, keep)
        self.held = reply.held
        if isinstance(reply, Granted):
            try:
                loan.lease = self.leases.begin(call, pledge)
            except BaseException:
                await self._store.release_async(pledge)
                raise
        return reply

    def _refuse_if_closed(self, call: Call, loan: Loan, since: float) -> None:
        if loan.seat.closed:
            raise self._full(call, loan.seat, "closed", clock.monotonic() - since)

    def _next_question(
        self, call: Call, loan: Loan, reply: Granted | Full, pause: float, since: float, max_wait: float
    ) -> float:
        """When to ask the store again. Raises LimitFull when that would be too late."""
        now = clock.monotonic()
        if now - since >= max_wait:
            raise self._full(call, loan.seat, "timeout", now - since)
        if isinstance(reply, Full) and reply.frees is not None:
            pause = min(pause, reply.frees)
        return min(now + pause, since + max_wait)

    def _before_waiting(self, call: Call, pool: Pool, max_wait: float) -> str:
        if self._limit.options.max_queue == 0:
            raise self._full(call, pool, "closed" if pool.closed else "queue_full", 0.0)
        if max_wait > 0 and not pool.closed and borrows_from(call, pool):
            label = self._limit.label
            raise Deadlock(
                f"limit {label!r} is taken again inside itself with no permit free, so the wait might never end; "
                "take it once, further out, or give it more permits than it is nested",
                policy=label,
            )
        if pool.max_queue == 0 and not pool.held:  # there is room for the one that takes the seat
            pool.allow(1)
            try:
                return super()._before_waiting(call, pool, max_wait)
            finally:
                pool.allow(0)
        return super()._before_waiting(call, pool, max_wait)

    def _tell_queued(self, call: Call, pool: Pool) -> None:
        if not self._is_seat(pool):  # else it is told already
            super()._tell_queued(call, pool)

    def _tell_in_line(self, call: Call, seat: Pool) -> None:
        """A call is about to line up for the seat."""
        if bus.threshold <= INFO:
            active, queued, limit = self._figures(seat)
            bus.emit("limit.queued", call, self._limit, active=active, queued=queued + 1, limit=limit)

    def _figures(self, pool: Pool) -> tuple[int, int, int]:
        if not self._is_seat(pool):
            return super()._figures(pool)
        return self.held, len(pool.queue) + pool.held, self.size  # who has the seat waits, too

    def _is_seat(self, pool: Pool) -> bool:
        return pool is self._seats or pool.home is self._seats

    def _leave_seat(self, seat: Pool) -> None:
        self._heads.pop(seat, None)
        self._asking.pop(seat, None)
        seat.give_back(1)

    def _gave_up(self, call: Call, loan: Loan, pledge: Pledge, error: BaseException, since: float) -> None:
        self._withdraw(pledge)
        self._tell_cut(call, loan.seat, error, clock.monotonic() - since)

    def _withdraw(self, pledge: Pledge) -> None:
        """Have the store forget a caller that does not wait any more, and take back what it may have been granted."""

        def release() -> bool:
            self._access.tell(self._store.release, pledge)
            return False

        upkeep.beside(0.0, release)

    # Doing without the store

    def _do_without(self, call: Call, loan: Loan, priority: int, max_wait: float) -> float:
        if self._access.mode == "open":
            return 0.0
        loan.local = self._local_pool(loan.key)
        return super().enter(call, loan.local, loan.weight, priority, max_wait)

    async def _do_without_async(self, call: Call, loan: Loan, priority: int, max_wait: float) -> float:
        if self._access.mode == "open":
            return 0.0
        loan.local = self._local_pool(loan.key)
        return await super().enter_async(call, loan.local, loan.weight, priority, max_wait)

    def _local_pool(self, key: Key) -> Pool:
        pools = self._limit.local_pools
        return pools if isinstance(pools, Pool) else pools.enter(key)

    # The way back

    def release(self, seat: Pool, lease: Lease) -> None:
        """End a lease, and let the first that waits here ask at once."""
        self.leases.end(lease)
        if not lease.lost:
            self._access.tell(self._store.release, lease.pledge)
            self._wake_head(seat)

    async def release_async(self, seat: Pool, lease: Lease) -> None:
        """The same for the running task."""
        self.leases.end(lease)
        if not lease.lost:
            try:
                await self._access.tell_async(self._store.release_async, lease.pledge)
            except BaseException:
                self._withdraw(lease.pledge)
                raise
            self._wake_head(seat)

    def forget_block(self, loan: Pool) -> None:
        """A block is left; it may be a parent process's."""
        with suppress(ValueError):
            self.blocks.remove(loan)

    def leave_any_block(self) -> None:
        """A block was left, nobody knows which: end the latest."""
        if self.blocks:
            loan = cast("Loan", self.blocks.pop())
            loan.give_back(loan.weight)

    def release_aside(self, seat: Pool, lease: Lease) -> None:
        """The same, beside the calls."""

        def release() -> bool:
            self.release(seat, lease)
            return False

        upkeep.beside(0.0, release)

    def _wake_head(self, seat: Pool) -> None:
        head = self._heads.pop(seat, None)
        if head is not None:
            head.wake()

    # What a limit does

    def async_shell(self, needs: Needs, is_stream: bool, proceed: AsyncNext) -> AsyncNext:
        """A coroutine function goes on when its permits are back in the store."""
        return _async_shell(self._limit, self, needs, is_stream, proceed)

    def allow(self, max_queue: int | None) -> None:
        """Set how many of this process may wait from now on."""
        self._seats.allow(_room(max_queue))

    def close(self) -> None:
        """Refuse new calls of this process, and those that wait."""
        self._seats.close()
        for seat in tuple(self._heads):
            self._wake_head(seat)

    def snapshot(self, now: float) -> LimitSnapshot:
        """What this process holds, and who waits here."""
        seats = self._seats.snapshot(now)
        oldest = max(seats.oldest_wait, now - min(tuple(self._asking.values()), default=now))
        return LimitSnapshot(self.size, self.leases.permits, seats.queued + seats.held, oldest, seats.keys)


def _room(max_queue: int | None) -> int | None:
    """How many may wait for the seat: the one who has it waits too."""
    return None if max_queue is None else max(0, max_queue - 1)


def _pauses() -> Any:
    """Seconds between questions of the first in line: short ones first, jittered so that processes do not march."""
    pause = _FIRST_PAUSE
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(_LONGEST_PAUSE, pause * _GROWTH)


def _async_shell(limit: Limit, gate: StoredLimit, needs: Needs, is_stream: bool, proceed: AsyncNext) -> AsyncNext:
    async def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        weight = needs.weight(fn, args, kwargs)
        loan = cast("Loan", limit.pool_for(None if needs.key is None else needs.key(fn, args, kwargs), weight))
        try:
            waited = await gate.enter_async(call, loan, weight, needs.priority(fn, args, kwargs), limit.max_wait)
        except BaseException:
            loan.depart()
            raise
        node = call.held = [loan, call.held]
        try:
            limit.tell_acquired(call, cast("Pool", loan), waited)
            result = await proceed(call, fn, args, kwargs)
        except GeneratorExit:  # torn down: nothing can be awaited any more
            _let_go(call, node, loan)
            raise
        except BaseException:
            _forget(call, node)
            await loan.give_back_async()
            loan.depart()
            raise
        if is_stream and call.stream is not None:
            call.stream.exits.append(lambda ended: _let_go(call, node, loan))
            return result
        _forget(call, node)
        await loan.give_back_async()
        loan.depart()
        return result

    return shell


def _forget(call: Call, node: list[Any]) -> None:
    node[0] = None  # also for forks of the call that outlive it
    if call.held is node:
        call.held = node[1]


def _let_go(call: Call, node: list[Any], loan: Loan) -> None:
    _forget(call, node)
    loan.give_back(loan.weight)
    loan.depart()
