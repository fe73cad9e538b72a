"""The permits of a limit, without callers."""

from __future__ import annotations

from guarded._core.waiters import ThreadWaiter
from guarded.policies._limit.core import KeyedPools, Pool
from guarded.policies._limit.queue import Entry, State


def entry(weight: int = 1, since: float = 0.0) -> Entry:
    """A thread that waits."""
    return Entry(weight, 0, ThreadWaiter(), since)


def test_permits_that_come_back_together_to_a_shrunk_limit_serve_its_waiter() -> None:
    """Those above the limit are destroyed first; the one that stays is handed on."""
    pool, heavy, waiting = Pool(3, None), entry(3), entry()
    pool.join(heavy)
    pool.resize(1)
    pool.join(waiting)
    assert (heavy.state, waiting.state) == (State.TAKEN, State.WAITING)
    pool.give_back(3)
    assert waiting.state is State.GRANTED
    assert (pool.total, pool.held) == (1, 1)


def test_a_closed_limit_says_so_to_newcomers() -> None:
    """By the reason and by the state of their entry."""
    pool, late = Pool(1, None), entry()
    pool.close()
    assert pool.join(late) == "closed"
    assert late.state is State.CLOSED


def test_nobody_has_waited_a_negative_time() -> None:
    """Where the clock went back the longest wait is 0."""
    pool = Pool(0, None)
    pool.join(entry(since=5.0))
    assert [pool.snapshot(now).oldest_wait for now in (3.0, 7.0)] == [0.0, 2.0]


def test_another_queue_bound_holds_for_keys_old_and_new() -> None:
    """A reload may change it while some keys are in use."""
    pools = KeyedPools(1, max_queue=5)
    old = pools.enter("old")
    pools.allow(0)
    assert (old.max_queue, pools.enter("new").max_queue) == (0, 0)
