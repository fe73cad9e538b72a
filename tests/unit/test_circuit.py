"""circuit: outcomes, states, windows, slow calls, streams, deadlines, messages, events."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
import traceback
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any

import freezegun
import pytest

import guarded
from guarded import CancelToken, CircuitOpen, DeadlineExceeded, circuit, deadline, registry, retry
from guarded._core import clock, waiters
from guarded._core.call import current
from guarded._core.virtual import VirtualTime
from guarded.errors import Deadlock, LimitFull, PolicyConflict, Rejected
from guarded.events import Event
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


# Consecutive failures and recovery


def test_opens_after_so_many_failures_in_a_row() -> None:
    """Five by default; a success in between starts the count anew."""
    gateway = circuit("gateway")
    run = runner(gateway)
    fail(run, 4)
    assert run() == "fine"
    fail(run, 4)
    assert gateway.state == "closed"
    fail(run)
    assert gateway.state == "open"
    with pytest.raises(CircuitOpen):
        run()


def test_the_tripping_caller_keeps_its_own_exception() -> None:
    """The failure that opens the circuit reaches its caller as the same object, with a clean chain."""
    run = runner(circuit("gateway", failures=1))
    boom = ConnectionError("down")
    with pytest.raises(ConnectionError) as caught:
        run(boom)
    assert caught.value is boom
    assert boom.__cause__ is None
    assert boom.__context__ is None


def test_recovers_after_the_open_time(time: VirtualTime) -> None:
    """Exactly `retry_after` later the next call is let through, and its success closes the circuit."""
    gateway = circuit("gateway", failures=1, reset_after="7.3s")
    run = runner(gateway)
    fail(run)
    time.advance(1.1)
    with pytest.raises(CircuitOpen) as caught:
        run()
    assert caught.value.retry_after == pytest.approx(6.2)
    assert caught.value.retry_after is not None
    time.advance(caught.value.retry_after - 1e-9)
    with pytest.raises(CircuitOpen):
        run()
    time.advance(1e-9)
    assert run() == "fine"
    assert gateway.state == "closed"


def test_open_time_grows_up_to_its_bound_and_starts_over(time: VirtualTime) -> None:
    """Each failed recovery doubles the open time; closing forgets that."""
    run = runner(circuit("gateway", failures=1, reset_after=10, max_reset_after=35))
    fail(run)
    waits = []
    for _ in range(4):
        with pytest.raises(CircuitOpen) as caught:
            run()
        waits.append(caught.value.retry_after)
        time.advance(waits[-1])
        fail(run)
    assert waits == [10, 20, 35, 35]
    time.advance(35)
    run()
    fail(run)
    with pytest.raises(CircuitOpen) as caught:
        run()
    assert caught.value.retry_after == 10


def test_open_time_does_not_grow_unless_asked(time: VirtualTime) -> None:
    """Without max_reset_after a failed recovery waits as long as the first."""
    run = runner(circuit("gateway", failures=1, reset_after=10))
    fail(run)
    for _ in range(3):
        with pytest.raises(CircuitOpen) as caught:
            run()
        assert caught.value.retry_after == 10
        time.advance(10)
        fail(run)


def test_a_clock_that_goes_back_does_not_keep_the_circuit_open() -> None:
    """Elapsed time is clamped at zero and counted from there."""
    run = runner(circuit("gateway", failures=1, reset_after=10))
    with freezegun.freeze_time("2026-01-02") as frozen:
        fail(run)
        frozen.move_to("2026-01-01")
        with pytest.raises(CircuitOpen):
            run()
        frozen.tick(10)
        assert run() == "fine"


def test_a_clock_that_goes_back_does_not_keep_a_trial_out() -> None:
    """A hung trial from a future that is gone is replaced after trial_timeout all the same."""
    gateway = circuit("gateway", failures=1, reset_after=10, trial_timeout=5)
    run = runner(gateway)
    with freezegun.freeze_time("2026-01-02") as frozen:
        fail(run)
        frozen.tick(10)

        @gateway
        def hung() -> None:
            frozen.move_to("2026-01-01")
            with pytest.raises(CircuitOpen):
                run()
            frozen.tick(5)
            assert run() == "fine"

        hung()
    assert gateway.state == "closed"


def test_freezegun_moves_it() -> None:
    """`tick()` of a frozen clock ends the open time."""
    run = runner(circuit("gateway", failures=1, reset_after=10))
    with freezegun.freeze_time("2026-01-01") as frozen:
        fail(run)
        frozen.tick(9.9)
        with pytest.raises(CircuitOpen):
            run()
        frozen.tick(0.1)
        assert run() == "fine"


# Trials


def test_every_trial_has_to_succeed_before_it_closes(time: VirtualTime) -> None:
    """With three trials, two successes leave it half-open; the third closes it. min_calls plays no part."""
    gateway = circuit("gateway", failure_rate=0.5, min_calls=2, half_open=3, reset_after=1)
    run = runner(gateway)
    fail(run, 2)
    time.advance(1)
    run()
    run()
    assert gateway.state == "half-open"
    run()
    assert gateway.state == "closed"


def test_one_failed_trial_opens_again(time: VirtualTime) -> None:
    """Whatever the others do."""
    gateway = circuit("gateway", failures=2, half_open=3, reset_after=1)
    run = runner(gateway)
    fail(run, 2)
    time.advance(1)
    run()
    fail(run)
    assert gateway.state == "open"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError(), LimitFull("full", reason="timeout")])
def test_a_neutral_trial_gives_its_place_back_at_once(time: VirtualTime, error: BaseException) -> None:
    """Neither closes the circuit nor opens it."""
    gateway = circuit("gateway", failures=1, reset_after=1)
    run = runner(gateway)
    fail(run)
    time.advance(1)
    with pytest.raises(type(error)):
        run(error)
    assert gateway.state == "half-open"
    assert gateway.snapshot().trials == 0
    assert run() == "fine"
    assert gateway.state == "closed"


def test_a_rejection_while_trials_are_out_says_so(time: VirtualTime) -> None:
    """Half-open with all trials out, nobody can know when a call would be let through."""
    gateway = circuit("gateway", failures=1, reset_after=1)
    run = runner(gateway)
    fail(run)
    time.advance(1)

    @gateway
    def trial() -> None:
        with pytest.raises(CircuitOpen) as caught:
            run()
        assert caught.value.retry_after is None
        assert caught.value.state == "half-open"
        assert "trial" in str(caught.value)

    trial()
    assert gateway.state == "closed"


def test_a_hung_trial_is_replaced_and_its_late_result_not_counted(time: VirtualTime) -> None:
    """After trial_timeout its place goes to another; its own failure then changes nothing."""
    gateway = circuit("gateway", failures=1, reset_after=1, trial_timeout=5, half_open=2)
    run = runner(gateway)
    fail(run)
    time.advance(1)

    @gateway
    def hung() -> None:
        run()
        with pytest.raises(CircuitOpen):
            run()
        time.advance(5)
        run()
        assert gateway.state == "closed"
        raise ConnectionError("at last")

    with capture() as events, pytest.raises(ConnectionError):
        hung()
    assert gateway.state == "closed"
    assert gateway.snapshot().failures == 0
    assert [event.name for event in events if event.name == "circuit.late"] == ["circuit.late"]


# Outcomes


class Custom(Exception):
    """For `on` and `ignore`."""


@pytest.mark.parametrize("neutral", [Rejected("no"), LimitFull("full", reason="timeout"), Deadlock("nested")])
def test_refusals_by_a_layer_inside_are_neutral(neutral: Exception) -> None:
    """They say nothing about the dependency, whatever `on` says."""
    gateway = circuit("gateway", failures=1, on=lambda error: True)
    run = runner(gateway)
    with pytest.raises(type(neutral)):
        run(neutral)
    with pytest.raises(ExceptionGroup):
        run(ExceptionGroup("both", [neutral, neutral]))
    assert gateway.state == "closed"


@pytest.mark.parametrize("ignore", [Custom, (Custom, KeyError), [Custom], lambda error: isinstance(error, Custom)])
def test_ignored_errors_are_neutral(ignore: Any) -> None:
    """Neither a failure nor the success that would start the count anew."""
    gateway = circuit("gateway", failures=2, ignore=ignore)
    run = runner(gateway)
    fail(run)
    fail(run, 3, Custom)
    assert gateway.state == "closed"
    fail(run)
    assert gateway.state == "open"


@pytest.mark.parametrize("on", [Custom, (Custom, OSError), lambda error: isinstance(error, (Custom, OSError))])
def test_only_errors_that_on_means_are_failures(on: Any) -> None:
    """Others are neutral."""
    gateway = circuit("gateway", failures=2, on=on)
    run = runner(gateway)
    fail(run, 5, ValueError)
    assert gateway.snapshot().failures == 0
    fail(run, 2, Custom)
    assert gateway.state == "open"


def test_a_group_is_ignored_only_when_all_its_leaves_are() -> None:
    """One real failure in it counts."""
    gateway = circuit("gateway", failures=1, ignore=Custom)
    run = runner(gateway)
    with pytest.raises(ExceptionGroup):
        run(ExceptionGroup("ignored", [Custom(), ExceptionGroup("inner", [Custom()])]))
    assert gateway.state == "closed"
    with pytest.raises(ExceptionGroup):
        run(ExceptionGroup("mixed", [Custom(), ConnectionError()]))
    assert gateway.state == "open"


@pytest.mark.parametrize("control", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_control_flow_is_neutral_and_no_predicate_sees_it(control: type[BaseException]) -> None:
    """A predicate that says yes to everything does not count a Ctrl-C."""
    seen: list[BaseException] = []
    gateway = circuit("gateway", failures=1, on=lambda error: seen.append(error) or True, ignore=seen.append)
    run = runner(gateway)
    with pytest.raises(control):
        run(control())
    assert gateway.state == "closed"
    assert seen == []


def test_what_a_predicate_raises_comes_out_chained(time: VirtualTime) -> None:
    """And the call stays uncounted, its trial place free."""

    def broken(error: Exception) -> bool:
        if isinstance(error, Custom):
            raise ZeroDivisionError
        return True

    gateway = circuit("gateway", failures=1, on=broken, reset_after=1)
    run = runner(gateway)
    fail(run)
    time.advance(1)
    with pytest.raises(ZeroDivisionError) as caught:
        run(Custom())
    assert isinstance(caught.value.__context__, Custom)
    assert gateway.snapshot().trials == 0
    assert gateway.state == "half-open"


def test_predicates_run_outside_the_lock() -> None:
    """A predicate may ask the circuit itself."""
    gateway: Circuit = circuit("gateway", failures=1, on=lambda error: gateway.snapshot().state == "closed")
    fail(runner(gateway))
    assert gateway.state == "open"


def test_a_result_from_an_older_generation_is_reported_and_not_counted(time: VirtualTime) -> None:
    """A call that began before the circuit opened and closed again neither counts as failure nor as success."""
    gateway = circuit("gateway", failures=2, reset_after=1)
    run = runner(gateway)

    @gateway
    def slow(error: Exception | None) -> None:
        fail(run, 2)
        time.advance(1)
        run()
        fail(run)
        if error is not None:
            raise error

    for error in (None, ConnectionError("old")):
        gateway.reset()
        with capture() as events:
            try:
                slow(error)
            except ConnectionError as raised:
                assert raised is error
        late = [event for event in events if event.name == "circuit.late"]
        assert [event.outcome for event in late] == ["success" if error is None else "failure"]
        assert gateway.state == "closed"
        assert gateway.snapshot().failures == 1


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


# Deadlines around and inside


@pytest.mark.parametrize(
    ("waited", "options", "state"),
    [
        (0, {}, "open"),
        (5, {}, "open"),
        (6, {}, "closed"),
        (6, {"slow_call": 4}, "open"),
        (6.5, {"slow_call": 4}, "closed"),
    ],
)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_call_cut_by_the_deadline_around_it(waited: float, options: dict[str, Any], state: str, mode: str) -> None:
    """It is a failure when it had run for slow_call, or for half of the deadline where that is not set."""
    gateway = circuit("gateway", failures=1, **options)

    @gateway
    def call() -> None:
        guarded.sleep(60)

    @deadline(10, mode="cooperative")
    def total() -> None:
        guarded.sleep(waited)
        call()

    @gateway
    async def acall() -> None:
        await guarded.asleep(60)

    @deadline(10)
    async def atotal() -> None:
        await guarded.asleep(waited)
        await acall()

    with virtual_time(), pytest.raises(DeadlineExceeded):
        total() if mode == "sync" else asyncio.run(atotal())
    assert gateway.state == state


def test_an_async_cut_gives_the_deadline_as_cause() -> None:
    """The body met a CancelledError, but the cause of the opening is the deadline."""
    gateway = circuit("gateway", failures=1)

    @deadline(10)
    @gateway
    async def call() -> None:
        await guarded.asleep(60)

    async def main() -> None:
        with pytest.raises(DeadlineExceeded):
            await call()
        with pytest.raises(CircuitOpen) as caught:
            await call()
        assert isinstance(caught.value.__cause__, DeadlineExceeded)

    with virtual_time():
        asyncio.run(main())


def test_a_plain_cancel_under_a_deadline_is_neutral() -> None:
    """Cancelled before its deadline, the call says nothing."""
    gateway = circuit("gateway", failures=1)

    @deadline(1000)
    @gateway
    async def call() -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        task = asyncio.create_task(call())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert gateway.state == "closed"
    assert gateway.snapshot().failures == 0


def test_a_deadline_inside_is_an_ordinary_failure() -> None:
    """The attempt took too long, by its own measure."""
    gateway = circuit("gateway", failures=1)

    @deadline(100, mode="cooperative")
    @gateway
    @deadline(1, mode="cooperative")
    def call() -> None:
        guarded.sleep(60)

    with virtual_time(), pytest.raises(DeadlineExceeded):
        call()
    assert gateway.state == "open"


def test_our_own_queueing_does_not_open_it() -> None:
    """A deadline that passes while the call queues below the circuit is neutral, however long it took."""
    gateway = circuit("gateway", failures=1)

    @deadline(10, mode="cooperative")
    @gateway
    def call() -> None:
        running = current.get()
        assert running is not None
        waiters.sleep(running, 60, "queued for limit 'db'")

    with virtual_time(), pytest.raises(DeadlineExceeded, match="queued for"):
        call()
    assert gateway.state == "closed"


def test_a_worker_left_behind_by_its_deadline_counts_at_once() -> None:
    """In thread mode the caller leaves and the body still hangs: the circuit need not wait for its end."""
    gateway = circuit("gateway", failures=1)
    end, ended = threading.Event(), threading.Event()

    @deadline(10)
    @gateway
    def call() -> None:
        try:
            end.wait(20)
        finally:
            ended.set()

    with virtual_time():
        with pytest.raises(DeadlineExceeded):
            call()
        assert gateway.state == "open"
        gateway.reset()
        with capture() as events:
            end.set()
            assert ended.wait(20)
    assert gateway.snapshot().failures == 0
    assert not [event for event in events if event.name == "circuit.late"]


def test_a_fired_token_is_neutral() -> None:
    """Cancelled from outside, in time."""
    gateway = circuit("gateway", failures=1)
    token = CancelToken()

    @deadline(100, mode="cooperative")
    @gateway
    def call() -> None:
        token.cancel("enough")
        guarded.sleep(60)

    with virtual_time(), token, pytest.raises(guarded.Cancelled):
        call()
    assert gateway.state == "closed"


# By hand


def test_isolated_until_reset(time: VirtualTime) -> None:
    """No time ends it."""
    gateway = circuit("gateway", reset_after=1)
    run = runner(gateway)
    gateway.isolate()
    time.advance(1000)
    with pytest.raises(CircuitOpen, match="isolated by hand") as caught:
        run()
    assert caught.value.retry_after is None
    gateway.reset()
    assert run() == "fine"


def test_disabled_lets_everything_through_and_counts_nothing() -> None:
    """Until enabled again, with an empty count."""
    gateway = circuit("gateway", failures=2)
    run = runner(gateway)
    fail(run)
    gateway.disable()
    fail(run, 10)
    assert gateway.state == "disabled"
    gateway.enable()
    assert gateway.state == "closed"
    fail(run)
    assert gateway.state == "closed"
    fail(run)
    assert gateway.state == "open"
    gateway.enable()
    assert gateway.state == "open"


def test_reset_forgets_what_was_counted() -> None:
    """Also when it is closed."""
    gateway = circuit("gateway", failures=2)
    run = runner(gateway)
    fail(run)
    gateway.reset()
    fail(run)
    assert gateway.state == "closed"


def test_shadow_mode_decides_and_reports_only(time: VirtualTime) -> None:
    """Calls pass; what would have been rejected is told, and its outcome counts for nothing."""
    gateway = circuit("gateway", failures=1, reset_after=5, enforce=False)
    run = runner(gateway)
    fail(run)
    with capture() as events:
        assert run() == "fine"
        fail(run)
    assert [event.name for event in events if event.layer == "circuit"] == ["circuit.rejected"] * 2
    assert events[-1].reason == "open, not enforced" or events[-2].reason == "open, not enforced"
    assert gateway.state == "open"
    time.advance(5)
    assert run() == "fine"
    assert gateway.state == "closed"


def test_reconfigured_in_place_the_state_goes_on(time: VirtualTime) -> None:
    """A reload changes the rules, not the state."""
    gateway = circuit("gateway", failures=1, reset_after=50)
    run = runner(gateway)
    fail(run)
    with registry.isolated():
        options = circuit("gateway", failures=2, reset_after=5).options
    gateway.reconfigure(options)
    registry.changed()
    assert gateway.state == "open"
    time.advance(5)
    run()
    fail(run)
    assert gateway.state == "closed"


# Errors and messages


def test_the_rejection_says_what_why_and_how_long(time: VirtualTime) -> None:
    """State, failures seen, age, and when to try again; no word of the failure's message."""
    run = runner(circuit("gateway", failures=2, reset_after=30))
    boom = ConnectionError("password=hunter2")
    for _ in range(2):
        with pytest.raises(ConnectionError):
            run(boom)
    time.advance(12)
    with pytest.raises(CircuitOpen) as caught:
        run()
    assert str(caught.value) == (
        "circuit 'gateway' has been open for 12s after 2 failures in a row, the last with ConnectionError; "
        "try again in 18s, or do without"
    )
    assert caught.value.__cause__ is boom
    assert (caught.value.policy, caught.value.layer, caught.value.state) == ("gateway", "circuit", "open")


