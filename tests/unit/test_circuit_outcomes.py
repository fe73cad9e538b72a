"""circuit: what counts as success and failure and what is neutral, under deadlines too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

import guarded
from guarded import CancelToken, CircuitOpen, DeadlineExceeded, circuit, deadline
from guarded._core import waiters
from guarded._core.call import current
from guarded._core.virtual import VirtualTime
from guarded.errors import Deadlock, LimitFull, Rejected
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
        ends = nullcontext() if error is None else pytest.raises(ConnectionError, match="old")
        with capture() as events, ends:
            slow(error)
        late = [event for event in events if event.name == "circuit.late"]
        assert [event.outcome for event in late] == ["success" if error is None else "failure"]
        assert gateway.state == "closed"
        assert gateway.snapshot().failures == 1


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
