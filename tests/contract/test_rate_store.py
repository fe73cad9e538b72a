"""What every store of rates promises, see `guarded.stores.contract.rate`."""

from __future__ import annotations

import itertools
import time
from math import inf
from typing import Any

import pytest

from guarded.stores.contract.rate import Booked, Budget, Passed, RateRule, Refused

pytestmark = pytest.mark.real_clock
MS = 1_000_000
ALGORITHMS = ("sliding", "gcra", "leaky", "fixed")
BUDGET = Budget("api")


def rule(algorithm: Any, *quotas: tuple[int, int], burst: int | None = None) -> RateRule:
    """Units and milliseconds."""
    return RateRule(algorithm, tuple([(count, window * MS) for count, window in quotas]), burst)


def start_of_a_window(length: float) -> None:
    """Wait until there is room in the present aligned window for a few steps."""
    left = length - time.time() % length
    if left < length * 0.7:
        time.sleep(left)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_refused_then_retry_after_later_admitted(rates: Any, algorithm: str) -> None:
    """The law, at each cost; asking in vain changes nothing about it."""
    what = rule(algorithm, (4, 120))
    for cost in (1, 3, 2):
        refused = used_up(rates, what, cost)
        again = rates("take", what, BUDGET, cost, 0.0)
        if isinstance(again, Refused):  # else the machine was too slow to ask twice
            assert 0 < again.retry_after <= refused.retry_after <= 0.36
            time.sleep(again.retry_after)
            assert isinstance(rates("take", what, BUDGET, cost, 0.0), Passed)


def used_up(rates: Any, what: RateRule, cost: int) -> Refused:
    """Take until refused."""
    while isinstance(answer := rates("take", what, BUDGET, cost, 0.0), Passed):
        pass
    assert isinstance(answer, Refused)
    return answer


def test_sliding_admits_no_more_than_the_quota_at_once(rates: Any) -> None:
    """And one more when the oldest has left the window."""
    what = rule("sliding", (3, 200))
    taken = [rates("take", what, BUDGET, 1, 0.0) for _ in range(5)]
    assert [type(each) for each in taken] == [Passed, Passed, Passed, Refused, Refused]


def test_leaky_and_gcra_differ_in_bursts(rates: Any) -> None:
    """One passes alone, the other all that the burst allows."""
    paced, bursty = rule("leaky", (10, 1000)), rule("gcra", (10, 1000), burst=4)
    assert sum(isinstance(rates("take", paced, BUDGET, 1, 0.0), Passed) for _ in range(6)) == 1
    assert sum(isinstance(rates("take", bursty, BUDGET, 1, 0.0), Passed) for _ in range(6)) == 4


def test_fixed_windows_begin_at_whole_multiples(rates: Any) -> None:
    """What is refused is admitted when the next aligned window begins."""
    start_of_a_window(0.4)
    what = rule("fixed", (2, 400))
    assert [type(rates("take", what, BUDGET, 1, 0.0)) for _ in range(2)] == [Passed, Passed]
    before = time.time()
    refused = rates("take", what, BUDGET, 1, 0.0)
    left = 0.4 - before % 0.4
    assert left - 0.1 < refused.retry_after <= left + 0.001


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_several_windows_are_all_or_nothing(rates: Any, algorithm: str) -> None:
    """What the second window refuses has not been counted in the first."""
    start_of_a_window(1.0)
    what = rule(algorithm, (40, 50), (60, 1000))
    assert isinstance(rates("take", what, BUDGET, 40, 0.0), Passed)
    time.sleep(0.06)
    refused = rates("take", what, BUDGET, 30, 0.0)
    assert isinstance(refused, Refused)
    if algorithm == "leaky":
        return  # the long window lets nothing through so soon
    assert isinstance(rates("take", what, BUDGET, 20, 0.0), Passed)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_those_who_wait_are_served_in_order(rates: Any, algorithm: str) -> None:
    """Each is booked after the one before; nobody overtakes; each is let through when its time has come."""
    start_of_a_window(0.15)
    what = rule(algorithm, (2, 150))
    used_up(rates, what, 1)
    asked = time.monotonic()
    booked = [rates("take", what, BUDGET, 1, inf) for _ in range(4)]
    assert [type(each) for each in booked] == [Booked] * 4
    dues = [each.delay for each in booked]
    assert all(later > earlier - 0.05 for earlier, later in itertools.pairwise(dues))
    newcomer = rates("take", what, BUDGET, 1, 0.0)
    assert isinstance(newcomer, Refused)
    assert newcomer.retry_after > dues[-1] - (time.monotonic() - asked) - 0.01
    for each in booked:
        assert settled(rates, what, each) < 1.0


