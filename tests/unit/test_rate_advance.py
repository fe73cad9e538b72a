"""Units of a rate taken without its lock: counted all the same, by the time they were taken at."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from guarded import rate
from guarded._core import clock
from guarded.policies._rate.advance import Advance
from guarded.policies._rate.core import Joint
from guarded.policies._rate.meters import Sliding
from guarded.testing import VirtualTime, virtual_time


@pytest.fixture
def still() -> Iterator[VirtualTime]:
    """Virtual time that moves by hand only."""
    with virtual_time(auto=False) as time:
        yield time


def taking(advance: Advance, now: int) -> None:
    """Take a pass as a caller does."""
    advance.passes.pop()
    advance.times.append(now)


def test_passes_grow_with_use_and_never_beyond_what_is_free() -> None:
    """One at first, then about twice as many as were used, as far as there are units."""
    advance, made = Advance(Sliding(100, 1_000)), []
    for _ in range(6):
        advance.grant(0)
        made.append(len(advance.passes))
        while advance.passes:
            taking(advance, 1)
        assert advance.recall(0) == 1
    assert made == [1, 3, 7, 15, 31, 43]


def test_unused_passes_count_nothing_and_make_fewer_of_the_next() -> None:
    """What is taken back was never used."""
    meter = Sliding(100, 1_000)
    advance = Advance(meter)
    for _ in range(5):
        advance.grant(0)
        while advance.passes:
            taking(advance, 1)
        advance.recall(0)
    used = 100 - meter.free(1)
    advance.grant(1)
    taking(advance, 2)
    advance.recall(1)
    assert not advance.passes
    assert not advance.open
    assert meter.free(2) == 100 - used - 1
    advance.grant(2)
    assert len(advance.passes) == 3


def test_a_caller_between_its_pass_and_its_time_is_counted_once() -> None:
    """From the moment it is missed on, and by its own time when that is there."""
    meter = Sliding(3, 1_000)
    advance = Advance(meter)
    advance.grant(10)
    advance.passes.pop()
    advance.recall(10)
    assert advance.open
    assert meter.free(10) == 2
    advance.recall(12)
    assert meter.free(12) == 2
    advance.times.append(14)
    assert advance.recall(12) == 14
    assert not advance.open
    assert meter.free(14) == 2
    assert meter.state(14) == ((14, 1),)


def test_no_time_passes_where_the_clock_goes_back() -> None:
    """A time before an earlier one, or before what the lock has seen, counts as that."""
    meter = Sliding(10, 1_000)
    advance = Advance(meter)
    for times in ([100], [105, 103, 108]):
        advance.grant(100)
        for now in times:
            taking(advance, now)
        advance.recall(102)
    assert meter.state(108) == ((102, 1), (105, 1), (105, 1), (108, 1))


def test_several_windows_count_the_same_times() -> None:
    """Joint meters are as good as their parts: all sliding or not at all."""
    assert Joint((Sliding(5, 10), Sliding(7, 100))).timed
    limited = rate("5/s; 7/m")
    assert limited.lines._single.meter.timed
    for algorithm in ("gcra", "leaky", "fixed"):
        assert not rate("5/s; 7/m", algorithm=algorithm).lines._single.meter.timed


@pytest.mark.parametrize("spec", ["4/s", "4/s; 5/m"])
def test_what_was_taken_without_the_lock_can_be_refunded(spec: str, still: VirtualTime) -> None:
    """Its time is its mark, in every window."""
    limited = rate(spec)
    admissions = []
    for _ in range(4):
        admissions.append(limited.acquire())
        still.advance(0.1)
    assert limited.peek().free == 0
    admissions[2].refund()
    assert limited.peek().free == 1
    admissions[1].settle(0)
    assert limited.peek().free == 2
    assert limited.try_acquire(2)
    assert not limited.try_acquire()


def test_a_pause_or_a_queue_leaves_no_way_round(still: VirtualTime) -> None:
    """Passes are taken back before anything is decided, and none are made meanwhile."""
    limited = rate("100/s")
    for _ in range(10):
        assert limited.try_acquire()
    assert limited.lines._advance.passes
    limited.pause(1)
    assert not limited.try_acquire()
    still.advance(1)
    assert limited.try_acquire()
    assert limited.try_acquire()
    assert limited.reserve(99).delay > 0
    assert not limited.try_acquire()
    assert not limited.lines._advance.passes


def test_a_shrunk_rate_takes_its_passes_back(still: VirtualTime) -> None:
    """`resize` counts what was used, and what was not is gone."""
    limited = rate("100/s")
    for _ in range(10):
        limited.try_acquire()
    limited.lines.resize((11,), None)
    assert [limited.try_acquire() for _ in range(3)] == [True, False, False]


@pytest.mark.real_clock
def test_threads_never_get_more_than_the_rate_in_any_window() -> None:
    """8 threads at a tiny switch interval: more than 200 admissions are further apart than the window."""
    count, window = 200, 20_000_000
    limited, stop = rate(count, per=window / 1e9), threading.Event()
    marks: list[list[int]] = [[] for _ in range(8)]
    others: list[Any] = [limited.peek, limited.snapshot, lambda: None]

    def hammer(number: int) -> None:
        while not stop.is_set():
            mark = limited.lines.take(None, 1)
            if mark is not None:
                marks[number].append(mark)
            others[len(marks[number]) % 3]()

    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=hammer, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        clock.pause(0.5)
        stop.set()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switching)
    times = sorted(time for each in marks for time in each)
    assert len(times) > 2 * count
    assert all(times[index + count] - times[index] >= window for index in range(len(times) - count))
    assert all(later >= earlier for each in marks for earlier, later in pairwise(each))