def test_a_thousand_rejections_have_a_constant_traceback() -> None:
    """Each is fresh, and the shared cause does not grow either."""
    run = runner(circuit("gateway", failures=1))
    fail(run)
    depths = set()
    rejections = set()
    for _ in range(1000):
        with pytest.raises(CircuitOpen) as caught:
            run()
        rejections.add(id(caught.value))
        cause = caught.value.__cause__
        assert cause is not None
        depths.add(
            (
                len(list(traceback.walk_tb(caught.value.__traceback__))),
                len(list(traceback.walk_tb(cause.__traceback__))),
            )
        )
    assert len(depths) == 1


def test_failures_met_while_handling_rejections_do_not_chain_up(time: VirtualTime) -> None:
    """Outage after outage, the chain behind a rejection stays as short as after the first."""
    run = runner(circuit("gateway", failures=1, reset_after=1))
    fail(run)
    lengths = []
    for _ in range(5):
        try:
            run()
        except CircuitOpen as rejection:
            link: BaseException | None = rejection
            length = 0
            while link is not None:
                length += 1
                link = link.__cause__ or link.__context__
            lengths.append(length)
            time.advance(1)
            fail(run)
    assert len(set(lengths[1:])) == 1


def test_a_closed_circuit_keeps_no_failure_alive(time: VirtualTime) -> None:
    """Nor the frames it went through."""
    run = runner(circuit("gateway", failures=1, reset_after=1))

    class Boom(Exception):
        """Can be referred to weakly."""

    def trip() -> weakref.ref[Boom]:
        boom = Boom()
        try:
            run(boom)
        except Boom:
            pass
        return weakref.ref(boom)

    ref = trip()
    assert ref() is not None
    time.advance(1)
    run()
    gc.collect()  # the frame of `trip` and its exception are a cycle of their own
    assert ref() is None


