"""One key of a rate: its meter, and who waits for it, in order of arrival.

A waiter has a ticket and sleeps to its own due time, exact for the first and estimated for those behind; when that
turns out too early it sleeps on, and is woken when it comes first. It is counted when its caller goes on, not before,
so that the quota holds for the calls as they really start; until then nobody overtakes it. Only one that has not come
a tenth of a second after its time is counted as if it had, so that those behind need not wait for a loop that is
blocked; when it comes it is counted anew. No clock, no lock, no wake-ups in here: those to wake are put into `wakes`.
Nanoseconds throughout.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from itertools import count
from operator import attrgetter
from typing import Final

from guarded._core.waiters import TaskWaiter, ThreadWaiter
from guarded.policies._rate.core import Mark, Meter

NEVER = 1 << 63  # later than any due time
GRACE: Final = 100_000_000  # how late a caller may come that those behind it wait for

_serial = count(1)
_number = attrgetter("number")


class Floor:
    """The end of a pause: nothing is due before `until`; `up` while that may lie ahead."""

    __slots__ = ("until", "up")

    def __init__(self) -> None:
        self.until: int = 0
        self.up = False

    def holds(self, now: int) -> bool:
        """Whether the pause lasts."""
        self.up = self.up and now < self.until
        return self.up


class Ticket:
    """One caller's place.

    Attributes:
        line: the key it waits for.
        cost: units it needs.
        waiter: what it sleeps on; None for a reservation, whose owner looks after the time itself.
        number: place in the order of arrival.
        queued: whether it still waits for its turn.
        done: whether its caller went on, one way or the other.
        mark: what the meter has booked for it; None while nothing is.
        at: when that was booked.
        early: when it first came before its turn, though its timer had been set for that; 0 if never.
        timer: when its waiter wakes, or was woken.
        cutoff: due times from here on are past the caller's deadline.
        patience: due times after this are more than `max_wait` away.
    """

    __slots__ = (
        "at", "cost", "cutoff", "done", "early", "line", "mark", "number", "patience", "queued", "timer", "waiter",
    )  # fmt: skip

    def __init__(self, line: Line, cost: int, waiter: ThreadWaiter | TaskWaiter | None) -> None:
        self.line: Line = line
        self.cost: int = cost
        self.waiter: ThreadWaiter | TaskWaiter | None = waiter
        self.number: int = next(_serial)
        self.queued: bool = False
        self.done: bool = False
        self.mark: Mark | None = None
        self.at: int = 0
        self.early: int = 0
        self.timer: int = 0
        self.cutoff: int = NEVER
        self.patience: int = NEVER

    @property
    def stranded(self) -> bool:
        """Whether the loop of its task has been closed, so that it can never resume."""
        return isinstance(self.waiter, TaskWaiter) and self.waiter.loop.is_closed()


class Line:
    """The meter of one key and its queue.

    Args:
        meter: what counts.
        floor: shared by all keys of the rate.
        wakes: gets the tickets whose waiters are to be woken.

    Attributes:
        users: callers that wait, or are about to resume; the line has to be kept for them.
    """

    __slots__ = (
        "_even", "_missing", "_plan", "_reserved", "_since", "_slots", "_units",
        "floor", "meter", "queue", "users", "wakes",
    )  # fmt: skip

    def __init__(self, meter: Meter, floor: Floor, wakes: deque[Ticket]) -> None:
        self.meter: Meter = meter
        self.floor: Floor = floor
        self.wakes = wakes
        self.queue: list[Ticket] = []
        self.users = 0
        self._units = 0  # that the queue needs
        self._reserved = 0  # reservations in the queue
        self._missing: dict[Ticket, None] = {}  # booked, since they did not come in time
        self._since = 0  # when the queue was looked at last
        # Where the queue would be if everybody were on time: due times by place, and the meter after the last of them.
        self._slots: deque[int] = deque()
        self._plan: Meter | None = None
        self._even = True  # whether the whole queue has one cost; then the slots stay when somebody leaves

    def take(self, now: int, cost: int) -> Mark | None:
        """Admit a newcomer at once, or change nothing and give None."""
        if self.queue:
            self.settle(now)
            if self.queue:
                if self.free(now) < cost:
                    return None
                self._forget_plan()
        return None if self.floor.holds(now) else self.meter.take(now, cost)

    def free(self, now: int) -> int:
        """Units that are left for newcomers of cost 1 if all who wait start now."""
        return 0 if self.floor.holds(now) else max(0, self.meter.free(now) - self._units)

    def due(self, now: int, cost: int) -> int:
        """When a newcomer would be admitted if nothing else happened."""
        self.settle(now)
        if not self.queue:
            return max(self.meter.earliest(now, cost), self.floor.until)
        if self.free(now) >= cost:
            return now
        if len(self._slots) > len(self.queue) and cost != self.queue[0].cost:
            self._forget_plan()
        self._extend()
        return self._slot(len(self.queue), cost) + self._drift(now)

    def join(self, now: int, ticket: Ticket, due: int) -> None:
        """Queue a newcomer, which is due at `due`."""
        self._since = now
        if ticket.waiter is not None:
            self.users += 1
            ticket.timer = due
        self._enqueue(ticket)

    def admit(self, now: int, ticket: Ticket) -> bool:
        """The caller of `ticket` runs again: let it through, or keep it in the queue with a new `timer`."""
        ticket.timer = now
        self.settle(now)
        if not ticket.queued and (ticket.mark is None or ticket.at < now):
            self._requeue(now, ticket)
        if ticket.queued:
            self._start_or_wait(now, ticket)
        if not ticket.queued:
            self._finish(ticket)
        return ticket.done

    def is_due(self, now: int, ticket: Ticket) -> bool:
        """Whether the turn of `ticket` has come; then it is booked, else it gets a new `timer`."""
        ticket.timer = now
        self.settle(now)
        if ticket.queued:
            self._start_or_wait(now, ticket)
        return not ticket.queued

    def withdraw(self, now: int, ticket: Ticket) -> None:
        """Free what `ticket` is booked for; it keeps its number, and may come back with `admit`."""
        self.settle(now)
        if ticket.queued:
            self._unqueue(ticket)
            if not self._even:
                self._forget_plan()
        elif ticket.mark is not None:
            self._unbook(now, ticket)
            self._forget_plan()
        self.settle(now)
        self._retime(now)

    def leave(self, now: int, ticket: Ticket) -> None:
        """The caller of `ticket` will not go on: those behind move up."""
        if not ticket.done:
            self.withdraw(now, ticket)
            self._finish(ticket)

    def correct(self, now: int, mark: Mark | None, units: int) -> None:
        """Count `units` more for an admission, or fewer if negative; `mark` None is the newest one."""
        self.settle(now)
        mark = self.meter.newest() if mark is None else mark
        if units > 0:
            self.meter.charge(now, mark, units)
        else:
            self.meter.give_back(now, mark, -units)
        self.changed(now)

    def changed(self, now: int) -> None:
        """What the meter or the floor says has changed: let the first waiter know."""
        self._forget_plan()
        self.settle(now)
        self._retime(now)

    def due_of(self, now: int, ticket: Ticket) -> int:
        """When `ticket` is due: exact for the head of the queue, an estimate for the others."""
        return self._due_at(now, self._place(ticket)) if ticket.queued else ticket.at

    def settle(self, now: int) -> None:
        """Book those whose due time has come and who do not come: reservations, and those who are missing."""
        queue = self.queue
        booked = False
        while queue:
            head = queue[0]
            due = self._head_due(self._since)
            if due > now:
                break
            if head.stranded:
                self._unqueue(head)
                self._finish(head)
                self._forget_plan()
                continue
            if head.waiter is not None:
                late = now - head.timer
                if late < 0:
                    self._wake(now, head)
                if late <= GRACE and not self._reserved:  # the owner of a reservation goes when it was told
                    break
                self._missing[head] = None
            self._unqueue(head)
            self._drop_slot()
            head.mark = self.meter.book(due, head.cost)
            head.at = self._since = due
            booked = True
        self._since = now
        if booked:
            self._retime(now)

    def idle(self, now: int) -> bool:
        """Whether it decides like a new one from `now` on, and nobody needs it."""
        return not self.users and not self.queue and self.meter.idle(now)

    def abandon_all(self, wakes: deque[Ticket]) -> None:
        """Forget all who wait, without a word to them."""
        self.wakes = wakes
        self.queue.clear()
        self._missing.clear()
        self.users = self._units = self._reserved = 0
        self._forget_plan()

    def _forget_plan(self) -> None:
        """The slots are no longer where the queue would be; they are made anew when needed."""
        self._plan = None
        self._slots.clear()

    def _finish(self, ticket: Ticket) -> None:
        ticket.done = True
        self.users -= ticket.waiter is not None
        self._missing.pop(ticket, None)

    def _start_or_wait(self, now: int, ticket: Ticket) -> None:
        """Book a queued ticket whose caller is here, if it and all before it could start now; else set its timer."""
        place = self._place(ticket)
        if self._may_start(now, place):
            self._unqueue(ticket)
            self._drop_slot()
            if not self._even:
                self._forget_plan()
            ticket.mark = self.meter.book(now, ticket.cost)
            ticket.at = now
        elif ticket.waiter is not None:
            ticket.timer = self._due_at(now, place)
            if self._first_waiter()[1] is not ticket:
                # It is woken when it is the first; its timer is for the case that those before it never come. Each time
                # it sleeps longer, so that a queue that falls behind its plan is not awake all the time.
                ticket.early = ticket.early or now
                ticket.timer += GRACE + now - ticket.early
        self._retime(now)

    def _may_start(self, now: int, place: int) -> bool:
        if place == 0:
            return self._head_due(now) <= now
        free = 0 if self.floor.holds(now) else self.meter.free(now)
        return free > place and free >= sum([ticket.cost for ticket in self.queue[: place + 1]])

    def _requeue(self, now: int, ticket: Ticket) -> None:
        """Queue a ticket that comes late, as the first of all who have not come either."""
        for missing in [each for each in self._missing if each.number >= ticket.number]:
            self._unbook(now, missing)
        if ticket.mark is not None:
            self._unbook(now, ticket)
        self._enqueue(ticket)
        if not self._even:
            self._forget_plan()

    def _unbook(self, now: int, ticket: Ticket) -> None:
        self._missing.pop(ticket, None)
        self.meter.give_back(now, ticket.mark, ticket.cost)
        ticket.mark = None

    def _place(self, ticket: Ticket) -> int:
        return bisect_left(self.queue, ticket.number, key=_number)

    def _enqueue(self, ticket: Ticket) -> None:
        if self.queue and ticket.cost != self.queue[0].cost:
            self._even = False
        self._units += ticket.cost
        self._reserved += ticket.waiter is None
        ticket.queued = True
        insort(self.queue, ticket, key=_number)  # the last: a signal handler may raise after a call

    def _unqueue(self, ticket: Ticket) -> None:
        del self.queue[self._place(ticket)]
        self._units -= ticket.cost
        self._reserved -= ticket.waiter is None
        ticket.queued = False
        if not self.queue:
            self._forget_plan()
            self._even = True

    def _drop_slot(self) -> None:
        """The next slot is used."""
        if self._slots:
            self._slots.popleft()

    def _wake(self, now: int, ticket: Ticket) -> None:
        ticket.timer = now
        self.wakes.append(ticket)

    def _first_waiter(self) -> tuple[int, Ticket | None]:
        """Who of the queue waits for its turn first, and its place; before it there are reservations only."""
        return next((each for each in enumerate(self.queue) if each[1].waiter is not None), (0, None))

    def _retime(self, now: int) -> None:
        """See that the first waiter of the queue does not sleep past its due time; it does the same for the next."""
        place, ticket = self._first_waiter()
        if ticket is not None and ticket.timer > self._due_at(now, place):
            self._wake(now, ticket)

    def _head_due(self, since: int) -> int:
        return max(self.meter.earliest(since, self.queue[0].cost), self.floor.until)

    def _due_at(self, now: int, place: int) -> int:
        if place == 0:
            return self._head_due(now)
        self._extend()
        return self._slots[place] + self._drift(now)

    def _drift(self, now: int) -> int:
        """How much later the head is than planned, since those before it came late; so will be the others."""
        return max(0, self._head_due(now) - self._slots[0])

    def _extend(self) -> None:
        """Have a slot for everybody in the queue."""
        if self._plan is None:
            self._plan = self.meter.copy()
        while len(self._slots) < len(self.queue):
            place = len(self._slots)
            cost = self.queue[place].cost
            slot = self._slot(place, cost)
            self._plan.book(slot, cost)
            self._slots.append(slot)

    def _slot(self, place: int, cost: int) -> int:
        if place < len(self._slots):
            return self._slots[place]
        assert self._plan is not None
        after = self._slots[-1] if self._slots else self._since
        return max(self._plan.earliest(after, cost), self.floor.until)
