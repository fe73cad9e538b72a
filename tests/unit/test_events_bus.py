"""The bus: who gets which event, what it costs, and that no sink harms a call."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from guarded._core.call import Call, Deadline
from guarded.events import bus as module
from guarded.events.bus import Bus
from guarded.events.model import DEBUG, ERROR, EVENTS, INFO, TRACE, WARNING, Event
from guarded.testing import capture, virtual_time


class Policy:
    """Stands for any policy."""

    label = "db"
    kind = "limit"


def call_of(function: str = "shop.pay", **state: Any) -> Call:
    """A call in the state given."""
    call = Call()
    call.function = function
    for name, value in state.items():
        setattr(call, name, value)
    return call


def listening(level: int | str = TRACE) -> tuple[Bus, list[Event]]:
    """A bus of its own and what a sink at `level` gets."""
    bus = Bus()
    events: list[Event] = []
    bus.subscribe(events.append, level)
    return bus, events


def test_nobody_listens_and_nothing_is_built() -> None:
    """Without a sink the threshold is above every level and emit touches neither call nor policy."""
    bus = Bus()
    assert bus.threshold > ERROR
    call = call_of()
    bus.emit("store.failed", call, object())  # type: ignore[arg-type]  # has no label to read
    assert call._id is None


def test_threshold_is_the_lowest_level_wanted() -> None:
    """It follows every subscribe and close."""
    bus = Bus()
    warning = bus.subscribe(print, "WARNING")
    assert bus.threshold == WARNING
    trace = bus.subscribe(print, TRACE)
    assert bus.threshold == TRACE
    trace.close()
    assert bus.threshold == WARNING
    trace.close()
    warning.close()
    assert bus.threshold > ERROR


@pytest.mark.parametrize("name", EVENTS)
def test_every_event_of_the_table_can_be_emitted(name: str) -> None:
    """The event carries the level of its row."""
    bus, events = listening()
    bus.emit(name, call_of(), Policy())
    assert [(event.name, event.level) for event in events] == [(name, EVENTS[name].level)]


def test_an_unknown_name_is_an_error_even_when_nobody_listens() -> None:
    """A misspelled event is found by the first test that passes by."""
    with pytest.raises(KeyError):
        Bus().emit("limit.aquired", None, None)


@pytest.mark.parametrize("level", [TRACE, DEBUG, INFO, WARNING, ERROR])
def test_a_sink_gets_its_level_and_up(level: int) -> None:
    """Of all events a sink sees exactly those at or above its level."""
    bus, events = listening(level)
    bus.subscribe(lambda event: None, TRACE)
    for name in EVENTS:
        bus.emit(name, None, None)
    assert [event.name for event in events] == [name for name in EVENTS if EVENTS[name].level >= level]


def test_one_event_for_all_sinks() -> None:
    """The record is built once and shared."""
    bus, first = listening()
    second: list[Event] = []
    bus.subscribe(second.append, INFO)
    bus.emit("limit.queued", None, None)
    assert first[0] is second[0]


def test_call_and_policy_fill_in_what_they_know() -> None:
    """Time, function, id, attempt, remaining, policy and layer come from the bus, the rest from the emitter."""
    bus, events = listening()
    with virtual_time() as time:
        from guarded._core import clock

        call = call_of(attempt=2, deadline=Deadline(clock.monotonic() + 5))
        time.advance(2)
        bus.emit("limit.queued", call, Policy(), queued=3, active=20)
        now = clock.wall()
    event = events[0]
    assert event.time == now
    assert event.fields() == {
        "time": now,
        "name": "limit.queued",
        "level": INFO,
        "policy": "db",
        "layer": "limit",
        "function": "shop.pay",
        "call_id": call.id,
        "attempt": 2,
        "remaining": pytest.approx(3),
        "active": 20,
        "queued": 3,
    }


def test_what_the_emitter_says_wins() -> None:
    """An attempt or a time left given by the emitter is not overwritten."""
    bus, events = listening()
    bus.emit("retry.scheduled", call_of(attempt=1, deadline=Deadline(0.0)), None, attempt=3, remaining=1.5)
    assert (events[0].attempt, events[0].remaining) == (3, 1.5)


def test_no_deadline_means_no_remaining() -> None:
    """An infinite time left is left out, so that every field is a JSON number."""
    bus, events = listening()
    bus.emit("limit.queued", call_of(), None, remaining=float("inf"))
    bus.emit("limit.queued", call_of(), None)
    assert [event.remaining for event in events] == [None, None]


def test_time_up_is_never_negative() -> None:
    """A deadline in the past leaves zero."""
    bus, events = listening()
    bus.emit("limit.queued", call_of(deadline=Deadline(-1.0)), None)
    assert events[0].remaining == 0.0


def test_a_canary_shows_in_no_field() -> None:
    """Credentials are taken out of the cause and of every free text, labels included."""
    bus, events = listening()

    class Leaky:
        label = "limit(5, store='redis://u:canary-1@h/0')"
        kind = "limit"

    bus.emit(
        "store.failed",
        call_of(),
        Leaky(),
        cause=ConnectionError("redis://u:canary-1@h/0 is gone, token=canary-1"),
        reason="password=canary-1",
        hint="Authorization: Bearer canary-1",
        store="redis://u:canary-1@h/0",
        source="https://canary-1@h/policies.yaml",
    )
    assert "canary" not in repr(events[0])
    assert events[0].store == "redis://***@h/0"
    assert events[0].cause is not None
    assert events[0].cause.type == "ConnectionError"


def test_subscription_is_a_context_manager() -> None:
    """It listens for the length of the block, and close may be called again."""
    bus = Bus()
    events: list[Event] = []
    with bus.subscribe(events.append) as subscription:
        bus.emit("limit.queued", None, None)
        assert not subscription.closed
    bus.emit("limit.queued", None, None)
    subscription.close()
    assert len(events) == 1


def test_the_same_sink_twice_gets_events_twice() -> None:
    """Subscriptions are told apart, sinks are not."""
    bus, events = listening()
    second = bus.subscribe(events.append, INFO)
    bus.emit("limit.queued", None, None)
    second.close()
    bus.emit("limit.queued", None, None)
    assert len(events) == 3


class _AsyncSink:
    async def __call__(self, event: Event) -> None: ...


async def _async_sink(event: Event) -> None: ...


@pytest.mark.parametrize("sink", [None, "print", _async_sink, _AsyncSink(), partial(_async_sink)])
def test_what_is_no_plain_callable_is_refused(sink: Any) -> None:
    """A coroutine function would never be awaited."""
    with pytest.raises(TypeError, match="sink: must be a plain callable that takes an Event, not "):
        Bus().subscribe(sink)


def test_unknown_level_is_refused() -> None:
    """The error comes from subscribe, and nothing is subscribed."""
    bus = Bus()
    with pytest.raises(ValueError, match="level='LOUD'"):
        bus.subscribe(print, "LOUD")
    assert bus.threshold > ERROR


class _Sink:
    secret = "canary"

    def __call__(self, event: Event) -> None: ...

    def __repr__(self) -> str:
        return self.secret


@pytest.mark.parametrize(
    ("sink", "title"),
    [(_Sink(), "_Sink"), ([].append, "list.append"), (partial(print, "canary"), "functools.partial")],
)
def test_repr_names_the_sink_without_its_own_repr(sink: Callable[[Event], object], title: str) -> None:
    """A sink's repr may show what it was built with."""
    shown = repr(Bus().subscribe(sink))
    assert title in shown
    assert "canary" not in shown


def test_subscribe_of_the_module_is_that_of_the_process_bus() -> None:
    """What users import reaches the bus that the policies use."""
    events: list[Event] = []
    with module.subscribe(events.append, "ERROR"):
        module.bus.emit("store.failed", None, None, store="s")
    assert [event.store for event in events] == ["s"]


def test_an_event_is_a_frozen_record_however_it_was_made() -> None:
    """The bus makes it in a quicker way than its class does; it is equal, hashable, picklable and cannot be changed."""
    with capture() as seen:
        module.bus.emit("limit.queued", None, None, queued=2)
    [event] = seen
    same = Event(event.time, "limit.queued", INFO, queued=2)
    assert type(event) is Event
    assert (event, hash(event), repr(event)) == (same, hash(same), repr(same))
    assert pickle.loads(pickle.dumps(event)) == event
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.queued = 3  # type: ignore[misc]