def test_a_rejection_crosses_process_boundaries() -> None:
    """With its attributes."""
    run = runner(circuit("gateway", failures=1))
    fail(run)
    with pytest.raises(CircuitOpen) as caught:
        run()
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.retry_after, copy.state) == (str(caught.value), caught.value.retry_after, "open")


# Events


def told(events: list[Event]) -> list[tuple[str, str | None, object, str | None]]:
    """Name, state, previous state and reason of the circuit's events."""
    return [(e.name, e.state, e.previous, e.reason) for e in events if e.layer == "circuit"]


def test_every_change_is_an_event(time: VirtualTime) -> None:
    """In order, with the figures that led to it."""
    gateway = circuit("gateway", failures=2, reset_after=10)
    run = runner(gateway)
    with capture() as events:
        fail(run, 2)
        with pytest.raises(CircuitOpen):
            run()
        time.advance(10)
        run()
        gateway.isolate()
        gateway.reset()
    assert told(events) == [
        ("circuit.opened", "open", "closed", "failures"),
        ("circuit.rejected", "open", None, "open"),
        ("circuit.half_opened", "half-open", "open", "time is up"),
        ("circuit.closed", "closed", "half-open", "recovered"),
        ("circuit.isolated", "isolated", "closed", "by hand"),
        ("circuit.closed", "closed", "isolated", "by hand"),
    ]
    opened = next(event for event in events if event.name == "circuit.opened")
    assert (opened.failures, opened.retry_after, opened.policy) == (2, 10, "gateway")
    assert opened.cause is not None
    assert opened.cause.type == "ConnectionError"
    assert opened.function is not None
    assert opened.function.endswith("run")


