"""The meters and queues of `rate` against brute-force models that know every event ever admitted."""

from __future__ import annotations

import math
import random
from collections import deque
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guarded._core import clock
from guarded._core.virtual import VirtualTime
from guarded._core.waiters import ThreadWaiter
from guarded.policies._rate import queue
from guarded.policies._rate.core import Algorithm, Meter, Quota
from guarded.policies._rate.meters import make_meter
from guarded.policies._rate.queue import Floor, Line, Ticket
from guarded.policies.rate import rate

EPOCH = 1_700_000_000_123_456_789
ALGORITHMS: tuple[Algorithm, ...] = ("sliding", "gcra", "leaky", "fixed")
WINDOWS = st.integers(1, 30)
GRACES = st.sampled_from([0, 1, 7, 10**9])
QUOTAS = st.lists(st.tuples(st.integers(1, 6), WINDOWS), min_size=1, max_size=3, unique_by=lambda quota: quota[1])
STEPS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4)), max_size=40)

Event = tuple[int, int]  # time, cost


def allows_sliding(quota: Quota, events: list[Event], now: int, cost: int) -> bool:
    """By definition: the units of every window of that length stay within the quota."""
    count, window = quota
    recent = sum(units for time, units in events if now - window < time <= now)
    return recent + cost <= count


def allows_bucket(quota: Quota, events: list[Event], now: int, cost: int) -> bool:
    """A bucket of tokens with exact fractions, replayed from the start."""
    count, window = quota
    tokens, last = Fraction(count), 0
    for time, units in events:
        tokens = min(Fraction(count), tokens + Fraction((time - last) * count, window)) - units
        last = time
    return min(Fraction(count), tokens + Fraction((now - last) * count, window)) >= cost


def allows_paced(quota: Quota, events: list[Event], now: int, cost: int) -> bool:
    """A queue that works off one unit in window / count, replayed from the start."""
    count, window = quota
    dry = Fraction(0)
    for time, units in events:
        dry = max(dry, Fraction(time)) + Fraction(units * window, count)
    return now >= dry


