"""One key's queue: due times, corrections and pauses, without clock or waiters."""

from __future__ import annotations

import heapq
from collections import deque
from itertools import pairwise

import pytest

from guarded._core.waiters import ThreadWaiter
from guarded.policies._rate.core import Algorithm
from guarded.policies._rate.meters import Sliding, make_meter
from guarded.policies._rate.queue import GRACE, Floor, Line, Ticket


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


def callers(made: Line, number: int) -> list[Ticket]:
    """Waiting callers of cost 1 that came at time 0."""
    tickets = [Ticket(made, 1, ThreadWaiter()) for _ in range(number)]
    for ticket in tickets:
        made.join(0, ticket, made.due(0, 1))
    return tickets


def serve(made: Line, tickets: list[Ticket], *, late: int, work: int) -> tuple[list[Ticket], list[int], int]:
    """Run callers that each come `late` after their timer, or after they were woken, and one after the other.

    Gives them in the order in which they started, when they did, and how often one of them ran.
    """
    order: list[Ticket] = []
    starts: list[int] = []
    wakes = now = 0
    up = [(ticket.timer + late, ticket.number, ticket) for ticket in tickets]
    heapq.heapify(up)
    while up:
        at, _, ticket = heapq.heappop(up)
        if ticket.done or at < ticket.timer + late:
            continue  # it was woken before its timer, or sleeps on
        now = max(now + work, at)
        wakes += 1
        if made.admit(now, ticket):
            order.append(ticket)
            starts.append(now)
        else:
            heapq.heappush(up, (ticket.timer + late, ticket.number, ticket))
        while made.wakes:
            woken = made.wakes.popleft()
            heapq.heappush(up, (woken.timer + late, woken.number, woken))
    return order, starts, wakes


@pytest.mark.parametrize("algorithm", ["sliding", "gcra", "leaky", "fixed"])
@pytest.mark.parametrize("number", [10, 100, 1000])
@pytest.mark.parametrize("late", [0, 1_000, 60_000, 1_000_000])
def test_a_queue_slower_than_its_rate_is_up_a_few_times_for_each_admission(
    algorithm: Algorithm, number: int, late: int
) -> None:
    """However late its callers come, they go in order, within the quota, and are not all awake all the time."""
    window = 20_000
    made = Line(make_meter(algorithm, ((1, window),), None, lambda: 0), Floor(), deque())
    tickets = callers(made, number)
    order, starts, wakes = serve(made, tickets, late=late, work=5_000)
    assert order == tickets
    assert wakes <= 3.5 * number
    if algorithm != "fixed":
        assert all(later - earlier >= window for earlier, later in pairwise(starts))


def test_one_who_is_missing_does_not_keep_those_behind_for_long() -> None:
    """A tenth of a second after its time it is counted as if it had come; when it comes it is counted anew."""
    made = line(1, 1_000_000)
    missing, second, third = callers(made, 3)
    until = missing.timer + GRACE
    assert not made.admit(until, second)
    assert missing.queued
    assert second.timer == until + GRACE + 1_000_000
    assert made.admit(second.timer, second)
    assert not missing.queued
    assert made.admit(second.timer + 1_000_000, third)
    now = third.at + 1_000_000
    assert made.admit(now, missing)
    assert (missing.at, made.users, made.queue) == (now, 0, [])


def test_one_who_is_missing_does_not_keep_one_that_goes_on_to_a_limit() -> None:
    """It is counted at its own time, so that who asks whether its turn has come is the first then."""
    made = line(1, 10 * GRACE)
    missing, second = callers(made, 2)
    assert missing.timer == 10 * GRACE
    assert made.is_due(20 * GRACE, second)
    assert (missing.at, second.at) == (10 * GRACE, 20 * GRACE)


def test_those_of_a_loop_that_was_blocked_go_in_order() -> None:
    """All of them are late: the first to come goes first, though the later ones were counted at later times."""
    made = Line(Sliding(2, 10 * GRACE), Floor(), deque())
    made.take(0, 2)
    tickets = callers(made, 7)
    now = 35 * GRACE
    made.settle(now)
    assert [ticket.at // GRACE for ticket in tickets] == [10, 10, 20, 20, 30, 30, 0]
    assert [made.admit(now, ticket) for ticket in tickets] == [True, True, False, False, False, False, False]
    order, _, _ = serve(made, tickets[2:], late=0, work=1)
    assert order == tickets[2:]


def test_one_who_is_due_does_not_wait_for_one_who_is_due_too() -> None:
    """They all start in one window, in whatever order they come; a newcomer goes with them where it fits."""
    made = line(3)
    tickets = callers(made, 2)
    assert made.free(10) == 1
    assert made.due(10, 1) == 10
    assert made.admit(10, tickets[1])
    assert made.take(10, 1) is not None
    assert made.take(10, 1) is None
    assert made.admit(10, tickets[0])


def test_a_reservation_keeps_its_time_behind_one_who_is_late() -> None:
    """Its owner goes when it was told, so that the other, who has not come, has lost its own."""
    made = line(1)
    (waiting,) = callers(made, 1)
    reserved = Ticket(made, 1, None)
    made.join(0, reserved, made.due(0, 1))
    assert made.due_of(0, reserved) == 20
    made.settle(20)
    assert (reserved.at, reserved.queued) == (20, False)
    assert not made.admit(21, waiting)
    assert waiting.timer == 30