def test_a_sink_may_use_the_circuit() -> None:
    """Events are told outside the lock; what a sink does comes after what it was told."""
    gateway = circuit("gateway", failures=1)
    run = runner(gateway)

    def sink(event: Event) -> None:
        if event.name == "circuit.opened":
            gateway.isolate()

    with guarded.events.subscribe(sink):
        fail(run)
    assert gateway.state == "isolated"


# Streams


def test_a_stream_is_counted_at_its_end(time: VirtualTime) -> None:
    """A failure after the first item is a failure; the consumer's time makes no call slow."""
    gateway = circuit("gateway", failures=1, slow_call=5)

    @gateway
    def items(error: Exception | None = None) -> Iterator[int]:
        yield 1
        if error is not None:
            raise error

    for _ in items():
        time.advance(100)
    assert gateway.state == "closed"
    with pytest.raises(ConnectionError):
        list(items(ConnectionError()))
    assert gateway.state == "open"
    with pytest.raises(CircuitOpen):
        next(items())


@pytest.mark.parametrize("how", ["close", "throw", "drop"])
def test_a_stream_left_by_its_consumer_is_neutral(time: VirtualTime, how: str) -> None:
    """Its trial place is free again."""
    gateway = circuit("gateway", failures=1, reset_after=1)
    run = runner(gateway)
    fail(run)
    time.advance(1)

    @gateway
    def items() -> Iterator[int]:
        yield 1
        yield 2

    stream: Any = items()
    assert next(stream) == 1
    assert gateway.snapshot().trials == 1
    if how == "throw":
        with pytest.raises(ConnectionError):
            stream.throw(ConnectionError())
    elif how == "close":
        stream.close()
    del stream
    assert gateway.snapshot().trials == 0
    assert gateway.state == "half-open"