def settled(rates: Any, what: RateRule, booked: Any) -> float:
    """Sleep as one is told until let through; the time that took."""
    asked = time.monotonic()
    while isinstance(booked, Booked):
        time.sleep(booked.delay)
        booked = rates("confirm", what, BUDGET, 1, booked.mark)
    assert isinstance(booked, Passed)
    return time.monotonic() - asked


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_to_confirm_too_early_is_to_wait_on(rates: Any, algorithm: str) -> None:
    """Nothing is counted before the due time."""
    start_of_a_window(0.3)
    what = rule(algorithm, (1, 300))
    assert isinstance(rates("take", what, BUDGET, 1, 0.0), Passed)
    booked = rates("take", what, BUDGET, 1, 1.0)
    early = rates("confirm", what, BUDGET, 1, booked.mark)
    assert isinstance(early, Booked)
    assert 0 < early.delay <= booked.delay
    assert settled(rates, what, early) < 0.4


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_patience_bounds_what_is_booked(rates: Any, algorithm: str) -> None:
    """Who would have to wait longer is refused, and nothing is booked for it."""
    start_of_a_window(0.3)
    what = rule(algorithm, (1, 300))
    assert isinstance(rates("take", what, BUDGET, 1, 0.0), Passed)
    assert isinstance(rates("take", what, BUDGET, 1, 0.01), Refused)
    assert isinstance(rates("take", what, BUDGET, 1, 0.31), Booked)
    assert isinstance(rates("take", what, BUDGET, 1, 0.31), Refused)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_cancelled_booking_is_free_for_others(rates: Any, algorithm: str) -> None:
    """A newcomer has the time that somebody gave up."""
    start_of_a_window(0.4)
    what = rule(algorithm, (1, 400))
    assert isinstance(rates("take", what, BUDGET, 1, 0.0), Passed)
    booked = rates("take", what, BUDGET, 1, inf)
    rates("correct", what, BUDGET, booked.mark, 1, -1)
    again = rates("take", what, BUDGET, 1, inf)
    assert isinstance(again, Booked)
    assert again.delay < booked.delay + 0.01


@pytest.mark.parametrize("algorithm", ["sliding", "gcra", "fixed"])
def test_what_is_given_back_can_be_taken_again(rates: Any, algorithm: str) -> None:
    """By its mark, in part or whole, and by an empty mark what came last."""
    start_of_a_window(2.0)
    what = rule(algorithm, (10, 2000))
    first = rates("take", what, BUDGET, 6, 0.0)
    assert isinstance(rates("take", what, BUDGET, 4, 0.0), Passed)
    assert rates("look", what, BUDGET, 1)[0] == 0
    rates("correct", what, BUDGET, first.mark, 6, -2)
    assert rates("look", what, BUDGET, 1)[0] == 2
    rates("correct", what, BUDGET, "", 4, -4)
    assert rates("look", what, BUDGET, 1)[0] in (6, 7)
    assert isinstance(rates("take", what, BUDGET, 6, 0.0), Passed)


@pytest.mark.parametrize("algorithm", ["sliding", "gcra", "fixed"])
def test_more_counts_even_above_the_quota(rates: Any, algorithm: str) -> None:
    """So that later calls wait for it."""
    start_of_a_window(0.4)
    what = rule(algorithm, (4, 400))
    taken = rates("take", what, BUDGET, 1, 0.0)
    rates("correct", what, BUDGET, taken.mark, 1, 7)
    free, delay = rates("look", what, BUDGET, 1)
    assert free == 0
    assert delay > 0.1


def test_a_pause_is_for_every_budget_of_the_rate(rates: Any) -> None:
    """And a shorter one does not end it."""
    what, one, two = rule("sliding", (5, 100)), Budget("api", "one"), Budget("api", "two")
    for budget in (one, two):
        assert isinstance(rates("take", what, budget, 1, 0.0), Passed)
    rates("pause", what, "api", 0.3)
    rates("pause", what, "api", 0.05)
    for budget in (one, two):
        refused = rates("take", what, budget, 1, 0.0)
        assert isinstance(refused, Refused)
        assert 0.2 < refused.retry_after <= 0.3
    time.sleep(rates("take", what, one, 1, 0.0).retry_after)
    assert isinstance(rates("take", what, one, 1, 0.0), Passed)


def test_keys_and_shapes_are_budgets_of_their_own(rates: Any) -> None:
    """Another key, or other windows, start from nothing; another count goes on."""
    what = rule("sliding", (2, 5000))
    assert isinstance(rates("take", what, Budget("api", "one"), 2, 0.0), Passed)
    assert isinstance(rates("take", what, Budget("api", "two"), 2, 0.0), Passed)
    if rates.name != "memory":  # there a rate makes its lines anew, or resizes them
        assert isinstance(rates("take", rule("sliding", (2, 4000)), Budget("api", "one"), 2, 0.0), Passed)
        assert isinstance(rates("take", rule("sliding", (3, 5000)), Budget("api", "one"), 1, 0.0), Passed)
    assert isinstance(rates("take", what, Budget("api", "one"), 1, 0.0), Refused)
