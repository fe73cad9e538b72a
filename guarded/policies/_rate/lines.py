"""All keys of a rate under one lock, on one timeline.

The timeline is the monotonic clock, but never goes back: when the clock does, no time passes until it goes on. A key's
line is made at its first call and dropped when it would decide like a new one: each new key, and every eighth decision
about a known one, looks at another key in turn, so that the number of lines follows the keys in use. Nanoseconds of the
timeline, seconds where a caller sees them; what is handed out in seconds is rounded up, since a moment too early is too
early.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from guarded._core import clock
from guarded._core.keys import Key
from guarded._core.monitor import Monitor, entered_again
from guarded._core.waiters import TaskWaiter, ThreadWaiter
from guarded.policies._rate.advance import Advance
from guarded.policies._rate.core import Mark, Meter
from guarded.policies._rate.meters import ALIGNMENT
from guarded.policies._rate.queue import NEVER, Floor, Line, Ticket

NS = 1_000_000_000
_LOOK_EVERY: Final = 8  # decisions; a look goes to memory that nobody has used for long
_MICROSECOND = 1_000


class Refusal(NamedTuple):
    """Why a caller may not wait: when it would be admitted, in seconds from now, and how many wait already."""

    retry_after: float
    queued: int


class Standing(NamedTuple):
    """What a newcomer would meet: units free, seconds until it would be admitted, and how many wait."""

    free: int
    delay: float
    queued: int


class Lines(Monitor):
    """The state of one rate.

    Args:
        make: gives a fresh meter.
        keyed: whether there is a line for each key, or one only.

    Attributes:
        take: ``(key, cost)``: admit at once, giving the mark, or change nothing and give None.
    """

    __slots__ = (
        "_advance", "_anchor", "_floor", "_found", "_keyed", "_last", "_lines", "_make", "_ring", "_single", "_skew",
        "take",
    )  # fmt: skip

    def __init__(self, make: Callable[[Callable[[], int]], Meter], *, keyed: bool) -> None:
        super().__init__()
        self._make = make
        self._keyed = keyed
        self._skew = 0
        self._last = 0
        self._anchor = 0  # what the wall clock says at time 0 of the timeline
        self._floor = Floor()
        self._lines: dict[Key, Line] = {}
        self._ring: deque[Key] = deque()  # every key once, in the order in which they are looked at
        self._found = 0  # decisions about keys that were known
        self._single = self._new_line()
        self._advance = Advance(self._single.meter)
        self.take = self._make_take()

    def _make_take(self) -> Callable[[Key, int], Mark | None]:
        if self._keyed:
            return self._take_keyed
        return self._take_with_passes() if self._single.meter.timed else self._quick_take()

    def _take_keyed(self, key: Key, cost: int) -> Mark | None:
        with self, self._lock:
            now = self._now()
            return self._line(key, now).take(now, cost)

    def _take_with_passes(self) -> Callable[[Key, int], Mark | None]:
        """`take` without keys, for meters that allow it: without the lock while there are passes."""
        pop, note = self._advance.passes.pop, self._advance.times.append

        def take(key: Key, cost: int) -> Mark | None:
            if cost == 1:
                try:
                    pop()
                except IndexError:
                    pass  # what is raised further down must not have this in its context
                else:
                    now = clock.monotonic_ns()
                    note(now)
                    return now
            return self._take_single(cost)

        return take

    def _take_single(self, cost: int) -> Mark | None:
        with self, self._lock:
            now, line = self._now(), self._single
            mark = line.take(now, cost)
            if mark is not None and not line.queue and not self._floor.up and not self._skew:
                self._advance.grant(now)
            return mark

    def _quick_take(self) -> Callable[[Key, int], Mark | None]:
        """`take` without keys for the other meters: nothing to look up, and no call or note that can be spared."""
        lock, owned, line = self._lock, self._owned, self._single
        queue, floor, take_from_meter = line.queue, line.floor, line.meter.take
        outgoing, inbox = self._outgoing, self._inbox

        def take(key: Key, cost: int) -> Mark | None:
            if owned():
                raise entered_again()
            with lock:
                now = self._now()
                mark = line.take(now, cost) if queue or floor.up else take_from_meter(now, cost)
            if outgoing or inbox:
                self._flush()
            return mark

        return take

    def begin(
        self, key: Key, cost: int, waiter: ThreadWaiter | TaskWaiter | None, patience: float, until: float
    ) -> Ticket | Refusal:
        """Admit at once (the ticket is `done`), queue a ticket, or refuse.

        Args:
            key: whose budget.
            cost: units.
            waiter: what the caller will sleep on; None when it does not.
            patience: seconds it would wait.
            until: its deadline, in seconds of the monotonic clock.
        """
        ticket: Ticket | None = None
        try:
            with self, self._lock:
                now = self._now()
                line = self._line(key, now) if self._keyed else self._single
                ticket = Ticket(line, cost, waiter)
                return self._place(now, ticket, patience, until)
        except BaseException:  # of a signal handler: nobody would wait with it
            if ticket is not None and (ticket.timer or ticket.queued):
                self.post(ticket)
            raise

    def _place(self, now: int, ticket: Ticket, patience: float, until: float) -> Ticket | Refusal:
        line, cost = ticket.line, ticket.cost
        mark = line.take(now, cost)
        if mark is not None:
            ticket.mark, ticket.at, ticket.done = mark, now, True
            return ticket
        due = line.due(now, cost)
        if until < math.inf:
            ticket.cutoff = int(until * NS) + self._skew
        if patience < math.inf:
            ticket.patience = now + int(patience * NS)
        if due > ticket.patience or due >= ticket.cutoff:
            return Refusal(self._seconds_until(due, now), len(line.queue))
        line.join(now, ticket, due)
        return ticket

    def resume(self, ticket: Ticket, woken: bool) -> Refusal | bool:
        """The caller of `ticket` runs again: let through (True), to wait on with a new waiter (False), or refused.

        Args:
            ticket: its place in the queue.
            woken: whether somebody woke it; else its own timer did.
        """
        with self, self._lock:
            now = self._woken(ticket, woken)
            return True if ticket.line.admit(now, ticket) else self._wait_on(now, ticket)

    def arrive(self, ticket: Ticket, woken: bool) -> Refusal | bool:
        """Like `resume`, for a caller that goes on to a limit first: once due it is booked, but not `done`."""
        with self, self._lock:
            now = self._woken(ticket, woken)
            return True if ticket.line.is_due(now, ticket) else self._wait_on(now, ticket)

    def _woken(self, ticket: Ticket, woken: bool) -> int:
        now = self._now()
        if not woken and now < ticket.timer:
            # The timer knows better than a frozen clock, and than one whose floats are too coarse.
            self._skew += ticket.timer - now
            now = self._last = ticket.timer
        return now

    def _wait_on(self, now: int, ticket: Ticket) -> Refusal | bool:
        due = ticket.line.due_of(now, ticket) if ticket.cutoff < NEVER or self._floor.until > ticket.patience else 0
        if due >= ticket.cutoff or self._floor.until > ticket.patience:
            refusal = Refusal(self._seconds_until(due, now), len(ticket.line.queue) - 1)
            ticket.line.leave(now, ticket)
            return refusal
        ticket.waiter = TaskWaiter() if isinstance(ticket.waiter, TaskWaiter) else ThreadWaiter()
        return False

    def withdraw(self, ticket: Ticket) -> None:
        """Give back what `ticket` is booked for, keeping its place."""
        with self, self._lock:
            ticket.line.withdraw(self._now(), ticket)

    def abandon(self, ticket: Ticket) -> None:
        """The caller of `ticket` will not go on. Safe in finalizers."""
        self.post(ticket)

    def correct(self, key: Key, mark: Mark | None, units: int) -> None:
        """Count `units` more, or fewer, for an admission; `mark` None is the newest of the key.

        Nothing happens with a mark that was given for other windows, before a reload.
        """
        with self, self._lock:
            now = self._now()
            line = self._line(key, now) if self._keyed else self._single
            if mark is None or _may_be_of(line.meter, mark):
                line.correct(now, mark, units)

    def due(self, ticket: Ticket) -> tuple[float, float]:
        """When `ticket` is due: in seconds of the monotonic clock, and from now."""
        with self, self._lock:
            now = self._now()
            ticket.line.settle(now)
            due = ticket.line.due_of(now, ticket)
            return self.until(due), self._seconds_until(due, now) if due > now else 0.0

    def look(self, key: Key, cost: int) -> Standing:
        """What a newcomer would meet; changes nothing."""
        with self, self._lock:
            now = self._now()
            line = (self._lines.get(key) or self._new_line()) if self._keyed else self._single
            due = line.due(now, cost)
            return Standing(line.free(now), self._seconds_until(due, now) if due > now else 0.0, len(line.queue))

    def pause(self, seconds: float) -> None:
        """Let nobody through for `seconds` from now, or until the end of an earlier pause that lasts longer."""
        with self, self._lock:
            now = self._now()
            lines = self._all()
            for line in lines:
                line.settle(now)
            self._floor.until = max(self._floor.until, now + math.ceil(seconds * NS))
            self._floor.up = True
            for line in lines:
                line.changed(now)

    @property
    def paused(self) -> bool:
        """Whether a pause lasts."""
        return clock.monotonic_ns() + self._skew < self._floor.until

    def resize(self, counts: tuple[int, ...], burst: int | None) -> None:
        """Go on with other quotas for the same windows."""
        with self, self._lock:
            now = self._now()
            for line in self._all():
                line.settle(now)
                line.meter.resize(now, counts, burst)
                line.changed(now)

    def forget_callers(self) -> None:
        """A forked child: those who waited, and whoever held the lock, are in the parent."""
        super().__init__()
        for line in self._all():
            line.abandon_all(self._outgoing)
        self.take = self._make_take()

    def totals(self) -> tuple[int, int, float]:
        """Keys known, callers waiting, and seconds left of a pause."""
        with self, self._lock:
            queued = sum([len(line.queue) for line in self._all()])
            return len(self._lines), queued, max(0, self._floor.until - self._now()) / NS

    def until(self, due: int) -> float:
        """A time of the timeline in seconds of the monotonic clock, not too early in any rounding."""
        due -= self._skew
        seconds = due / NS
        while int(seconds * NS) < due:
            seconds = math.nextafter(seconds, math.inf)
        return seconds

    def _seconds_until(self, due: int, now: int) -> float:
        """Seconds from now after which it is `due`, also for clocks that count microseconds or in floats."""
        delay = due - now
        start = (now - self._skew) / 1e9  # as clocks do it, which is not always the nearest float
        seconds = -(-delay // _MICROSECOND) * _MICROSECOND / NS
        while int(seconds * NS) < delay:
            seconds = math.nextafter(seconds, math.inf)
        while round((start + seconds) * NS) < due - self._skew:
            seconds += math.ulp(start)
        return seconds

    def _all(self) -> tuple[Line, ...]:
        return tuple(self._lines.values()) if self._keyed else (self._single,)

    def _now(self) -> int:
        last = self._advance.recall(self._last) if self._advance.open else self._last
        now = clock.monotonic_ns() + self._skew
        if now < last:
            self._skew += last - now
            now = last
        self._last = now
        return now

    def _epoch(self) -> int:
        # One anchor for all windows, and not the noise of each reading, so that their boundaries fall together.
        read = int(clock.wall() * NS) - self._last
        if abs(read - self._anchor) > ALIGNMENT:
            self._anchor = read
        return self._anchor

    def _new_line(self) -> Line:
        return Line(self._make(self._epoch), self._floor, self._outgoing)

    def _line(self, key: Key, now: int) -> Line:
        line = self._lines.get(key)
        if line is None:
            if self._drop_idle(key, now):
                self._drop_idle(key, now)
            line = self._lines[key] = self._new_line()
            self._ring.append(key)
        else:
            self._found += 1
            if not self._found % _LOOK_EVERY:
                self._drop_idle(key, now)
        return line

    def _drop_idle(self, key: Key, now: int) -> bool:
        """Look at one other key in turn, and forget it if it decides like a new one: whether it does."""
        ring = self._ring
        if not ring:
            return False
        oldest = ring[0]
        if oldest == key or not self._lines[oldest].idle(now):
            ring.rotate(-1)
            return False
        del self._lines[oldest]
        ring.popleft()
        return True

    def _handle(self, message: Ticket) -> None:
        message.line.leave(self._now(), message)

    def _carry_out(self, decision: Ticket) -> None:
        """Wake whom a line has named; one whose loop is dead gives up its place."""
        waiter = decision.waiter
        if isinstance(waiter, TaskWaiter):
            if not waiter.wake(on_lost=partial(self.post, decision)):
                self.post(decision)
        elif waiter is not None:
            waiter.wake()


def _may_be_of(meter: Meter, mark: Mark) -> bool:
    newest = meter.newest()
    if isinstance(mark, tuple):
        return isinstance(newest, tuple) and len(mark) == len(newest)
    return meter.timed or not isinstance(newest, tuple)
