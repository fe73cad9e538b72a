"""Getting in: the way to an admission when there is none at once, for threads and for tasks.

`Gate` belongs to one rate. It queues the caller or refuses it at once, sleeps to the due time of its ticket as often
as that moves, and makes what is raised. Waits are seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from guarded._core import waiters
from guarded._core.call import Call
from guarded._core.durations import format_duration
from guarded._core.keys import Key
from guarded._core.waiters import TaskWaiter, ThreadWaiter
from guarded.errors import RateExceeded
from guarded.events.bus import bus
from guarded.events.model import INFO
from guarded.policies._rate.core import Mark
from guarded.policies._rate.lines import Lines, Refusal
from guarded.policies._rate.queue import Ticket
from guarded.policies._turns import MustWait

if TYPE_CHECKING:
    from guarded.policies.rate import Rate

Step = Callable[[Ticket, bool], "Refusal | bool"]


class Gate:
    """The one way into the lines of a rate."""

    __slots__ = ("_rate",)

    def __init__(self, rate: Rate) -> None:
        self._rate = rate

    def enter(self, call: Call, key: Key, cost: int, max_wait: float) -> Mark:
        """Be let through, blocking this thread; gives what was counted.

        Raises RateExceeded, Deadlock, DeadlineExceeded, Cancelled.
        """
        ticket = self.begin(call, key, cost, ThreadWaiter(), max_wait)
        try:
            if not ticket.done:
                self.wait(call, ticket, self._rate.lines.resume)
        except BaseException:
            self._rate.lines.abandon(ticket)
            raise
        return ticket.mark

    async def enter_async(self, call: Call, key: Key, cost: int, max_wait: float) -> Mark:
        """Like `enter`, suspending the running task."""
        ticket = self.begin(call, key, cost, TaskWaiter(), max_wait)
        try:
            if not ticket.done:
                await self.wait_async(call, ticket, self._rate.lines.resume)
        except BaseException:
            self._rate.lines.abandon(ticket)
            raise
        return ticket.mark

    def enter_by_turns(self, call: Call, key: Key, cost: int, max_wait: float) -> Mark:
        """Be let through, or raise MustWait, which brings the call back when it is due (see `_turns`)."""
        return self._enter_or_turn(call, key, cost, max_wait, ThreadWaiter)

    async def enter_by_turns_async(self, call: Call, key: Key, cost: int, max_wait: float) -> Mark:
        """The same for a task."""
        return self._enter_or_turn(call, key, cost, max_wait, TaskWaiter)

    def _enter_or_turn(
        self, call: Call, key: Key, cost: int, max_wait: float, make: type[ThreadWaiter | TaskWaiter]
    ) -> Mark:
        turn: Place | None = call.turn
        if turn is None:
            turn = Place(self, self._rate.lines, call, self.begin(call, key, cost, make(), max_wait))
        else:
            call.turn = None
            verdict = self._rate.lines.resume(turn.ticket, True)
            if isinstance(verdict, Refusal):
                raise self.exceeded(call, verdict)
        if not turn.ticket.done:
            raise MustWait(turn)
        return turn.ticket.mark

    def begin(
        self, call: Call, key: Key, cost: int, waiter: ThreadWaiter | TaskWaiter | None, max_wait: float
    ) -> Ticket:
        """A ticket, `done` or in the queue."""
        ticket: Ticket | Refusal | None = None
        try:
            ticket = self._rate.lines.begin(key, cost, waiter, max_wait, call.until)
            if isinstance(ticket, Refusal):
                raise self.exceeded(call, ticket)
            if not ticket.done and waiter is not None:
                self._before_waiting(call, ticket)
            return ticket
        except BaseException:
            if isinstance(ticket, Ticket):
                self._rate.lines.abandon(ticket)
            raise

    def _before_waiting(self, call: Call, ticket: Ticket) -> None:
        if isinstance(ticket.waiter, ThreadWaiter):
            waiters.refuse_on_loop_thread(f"waiting for rate {self._rate.label!r}", self._rate.label)
        if bus.threshold <= INFO:
            _, delay = self._rate.lines.due(ticket)
            bus.emit("rate.delayed", call, self._rate, delay=delay, queued=len(ticket.line.queue))

    def wait(self, call: Call, ticket: Ticket, step: Step) -> None:
        """Sleep to the due time of `ticket`, as often as it moves, until `step` is content; its owner gives it up."""
        during = f"waiting for rate {self._rate.label!r}"
        verdict: Refusal | bool = False
        while verdict is False:
            until = self._rate.lines.until(ticket.timer)
            woken = waiters.wait_out(call, ticket.waiter, until, during)  # type: ignore[arg-type]
            verdict = step(ticket, woken)
        if isinstance(verdict, Refusal):
            raise self.exceeded(call, verdict)

    async def wait_async(self, call: Call, ticket: Ticket, step: Step) -> None:
        """Like `wait`, for the running task."""
        during = f"waiting for rate {self._rate.label!r}"
        verdict: Refusal | bool = False
        while verdict is False:
            until = self._rate.lines.until(ticket.timer)
            woken = await waiters.wait_out_async(call, ticket.waiter, until, during)  # type: ignore[arg-type]
            verdict = step(ticket, woken)
        if isinstance(verdict, Refusal):
            raise self.exceeded(call, verdict)

    def exceeded(self, call: Call, refusal: Refusal) -> RateExceeded:
        """The error for a call that may not wait, told to the bus."""
        after, queued = refusal
        bus.emit("rate.rejected", call, self._rate, retry_after=after, queued=queued)
        label, options = self._rate.label, self._rate.options
        per_key = " for this key" if options.key is not None else ""
        state = "is paused" if self._rate.lines.paused else f"is used up{per_key}"
        waiting = f", {queued} calls waiting" if queued else ""
        return RateExceeded(
            f"rate {label!r} of {options.spec} ({options.algorithm}) {state}{waiting}: "
            f"admitted again in {format_duration(after)}; call then, or allow a longer wait",
            policy=label,
            retry_after=after,
        )


class Place:
    """A turn of a call under a limit, see `_turns`."""

    __slots__ = ("_call", "_gate", "_lines", "ticket")

    def __init__(self, gate: Gate, lines: Lines, call: Call, ticket: Ticket) -> None:
        self._gate = gate
        self._lines = lines
        self._call = call
        self.ticket = ticket

    def wait(self) -> None:
        self._gate.wait(self._call, self.ticket, self._lines.arrive)

    async def wait_async(self) -> None:
        await self._gate.wait_async(self._call, self.ticket, self._lines.arrive)

    def withdraw(self) -> None:
        self._lines.withdraw(self.ticket)

    def abandon(self) -> None:
        self._lines.abandon(self.ticket)
