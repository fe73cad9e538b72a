"""Estimators of adaptive limits: what one call changes, and where they settle."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest

from guarded.policies._limit.adaptive import Adaptive, Aimd, Gradient2, adaptive


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"algorithm": "vegas"}, ["algorithm='vegas'"]),
        ({"algorithm": ["aimd"]}, ["algorithm=['aimd']"]),
        ({"smoothing": 10**400, "tolerance": 10**400}, ["smoothing=1000", "tolerance=1000"]),
        ({"initial": 0}, ["initial=0"]),
        ({"initial": True}, ["initial=True"]),
        ({"min_limit": 0.5}, ["min_limit=0.5"]),
        ({"max_limit": -1}, ["max_limit=-1"]),
        ({"initial": 300}, ["initial=300", "max_limit=200"]),
        ({"initial": 3, "min_limit": 5}, ["initial=3", "min_limit=5"]),
        ({"algorithm": "aimd", "backoff": 1}, ["backoff=1"]),
        ({"algorithm": "aimd", "backoff": 0.4}, ["backoff=0.4"]),
        ({"algorithm": "aimd", "backoff": True}, ["backoff=True"]),
        ({"algorithm": "aimd", "slow": "fast"}, ["slow='fast'"]),
        ({"algorithm": "aimd", "slow": 0}, ["slow=0"]),
        ({"algorithm": "aimd", "window": 5}, ["window=5", "'aimd'"]),
        ({"backoff": 0.9}, ["backoff=0.9", "'gradient2'"]),
        ({"smoothing": 0}, ["smoothing=0"]),
        ({"smoothing": float("nan")}, ["smoothing=nan"]),
        ({"tolerance": 0.9}, ["tolerance=0.9"]),
        ({"window": 0}, ["window=0"]),
        ({"headroom": 1.5}, ["headroom=1.5"]),
        ({"initial": 0, "tolerance": "x", "window": 0, "slow": -1}, ["initial", "tolerance", "window", "slow=-1"]),
    ],
)
def test_bad_options_fail_at_construction_all_at_once(options: dict[str, Any], names: list[str]) -> None:
    """One ValueError names every wrong option with its value."""
    with pytest.raises(ValueError) as caught:
        adaptive(**options)
    for name in names:
        assert name in str(caught.value)


def test_options_are_frozen_equal_and_travel() -> None:
    """Defaults of the chosen algorithm are filled in; the repr shows that algorithm's options only."""
    spec = adaptive("aimd", slow="2s")
    assert spec == Adaptive("aimd", slow=2.0)
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert repr(spec) == "adaptive('aimd', initial=20, min_limit=1, max_limit=200, backoff=0.9, slow=2.0)"
    assert "headroom=4" in repr(adaptive())
    assert isinstance(spec.estimator(), Aimd)
    assert isinstance(adaptive().estimator(), Gradient2)


# AIMD


def test_aimd_adds_one_only_when_the_limit_is_used() -> None:
    """Half of the limit in flight is enough; less proves nothing."""
    estimator = adaptive("aimd", initial=10).estimator()
    assert estimator.observe(1.0, 4, False) == 10
    assert estimator.observe(1.0, 5, False) == 11


def test_aimd_cuts_on_failures_and_slow_calls_within_its_bounds() -> None:
    """A tenth less each time, never below the minimum; growth ends at the maximum."""
    estimator = adaptive("aimd", initial=10, min_limit=8, max_limit=11, slow=1).estimator()
    assert estimator.observe(0.1, 10, True) == 9
    assert estimator.observe(1.1, 10, False) == 8
    assert estimator.observe(0.1, 10, True) == 8
    assert [estimator.observe(1.0, 10, False) for _ in range(5)] == [9, 10, 11, 11, 11]


# Gradient2


def test_gradient2_first_step_by_hand() -> None:
    """The first sample is its own average: gradient 1, so the limit moves by a fifth of the headroom."""
    estimator = adaptive(initial=20).estimator()
    estimator.observe(0.1, 20, False)
    assert isinstance(estimator, Gradient2)
    assert estimator._estimate == pytest.approx(20 * 0.8 + (20 * 1.0 + 4) * 0.2)


def test_gradient2_follows_a_latency_step_by_hand() -> None:
    """Ten samples of 0.1 s, then one of 1 s: the average moves by 2/601, the gradient stops at one half."""
    estimator = adaptive(initial=100).estimator()
    assert isinstance(estimator, Gradient2)
    for _ in range(10):
        estimator.observe(0.1, 1, False)  # not enough in flight to move the limit
    assert estimator.limit == 100
    estimator.observe(1.0, 100, False)
    assert estimator._average == pytest.approx(0.1 + 0.9 * 2 / 601)
    assert estimator._estimate == pytest.approx(100 * 0.8 + (100 * 0.5 + 4) * 0.2)


def test_gradient2_forgets_a_slow_time_quickly() -> None:
    """While the average is more than twice the latest latency, it shrinks by a twentieth with each call."""
    estimator = adaptive().estimator()
    assert isinstance(estimator, Gradient2)
    for _ in range(10):
        estimator.observe(1.0, 1, False)
    estimator.observe(0.1, 1, False)
    assert estimator._average == pytest.approx((1.0 - 0.9 * 2 / 601) * 0.95)


def test_gradient2_takes_a_failure_for_overload_whatever_its_latency() -> None:
    """A quick refusal lowers the limit and leaves the average alone."""
    estimator = adaptive(initial=100).estimator()
    assert isinstance(estimator, Gradient2)
    estimator.observe(0.1, 1, False)
    assert estimator.observe(0.0, 1, True) == 90
    assert estimator._average == pytest.approx(0.1)


def test_gradient2_stays_within_its_bounds_and_bears_a_latency_of_zero() -> None:
    """A clock that stands still divides nothing by zero."""
    estimator = adaptive(initial=5, min_limit=4, max_limit=6).estimator()
    assert [estimator.observe(0.0, 6, False) for _ in range(10)][-1] == 6
    assert [estimator.observe(0.0, 6, True) for _ in range(20)][-1] == 4


def settle(spec: Adaptive, capacity: int, busy: float) -> list[int]:
    """Limits over 4000 calls against a server that slows down, or fails, beyond `capacity` calls at once.

    A share `busy` of the calls comes when demand fills the limit, the others when next to nothing is going on.
    """
    rng, estimator, seen = random.Random(1), spec.estimator(), []
    for _ in range(4000):
        load = estimator.limit if rng.random() < busy else 1
        latency = 0.1 * max(1.0, load / capacity) * rng.uniform(0.9, 1.1)
        failed = spec.algorithm == "aimd" and load > capacity and rng.random() < 0.5
        seen.append(estimator.observe(latency, load, failed))
    return seen[2000:]


def test_aimd_settles_at_what_the_server_bears() -> None:
    """It swings between the capacity and somewhat less."""
    limits = settle(adaptive("aimd", max_limit=1000), 50, busy=1.0)
    assert min(limits) >= 40
    assert max(limits) <= 60


def test_gradient2_grows_to_a_capacity_and_stays_near_it() -> None:
    """From 20 it finds a server of 50, with a queue in proportion to the tolerated latency."""
    limits = settle(adaptive(max_limit=1000), 50, busy=0.5)
    assert min(limits) >= 50
    assert max(limits) <= 150


def test_gradient2_ends_at_its_maximum_when_demand_never_lets_up() -> None:
    """Known of the algorithm: the average follows the latency, so `max_limit` is what bounds it then."""
    assert settle(adaptive(max_limit=80), 50, busy=1.0)[-1] == 80