def test_a_stream_never_begun_takes_no_trial(time: VirtualTime) -> None:
    """Admission is at the first item."""
    gateway = circuit("gateway", failures=1, reset_after=1)
    fail(runner(gateway))
    time.advance(1)

    @gateway
    def items() -> Iterator[int]:
        yield 1

    stream = items()
    assert gateway.state == "open"
    del stream
    assert gateway.snapshot().trials == 0


def test_async_streams_likewise(time: VirtualTime) -> None:
    """First item slow, or failing in the middle."""
    gateway = circuit("gateway", failures=1, slow_call=5)

    @gateway
    async def items(wait: float, error: Exception | None = None) -> AsyncIterator[int]:
        time.advance(wait)
        yield 1
        if error is not None:
            raise error

    async def read(*args: Any) -> list[int]:
        return [item async for item in items(*args)]

    async def main() -> None:
        assert await read(4) == [1]
        assert gateway.state == "closed"
        with pytest.raises(ConnectionError):
            await read(0, ConnectionError())
        assert gateway.state == "open"
        gateway.reset()
        assert await read(5) == [1]
        assert gateway.state == "open"
        with pytest.raises(CircuitOpen):
            await read(0)

    asyncio.run(main())


# Ways to use it


def test_async_functions() -> None:
    """Opens, rejects, closes as for plain ones, on several loops."""
    gateway = circuit("gateway", failures=2, reset_after=1)

    @gateway
    async def run(error: Exception | None = None) -> str:
        await asyncio.sleep(0)
        if error is not None:
            raise error
        return "fine"

    async def main() -> None:
        with pytest.raises(ConnectionError):
            await run(ConnectionError())

    with virtual_time(auto=False) as moved:
        asyncio.run(main())
        asyncio.run(main())
        with pytest.raises(CircuitOpen):
            asyncio.run(run())
        moved.advance(1)
        assert asyncio.run(run()) == "fine"
    assert gateway.state == "closed"


