"""The delays between attempts: the law, its jitter, and delays given by hand."""

from __future__ import annotations

import math
import random
from datetime import timedelta

import pytest

from guarded.policies._retry.backoff import Backoff, factor_problem, jitter_problem, read_given


def lowest() -> float:
    """A random number at the lower end."""
    return 0.0


def highest() -> float:
    """A random number at the upper end."""
    return math.nextafter(1.0, 0.0)


def test_without_jitter_the_delay_grows_by_the_factor_up_to_the_cap() -> None:
    """delay = min(max_delay, base * factor^(n-1))."""
    law = Backoff(base=0.5, factor=3, max_delay=10, jitter="none")
    assert [law.delay(failed, None, lowest) for failed in (1, 2, 3, 4, 50)] == [0.5, 1.5, 4.5, 10, 10]


@pytest.mark.parametrize(
    ("jitter", "low", "high"),
    [("full", 0.0, 2.0), ("equal", 1.0, 2.0), ("none", 2.0, 2.0), (0.2, 1.6, 2.4), (0, 2.0, 2.0), (1, 0.0, 4.0)],
)
def test_jitter_draws_from_its_own_range(jitter: float, low: float, high: float) -> None:
    """Each kind of jitter has the bounds it promises."""
    law = Backoff(base=1, factor=2, max_delay=100, jitter=jitter)
    assert law.delay(2, None, lowest) == pytest.approx(low)
    assert law.delay(2, None, highest) == pytest.approx(high)


@pytest.mark.parametrize("jitter", ["full", "equal", "decorrelated", "none", 0.5, 1])
def test_jitter_stays_inside_the_cap(jitter: float) -> None:
    """No delay is ever above max_delay, jitter included."""
    law = Backoff(base=4, factor=2, max_delay=5, jitter=jitter)
    previous = None
    for failed in range(1, 60):
        previous = law.delay(failed, previous, highest)
        assert previous <= 5


def test_jitter_at_the_cap_still_spreads() -> None:
    """What would lie above the cap is not drawn, rather than cut to it: delays stay different."""
    rand = random.Random(7).random
    for jitter in (0.5, "decorrelated"):
        law = Backoff(base=1, factor=10, max_delay=5, jitter=jitter)  # type: ignore[arg-type]
        assert len({law.delay(9, 5.0, rand) for _ in range(100)}) == 100


def test_decorrelated_jitter_draws_up_to_three_times_the_last_delay() -> None:
    """The range is base to 3 * previous; before the first delay, base takes its place."""
    law = Backoff(base=1, max_delay=100, jitter="decorrelated")
    assert law.delay(1, None, highest) == pytest.approx(3)
    assert law.delay(2, 2.0, lowest) == 1
    assert law.delay(2, 2.0, highest) == pytest.approx(6)


def test_growth_beyond_floats_is_the_cap() -> None:
    """A million failures are no overflow, and a base of 0 stays 0."""
    assert Backoff(base=1, factor=10, max_delay=7, jitter="none").delay(1_000_000, None, lowest) == 7
    assert Backoff(base=0, factor=10, max_delay=7, jitter="none").delay(1_000_000, None, lowest) == 0


def test_a_sequence_repeats_its_last_delay() -> None:
    """Delays given by hand are taken as they are, without jitter or cap."""
    law = Backoff(max_delay=1, given=(0.1, 30.0))
    assert [law.delay(failed, None, lowest) for failed in (1, 2, 3, 9)] == [0.1, 30.0, 30.0, 30.0]


def test_a_function_gets_the_number_of_the_failed_attempt() -> None:
    """It may give any kind of duration."""
    law = Backoff(given=lambda failed: {1: 0.5, 2: "2s", 3: timedelta(minutes=1), 4: 0}[failed])
    assert [law.delay(failed, None, lowest) for failed in (1, 2, 3, 4)] == [0.5, 2.0, 60.0, 0.0]


@pytest.mark.parametrize("delay", [float("nan"), -1, float("inf"), None, True, "soon"])
def test_a_function_that_gives_no_delay_is_an_error(delay: object) -> None:
    """NaN, negative and infinite delays are told, naming the attempt."""
    law = Backoff(given=lambda failed: delay)  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError, match=r"backoff\(3\)="):
        law.delay(3, None, lowest)


@pytest.mark.parametrize("jitter", ["full", "equal", "decorrelated", "none", 0.3])
def test_longest_bounds_every_delay(jitter: float) -> None:
    """`longest` is an upper bound, and is reached."""
    law = Backoff(base=0.3, factor=2, max_delay=4, jitter=jitter)
    previous = None
    for failed in range(1, 12):
        previous = law.delay(failed, previous, highest)
        assert previous == pytest.approx(law.longest(failed))
    assert Backoff(given=lambda failed: 1.0).longest(1) is None
    assert Backoff(given=(1.0, 2.0)).longest(5) == 2.0


def test_given_delays_are_read_as_seconds() -> None:
    """Any iterable that can be read again will do; a list is kept whole, of what has no end there is enough."""
    assert read_given(["100ms", 2, timedelta(seconds=3)], 5) == (0.1, 2.0, 3.0)
    assert read_given(["1s", "10s", "1m"], 1) == (1.0, 10.0, 60.0)
    assert read_given(range(1, 10**9), 3) == (1.0, 2.0, 3.0)
    assert read_given(None, 3) is None


def yields_delays(failed: int):  # type: ignore[no-untyped-def]
    """A generator function, as other libraries take it."""
    yield failed


async def gives_delay(failed: int) -> float:
    """An async function."""
    return failed


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        (iter([1, 2]), "iterator"),
        ((delay for delay in (1, 2)), "iterator"),
        ([], "at least one"),
        ([1, -1], r"backoff\[1\]=-1: must not be negative"),
        ([float("nan")], "finite"),
        ("1s", "sequence"),
        (2, "sequence"),
        (object(), "sequence"),
        (yields_delays, "plain function"),
        (gives_delay, "plain function"),
    ],
)
def test_what_is_no_backoff_is_refused(given: object, rule: str) -> None:
    """Used-up iterators, empty sequences, bad delays and functions that give no delay fail when built."""
    with pytest.raises(ValueError, match=rule):
        read_given(given, 3)


def test_problems_of_jitter_and_factor() -> None:
    """Only the named kinds and fractions are jitter; only finite growth is a factor."""
    for good in ("full", "equal", "decorrelated", "none", 0, 0.5, 1):
        assert jitter_problem(good) is None
    for bad in ("Full", "", -0.1, 1.1, float("nan"), True, None):
        assert "jitter" in (jitter_problem(bad) or "")
    for factor in (1, 1.0, 2.5):
        assert factor_problem(factor) is None
    for bad in (0.5, 0, -1, float("inf"), float("nan"), 10**400, True, "2"):
        assert "factor" in (factor_problem(bad) or "")
