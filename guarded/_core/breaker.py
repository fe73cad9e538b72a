"""The one place that imports pybreaker: its error type joined with ours, and its breaker as our state register.

A registered breaker shows the state of a circuit, and its ``open()``, ``close()`` and ``half_open()`` act on it.
It decides nothing: our own calls never go through its ``call``, which holds a lock while user code runs. Its
listeners are called under no lock, and what they raise reaches nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from pybreaker import (
    STATE_CLOSED,
    STATE_HALF_OPEN,
    STATE_OPEN,
    CircuitBreaker,
    CircuitBreakerError,
    CircuitBreakerStorage,
    CircuitClosedState,
    CircuitHalfOpenState,
    CircuitMemoryStorage,
    CircuitOpenState,
)

from guarded._core.place import complain, warn
from guarded.errors import Rejected

if TYPE_CHECKING:
    from pybreaker import CircuitBreakerListener

_STATES: Final[dict[str, Any]] = {
    STATE_CLOSED: CircuitClosedState,
    STATE_OPEN: CircuitOpenState,
    STATE_HALF_OPEN: CircuitHalfOpenState,
}


class CircuitOpen(Rejected, CircuitBreakerError):
    """The circuit is open, isolated, or half-open with all trials out; ``__cause__`` is the last failure.

    Args:
        message: state, failures seen, how long, and what to do.
        state: ``open``, ``isolated`` or ``half-open``.
        policy: name of the circuit.
        retry_after: seconds after which a call will be let through; None when nobody can know.
    """

    __module__ = "guarded.errors"  # where it is to be imported from, like all others

    layer = "circuit"

    def __init__(
        self, message: str, *, state: str = "open", policy: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message, policy=policy, retry_after=retry_after)
        self.state = state


class Reading(NamedTuple):
    """The counters that the register shows of a circuit; `opened_at` is in seconds since the epoch."""

    failures: int
    successes: int
    opened_at: float | None


class Register(Protocol):
    """What a registered breaker needs of its circuit."""

    @property
    def owner(self) -> str:
        """Name of the circuit."""
        ...

    @property
    def state(self) -> str:
        """``closed``, ``open`` or ``half-open``."""
        ...

    def reading(self) -> Reading:
        """Counters."""
        ...

    def act(self, state: Any) -> None:
        """Go to ``closed``, ``open`` or ``half-open`` by hand."""
        ...

    def count(self, *, failed: bool) -> None:
        """Count the result of a call that went through the breaker instead of the circuit."""
        ...

    def hear(self, listens: bool) -> None:
        """Whether anybody listens to the breaker has changed."""
        ...


class RegisterStorage(CircuitBreakerStorage):
    """pybreaker's storage contract over the state of a circuit."""

    def __init__(self, circuit: Register) -> None:
        super().__init__("guarded")
        self.circuit = circuit

    @property
    def state(self) -> str:
        """``closed``, ``open`` (also for isolated) or ``half-open``."""
        return self.circuit.state

    @state.setter
    def state(self, state: str) -> None:
        self.circuit.act(state)

    def increment_counter(self) -> None:
        """A call through the breaker failed."""
        self.circuit.count(failed=True)

    def reset_counter(self) -> None:
        """A call through the breaker succeeded."""
        if self.state == STATE_CLOSED:
            self.circuit.count(failed=False)

    def increment_success_counter(self) -> None:
        """A trial through the breaker succeeded."""
        self.circuit.count(failed=False)

    def reset_success_counter(self) -> None:
        """Nothing to do: a change of state forgets the trials before it."""

    @property
    def counter(self) -> int:
        """Failures counted."""
        return self.circuit.reading().failures

    @property
    def success_counter(self) -> int:
        """Trials that have succeeded."""
        return self.circuit.reading().successes

    @property
    def opened_at(self) -> datetime | None:
        """When the circuit was opened, by the wall clock; None when it is not open."""
        at = self.circuit.reading().opened_at
        return None if at is None else datetime.fromtimestamp(at, UTC)

    @opened_at.setter
    def opened_at(self, datetime: datetime) -> None:
        """Ignored: the circuit keeps its own monotonic time."""


