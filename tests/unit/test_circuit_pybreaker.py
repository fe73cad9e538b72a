"""The pybreaker register of a circuit: it shows, its listeners hear, its acts act; existing ones are adopted."""

from __future__ import annotations

import abc
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pybreaker
import pytest

from guarded import CircuitOpen, GuardWarning, circuit, registry
from guarded._core import clock
from guarded._core.virtual import VirtualTime
from guarded.policies.circuit import Circuit
from guarded.testing import capture, virtual_time


@pytest.fixture
def time() -> Iterator[VirtualTime]:
    """Virtual time that moves only when told to."""
    with virtual_time(auto=False) as moved:
        yield moved


class Recorder(pybreaker.CircuitBreakerListener):
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def before_call(self, cb: Any, func: Any, *args: Any, **kwargs: Any) -> None:
        self.heard.append(("before", func.__name__, args, kwargs))

    def failure(self, cb: Any, exc: BaseException) -> None:
        self.heard.append(("failure", type(exc).__name__))

    def success(self, cb: Any) -> None:
        self.heard.append("success")

    def state_change(self, cb: Any, old_state: Any, new_state: Any) -> None:
        self.heard.append((old_state.name, new_state.name, cb.current_state, cb.state.name))


class Raiser(pybreaker.CircuitBreakerListener):
    """Raises whatever it hears."""

    def before_call(self, cb: Any, func: Any, *args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError

    failure = success = state_change = before_call  # type: ignore[assignment]


def runner(policy: Circuit) -> Callable[..., Any]:
    """A guarded function that raises what it is given, or returns."""

    @policy
    def run(error: BaseException | None = None) -> str:
        if error is not None:
            raise error
        return "fine"

    return run


def fail(run: Callable[..., Any], times: int = 1, error: type[Exception] = ConnectionError) -> None:
    """Let `run` fail so often."""
    for _ in range(times):
        with pytest.raises(error):
            run(error())


def test_importing_guarded_does_not_import_pybreaker() -> None:
    """It would import redis too."""
    code = "import guarded, sys; sys.exit(any(name in sys.modules for name in ('pybreaker', 'redis')))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_the_error_is_pybreakers_too() -> None:
    """Code that catches CircuitBreakerError goes on working."""
    run = runner(circuit("gateway", failures=1))
    fail(run)
    with pytest.raises(pybreaker.CircuitBreakerError) as caught:
        run()
    assert type(caught.value) is CircuitOpen


def test_the_register_shows_the_circuit(time: VirtualTime) -> None:
    """State, counters and the wall time of opening, whenever it is first asked for."""
    gateway = circuit("gateway", failures=2, reset_after=10, half_open=2)
    run = runner(gateway)
    fail(run)
    breaker = gateway.breaker
    assert isinstance(breaker, pybreaker.CircuitBreaker)
    assert gateway.breaker is breaker
    assert (breaker.name, breaker.fail_max, breaker.reset_timeout, breaker.success_threshold) == ("gateway", 2, 10, 2)
    assert (breaker.current_state, breaker.fail_counter) == ("closed", 1)
    assert breaker._state_storage.opened_at is None
    fail(run)
    time.advance(4)
    assert (breaker.current_state, breaker.state.name, breaker.fail_counter) == ("open", "open", 2)
    opened = datetime.fromtimestamp(clock.wall() - 4, UTC)
    assert breaker._state_storage.opened_at is not None
    assert abs(breaker._state_storage.opened_at - opened) < timedelta(milliseconds=1)
    time.advance(6)
    run()
    assert (breaker.current_state, breaker.success_counter) == ("half-open", 1)
    run()
    assert (breaker.current_state, breaker.fail_counter) == ("closed", 0)
    gateway.isolate()
    assert breaker.current_state == "open"
    gateway.disable()
    assert breaker.current_state == "closed"


def test_listeners_hear_calls_and_changes_in_order(time: VirtualTime) -> None:
    """After the state has changed, so that what they see is what they are told."""
    gateway = circuit("gateway", failures=1, reset_after=1)
    run = runner(gateway)
    recorder = Recorder()
    run()
    gateway.breaker.add_listener(recorder)
    run()
    fail(run)
    time.advance(1)
    run()
    assert recorder.heard == [
        ("before", "run", (), {}),
        "success",
        ("before", "run", recorder.heard[2][2], {}),
        ("failure", "ConnectionError"),
        ("closed", "open", "open", "open"),
        ("open", "half-open", "half-open", "half-open"),
        ("before", "run", (), {}),
        "success",
        ("half-open", "closed", "closed", "closed"),
    ]
    gateway.breaker.remove_listener(recorder)
    run()
    assert len(recorder.heard) == 9


def test_neutral_ends_and_isolation_of_an_open_circuit_are_not_heard() -> None:
    """pybreaker has a word for neither."""
    gateway = circuit("gateway", failures=1, ignore=KeyError)
    run = runner(gateway)
    recorder = Recorder()
    gateway.breaker.add_listener(recorder)
    fail(run, 1, KeyError)
    assert recorder.heard == [("before", "run", recorder.heard[0][2], {})]
    fail(run)
    del recorder.heard[:]
    gateway.isolate()
    assert recorder.heard == []
    gateway.reset()
    assert recorder.heard == [("open", "closed", "closed", "closed")]


def test_listeners_are_called_under_no_lock() -> None:
    """Another thread can use circuit and breaker while a listener runs."""
    gateway = circuit("gateway", failures=1)
    run = runner(gateway)
    seen = []

    class Asker(pybreaker.CircuitBreakerListener):
        def state_change(self, cb: Any, old_state: Any, new_state: Any) -> None:
            thread = threading.Thread(target=lambda: seen.append((gateway.snapshot().state, cb.fail_counter)))
            thread.start()
            thread.join(10)
            assert not thread.is_alive()
            cb.add_listener(Recorder())

    gateway.breaker.add_listener(Asker())
    fail(run)
    assert seen == [("open", 1)]
    gateway.breaker.close()
    assert seen == [("open", 1), ("closed", 0)]


def test_what_a_listener_raises_reaches_nobody() -> None:
    """The change is made, the caller has its own result, the other listeners hear; one warning says so."""
    gateway = circuit("gateway", failures=1)
    run = runner(gateway)
    recorder = Recorder()
    gateway.breaker.add_listeners(Raiser(), recorder)
    with pytest.warns(GuardWarning, match=r"listener of circuit 'gateway', Raiser, raised ZeroDivisionError"):
        assert run() == "fine"
    fail(run)
    assert gateway.state == "open"
    gateway.breaker.close()
    gateway.breaker.open()
    gateway.breaker.half_open()
    assert gateway.state == "half-open"
    assert [heard for heard in recorder.heard if len(heard) == 4 and heard[0] != "before"] == [
        ("closed", "open", "open", "open"),
        ("open", "closed", "closed", "closed"),
        ("closed", "open", "open", "open"),
        ("open", "half-open", "half-open", "half-open"),
    ]


def test_a_listener_that_raises_under_a_strict_filter_reaches_nobody_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings are errors here: the caller still has its own result, and the warning is shown."""
    shown: list[str] = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *where: shown.append(str(message)))
    gateway = circuit("gateway", failures=1)
    gateway.breaker.add_listener(Raiser())
    assert runner(gateway)() == "fine"
    assert [message.partition(",")[0] for message in shown] == ["a listener of circuit 'gateway'"]


def test_a_listener_may_act_on_the_circuit() -> None:
    """What it does is told after what it was told."""
    gateway = circuit("gateway", failures=1)
    run = runner(gateway)
    recorder = Recorder()

    class Closer(pybreaker.CircuitBreakerListener):
        def state_change(self, cb: Any, old_state: Any, new_state: Any) -> None:
            if new_state.name == "open":
                cb.close()

    gateway.breaker.add_listeners(Closer(), recorder)
    fail(run)
    assert gateway.state == "closed"
    assert [(heard[0], heard[1]) for heard in recorder.heard if heard[0] in ("closed", "open")] == [
        ("closed", "open"),
        ("open", "closed"),
    ]


def test_acts_on_the_register_act_on_the_circuit(time: VirtualTime) -> None:
    """open, half_open, close, and setting the state; opening twice neither tells twice nor extends the time."""
    gateway = circuit("gateway", reset_after=10)
    run = runner(gateway)
    breaker = gateway.breaker
    with capture() as events:
        breaker.open()
        with pytest.raises(CircuitOpen, match="by hand"):
            run()
        time.advance(9)
        breaker.open()
        time.advance(1)
        run()
        assert gateway.state == "closed"
        breaker.half_open()
        assert gateway.state == "half-open"
        breaker.close()
        assert gateway.state == "closed"
        breaker.state = "open"
    assert gateway.state == "open"
    assert [event.name for event in events if event.name == "circuit.opened"] == ["circuit.opened"] * 2
    with pytest.raises(ValueError, match="sideways"):
        breaker.state = "sideways"


def test_an_isolated_circuit_is_open_for_the_register_and_stays_isolated() -> None:
    """And a disabled one closed."""
    gateway = circuit("gateway")
    gateway.isolate()
    gateway.breaker.open()
    assert gateway.state == "isolated"
    gateway.breaker.close()
    assert gateway.state == "closed"
    gateway.disable()
    gateway.breaker.close()
    assert gateway.state == "disabled"


def test_exclusions_of_the_register_are_neutral() -> None:
    """Also when added later, and as a class whose metaclass is not type."""

    class Abstract(Exception, metaclass=abc.ABCMeta):
        """pybreaker would call this class, and so exclude everything."""

    gateway = circuit("gateway", failures=1)
    gateway.breaker.add_excluded_exception(Abstract)
    gateway.breaker.add_excluded_exception(lambda error: isinstance(error, KeyError))  # type: ignore[arg-type]
    run = runner(gateway)
    fail(run, 1, Abstract)
    fail(run, 1, KeyError)
    assert gateway.state == "closed"
    fail(run)
    assert gateway.state == "open"


def test_calls_through_the_register_share_the_count(time: VirtualTime) -> None:
    """Code not yet moved over, which goes through pybreaker's own call, opens and closes the same circuit."""
    gateway = circuit("gateway", failures=2, reset_after=10)
    run = runner(gateway)
    fail(run)
    with pytest.raises(pybreaker.CircuitBreakerError):
        gateway.breaker.call(lambda: 1 / 0)
    assert gateway.state == "open"
    time.advance(10)
    assert gateway.breaker.state.name == "open"
    gateway.breaker.half_open()
    assert gateway.breaker.call(lambda: "fine") == "fine"
    assert gateway.state == "closed"
    fail(run)
    assert gateway.breaker.call(lambda: "fine") == "fine"
    fail(run)
    assert gateway.state == "closed"


def test_calls_through_the_register_count_in_a_window_too() -> None:
    """There the circuit itself decides, and tells."""
    gateway = circuit("gateway", failure_rate=0.5, min_calls=2)
    recorder = Recorder()
    gateway.breaker.add_listener(recorder)
    with capture() as events:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                gateway.breaker.call(lambda: 1 / 0)
    assert gateway.state == "open"
    assert ("closed", "open", "open", "open") in recorder.heard
    assert [event.name for event in events if event.layer == "circuit"] == ["circuit.opened"]


# Adopting


def test_an_adopted_breaker_gives_its_numbers() -> None:
    """As defaults; what is said goes before."""
    breaker = pybreaker.CircuitBreaker(fail_max=3, reset_timeout=12, success_threshold=2)
    options = circuit("a", breaker=breaker).options
    assert (options.failures, options.reset_after, options.half_open) == (3, 12, 2)
    other = pybreaker.CircuitBreaker(fail_max=3)
    options = circuit("b", breaker=other, failure_rate=0.5, reset_after=1, half_open=4).options
    assert (options.failures, options.failure_rate, options.reset_after, options.half_open) == (None, 0.5, 1, 4)


def test_an_adopted_breaker_is_the_register() -> None:
    """Same object; its listeners hear, its exclusions exclude, its acts act, whatever its class."""

    class Mine(pybreaker.CircuitBreaker):
        """Somebody's own."""

        def shout(self) -> str:
            return self.current_state.upper()

    for kind in (pybreaker.CircuitBreaker, Mine):
        recorder = Recorder()
        breaker = kind(fail_max=1, listeners=[recorder], exclude=[KeyError])
        with registry.isolated():
            gateway = circuit("gateway", breaker=breaker)
        assert gateway.breaker is breaker
        assert isinstance(breaker, kind)
        run = runner(gateway)
        fail(run, 2, KeyError)
        fail(run)
        assert recorder.heard[-2:] == [("failure", "ConnectionError"), ("closed", "open", "open", "open")]
        with pytest.raises(CircuitOpen):
            run()
        breaker.close()
        assert gateway.state == "closed"
        if isinstance(breaker, Mine):
            assert breaker.shout() == "CLOSED"


def test_an_adopted_breaker_brings_its_state(time: VirtualTime) -> None:
    """Open since then; closed with so many failures; nobody is told of a change."""
    recorder = Recorder()
    broken = pybreaker.CircuitBreaker(fail_max=5, reset_timeout=10, listeners=[recorder])
    broken.open()
    broken._state_storage.opened_at = datetime.fromtimestamp(clock.wall() - 4, UTC)
    del recorder.heard[:]
    gateway = circuit("gateway", breaker=broken)
    run = runner(gateway)
    with pytest.raises(CircuitOpen) as caught:
        run()
    assert caught.value.retry_after == pytest.approx(6, abs=1e-3)
    assert recorder.heard == []

    failing = pybreaker.CircuitBreaker(fail_max=3, throw_new_error_on_trip=False)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            failing.call(lambda: 1 / 0)
    other = circuit("other", breaker=failing)
    assert other.snapshot().failures == 2
    fail(runner(other))
    assert other.state == "open"


def test_a_breaker_serves_one_circuit() -> None:
    """Named twice under one name it is the same circuit; under another it is refused."""
    breaker = pybreaker.CircuitBreaker(fail_max=1)
    gateway = circuit("gateway", breaker=breaker)
    fail(runner(gateway))
    assert circuit("gateway", breaker=breaker) is gateway
    assert gateway.state == "open"
    with pytest.raises(ValueError, match="register of circuit 'gateway' already"):
        circuit("other", breaker=breaker)
    assert "other" not in registry
    assert breaker.current_state == "open"


def test_a_storage_that_is_not_in_memory_is_left_with_a_warning() -> None:
    """The state is ours now."""

    class Elsewhere(pybreaker.CircuitMemoryStorage):
        """Not in memory, for all we know."""

    class Foreign(pybreaker.CircuitBreakerStorage):
        """Somebody's own storage."""

        state = "closed"
        counter = success_counter = 0
        opened_at = None

    with pytest.warns(GuardWarning, match="Foreign, which is used no more"):
        circuit("gateway", breaker=pybreaker.CircuitBreaker(state_storage=Foreign("foreign")))
    circuit("other", breaker=pybreaker.CircuitBreaker(state_storage=Elsewhere("closed")))
