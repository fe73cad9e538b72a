"""One key's queue: due times, corrections and pauses, without clock or waiters."""

from __future__ import annotations

from collections import deque

from guarded._core.waiters import ThreadWaiter
from guarded.policies._rate.meters import Sliding
from guarded.policies._rate.queue import Floor, Line, Ticket


def line(count: int, window: int = 10) -> Line:
    """A queue whose quota is used up at 0."""
    made = Line(Sliding(count, window), Floor(), deque())
    assert made.take(0, count) is not None
    return made


def queue_up(made: Line, *costs: int) -> list[Ticket]:
    """Reservations at time 0, in this order."""
    tickets = [Ticket(made, cost, None) for cost in costs]
    for ticket in tickets:
        made.join(0, ticket, made.due(0, ticket.cost))
    return tickets


def test_a_pause_ends_at_its_end() -> None:
    """It holds a nanosecond before, no longer at that time, and does not come back with the clock."""
    floor = Floor()
    floor.until, floor.up = 10, True
    assert [floor.holds(9), floor.holds(10), floor.holds(9)] == [True, False, False]


def test_a_correction_by_one_unit_counts() -> None:
    """One unit more, or one less."""
    made = Line(Sliding(3, 10), Floor(), deque())
    mark = made.take(0, 1)
    made.correct(0, mark, 1)
    assert made.meter.free(0) == 1
    made.correct(0, None, -1)
    assert made.meter.free(0) == 2


def test_the_place_of_one_who_left_goes_to_a_newcomer() -> None:
    """Also where the newcomer costs less, and leaves room beside it for another."""
    made = line(2)
    *_, last = queue_up(made, 2, 2, 2)
    assert made.due(0, 2) == 40
    made.leave(0, last)
    assert made.due(0, 2) == 30
    queue_up(made, 1)
    assert (made.due(0, 1), made.due(0, 2)) == (30, 40)


def test_those_behind_move_up_when_units_come_back() -> None:
    """After a refund the estimates of the whole queue are earlier, not only that of its head."""
    made = line(2)
    first, second, third = queue_up(made, 1, 1, 1)
    assert [made.due_of(0, each) for each in (first, second, third)] == [10, 10, 20]
    made.correct(5, None, -1)
    assert first.mark is not None
    assert [made.due_of(5, each) for each in (second, third)] == [10, 15]


def test_one_who_leaves_an_uneven_queue_moves_the_others_up() -> None:
    """The plan of a queue with several costs is made anew, also after its head has gone."""
    made = line(2)
    _, second, third, fourth = queue_up(made, 2, 2, 1, 2)
    assert [made.due_of(0, each) for each in (second, third, fourth)] == [20, 30, 40]
    made.settle(10)
    made.leave(10, third)
    assert [made.due_of(10, each) for each in (second, fourth)] == [20, 30]


def test_an_abandoned_queue_leaves_no_plan() -> None:
    """Whoever comes next is due as if nobody had waited."""
    made = line(1)
    queue_up(made, 1)
    made.join(0, Ticket(made, 1, ThreadWaiter()), made.due(0, 1))
    assert (made.due(0, 1), made.users) == (30, 1)
    made.abandon_all(deque())
    assert made.users == 0
    assert queue_up(made, 1)[0].queued
    assert made.due(0, 1) == 20


def test_a_late_caller_is_counted_when_it_really_starts() -> None:
    """Its booking moves from its due time to that moment."""
    made = line(1)
    (ticket,) = queue_up(made, 1)
    assert made.admit(15, ticket)
    assert (ticket.at, made.meter.newest()) == (15, 15)


def test_a_pause_keeps_a_late_caller_too() -> None:
    """It was due before, but had not started: it waits again, first in the queue."""
    made = line(1)
    first, second = queue_up(made, 1, 1)
    made.settle(10)
    made.floor.until, made.floor.up = 30, True
    assert not made.admit(15, first)
    assert [made.due_of(15, each) for each in (first, second)] == [30, 40]
    assert made.admit(30, first)


def test_an_emptied_queue_leaves_no_plan() -> None:
    """The one who left needed more units than those who come next."""
    made = line(2)
    (heavy,) = queue_up(made, 2)
    assert made.due(0, 2) == 20
    made.leave(0, heavy)
    queue_up(made, 1)
    assert made.due(0, 1) == 10


def test_a_caller_too_late_for_its_units_waits_again_and_the_plan_with_it() -> None:
    """Those behind are due as the new queue has it: the last one fits in beside the one that came back."""
    made = line(3)
    first, _, third = queue_up(made, 1, 3, 2)
    assert made.due_of(0, third) == 30
    assert not made.admit(22, first)
    assert [made.due_of(22, each) for each in (first, third)] == [30, 30]
