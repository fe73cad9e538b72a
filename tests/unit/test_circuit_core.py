"""The state machine of a circuit: what belongs to a generation that has ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from guarded.policies._circuit.core import CircuitCore
from guarded.policies._circuit.terms import CLOSED, DISABLED, FAILURE, OPEN, SUCCESS, Permit, Rules

RULES = Rules(
    failures=None,
    failure_rate=0.5,
    window_calls=None,
    window_ns=2_000,
    min_calls=4,
    slow_ns=None,
    slow_rate=None,
    reset_ns=1_000,
    max_reset_ns=8_000,
    half_open=1,
    trial_ns=1_000,
)


def admitted(core: CircuitCore) -> Permit:
    """A call that has begun at 0."""
    permit = core.admit(0)
    assert isinstance(permit, Permit)
    return permit


@pytest.mark.parametrize(
    "anew",
    [
        lambda core: core.restart(1),
        lambda core: core.begin(CLOSED, 1),
        lambda core: core.restore(CLOSED, 1, age=0, in_a_row=0),
    ],
)
def test_a_call_from_before_a_new_start_is_late(anew: Callable[[CircuitCore], None]) -> None:
    """Also where the state is the same before and after."""
    core = CircuitCore(RULES)
    permit = admitted(core)
    anew(core)
    assert core.settle(permit, FAILURE, 2) == "late"
    assert core.failures == 0


def test_a_disabled_circuit_counts_nothing() -> None:
    """It says so."""
    core = CircuitCore(RULES)
    core.begin(DISABLED, 0)
    assert core.settle(admitted(core), FAILURE, 1) == "ignored"


def test_successes_may_be_told_later_once_there_are_enough_calls() -> None:
    """From `min_calls` on, until a bucket of the window ends: before, a success may be the call that opens."""
    core = CircuitCore(RULES)
    until = []
    for outcome in (FAILURE, SUCCESS, SUCCESS, SUCCESS):
        core.settle(admitted(core), outcome, 0)
        until.append(core.quick_until)
    assert until == [0, 0, 0, 100]


def test_successes_that_were_put_off_are_taken_out_where_nothing_counts_them() -> None:
    """Else they would be told again, to a later state."""
    core = CircuitCore(RULES)
    core.restore(OPEN, 5, age=0, in_a_row=3)
    assert core.in_a_row == 0  # that counts in the closed state only
    times = deque([1, 2, 3])
    core.succeed(times)
    assert list(times) == []
