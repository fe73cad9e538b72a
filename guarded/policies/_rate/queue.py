"""One key of a rate: its meter, and who waits for it, in order of arrival.

A waiter has a ticket and sleeps to its own due time. A ticket whose due time has come is booked in the meter there and
then, whoever looks first, so that nobody overtakes it; when its caller resumes late, the booking moves to that moment,
or the ticket waits again, so that the quota holds for the calls as they really start. Due times are exact for the head
and estimated for the others: what frees budget wakes the head at most, and whoever is let through wakes those behind
that sleep too long. No clock, no lock, no wake-ups in here: those to wake are put into `wakes`. Nanoseconds throughout.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from itertools import count
from operator import attrgetter

from guarded._core.waiters import TaskWaiter, ThreadWaiter
from guarded.policies._rate.core import Mark, Meter

NEVER = 1 << 63  # later than any due time

_serial = count(1)
_number = attrgetter("number")


class Floor:
    """The end of a pause: nothing is due before `until`; `up` while that may lie ahead."""

    __slots__ = ("until", "up")

    def __init__(self) -> None:
        self.until = 0
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
        queued: whether it still waits for its due time.
        done: whether its caller went on, one way or the other.
        mark: what the meter has booked for it, from its due time on.
        at: when that was booked.
        timer: when its waiter wakes by itself; 0 while it is awake, or about to be.
        cutoff: due times from here on are past the caller's deadline.
        patience: due times after this are more than `max_wait` away.
    """

    __slots__ = ("at", "cost", "cutoff", "done", "line", "mark", "number", "patience", "queued", "timer", "waiter")

    def __init__(self, line: Line, cost: int, waiter: ThreadWaiter | TaskWaiter | None) -> None:
        self.line = line
        self.cost = cost
        self.waiter = waiter
        self.number = next(_serial)
        self.queued = False
        self.done = False
        self.mark: Mark | None = None
        self.at = 0
        self.timer = 0
        self.cutoff = NEVER
        self.patience = NEVER

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

    __slots__ = ("_even", "_plan", "_since", "_slots", "floor", "meter", "queue", "users", "wakes")

    def __init__(self, meter: Meter, floor: Floor, wakes: deque[Ticket]) -> None:
        self.meter = meter
        self.floor = floor
        self.wakes = wakes
        self.queue: list[Ticket] = []
        self.users = 0
        self._since = 0  # when the queue was looked at last; its head was not due then
        # Where the queue would be if everybody were on time: due times by place, and the meter after the last of them.
        self._slots: deque[int] = deque()
        self._plan: Meter | None = None
        self._even = True  # whether the whole queue has one cost; then the slots stay when somebody leaves

    def take(self, now: int, cost: int) -> Mark | None:
        """Admit a newcomer at once, or change nothing and give None."""
        if self.queue:
            self.settle(now)
            if self.queue:
                return None
        return None if self.floor.holds(now) else self.meter.take(now, cost)

    def due(self, now: int, cost: int) -> int:
        """When a newcomer would be admitted if nothing else happened."""
        self.settle(now)
        if not self.queue:
            return max(self.meter.earliest(now, cost), self.floor.until)
        if len(self._slots) > len(self.queue) and cost != self.queue[0].cost:
            self._forget_plan()
        self._extend()
        return self._slot(len(self.queue), cost) + self._drift(now)

    def join(self, now: int, ticket: Ticket, due: int) -> None:
        """Queue a newcomer, which is due at `due`."""
        self._since = now
        self.users += ticket.waiter is not None
        self._enqueue(ticket)
        self._set_timer(ticket, due)

    def admit(self, now: int, ticket: Ticket) -> bool:
        """The caller of `ticket` runs again: let it through, or keep it in the queue with a new `timer`."""
        if not self.is_due(now, ticket):
            return False
        if ticket.mark is None or ticket.at < now:
            self._move(now, ticket)
        if not ticket.queued:
            self._finish(ticket)
            return True
        self._set_timer(ticket, self.due_of(now, ticket))
        self._retime(now)
        return False

    def is_due(self, now: int, ticket: Ticket) -> bool:
        """Whether the due time of `ticket` has come; else it gets a new `timer`."""
        ticket.timer = 0
        self.settle(now)
        if ticket.queued:
            self._set_timer(ticket, self.due_of(now, ticket))
        return not ticket.queued

    def withdraw(self, now: int, ticket: Ticket) -> None:
        """Free what `ticket` is booked for; it keeps its number, and may come back with `admit`."""
        self.settle(now)
        if ticket.queued:
            self._unqueue(ticket)
            if not self._even:
                self._forget_plan()
        elif ticket.mark is not None:
            self.meter.give_back(now, ticket.mark, ticket.cost)
            ticket.mark = None
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
        """What the meter or the floor says has changed: let the head know."""
        self._forget_plan()
        self.settle(now)
        self._retime(now)

    def due_of(self, now: int, ticket: Ticket) -> int:
        """When `ticket` is due: exact for the head of the queue, an estimate for the others."""
        if not ticket.queued:
            return ticket.at
        place = bisect_left(self.queue, ticket.number, key=_number)
        return self._due_at(now, place)

    def settle(self, now: int) -> None:
        """Book all whose due time has come, at that time."""
        queue = self.queue
        booked = False
        while queue:
            head = queue[0]
            due = self._head_due(self._since)
            if due > now:
                break
            self._unqueue(head)
            if self._slots:
                self._slots.popleft()
            booked = True
            if head.stranded:
                self._finish(head)
                self._forget_plan()
                continue
            head.mark = self.meter.book(due, head.cost)
            head.at = self._since = due
            if head.timer > now:
                self._wake(head)
        self._since = now
        if booked:
            self._retime(now)

    def idle(self, now: int) -> bool:
        """Whether it decides like a new one from `now` on, and nobody needs it."""
        return not self.users and not self.queue and self.meter.idle(now)

    def _forget_plan(self) -> None:
        """The slots are no longer where the queue would be; they are made anew when needed."""
        self._plan = None
        self._slots.clear()

    def _finish(self, ticket: Ticket) -> None:
        ticket.done = True
        self.users -= ticket.waiter is not None

    def abandon_all(self, wakes: deque[Ticket]) -> None:
        """Forget all who wait, without a word to them."""
        self.wakes = wakes
        self.queue.clear()
        self.users = 0
        self._forget_plan()

    def _move(self, now: int, ticket: Ticket) -> None:
        """Book `ticket`, which is due but was not booked for this moment, for now; or queue it again."""
        may_pass = ticket.mark is not None or not self.queue or self.queue[0].number > ticket.number
        if ticket.mark is not None:
            self.meter.give_back(now, ticket.mark, ticket.cost)
            ticket.mark = None
        if may_pass and not self.floor.holds(now):
            ticket.mark = self.meter.take(now, ticket.cost)
            ticket.at = now
        if ticket.mark is None:
            self._enqueue(ticket)
            self._forget_plan()
            self.settle(now)  # what was given back may be enough for somebody else

    def _set_timer(self, ticket: Ticket, due: int) -> None:
        if ticket.waiter is not None:
            ticket.timer = due

    def _enqueue(self, ticket: Ticket) -> None:
        if self.queue and ticket.cost != self.queue[0].cost:
            self._even = False
            if len(self._slots) > len(self.queue):
                self._forget_plan()
        insort(self.queue, ticket, key=_number)
        ticket.queued = True

    def _unqueue(self, ticket: Ticket) -> None:
        del self.queue[bisect_left(self.queue, ticket.number, key=_number)]
        ticket.queued = False
        if not self.queue:
            self._forget_plan()
            self._even = True

    def _wake(self, ticket: Ticket) -> None:
        ticket.timer = 0
        self.wakes.append(ticket)

    def _retime(self, now: int) -> None:
        """See that the first waiter of the queue does not sleep past its due time; it does the same for the next."""
        for place, ticket in enumerate(self.queue):
            if ticket.waiter is not None:
                if ticket.timer > self._due_at(now, place):
                    self._wake(ticket)
                return

    def _head_due(self, since: int) -> int:
        return max(self.meter.earliest(since, self.queue[0].cost), self.floor.until)

    def _due_at(self, now: int, place: int) -> int:
        if place == 0:
            return self._head_due(now)
        self._extend()
        return self._slots[place] + self._drift(now)

    def _drift(self, now: int) -> int:
        """How much later the head is than planned, since those before it resumed late; so will be the others."""
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
