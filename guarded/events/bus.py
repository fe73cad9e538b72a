"""Carries events from the policies to the sinks.

`Bus.threshold` is the lowest level anybody listens to, so that a hot path asks one question before it says
anything: ``if bus.threshold <= TRACE: bus.emit("limit.acquired", call, policy, active=3)``. Sinks are called in the
thread of the guarded call, never under a lock. What a sink raises never reaches the call: it is counted on its
`Subscription` and warned of once. Events that come up while a sink runs, in its thread or in tasks it starts, go to no
sink, so that a sink may make guarded calls. KeyboardInterrupt and its like pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from inspect import iscoroutinefunction
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast

from guarded._core import clock
from guarded._core.fork import after_fork
from guarded._core.place import complain
from guarded.events.model import EVENTS, Event, Fields, event_maker, level_number
from guarded.events.redact import cause_of, scrub, scrub_cached

if TYPE_CHECKING:
    from typing import Self, Unpack

    from guarded._core.call import Call

Sink: TypeAlias = Callable[[Event], object]

_NOBODY: Final = 100  # above every level
_LEVEL_OF: Final = {name: spec.level for name, spec in EVENTS.items()}
_FREE_TEXT: Final = ("reason", "hint", "store", "source")

_inside_sink: ContextVar[bool] = ContextVar("guarded_inside_sink", default=False)


class Labelled(Protocol):
    """What the bus needs of a policy."""

    @property
    def label(self) -> str:
        """Name or short repr."""
        ...

    @property
    def kind(self) -> str:
        """The layer: ``limit``, ``retry`` …"""
        ...


class Subscription:
    """A sink that listens; `close` it, or use it as a context manager.

    Attributes:
        sink: the callable that gets each `Event`.
        level: number of the lowest level it gets.
        failures: how often it raised.
    """

    __slots__ = ("_bus", "_on_close", "failures", "level", "sink")

    def __init__(self, bus: Bus, sink: Sink, level: int) -> None:
        self._bus = bus
        self.sink: Sink = sink
        self.level: int = level
        self.failures: int = 0
        self._on_close: tuple[Callable[[], object], ...] = ()

    @property
    def closed(self) -> bool:
        """Whether it listens no more."""
        return self not in self._bus._subscriptions

    def close(self) -> None:
        """Stop listening; harmless when done already. An event another thread is just handing over still arrives."""
        self._bus._remove(self)
        undone, self._on_close = self._on_close, ()
        for undo in undone:
            undo()

    def on_close(self, *undo: Callable[[], object]) -> None:
        """Call each of `undo` once when the subscription is closed: for what a sink has set up besides listening."""
        self._on_close += undo

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Subscription of {title_of(self.sink)}: level {self.level}, {state}, {self.failures} failures>"


class Bus:
    """Hands each event to the sinks that listen at its level.

    Attributes:
        threshold: lowest level anybody listens to; above every level when nobody does.
    """

    __slots__ = ("__weakref__", "_lock", "_subscriptions", "threshold")

    def __init__(self) -> None:
        self.threshold: int = _NOBODY
        self._subscriptions: tuple[Subscription, ...] = ()  # replaced as a whole, so that emit needs no lock
        self._renew()
        after_fork(self, Bus._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()  # reentrant: a signal handler may subscribe too

    def subscribe(self, sink: Sink, level: int | str = "INFO") -> Subscription:
        """Call `sink` with each event of `level` and up, until the handle is closed.

        Args:
            sink: a plain callable (else TypeError); quick, since it runs in the thread of the guarded call.
            level: TRACE, DEBUG, INFO, WARNING, ERROR, or its number; ValueError otherwise.
        """
        if not callable(sink) or iscoroutinefunction(sink) or iscoroutinefunction(type(sink).__call__):
            what = "one that is async" if callable(sink) else f"of type {type(sink).__qualname__}"
            raise TypeError(f"sink: must be a plain callable that takes an Event, not {what}")
        subscription = Subscription(self, sink, level_number(level))
        with self._lock:
            self._replace((*self._subscriptions, subscription))
        return subscription

    def _remove(self, subscription: Subscription) -> None:
        with self._lock:
            self._replace(tuple(other for other in self._subscriptions if other is not subscription))

    def _replace(self, subscriptions: tuple[Subscription, ...]) -> None:
        self._subscriptions = subscriptions
        self.threshold = min((subscription.level for subscription in subscriptions), default=_NOBODY)

    def emit(self, name: str, call: Call | None, policy: Labelled | None, **fields: Unpack[Fields]) -> None:
        """Tell the sinks that `name` happened; returns at once when nobody listens at its level.

        Args:
            name: a row of `EVENTS`; KeyError otherwise.
            call: gives function, id, attempt and the time remaining.
            policy: gives policy and layer.
            fields: what else there is to say; `cause` is the exception itself.
        """
        level = _LEVEL_OF[name]
        if level < self.threshold or _inside_sink.get():
            return
        try:
            _inside_sink.set(True)  # already now: building asks an exception for its text, which is user code
            event = _build(name, level, call, policy, cast("dict[str, Any]", fields))
            for subscription in self._subscriptions:
                if subscription.level <= level:
                    try:
                        subscription.sink(event)
                    except Exception as error:
                        self._failed(subscription, error)
        finally:
            _inside_sink.set(False)

    def _failed(self, subscription: Subscription, error: Exception) -> None:
        with self._lock:
            subscription.failures += 1
            first = subscription.failures == 1
        if first:
            complain(
                f"event sink {title_of(subscription.sink)} raised {cause_of(error)}; the call goes on, "
                "further failures are only counted, in Subscription.failures"
            )


def _build(name: str, level: int, call: Call | None, policy: Labelled | None, fields: dict[str, Any]) -> Event:
    if call is not None:
        fields["function"] = call.function
        fields["call_id"] = call.id
        if "attempt" not in fields:
            fields["attempt"] = call.attempt
        if "remaining" not in fields and call.until != inf:
            fields["remaining"] = max(0.0, call.until - clock.monotonic())
    if policy is not None:
        fields["policy"] = scrub_cached(policy.label)
        fields["layer"] = policy.kind
    if fields.get("remaining") == inf:
        del fields["remaining"]
    for field in _FREE_TEXT:
        text = fields.get(field)
        if text is not None:
            fields[field] = scrub_cached(str(text))
    cause = fields.get("cause")
    if cause is not None:
        fields["cause"] = cause_of(cause)
    return event_maker()(time=clock.wall(), name=name, level=level, **fields)


def inside_sink() -> None:
    """Make this thread one that runs sinks: what it emits goes to no sink."""
    _inside_sink.set(True)


def title_of(sink: Sink) -> str:
    """What to call a sink in a message: never its repr, which may show a credential."""
    name = getattr(sink, "__qualname__", type(sink).__qualname__)
    module = getattr(sink, "__module__", None)
    return scrub(f"{module}.{name}" if module else name)


bus: Final = Bus()
subscribe = bus.subscribe