def allows_fixed(quota: Quota, events: list[Event], now: int, cost: int) -> bool:
    """The units in the same UTC-aligned window."""
    count, window = quota
    here = (now + EPOCH) // window
    return sum(units for time, units in events if (time + EPOCH) // window == here) + cost <= count


MODELS = {"sliding": allows_sliding, "gcra": allows_bucket, "leaky": allows_paced, "fixed": allows_fixed}


def allows(algorithm: str, quotas: tuple[Quota, ...], events: list[Event], now: int, cost: int) -> bool:
    """All windows at once."""
    return all(MODELS[algorithm](quota, events, now, cost) for quota in quotas)


def meter_of(algorithm: Algorithm, quotas: tuple[Quota, ...], burst: int | None = None) -> Meter:
    """A meter whose timeline is `EPOCH` behind UTC."""
    return make_meter(algorithm, quotas, burst, lambda: EPOCH)


def cap(quotas: tuple[Quota, ...], cost: int) -> int:
    """A cost that is possible."""
    return min(cost, *(count for count, _ in quotas))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(quotas=QUOTAS.map(tuple), steps=STEPS)
def test_decisions_are_those_of_the_model(algorithm: Algorithm, quotas: tuple[Quota, ...], steps: list[Event]) -> None:
    """Each algorithm, with one window or several, admits exactly what its brute-force model admits."""
    meter, events, now = meter_of(algorithm, quotas), [], 0
    for pause, asked in steps:
        now += pause
        cost = cap(quotas, asked)
        expected = allows(algorithm, quotas, events, now, cost)
        assert (meter.take(now, cost) is not None) is expected
        if expected:
            events.append((now, cost))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(quotas=QUOTAS.map(tuple), steps=STEPS)
def test_refused_calls_change_nothing_and_retry_after_is_exact(
    algorithm: Algorithm, quotas: tuple[Quota, ...], steps: list[Event]
) -> None:
    """A refusal leaves the state as it is; the call is admitted at `earliest`, and one nanosecond before it is not."""
    meter, now = meter_of(algorithm, quotas), 0
    for pause, asked in steps:
        now += pause
        cost = cap(quotas, asked)
        before = meter.state(now)
        if meter.take(now, cost) is None:
            assert meter.state(now) == before
            due = meter.earliest(now, cost)
            assert meter.state(now) == before
            assert due > now
            assert meter.copy().take(due - 1, cost) is None
            assert meter.copy().take(due, cost) is not None


@given(quota=st.tuples(st.integers(1, 6), WINDOWS), steps=STEPS)
def test_sliding_never_exceeds_any_window(quota: Quota, steps: list[Event]) -> None:
    """Over the whole history, no window of the length holds more units than the quota, and the log stays small."""
    count, window = quota
    meter, events, now = meter_of("sliding", (quota,)), [], 0
    for pause, asked in steps:
        now += pause
        cost = min(asked, count)
        if meter.take(now, cost) is not None:
            events.append((now, cost))
        assert len(meter.state(now)) <= count
    for start, _ in events:
        assert sum(units for time, units in events if start <= time < start + window) <= count


@given(count=st.integers(1, 7), window=WINDOWS, burst=st.integers(1, 9), steps=st.lists(st.integers(0, 9), max_size=60))
def test_gcra_burst_bounds_every_interval(count: int, window: int, burst: int, steps: list[int]) -> None:
    """In any interval of length t there are at most burst + t x count / window admissions."""
    meter, times, now = meter_of("gcra", ((count, window),), burst), [], 0
    for step in steps:
        now += step
        if meter.take(now, 1) is not None:
            times.append(now)
    for first, start in enumerate(times):
        for last in range(first, len(times)):
            assert last - first + 1 <= burst + Fraction((times[last] - start) * count, window)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(quotas=QUOTAS.map(tuple), steps=STEPS, idle=st.integers(2**60, 2**70))
def test_long_idling_makes_it_new(
    algorithm: Algorithm, quotas: tuple[Quota, ...], steps: list[Event], idle: int
) -> None:
    """After centuries without a call it decides like a fresh meter: nothing has overflowed or drifted."""
    meter, now = meter_of(algorithm, quotas), 0
    for pause, asked in steps:
        now += pause
        meter.take(now, cap(quotas, asked))
    now += idle
    assert meter.idle(now)
    fresh = meter_of(algorithm, quotas)
    for pause, asked in steps:
        now += pause
        cost = cap(quotas, asked)
        assert meter.earliest(now, cost) == fresh.earliest(now, cost)
        assert (meter.take(now, cost) is None) is (fresh.take(now, cost) is None)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(quotas=QUOTAS.map(tuple), steps=STEPS, later=st.integers(0, 5))
def test_giving_back_never_admits_too_much(
    algorithm: Algorithm, quotas: tuple[Quota, ...], steps: list[Event], later: int
) -> None:
    """With every third admission given back after a while, what remains still fits the model without those calls."""
    meter, events, now = meter_of(algorithm, quotas), [], 0
    pending: list[tuple[int, Any, Event]] = []
    for number, (pause, asked) in enumerate(steps):
        now += pause
        for entry in [entry for entry in pending if entry[0] <= now]:
            pending.remove(entry)
            meter.give_back(now, entry[1], entry[2][1])
            events.remove(entry[2])
        cost = cap(quotas, asked)
        mark = meter.take(now, cost)
        if mark is not None:
            assert allows(algorithm, quotas, events, now, cost)
            events.append((now, cost))
            if number % 3 == 0:
                pending.append((now + later, mark, (now, cost)))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(quotas=QUOTAS.map(tuple), steps=STEPS)
def test_given_back_at_once_leaves_no_trace(
    algorithm: Algorithm, quotas: tuple[Quota, ...], steps: list[Event]
) -> None:
    """An admission given back in the same nanosecond leaves the state from before; so does settling it up and down."""
    meter, now = meter_of(algorithm, quotas), 0
    for pause, asked in steps:
        now += pause
        cost = cap(quotas, asked)
        before = meter.state(now)
        mark = meter.take(now, cost)
        if mark is not None:
            meter.charge(now, mark, 3)
            meter.give_back(now, meter.newest(), 3)
            meter.give_back(now, mark, cost)
            assert meter.state(now) == before
            meter.book(now, cost)


def waiting_line(algorithm: Algorithm, quotas: tuple[Quota, ...]) -> Line:
    """A line without callers."""
    return Line(meter_of(algorithm, quotas), Floor(), deque())


def simulate(algorithm: str, quotas: tuple[Quota, ...], arrivals: list[Event]) -> list[int]:
    """When each of those who wait in order of arrival is admitted, by trying every nanosecond."""
    events: list[Event] = []
    dues, at = [], 0
    for arrival, cost in arrivals:
        at = max(at, arrival)
        while not allows(algorithm, quotas, events, at, cost):
            at += 1
        events.append((at, cost))
        dues.append(at)
    return dues


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(deadline=None)
@given(
    quotas=QUOTAS.map(tuple),
    steps=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), max_size=12),
    gone=st.sets(st.integers(0, 11), max_size=4),
)
def test_due_times_are_those_of_a_first_come_first_served_queue(
    algorithm: Algorithm, quotas: tuple[Quota, ...], steps: list[Event], gone: set[int]
) -> None:
    """Newcomers are promised the due time a full simulation gives; when some leave, the others move up to theirs."""
    line, now, arrivals, tickets = waiting_line(algorithm, quotas), 0, [], []
    for pause, asked in steps:
        now += pause
        cost = cap(quotas, asked)
        arrivals.append((now, cost))
        due = line.due(now, cost)
        assert due == simulate(algorithm, quotas, arrivals)[-1]
        ticket = Ticket(line, cost, None)
        line.join(now, ticket, due)
        tickets.append(ticket)
    line.settle(now)
    leaving = [number for number in sorted(gone) if number < len(tickets) and tickets[number].queued]
    for number in leaving:
        line.leave(now, tickets[number])
    staying = [number for number in range(len(tickets)) if number not in leaving]
    last = max([now, *(ticket.at for ticket in tickets if not ticket.queued)])
    fixed = [(tickets[number].at, arrivals[number][1]) for number in staying if not tickets[number].queued]
    moved = [(last, arrivals[number][1]) for number in staying if tickets[number].queued]
    expected = simulate(algorithm, quotas, fixed + moved)[len(fixed) :]
    queued = [tickets[number] for number in staying if tickets[number].queued]
    assert [line.due_of(now, ticket) for ticket in queued] == expected
    for ticket, due in zip(queued, expected, strict=True):
        line.settle(due)
        assert not ticket.queued
        assert ticket.at == due


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(deadline=None)
@given(
    quotas=QUOTAS.map(tuple),
    costs=st.lists(st.integers(1, 3), min_size=1, max_size=10),
    delays=st.lists(st.integers(0, 70), min_size=10, max_size=10),
    grace=GRACES,
)
def test_late_callers_never_start_too_much(
    algorithm: Algorithm, waits: bool, quotas: tuple[Quota, ...], costs: list[int], delays: list[int], grace: int
) -> None:
    """However late callers resume after their due time, what starts when it starts fits the model."""
    with patch.object(queue, "GRACE", grace):
        check_late_callers(algorithm, waits, quotas, costs, delays)


