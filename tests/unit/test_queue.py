"""The order of service."""

from __future__ import annotations

import random

from guarded._core.waiters import ThreadWaiter
from guarded.policies._limit.queue import Entry, WaitQueue


def entry(priority: int = 0, since: float = 0.0) -> Entry:
    return Entry(1, priority, ThreadWaiter(), since)


def test_arrival_order_inside_a_priority_and_higher_first() -> None:
    """Two lanes: the higher one is served before the lower, each in order."""
    queue = WaitQueue()
    low, high, low2, high2 = entry(), entry(5), entry(), entry(5)
    for each in (low, high, low2, high2):
        queue.add(each)
    assert list(queue) == [high, high2, low, low2]
    assert queue.head() is high
    assert len(queue) == 4


def test_removal_counts_live_waiters_only() -> None:
    """Whoever leaves from the middle no longer counts, and a gone head does not hide the next."""
    queue = WaitQueue()
    first, second, third = entry(), entry(), entry()
    for each in (first, second, third):
        queue.add(each)
    queue.remove(second)
    queue.remove(first)
    assert len(queue) == 1
    assert queue.head() is third
    queue.remove(third)
    assert queue.head() is None
    assert len(queue) == 0


def test_goes_first_only_above_the_head() -> None:
    """An equal priority has to stand behind."""
    queue = WaitQueue()
    assert queue.goes_first(0)
    queue.add(entry(1))
    assert not queue.goes_first(1)
    assert queue.goes_first(2)


def test_oldest_looks_at_every_lane() -> None:
    """The longest wait may be that of a low priority."""
    queue = WaitQueue()
    assert queue.oldest() is None
    queue.add(entry(0, since=3.0))
    queue.add(entry(9, since=5.0))
    assert queue.oldest() == 3.0


def test_random_adds_and_removes_match_a_sorted_list() -> None:
    """The queue agrees with the obvious model over 3000 random steps."""
    rng = random.Random(7)
    queue, model = WaitQueue(), []
    for step in range(3000):
        if model and rng.random() < 0.48:
            victim = rng.choice(model)
            model.remove(victim)
            queue.remove(victim)
        else:
            new = entry(rng.randrange(-2, 3), since=float(step))
            model.append(new)
            queue.add(new)
        expected = sorted(model, key=lambda each: (-each.priority, each.since))
        assert queue.head() is (expected[0] if expected else None)
        assert len(queue) == len(model)
    assert list(queue) == sorted(model, key=lambda each: (-each.priority, each.since))


def test_a_newcomer_goes_first_only_above_all_lanes() -> None:
    """Not between two of them, and not beside the highest."""
    queue = WaitQueue()
    assert queue.goes_first(-9)
    queue.add(entry(0))
    queue.add(entry(5))
    assert [queue.goes_first(priority) for priority in (3, 5, 6)] == [False, False, True]
