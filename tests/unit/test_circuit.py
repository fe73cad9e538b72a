"""circuit: failures in a row, recovery, trials, acts by hand, ways to use it, options."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any

import freezegun
import pytest

import guarded
from guarded import CircuitOpen, DeadlineExceeded, circuit, deadline, registry, retry
from guarded._core import clock
from guarded._core.virtual import VirtualTime
from guarded.errors import LimitFull, PolicyConflict
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
        assert str(caught.value) == (
            "circuit 'gateway' has been half-open for 0s after a failure with ConnectionError, "
            "and its trial call is still out; try again when that has ended, or do without"
        )

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


def test_shadow_mode_for_async_functions_and_streams(time: VirtualTime) -> None:
    """They pass too, and count for nothing."""
    gateway = circuit("gateway", failures=1, enforce=False)
    fail(runner(gateway))

    @gateway
    async def run() -> str:
        return "fine"

    @gateway
    def items() -> Iterator[int]:
        yield 1

    @gateway
    async def items_async() -> AsyncIterator[int]:
        yield 1

    async def collect() -> list[int]:
        return [item async for item in items_async()]

    assert asyncio.run(run()) == "fine"
    assert list(items()) == asyncio.run(collect()) == [1]
    assert gateway.state == "open"


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


def test_the_shortest_window() -> None:
    """A window is kept in microseconds, and is never none at all."""
    shortest = circuit("gateway", failure_rate=0.5, window="0.1us")
    assert shortest.options.window == timedelta(microseconds=1)
    assert shortest.call(lambda: "ok") == "ok"


def test_a_name_is_needed() -> None:
    """Bare use is told how to do it."""
    with pytest.raises(ValueError, match=r"circuit: name=.*gateway"):

        @circuit  # type: ignore[arg-type]
        def run() -> None: ...

    for name in (None, "", 3, ["gateway"]):
        with pytest.raises(ValueError, match=r"circuit: name=.*: must be .*; failures=0: "):
            circuit(name, failures=0)  # type: ignore[arg-type]


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
        ({"trial_timeout": None}, ["trial_timeout=None"]),
        ({"on": ()}, ["on=()"]),
        ({"on": 5}, ["on=5"]),
        ({"ignore": KeyboardInterrupt}, ["ignore=KeyboardInterrupt"]),
        ({"enforce": 1}, ["enforce=1"]),
        ({"breaker": object()}, ["breaker=", "pybreaker.CircuitBreaker"]),
        ({"store": "rediss+x://"}, ["store"]),
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
    with pytest.raises(ValueError, match=r"failures=-1: .*; window='60s': .*; min_calls=3: "):
        circuit("gateway", failures=-1, window="60s", min_calls=3)


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
