"""circuit: stop hitting what is down.

Closed, calls pass and their outcomes are counted; open, they are rejected at once; half-open, a few trials decide
whether to close. Success and failure count, neutral ends (control flow, rejections below, ignored errors) do not.
No user code runs under the circuit's lock. Durations are seconds, ratios 0..1.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import asdict
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

from guarded._core.call import Call, current
from guarded._core.durations import Duration, format_duration
from guarded._core.factory import factory
from guarded._core.policy import AsyncNext, Policy, Site, SyncNext
from guarded._core.registry import registry
from guarded.policies._circuit.local import CircuitSnapshot, LocalCircuit
from guarded.policies._circuit.options import CircuitOptions
from guarded.policies._circuit.register import adopt_breaker, breaker_of, hand_over_breaker
from guarded.policies._circuit.shells import async_shell, async_stream_shell, stream_shell, sync_shell
from guarded.policies._circuit.terms import DISABLED, ISOLATED, Permit, State
from guarded.policies._matching import Matches
from guarded.policies._store_option import WhenStoreFails

if TYPE_CHECKING:
    from guarded._core.breaker import RegisteredBreaker
    from guarded.policies._circuit.stored import StoredCircuit

__all__ = ["Circuit", "CircuitOptions", "CircuitSnapshot", "circuit"]


class _Entered:
    """A ``with`` block on a circuit, and the blocks around it in the same context."""

    __slots__ = ("call", "circuit", "outer", "permit")

    def __init__(self, circuit: Circuit, call: Call, permit: Permit | None, outer: _Entered | None) -> None:
        self.circuit = circuit
        self.call = call
        self.permit = permit
        self.outer = outer


_entered: ContextVar[_Entered | None] = ContextVar("guarded_circuit_entered", default=None)


class Circuit(Policy[CircuitOptions]):
    """A circuit breaker to put on callables, or around a block: ``with gateway:`` and ``async with gateway:``.

    All callables under one circuit share its state, threads and event loops alike; with a store, all processes do. Then
    acts by hand raise StoreError when the store cannot be told: they hold in this process, while the store is away.
    """

    kind = "circuit"

    def __init__(self, options: CircuitOptions, *, name: str | None = None) -> None:
        super().__init__(options, name=name)
        self._settle_down()

    def _settle_down(self) -> None:
        """Have the state where the options say, as a new circuit's."""
        self.stored: StoredCircuit | None = None if self.options.store is None else self._in_store()
        self.local: StoredCircuit | LocalCircuit = self.stored or LocalCircuit(self)

    def _in_store(self) -> StoredCircuit:
        from guarded.policies._circuit.stored import StoredCircuit  # only where there is a store

        return StoredCircuit(self)

    @property
    def state(self) -> State:
        """``closed``, ``open``, ``half-open``, ``isolated`` or ``disabled``, as of the latest call or act.

        An open circuit becomes half-open with the first call after its open time.
        """
        return self.local.state

    @property
    def breaker(self) -> RegisteredBreaker:
        """The pybreaker register: shows this state, calls its listeners, and its acts act on this circuit."""
        return breaker_of(self.local)

    def snapshot(self) -> CircuitSnapshot:
        """State and figures now."""
        return self.local.snapshot()

    def live_state(self) -> dict[str, Any]:
        """The snapshot as plain values."""
        return asdict(self.snapshot())

    def isolate(self) -> None:
        """Reject every call until `reset`."""
        self.local.move(ISOLATED)

    def reset(self) -> None:
        """Close, from whatever state, and forget all that was counted."""
        self.local.restart()

    def disable(self) -> None:
        """Let every call through and count none, until `enable` or `reset`."""
        self.local.move(DISABLED)

    def enable(self) -> None:
        """Undo `disable`: closed, with nothing counted. Nothing happens when it is not disabled."""
        if self.snapshot().state == DISABLED:
            self.local.restart()

    def reconfigure(self, options: CircuitOptions) -> None:
        """Take other options; state, generation and open time go on, where they stay in the same place."""
        before = self.options
        super().reconfigure(options)
        if (before.store, before.when_store_fails) != (options.store, options.when_store_fails):
            former = self.local
            self._settle_down()
            hand_over_breaker(former, self.local)
        else:
            self.local.revise()

    def sync_layer(self, proceed: SyncNext, site: Site) -> SyncNext:
        """Admit, run, count; a stream is counted at its end."""
        return stream_shell(self.local, proceed) if site.is_stream else sync_shell(self.local, proceed)

    def async_layer(self, proceed: AsyncNext, site: Site) -> AsyncNext:
        """Admit, run, count; a stream is counted at its end."""
        if self.stored is not None:
            return self.stored.async_shell(proceed, site)
        return async_stream_shell(self.local, proceed) if site.is_stream else async_shell(self.local, proceed)

    def __enter__(self) -> Circuit:
        call = self._block()
        _entered.set(_Entered(self, call, self.local.admit(call), _entered.get()))
        return self

    def _block(self) -> Call:
        call = Call()
        call.function = f"with circuit {self.label!r}"
        outer = current.get()
        if outer is not None:
            call.adopt(outer)
        return call

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        entered = _entered.get()
        if entered is None or entered.circuit is not self:
            raise RuntimeError(f"the with block of circuit {self.label!r} was left in another context or order")
        _entered.set(entered.outer)
        if entered.permit is not None:
            self.local.finish(entered.call, entered.permit, error)

    async def __aenter__(self) -> Circuit:
        if self.stored is None:
            return self.__enter__()
        call = self._block()
        permit = await self.stored.admit_async(call)
        _entered.set(_Entered(self, call, permit, _entered.get()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    def __repr__(self) -> str:
        options = self.options
        opens = f"failures={options.failures}" if options.failures is not None else ""
        if options.failure_rate is not None:
            opens = f"failure_rate={options.failure_rate:g}, window={_window_text(options)}"
        slow = f", slow_call={options.slow_call:g}" if options.slow_call is not None else ""
        shadow = "" if options.enforce else ", enforce=False"
        return f"circuit({self.name!r}, {opens}{slow}, reset_after={options.reset_after:g}{shadow})"


def _window_text(options: CircuitOptions) -> str:
    window = options.window
    return repr(format_duration(window.total_seconds())) if isinstance(window, timedelta) else str(window)


@factory
def circuit(
    name: str,
    *,
    failures: int | None = None,
    failure_rate: float | None = None,
    window: Duration | int | None = None,
    min_calls: int | None = None,
    slow_call: Duration | None = None,
    slow_rate: float | None = None,
    reset_after: Duration | None = None,
    max_reset_after: Duration | None = None,
    half_open: int | None = None,
    trial_timeout: Duration = 60.0,
    on: Matches = Exception,
    ignore: Matches = (),
    breaker: Any = None,
    enforce: bool = True,
    store: Any = None,
    when_store_fails: WhenStoreFails = "local",
) -> Circuit:
    """Stop calling what is down: reject at once, let a few trials find out when it is back.

    A call that the deadline around it cut off is a failure when it had run for `slow_call` (half of the deadline where
    that is not set). An error that `on` does not mean is neutral, like an ignored one. A stream is counted at its end.

    Args:
        name: name to share and register it under.
        failures: so many failures in a row open it; 5 by default. Give this or `failure_rate`.
        failure_rate: share of failed calls in the window, above 0 and up to 1, from which on it opens.
        window: for rates: a number of calls, or a time such as ``"60s"`` (the default), kept in 20 parts, so that a
            result counts for 19/20 of it at least.
        min_calls: for rates: results in the window before a rate means anything; 10 by default, at most the window.
        slow_call: length from which a call is slow, those still running included; without `slow_rate` a slow call is
            a failure. A stream's length is the time to its first item.
        slow_rate: share of slow calls in the window from which on it opens.
        reset_after: how long it stays open before trials; 30 s by default.
        max_reset_after: each failed recovery doubles the open time up to this; no growth without it.
        half_open: trials let through at once, and successes needed to close; 1 by default. One failure opens again.
        trial_timeout: time after which the place of a trial that hangs is given to another call.
        on: errors that are failures: a type, a predicate, or a tuple of them.
        ignore: errors that never count, likewise.
        breaker: an existing pybreaker.CircuitBreaker to adopt: its state, listeners and exclusions, and as defaults
            its ``fail_max``, ``reset_timeout`` and ``success_threshold``.
        enforce: False only decides and reports what it would reject.
        store: where the state is kept: an address such as ``"redis://host:6379/0"``, or a store; None for this process.
            All processes that say the same name share the state.
        when_store_fails: ``local`` goes on in this process alone, from the state that the store named last, ``open``
            lets every call through, ``closed`` raises StoreError.

    Raises:
        ValueError: an option is wrong; all wrong ones are named.

    Calls raise CircuitOpen, also a pybreaker.CircuitBreakerError; its cause is the last failure. Half-open trials
    follow resilience4j's permitted calls, but every one of them has to succeed.

    Example:
        >>> from guarded import circuit
        >>> gateway = circuit("example-gateway", failures=1)
        >>> with gateway:
        ...     raise ConnectionError
        Traceback (most recent call last):
        ConnectionError
        >>> gateway.state
        'open'
    """
    if callable(name):
        raise ValueError(f"circuit: name={name!r}: must be a name, as in @circuit('gateway')")
    given = {option: value for option, value in locals().items() if option != "name"}
    policy = registry.intern(Circuit(CircuitOptions.checked(name, given), name=name))
    if breaker is not None:
        adopt_breaker(policy.local, breaker)
    return policy
