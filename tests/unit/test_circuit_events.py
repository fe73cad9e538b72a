"""circuit: what rejections and events say."""

from __future__ import annotations

import gc
import pickle
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import guarded
from guarded import CircuitOpen, circuit
from guarded._core.virtual import VirtualTime
from guarded.events import Event
from guarded.events.bus import bus
from guarded.policies._circuit.rejection import rejection_of
from guarded.policies._circuit.terms import Change, Refusal
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


@pytest.mark.parametrize(
    ("opening", "words"),
    [
        (Change("open", "closed", "failures", 1), "after a failure with ConnectionError"),
        (Change("open", "closed", "failures", 5), "after 5 failures in a row, the last with ConnectionError"),
        (
            Change("open", "closed", "failure_rate", 1, failure_rate=0.5),
            "after 1 failure, 0.5 of the calls, the last with ConnectionError",
        ),
        (Change("open", "closed", "slow_rate", slow_rate=0.75), "after 0.75 of the calls were slow"),
        (Change("open", "half-open", "trial failed", 1), "after a failed trial call with ConnectionError"),
        (Change("open", "half-open", "trial slow"), "after a slow trial call"),
        (Change("open", "closed", "by hand"), "after it was opened by hand"),
    ],
)
def test_the_rejection_says_what_opened_it(opening: Change, words: str) -> None:
    """In words, with the type of the failure where it was one; and what is to be waited for."""
    cause = ConnectionError()
    refused = Refusal("open", 2 * 10**9, 10**9, 0, opening)
    assert str(rejection_of(refused, "c", cause)) == (
        f"circuit 'c' has been open for 2s {words}; try again in 1s, or do without"
    )
    trials = Refusal("half-open", 2 * 10**9, None, 3, opening)
    assert str(rejection_of(trials, "c", cause)) == (
        f"circuit 'c' has been half-open for 2s {words}, and its 3 trial calls are still out; "
        "try again when that has ended, or do without"
    )


def test_only_a_counted_failure_becomes_the_cause(time: VirtualTime) -> None:
    """Neither a late one nor a neutral end, nor the absence of an error."""
    gateway = circuit("gateway", failures=1, reset_after=1, half_open=2)
    run = runner(gateway)
    boom = ConnectionError("first")

    @gateway
    def late() -> None:
        with pytest.raises(ConnectionError):
            run(boom)
        raise ConnectionError("late")

    def cause() -> BaseException | None:
        with pytest.raises(CircuitOpen) as caught:
            run()
        return caught.value.__cause__

    with pytest.raises(ConnectionError, match="late"):
        late()
    assert cause() is boom
    time.advance(1)
    with pytest.raises(KeyboardInterrupt):
        run(KeyboardInterrupt())

    @gateway
    def trial() -> None:
        run()
        assert cause() is boom

    trial()


def test_a_thousand_rejections_have_a_constant_traceback() -> None:
    """Each is fresh, and the shared cause does not grow either."""
    run = runner(circuit("gateway", failures=1))
    fail(run)
    depths = set()
    for _ in range(1000):
        with pytest.raises(CircuitOpen) as caught:
            run()
        cause = caught.value.__cause__
        assert cause is not None
        depths.add(tuple(len(list(traceback.walk_tb(error.__traceback__))) for error in (caught.value, cause)))
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


def test_an_interrupt_in_a_sink_does_not_silence_the_circuit() -> None:
    """Ctrl-C, or a signal handler that raises, while a change is told: what comes after it is told all the same."""
    gateway = circuit("gateway")
    told: list[str] = []

    def sink(event: Event) -> None:
        told.append(event.name)
        if len(told) == 1:
            gateway.reset()
            raise KeyboardInterrupt

    with bus.subscribe(sink):
        with pytest.raises(KeyboardInterrupt):
            gateway.isolate()
        gateway.isolate()
    assert told == ["circuit.isolated", "circuit.closed", "circuit.isolated"]
