"""circuit: rates over calls and over time, and slow calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import freezegun
import pytest

from guarded import CircuitOpen, circuit, registry
from guarded._core.virtual import VirtualTime
from guarded.policies._circuit.windows import CallWindow, TimeWindow
from guarded.policies.circuit import Circuit
from guarded.testing import capture, virtual_time

Fail = Callable[..., Any]


@pytest.fixture
def time() -> Iterator[VirtualTime]:
    """Virtual time that moves only when told to."""
    with virtual_time(auto=False) as moved:
        yield moved


def runner(policy: Circuit) -> Fail:
    """A guarded function that raises what it is given, or returns."""

    @policy
    def run(error: BaseException | None = None) -> str:
        if error is not None:
            raise error
        return "fine"

    return run


def fail(run: Fail, times: int = 1, error: type[Exception] = ConnectionError) -> None:
    """Let `run` fail so often."""
    for _ in range(times):
        with pytest.raises(error):
            run(error("down"))


# Windows


def test_a_rate_needs_min_calls() -> None:
    """Below min_calls no share means anything; the success that reaches it may be what opens."""
    gateway = circuit("gateway", failure_rate=0.5, window=10, min_calls=4)
    run = runner(gateway)
    fail(run, 2)
    run()
    assert gateway.state == "closed"
    run()
    assert gateway.state == "open"


def test_a_share_that_equals_the_rate_opens() -> None:
    """3 of 10 is 0.3, whatever binary fractions make of it."""
    gateway = circuit("gateway", failure_rate=0.3, window=10, min_calls=10)
    run = runner(gateway)
    for _ in range(7):
        run()
    fail(run, 3)
    assert gateway.state == "open"


def test_a_count_window_forgets_the_oldest_call() -> None:
    """Three failures that are never two in the latest three calls."""
    gateway = circuit("gateway", failure_rate=0.6, window=3, min_calls=1)
    run = runner(gateway)
    for _ in range(5):
        run()
        run()
        fail(run)
    assert gateway.state == "closed"
    assert gateway.snapshot().calls == 3
    fail(run)
    assert gateway.state == "open"


def test_a_time_window_forgets_by_age(time: VirtualTime) -> None:
    """A result counts for 19/20 of the window at least, and never longer than the window."""
    gateway = circuit("gateway", failure_rate=0.9, window="60s", min_calls=3)
    run = runner(gateway)
    fail(run, 2)
    time.advance(56)
    assert gateway.snapshot().failures == 2
    time.advance(4)
    assert gateway.snapshot().failures == 0
    fail(run)
    assert gateway.state == "closed"
    fail(run, 2)
    assert gateway.state == "open"


def test_a_time_window_survives_a_clock_that_goes_back() -> None:
    """Results of a future that is gone do not stay for ever."""
    gateway = circuit("gateway", failure_rate=1.0, window="10s", min_calls=3)
    run = runner(gateway)
    with freezegun.freeze_time("2026-01-02") as frozen:
        run()
        frozen.tick(-0.6)
        run()
        assert gateway.snapshot().calls == 2
        frozen.move_to("2026-01-01")
        fail(run, 3)
    assert gateway.state == "open"


def test_a_count_window_keeps_as_many_results_as_it_is_long() -> None:
    """Even or odd: as many successes as it holds push every failure out, one fewer leave one."""
    for size in (4, 5):
        window = CallWindow(size)
        for _ in range(size):
            window.add(0, True, True)
        left = []
        for _ in range(size):
            window.add(0, False, False)
            left.append((window.calls, window.failed, window.slow))
        assert left == [(size, each, each) for each in reversed(range(size))]


def test_a_result_counts_for_at_least_19_of_20_parts_of_the_window() -> None:
    """And never longer than the window, in all three totals."""
    window = TimeWindow(200)
    window.add(0, False, False)
    window.add(19, True, True)
    window.move(209)
    assert (window.calls, window.failed, window.slow) == (1, 1, 1)
    window.move(219)
    assert (window.calls, window.failed, window.slow) == (0, 0, 0)


def test_an_emptied_time_window_starts_anew_where_the_clock_goes_back() -> None:
    """What is counted after that leaves it like everything else."""
    window = TimeWindow(200)
    window.add(0, True, False)
    window.move(10_000)
    window.add(5, True, False)
    assert (window.calls, window.failed) == (1, 1)
    window.move(10_000)
    assert (window.calls, window.failed) == (0, 0)


def test_figures_in_the_snapshot() -> None:
    """Rates and counts as of now."""
    gateway = circuit("gateway", failure_rate=0.9, window=10, slow_call=5, slow_rate=0.5)
    run = runner(gateway)
    fail(run)
    run()
    run()
    run()
    snapshot = gateway.snapshot()
    assert (snapshot.calls, snapshot.failures, snapshot.failure_rate, snapshot.slow_rate) == (4, 1, 0.25, 0.0)
    assert registry.snapshot()["gateway"]["failure_rate"] == 0.25


# Slow calls


def sleeper(policy: Circuit, time: VirtualTime) -> Fail:
    """A guarded function that takes so many seconds, then raises or returns."""

    @policy
    def run(seconds: float, error: Exception | None = None) -> None:
        time.advance(seconds)
        if error is not None:
            raise error

    return run


def test_a_slow_call_is_a_failure_without_a_slow_rate(time: VirtualTime) -> None:
    """Though it returned."""
    gateway = circuit("gateway", failures=2, slow_call="2s")
    run = sleeper(gateway, time)
    run(2)
    run(1.9)
    run(2)
    assert gateway.state == "closed"
    run(3)
    assert gateway.state == "open"


def test_slow_calls_open_by_their_share(time: VirtualTime) -> None:
    """With a slow_rate they are counted beside the failures."""
    gateway = circuit("gateway", failure_rate=0.9, slow_call=2, slow_rate=0.5, window=10, min_calls=4)
    run = sleeper(gateway, time)
    with capture() as events:
        for seconds in (0.1, 2, 0.1, 2):
            run(seconds)
    assert gateway.state == "open"
    (opened,) = [event for event in events if event.name == "circuit.opened"]
    assert (opened.reason, opened.slow_rate, opened.failure_rate, opened.failures) == ("slow_rate", 0.5, 0, 0)


@pytest.mark.parametrize("options", [{"failures": 3}, {"failure_rate": 1.0, "min_calls": 3}])
def test_calls_still_running_count_as_slow_at_admission(time: VirtualTime, options: dict[str, Any]) -> None:
    """Three calls that hang past slow_call open the circuit for the fourth, before any of them ends."""
    gateway = circuit("gateway", slow_call=2, **options)

    @gateway
    def nested(depth: int) -> None:
        if depth:
            nested(depth - 1)
        else:
            time.advance(2)
            with pytest.raises(CircuitOpen, match=r"open for .* after 3 failures"):
                nested(0)

    nested(2)
    assert gateway.state == "open"


def test_running_slow_calls_count_in_the_slow_rate_once(time: VirtualTime) -> None:
    """Running, they are in the share; ended, they are in it as what they were."""
    gateway = circuit("gateway", failure_rate=1.0, slow_call=2, slow_rate=0.6, window=10, min_calls=4)
    run = sleeper(gateway, time)

    @gateway
    def outer() -> None:
        run(0)
        run(0)
        time.advance(2)
        run(0)
        assert gateway.snapshot().slow_rate == 0.25

    outer()
    assert gateway.snapshot().slow_rate == 0.25
    assert gateway.snapshot().calls == 4


def test_running_slow_calls_are_held_against_what_is_still_in_the_window(time: VirtualTime) -> None:
    """Old successes that have aged out no longer outweigh two calls that hang."""
    gateway = circuit("gateway", failure_rate=1.0, slow_call=2, slow_rate=0.5, window="10s", min_calls=2)
    run = sleeper(gateway, time)

    @gateway
    def hang(depth: int) -> None:
        if depth:
            hang(depth - 1)
            return
        for _ in range(3):
            run(0)
        time.advance(11)
        with pytest.raises(CircuitOpen, match="1 of the calls were slow"):
            run(0)

    hang(1)


def test_a_call_seen_to_be_slow_is_not_counted_again_at_its_end(time: VirtualTime) -> None:
    """It was a failure when it was noticed; its own failure later is the same one."""
    gateway = circuit("gateway", failures=3, slow_call=2)
    run = sleeper(gateway, time)

    @gateway
    def outer() -> None:
        time.advance(2)
        with pytest.raises(ConnectionError):
            run(0, ConnectionError())
        assert gateway.snapshot().failures == 2
        raise ConnectionError

    with pytest.raises(ConnectionError):
        outer()
    assert gateway.snapshot().failures == 2


def test_a_slow_trial_opens_again(time: VirtualTime) -> None:
    """A dependency that answers too late has not recovered."""
    gateway = circuit("gateway", failures=1, slow_call=2, reset_after=1)
    run = sleeper(gateway, time)
    with pytest.raises(ConnectionError):
        run(0, ConnectionError())
    time.advance(1)
    run(2)
    assert gateway.state == "open"
