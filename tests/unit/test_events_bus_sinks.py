"""No sink harms a call: one that raises, recurses, subscribes or dawdles."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import warnings
from typing import Any

import pytest

from guarded.errors import GuardWarning
from guarded.events.bus import Bus
from guarded.events.model import ERROR, TRACE, Event


def listening(level: int | str = TRACE) -> tuple[Bus, list[Event]]:
    """A bus of its own and what a sink at `level` gets."""
    bus = Bus()
    events: list[Event] = []
    bus.subscribe(events.append, level)
    return bus, events


def test_a_raising_sink_harms_neither_call_nor_other_sinks() -> None:
    """It is counted, warned of once without its secrets, and the next sink still gets the event."""
    bus = Bus()

    def broken(event: Event) -> None:
        raise ValueError("password=canary")

    subscription = bus.subscribe(broken)
    events: list[Event] = []
    bus.subscribe(events.append)
    with pytest.warns(GuardWarning) as caught:
        bus.emit("limit.queued", None, None)
    bus.emit("limit.queued", None, None)
    bus.emit("limit.queued", None, None)
    assert len(events) == 3
    assert subscription.failures == 3
    assert len(caught) == 1
    message = str(caught[0].message)
    assert "broken raised ValueError: password=***" in message
    assert "canary" not in message


def test_a_warning_filter_cannot_break_the_call() -> None:
    """Where warnings are errors, the warning is shown all the same, once, and not raised."""
    bus = Bus()
    bus.subscribe(lambda event: 1 / 0)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("error")
        bus.emit("limit.queued", None, None)
        bus.emit("limit.queued", None, None)
    assert [warning.category for warning in shown] == [GuardWarning]


def test_a_broken_showwarning_cannot_break_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Applications put their own function there; it is user code like a sink."""

    def broken(*args: Any) -> None:
        raise RuntimeError("no stream")

    monkeypatch.setattr(warnings, "showwarning", broken)
    bus = Bus()
    subscription = bus.subscribe(lambda event: 1 / 0)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        bus.emit("limit.queued", None, None)
    assert subscription.failures == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit])
def test_control_flow_passes_through_a_sink(error: type[BaseException]) -> None:
    """What is no Exception is not swallowed, and the bus works on."""
    bus = Bus()
    events: list[Event] = []

    def interrupted(event: Event) -> None:
        raise error

    subscription = bus.subscribe(interrupted)
    with pytest.raises(error):
        bus.emit("limit.queued", None, None)
    subscription.close()
    bus.subscribe(events.append)
    bus.emit("limit.queued", None, None)
    assert len(events) == 1


def test_events_from_inside_a_sink_go_nowhere() -> None:
    """A sink that makes guarded calls hears nothing of them, and neither does any other sink."""
    bus, events = listening()

    def busy(event: Event) -> None:
        bus.emit("limit.acquired", None, None)

    bus.subscribe(busy, TRACE)
    for _ in range(2):
        bus.emit("limit.queued", None, None)
    assert [event.name for event in events] == ["limit.queued"] * 2


def test_events_from_a_task_that_a_sink_started_go_nowhere() -> None:
    """A sink that ships events through a guarded call in a task does not feed itself."""
    bus, events = listening()

    async def ship() -> None:
        bus.emit("limit.queued", None, None)

    async def main() -> None:
        tasks: list[asyncio.Task[None]] = []
        subscription = bus.subscribe(lambda event: tasks.append(asyncio.get_running_loop().create_task(ship())))
        bus.emit("rate.delayed", None, None)
        await asyncio.gather(*tasks)
        subscription.close()
        bus.emit("limit.queued", None, None)

    asyncio.run(main())
    assert [event.name for event in events] == ["rate.delayed", "limit.queued"]


def test_an_exception_that_makes_guarded_calls_when_shown_does_not_recurse() -> None:
    """Asking an exception for its message is user code too."""
    bus, events = listening()

    class Chatty(Exception):
        def __str__(self) -> str:
            bus.emit("call.failed", None, None, cause=self)
            return "told"

    bus.emit("call.failed", None, None, cause=Chatty())
    assert [str(event.cause) for event in events] == ["Chatty: told"]


def test_other_threads_and_contexts_are_heard_while_a_sink_runs() -> None:
    """Only the sink's own context is silent."""
    bus, events = listening()
    inner = threading.Thread(target=lambda: bus.emit("limit.acquired", None, None))

    def slow(event: Event) -> None:
        if event.name == "limit.queued":
            contextvars.Context().run(inner.start)
            inner.join()

    bus.subscribe(slow)
    bus.emit("limit.queued", None, None)
    assert {event.name for event in events} == {"limit.queued", "limit.acquired"}


def test_sinks_may_subscribe_and_close_while_they_run() -> None:
    """The tuple of sinks is replaced, never changed, so an event goes to those who were there when it came."""
    bus = Bus()
    late: list[Event] = []

    def once(event: Event) -> None:
        subscription.close()
        bus.subscribe(late.append)

    subscription = bus.subscribe(once)
    bus.emit("limit.queued", None, None)
    assert late == []
    bus.emit("limit.queued", None, None)
    assert len(late) == 1
    assert subscription.closed


def test_no_lock_is_held_while_a_sink_runs() -> None:
    """Another thread can subscribe and emit while a sink is busy."""
    bus = Bus()

    def busy(event: Event) -> None:
        other = threading.Thread(target=lambda: bus.subscribe(print, ERROR).close())
        other.start()
        other.join(timeout=5)
        assert not other.is_alive()

    subscription = bus.subscribe(busy)
    bus.emit("limit.queued", None, None)
    assert subscription.failures == 0