def test_a_function_that_gives_an_awaitable_is_guarded_too() -> None:
    """The discovery itself is neutral."""
    gateway = circuit("gateway", failures=2)

    async def inner() -> None:
        raise ConnectionError

    @gateway
    def run() -> Any:
        return inner()

    async def main() -> None:
        for _ in range(2):
            with pytest.raises(ConnectionError):
                await run()
        with pytest.raises(CircuitOpen):
            await run()

    asyncio.run(main())


def test_as_a_block() -> None:
    """`with` and `async with` count how the block ended, nested and in tasks."""
    gateway = circuit("gateway", failures=2)

    async def block() -> None:
        async with gateway:
            raise ConnectionError

    async def main() -> None:
        results = await asyncio.gather(block(), block(), return_exceptions=True)
        assert [type(result) for result in results] == [ConnectionError] * 2

    with gateway, gateway:
        pass
    asyncio.run(main())
    assert gateway.state == "open"
    with pytest.raises(CircuitOpen), gateway:
        pass
    gateway.reset()
    with pytest.raises(ConnectionError), gateway:
        raise ConnectionError
    assert gateway.snapshot().failures == 1


def test_a_block_meets_the_deadline_around_it() -> None:
    """As a decorated function does."""
    gateway = circuit("gateway", failures=1)
    with virtual_time(), pytest.raises(DeadlineExceeded), deadline(10), gateway:
        guarded.sleep(60)
    assert gateway.state == "open"


