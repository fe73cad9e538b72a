"""Getting in: the way to a permit when none is free at once, for threads and for tasks.

`Gate` belongs to one limit and decides in which order things are asked: is a permit there, may this caller wait at
all, is there room in the queue. What it raises when not is made here too. Waits are seconds.
"""

from __future__ import annotations

from asyncio import CancelledError
from typing import TYPE_CHECKING

from guarded._core import clock, waiters
from guarded._core.call import Call, holds
from guarded._core.durations import format_duration
from guarded._core.waiters import TaskWaiter, ThreadWaiter
from guarded.errors import Cancelled, DeadlineExceeded, Deadlock, LimitFull, LimitReason
from guarded.events.bus import bus
from guarded.events.model import INFO
from guarded.policies._limit.queue import CLOSED, TAKEN, Entry

if TYPE_CHECKING:
    from guarded.policies._limit.core import Pool
    from guarded.policies.limit import Limit


class Gate:
    """The one way into the pools of a limit."""

    __slots__ = ("_limit",)

    def __init__(self, limit: Limit) -> None:
        self._limit = limit

    def enter(self, call: Call, pool: Pool, weight: int, priority: int, max_wait: float) -> float:
        """Take permits, blocking this thread at most `max_wait` seconds; gives the seconds waited.

        Raises LimitFull, Deadlock, DeadlineExceeded, Cancelled.
        """
        if (weight == 1 and pool.quick()) or pool.take(weight, priority):
            return 0.0
        during = self._before_waiting(call, pool, max_wait)
        waiters.refuse_on_loop_thread(f"waiting for limit {self._limit.label!r}", self._limit.label)
        waiter = ThreadWaiter()
        entry = Entry(weight, priority, waiter, clock.monotonic())
        try:
            if self._queues(call, pool, entry):
                waiters.wait(call, waiter, entry.since + max_wait, during)
            return self._resumed(call, pool, entry)
        except BaseException as error:
            self._left(call, pool, entry, error)
            raise

    async def enter_async(self, call: Call, pool: Pool, weight: int, priority: int, max_wait: float) -> float:
        """Like `enter`, suspending the running task."""
        if (weight == 1 and pool.quick()) or pool.take(weight, priority):
            return 0.0
        during = self._before_waiting(call, pool, max_wait)
        waiter = TaskWaiter()
        entry = Entry(weight, priority, waiter, clock.monotonic())
        try:
            if self._queues(call, pool, entry):
                await waiters.wait_async(call, waiter, entry.since + max_wait, during)
            return self._resumed(call, pool, entry)
        except BaseException as error:
            self._left(call, pool, entry, error)
            raise

    def _before_waiting(self, call: Call, pool: Pool, max_wait: float) -> str:
        """Refuse what must not, or need not, wait; gives what the wait is for."""
        if pool.closed:
            raise self._full(call, pool, "closed", 0.0)
        if pool.max_queue == 0:
            raise self._full(call, pool, "queue_full", 0.0)
        if max_wait <= 0:
            raise self._full(call, pool, "timeout", 0.0)
        label = self._limit.label
        if holds(call, pool):
            raise Deadlock(
                f"limit {label!r} is taken again inside itself with no permit free, so the wait might never end; "
                "take it once, further out, or give it more permits than it is nested",
                policy=label,
            )
        during = f"queued for limit {label!r}"
        waiters.refuse_in_vain(call, during)
        if call.turn is not None:
            call.turn.withdraw()  # nobody holds a rate while waiting for a limit
        return during

    def _queues(self, call: Call, pool: Pool, entry: Entry) -> bool:
        """Stand in the queue; False when a permit was free after all."""
        reason = pool.join(entry)
        if reason is not None:
            raise self._full(call, pool, reason, 0.0)
        if entry.state is TAKEN:
            return False
        if bus.threshold <= INFO:
            self._tell_queued(call, pool)
        return True

    def _figures(self, pool: Pool) -> tuple[int, int, int]:
        """Permits held, calls queued, and permits there are."""
        return pool.held, len(pool.queue), pool.limit

    def _tell_queued(self, call: Call, pool: Pool) -> None:
        active, queued, limit = self._figures(pool)
        bus.emit("limit.queued", call, self._limit, active=active, queued=queued, limit=limit)

    def _left(self, call: Call, pool: Pool, entry: Entry, error: BaseException) -> None:
        """The caller does not get in, whether it was handed a permit meanwhile or not."""
        if entry.state is TAKEN:  # a signal handler raised on the way out
            pool.give_back(entry.weight)
        else:
            pool.abandon(entry)
        self._tell_cut(call, pool, error, _since(entry))

    def _tell_cut(self, call: Call, pool: Pool, error: BaseException, waited: float) -> None:
        """A wait was cut off, if `error` says so: in a task and in a deadline's worker that is a cancellation too."""
        if isinstance(error, (DeadlineExceeded, Cancelled, CancelledError)):
            late = isinstance(error, DeadlineExceeded) or clock.monotonic() >= call.until
            self._tell_rejected(call, pool, "deadline" if late else "cancelled", waited)

    def _resumed(self, call: Call, pool: Pool, entry: Entry) -> float:
        state = entry.state if entry.state is TAKEN else pool.resume(entry)
        waited = _since(entry)
        if state is not TAKEN:
            raise self._full(call, pool, "closed" if state is CLOSED else "timeout", waited)
        return waited

    def _full(self, call: Call, pool: Pool, reason: LimitReason, waited: float) -> LimitFull:
        label = self._limit.label
        active, queued, limit = self._figures(pool)
        use = f"{active} of {limit} permits held, {queued} calls queued"
        self._tell_rejected(call, pool, reason, waited)
        if reason == "closed":
            message = f"limit {label!r} is closed and takes no calls any more"
        elif reason == "queue_full":
            most = self._limit.options.max_queue
            message = f"limit {label!r} is full ({use}, max_queue={most}); call later or allow a longer queue"
        else:
            message = (
                f"limit {label!r} had no permit free within {format_duration(waited)} ({use}); "
                "call later, allow a longer wait, or raise the limit"
            )
        return LimitFull(message, reason=reason, policy=label)

    def _tell_rejected(self, call: Call, pool: Pool, reason: str, waited: float) -> None:
        active, queued, limit = self._figures(pool)
        bus.emit(
            "limit.rejected",
            call,
            self._limit,
            wait=waited,
            active=active,
            queued=queued,
            limit=limit,
            reason=reason,
            cancelled=True if reason == "cancelled" else None,
        )


def _since(entry: Entry) -> float:
    return max(0.0, clock.monotonic() - entry.since)