def check_late_callers(
    algorithm: Algorithm, waits: bool, quotas: tuple[Quota, ...], costs: list[int], delays: list[int]
) -> None:
    """Each is let through in the end, and one that is not gets a later due time."""
    line, events = waiting_line(algorithm, quotas), []
    waiting = []
    for asked in costs:
        ticket = Ticket(line, cap(quotas, asked), ThreadWaiter() if waits else None)
        line.join(0, ticket, line.due(0, ticket.cost))
        waiting.append(ticket)
    resumes = [(line.due_of(0, ticket) + delay, ticket) for ticket, delay in zip(waiting, delays, strict=False)]
    while resumes:
        now, ticket = min(resumes, key=lambda entry: (entry[0], entry[1].number))
        resumes.remove((now, ticket))
        if line.admit(now, ticket):
            assert allows(algorithm, quotas, events, now, ticket.cost)
            events.append((now, ticket.cost))
        else:
            due = max(line.due_of(now, ticket), ticket.timer)
            assert due > now
            resumes.append((due, ticket))
    assert len(events) == len(waiting)


OPERATIONS = ("take", "join", "join", "join", "reserve", "resume", "resume", "resume", "leave", "withdraw", "pause")


def check_mixed_traffic(
    algorithm: Algorithm, quotas: tuple[Quota, ...], operations: list[tuple[int, str, int]]
) -> None:
    """What starts fits the model, and whoever is the first to wait does not sleep past its due time."""
    line, events, now = waiting_line(algorithm, quotas), [], 0
    asleep: list[Ticket] = []
    reserved: list[Ticket] = []
    for pause, operation, asked in operations:
        now += pause
        cost = cap(quotas, asked)
        if operation == "take":
            if line.take(now, cost) is not None:
                assert now >= line.floor.until
                events.append((now, cost))
        elif operation in ("join", "reserve"):
            due = line.due(now, cost)
            ticket = Ticket(line, cost, ThreadWaiter() if operation == "join" else None)
            line.join(now, ticket, due)
            (asleep if operation == "join" else reserved).append(ticket)
        elif operation == "pause":
            line.settle(now)
            line.floor.until, line.floor.up = max(line.floor.until, now + asked), True
            line.changed(now)
        elif asleep:
            ticket = asleep.pop(asked % len(asleep))
            if operation == "leave":
                line.leave(now, ticket)
            elif operation == "withdraw":
                line.withdraw(now, ticket)
                asleep.append(ticket)
            elif line.admit(now, ticket):
                events.append((now, ticket.cost))
            else:
                asleep.append(ticket)
        line.settle(now)
        started = events + [(ticket.at, ticket.cost) for ticket in reserved if not ticket.queued]
        for number, (time, units) in enumerate(sorted(started)):
            assert allows(algorithm, quotas, sorted(started)[:number], time, units)
        first = next((ticket for ticket in line.queue if ticket.waiter is not None), None)
        if first is not None:
            assert first.timer <= line.due_of(now, first)
    assert line.users == len(asleep)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(deadline=None)