def test_call_runs_once_under_the_circuit() -> None:
    """`circuit.call(fn, …)`, sync and async."""
    gateway = circuit("gateway", failures=1)

    async def answer(value: int) -> int:
        return value

    assert gateway.call(max, 1, 2) == 2
    assert asyncio.run(gateway.call(answer, 3)) == 3


def test_retry_obeys_the_rejection(time: VirtualTime) -> None:
    """A rejection below a retry is passing, and its retry_after a floor under the delay."""
    gateway = circuit("gateway", failures=1, reset_after=20)
    calls = []

    @retry(retries=1, base=0.1, jitter="none")
    @gateway
    def run() -> None:
        calls.append(clock.monotonic())
        raise ConnectionError

    with virtual_time(), pytest.raises(ConnectionError):
        gateway.reset()
        fail(runner(gateway))
        run()
    assert len(calls) == 1


def test_one_name_is_one_circuit() -> None:
    """Equal options give the same object, others a conflict; pickled, it is that of the process."""
    gateway = circuit("gateway", window="60s", failure_rate=0.5)
    assert circuit("gateway", window=timedelta(minutes=1), failure_rate=0.5) is gateway
    assert pickle.loads(pickle.dumps(gateway)) is gateway
    with pytest.raises(PolicyConflict):
        circuit("gateway", window=60, failure_rate=0.5)