class RegisteredBreaker(CircuitBreaker):
    """A breaker whose state is that of a circuit; mixed into the class of an adopted one."""

    _state_storage: RegisterStorage
    _complained = False

    def open(self) -> bool:
        """Open the circuit; nothing happens when it is open."""
        self._state_storage.circuit.act(STATE_OPEN)
        return self._throw_new_error_on_trip

    def half_open(self) -> None:
        """Let trial calls through."""
        self._state_storage.circuit.act(STATE_HALF_OPEN)

    def close(self) -> None:
        """Let all calls through, and forget what was counted."""
        self._state_storage.circuit.act(STATE_CLOSED)

    @property
    def state(self) -> Any:
        """pybreaker's state object for the present state."""
        current = self.current_state
        if self._state.name != current:
            return _STATES[current](self, prev_state=self._state)
        return self._state

    @state.setter
    def state(self, state_str: str) -> None:
        if state_str not in _STATES:
            raise ValueError(f"state={state_str!r}: must be one of {', '.join(_STATES)}")
        self._state_storage.circuit.act(state_str)

    def add_listener(self, listener: CircuitBreakerListener) -> None:
        """Call `listener` from now on."""
        super().add_listener(listener)
        self._state_storage.circuit.hear(bool(self._listeners))

    def remove_listener(self, listener: CircuitBreakerListener) -> None:
        """Call `listener` no more."""
        super().remove_listener(listener)
        self._state_storage.circuit.hear(bool(self._listeners))

    def is_system_error(self, exception: BaseException) -> bool:
        """Whether no exclusion means `exception`; classes of any metaclass are taken as classes."""
        # pybreaker calls an excluded class whose metaclass is not `type`, and so excludes everything.
        return not any(
            isinstance(exception, excluded) if isinstance(excluded, type) else excluded(exception)
            for excluded in self.excluded_exceptions
        )

    def tell_change(self, state: str) -> None:
        """Tell the listeners that the circuit is now in `state`."""
        old = self._state
        new = self._state = _STATES[state](self, prev_state=old)
        self._each(lambda listener: listener.state_change(self, old, new))

    def tell_call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Tell the listeners that a call begins."""
        self._each(lambda listener: listener.before_call(self, fn, *args, **kwargs))

    def tell_result(self, error: BaseException | None) -> None:
        """Tell the listeners that a call was counted, as a failure when there is an error."""
        if error is None:
            self._each(lambda listener: listener.success(self))
        else:
            self._each(lambda listener: listener.failure(self, error))

    def _each(self, tell: Callable[[Any], object]) -> None:
        for listener in self.listeners:
            try:
                tell(listener)
            except Exception as error:
                self._complain(listener, error)

    def _complain(self, listener: object, error: Exception) -> None:
        if not self._complained:
            self._complained = True
            complain(
                f"a listener of circuit {self._state_storage.circuit.owner!r}, {type(listener).__qualname__}, "
                f"raised {type(error).__qualname__}; the circuit goes on, and says so only once"
            )


def defaults_of(breaker: object) -> tuple[int, float, int] | None:
    """Failures to open, seconds to reset and successes to close of a pybreaker; None for anything else."""
    if not isinstance(breaker, CircuitBreaker):
        return None
    return breaker.fail_max, breaker.reset_timeout, breaker.success_threshold


def owner_of(breaker: object) -> str | None:
    """Name of the circuit that `breaker` is the register of."""
    storage = getattr(breaker, "_state_storage", None)
    return storage.circuit.owner if isinstance(storage, RegisterStorage) else None


def make(circuit: Register, *, fail_max: int, reset_timeout: float, half_open: int) -> RegisteredBreaker:
    """A new breaker that is the register of `circuit`."""
    return RegisteredBreaker(
        fail_max, reset_timeout, half_open, state_storage=RegisterStorage(circuit), name=circuit.owner
    )


def adopt(breaker: CircuitBreaker, circuit: Register) -> RegisteredBreaker:
    """Make an existing breaker the register of `circuit`, keeping its listeners and exclusions."""
    storage = breaker._state_storage
    if not isinstance(storage, (RegisterStorage, CircuitMemoryStorage)):
        warn(
            f"circuit {circuit.owner!r} adopts a breaker with a {type(storage).__qualname__}, which is used no more: "
            f"the state is kept in this process"
        )
    breaker._state_storage = RegisterStorage(circuit)
    if not isinstance(breaker, RegisteredBreaker):
        breaker.__class__ = _registered(cast("Any", type(breaker)))
    assert isinstance(breaker, RegisteredBreaker)
    return breaker


@cache
def _registered(kind: Any) -> type[RegisteredBreaker]:
    """`kind` with the methods of a registered breaker put before its own."""
    return RegisteredBreaker if kind is CircuitBreaker else type(kind.__name__, (RegisteredBreaker, kind), {})