@given(
    quotas=QUOTAS.map(tuple),
    operations=st.lists(st.tuples(st.integers(0, 8), st.sampled_from(OPERATIONS), st.integers(1, 3)), max_size=50),
    grace=GRACES,
)
def test_mixed_traffic_keeps_the_quota(
    algorithm: Algorithm, quotas: tuple[Quota, ...], operations: list[tuple[int, str, int]], grace: int
) -> None:
    """Newcomers, late waiters, reservations, leavers and pauses in any order."""
    with patch.object(queue, "GRACE", grace):
        check_mixed_traffic(algorithm, quotas, operations)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("seed", range(5))
def test_long_mixed_traffic_keeps_the_quota(algorithm: Algorithm, seed: int) -> None:
    """The same with long sequences, where places are lost and won again several times."""
    for number in range(40):
        chance = random.Random(40 * seed + number)
        counts = {chance.randint(1, 30): chance.randint(1, 6) for _ in range(chance.randint(1, 3))}
        steps, costs = (0, 0, 0, 1, 2, 5, 8, 20), (1, 1, 1, 2, 3) if number % 2 else (1,)
        operations = [
            (chance.choice(steps), chance.choice(OPERATIONS), chance.choice(costs))
            for _ in range(chance.randint(5, 60))
        ]
        with patch.object(queue, "GRACE", chance.choice((0, 1, 7, 10**9))):
            check_mixed_traffic(algorithm, tuple((count, window) for window, count in counts.items()), operations)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(
    quotas=st.lists(
        st.tuples(st.integers(1, 5), st.integers(1, 10**11)), min_size=1, max_size=2, unique_by=lambda quota: quota[1]
    ),
    start=st.floats(0, 2e9),
    moves=st.lists(st.floats(0, 100), max_size=12),
)
def test_retry_after_law_in_float_seconds(
    algorithm: Algorithm, quotas: list[Quota], start: float, moves: list[float]
) -> None:
    """Refused, then exactly `retry_after` seconds later admitted: by nanoseconds, by float seconds, by microseconds."""
    spec = "; ".join(f"{count}/{window}ns" for count, window in quotas)
    time = VirtualTime(auto=False, start=start)
    previous = clock.install(time)
    try:
        limited = rate(spec, algorithm=algorithm, max_wait=0)
        for move in moves:
            time.advance(move)
            while limited.try_acquire():
                pass
            delay = limited.peek().delay
            now = time.monotonic_ns()
            later = [
                now + int(delay * 1e9),
                round((time.monotonic() + delay) * 1e9),
                now + round(delay * 1e6) * 1000,
            ]
            due = limited.lines._single.due(now, 1)
            assert min(later) >= due
            assert min(later) - due <= 1_000 + 8e9 * math.ulp(time.monotonic() + delay)
            time.advance(delay)
            assert limited.try_acquire()
    finally:
        clock.install(previous)