def test_a_name_is_needed() -> None:
    """Bare use is told how to do it."""
    with pytest.raises(TypeError, match="gateway"):

        @circuit  # type: ignore[arg-type]
        def run() -> None: ...


# Options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"failures": 0}, ["failures=0", "at least 1"]),
        ({"failures": True}, ["failures=True"]),
        ({"failures": 3, "failure_rate": 0.5}, ["failures=3", "failure_rate=0.5", "one of them"]),
        ({"failure_rate": 50}, ["failure_rate=50", "did you mean 0.5?"]),
        ({"failure_rate": 0}, ["failure_rate=0"]),
        ({"failure_rate": float("nan")}, ["failure_rate=nan"]),
        ({"failure_rate": True}, ["failure_rate=True"]),
        ({"failure_rate": 0.5, "window": 60.0}, ["window=60.0", "'60s'"]),
        ({"failure_rate": 0.5, "window": 0}, ["window=0"]),
        ({"failure_rate": 0.5, "window": "60"}, ["window='60'", "unit"]),
        ({"failure_rate": 0.5, "window": 10, "min_calls": 11}, ["min_calls=11", "window=10"]),
        ({"failure_rate": 0.5, "window": 10**9}, ["window=1000000000", "at most"]),
        ({"failure_rate": 0.5, "min_calls": 0}, ["min_calls=0"]),
        ({"failures": 5, "window": "60s"}, ["window='60s'", "failure_rate or slow_rate", "in a row"]),
        ({"min_calls": 5}, ["min_calls=5", "failure_rate or slow_rate"]),
        ({"slow_rate": 0.5}, ["slow_rate=0.5", "slow_call"]),
        ({"slow_call": 1, "slow_rate": 1.5}, ["slow_rate=1.5"]),
        ({"slow_call": -1}, ["slow_call=-1"]),
        ({"reset_after": 0}, ["reset_after=0"]),
        ({"reset_after": 60, "max_reset_after": 30}, ["max_reset_after=30", "reset_after=60"]),
        ({"half_open": 0}, ["half_open=0"]),
        ({"trial_timeout": "never"}, ["trial_timeout='never'"]),
        ({"on": ()}, ["on=()"]),
        ({"on": 5}, ["on=5"]),
        ({"ignore": KeyboardInterrupt}, ["ignore=KeyboardInterrupt"]),
        ({"enforce": 1}, ["enforce=1"]),
        ({"breaker": object()}, ["breaker=", "pybreaker.CircuitBreaker"]),
        ({"store": "redis://"}, ["store='redis://'"]),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], words: list[str]) -> None:
    """Option, value and rule, when the policy is built; nothing is registered."""
    with pytest.raises(ValueError, match="circuit: ") as caught:
        circuit("gateway", **options)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "gateway" not in registry


def test_all_wrong_options_are_named_at_once() -> None:
    """Not only the first."""
    with pytest.raises(ValueError, match="circuit: ") as caught:
        circuit("gateway", failures=0, slow_rate=2, reset_after=-1, half_open=0, on=(), enforce="yes")  # type: ignore[arg-type]
    for option in ("failures=0", "slow_rate=2", "reset_after=-1", "half_open=0", "on=()", "enforce='yes'"):
        assert option in str(caught.value)


def test_min_calls_fits_a_short_window() -> None:
    """10 by default, but never more than a count window holds."""
    assert circuit("a", failure_rate=0.5, window=4).options.min_calls == 4
    assert circuit("b", failure_rate=0.5, window=400).options.min_calls == 10
    assert circuit("c", failure_rate=0.5).options.min_calls == 10


def test_the_repr_says_what_opens_it() -> None:
    """Short, and true to the mode."""
    assert repr(circuit("a")) == "circuit('a', failures=5, reset_after=30)"
    assert repr(circuit("b", failure_rate=0.5, window="1m", enforce=False)) == (
        "circuit('b', failure_rate=0.5, window='1m', reset_after=30, enforce=False)"
    )
