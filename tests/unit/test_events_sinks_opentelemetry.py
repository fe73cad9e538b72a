"""The OpenTelemetry sink, read back through the SDK's in-memory exporters."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import guarded
from guarded import CircuitOpen, RetryBudget, circuit, limit, retry
from guarded._core.call import Call
from guarded.events.bus import bus
from guarded.events.metrics import METRICS
from guarded.events.model import EVENTS, Event
from guarded.events.sinks import opentelemetry as sink
from guarded.testing import virtual_time


class Policy:
    """Stands for a limit."""

    label = "db"
    kind = "limit"


def call() -> Call:
    """A call of a function ``f``."""
    made = Call()
    made.function = "f"
    return made


class Telemetry:
    """Providers whose output can be read."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.meter_provider = MeterProvider(metric_readers=[self.reader])
        self.spans = InMemorySpanExporter()
        self.tracer_provider = TracerProvider()
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self.tracer = self.tracer_provider.get_tracer("test")

    def metrics(self) -> dict[str, Any]:
        """All metrics with a value, by name."""
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        return {
            metric.name: metric
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """The sink installed over providers of its own."""
    telemetry = Telemetry()
    with sink.install(meter_provider=telemetry.meter_provider):
        yield telemetry
    telemetry.meter_provider.shutdown()


@pytest.mark.parametrize("name", EVENTS)
def test_every_event_is_counted(name: str, telemetry: Telemetry) -> None:
    """By name and policy."""
    bus.emit(name, call(), Policy())
    [point] = telemetry.metrics()["guarded.events"].data.data_points
    assert (point.value, dict(point.attributes)) == (1, {"guarded.event": name, "guarded.policy": "db"})


def test_names_units_and_kinds_are_those_of_the_table(telemetry: Telemetry) -> None:
    """All metrics of the table appear as it says, with its buckets."""
    bus.emit("call.succeeded", call(), None, outcome="success", duration=0.2, attempts=2)
    bus.emit("limit.acquired", call(), Policy(), active=1, queued=0, limit=5, wait=0.1)
    bus.emit("limit.rejected", call(), Policy(), reason="timeout")
    retry = type("Retry", (), {"label": "r", "kind": "retry"})()
    bus.emit("retry.scheduled", call(), retry, delay=0.1, status=429)
    limit(3, name="db")
    circuit("gateway")
    RetryBudget(name="budget")
    found = telemetry.metrics()
    assert {metric.name for metric in METRICS} == set(found)
    for metric in METRICS:
        exported = found[metric.name]
        assert (exported.unit, exported.description) == (metric.unit, metric.meaning)
        [point] = exported.data.data_points[:1]
        assert set(point.attributes) == {f"guarded.{label}" for label in metric.labels}
        assert tuple(getattr(point, "explicit_bounds", ())) == metric.buckets
    [retries] = found["guarded.call.retries"].data.data_points
    assert (retries.sum, retries.max) == (1, 1)


def test_events_are_on_the_current_span(telemetry: Telemetry) -> None:
    """INFO and up, in order, with their fields as attributes and their own time."""
    seen: list[Event] = []
    with telemetry.tracer.start_as_current_span("outer"), bus.subscribe(seen.append):
        bus.emit("limit.queued", call(), Policy(), queued=2)
        bus.emit("limit.acquired", call(), Policy(), wait=0.0)
        bus.emit("retry.scheduled", call(), None, attempt=1, cause=ValueError("token=canary"))
    [span] = telemetry.spans.get_finished_spans()
    assert [event.name for event in span.events] == ["limit.queued", "retry.scheduled"]
    queued, scheduled = span.events
    assert dict(queued.attributes or {}) == {
        "guarded.policy": "db",
        "guarded.layer": "limit",
        "guarded.function": "f",
        "guarded.call_id": seen[0].call_id,
        "guarded.queued": 2,
    }
    assert queued.timestamp == int(seen[0].time * 1e9)
    assert (scheduled.attributes or {})["guarded.cause"] == "ValueError: token=***"


def test_the_level_of_span_events_can_be_chosen() -> None:
    """Down to TRACE, for a trace that shows every permit."""
    telemetry = Telemetry()
    with (
        sink.install(span_level="TRACE", meter_provider=telemetry.meter_provider),
        telemetry.tracer.start_as_current_span("outer"),
    ):
        bus.emit("limit.acquired", call(), Policy())
    [span] = telemetry.spans.get_finished_spans()
    assert [event.name for event in span.events] == ["limit.acquired"]
    telemetry.meter_provider.shutdown()


def test_without_a_span_or_provider_nothing_happens() -> None:
    """The API alone is enough; its no-op objects take everything."""
    with sink.install() as subscription:
        for name in EVENTS:
            bus.emit(name, call(), Policy())
    assert subscription.failures == 0


def test_closed_gauges_fall_silent() -> None:
    """An observable instrument cannot be taken back, but it observes nothing any more."""
    telemetry = Telemetry()
    limit(3, name="db")
    with sink.install(meter_provider=telemetry.meter_provider):
        assert "guarded.limit.active" in telemetry.metrics()
    assert "guarded.limit.active" not in telemetry.metrics()
    telemetry.meter_provider.shutdown()


CANARY = "c4n4ry"


def test_one_trace_of_a_queue_wait_two_attempts_and_a_rejection() -> None:
    """What happened to one call can be read off its trace, and nothing of its secrets."""
    telemetry = Telemetry()
    gateway = circuit("gateway", failures=1)

    @limit(1, name="db")
    @retry(retries=1, base="100ms", jitter="none", on=(ConnectionError, CircuitOpen), retry_after=False)
    @gateway
    async def charge(hold: float) -> None:
        await guarded.asleep(hold)
        if not hold:
            raise ConnectionError(f"https://svc:{CANARY}@gateway refused")

    async def main() -> None:
        holder = asyncio.create_task(charge(2.0))
        await guarded.asleep(0.5)
        with telemetry.tracer.start_as_current_span("request"), pytest.raises(CircuitOpen):
            await charge(0.0)
        await holder

    tracers = telemetry.tracer_provider
    with (
        sink.install(attempt_spans=True, meter_provider=telemetry.meter_provider, tracer_provider=tracers),
        virtual_time(),
    ):
        asyncio.run(main())
    spans = telemetry.spans.get_finished_spans()
    [request] = [span for span in spans if span.name == "request"]
    attempts = [span for span in spans if span.parent is not None and span.parent.span_id == request.context.span_id]
    events = [event.name for event in request.events]
    assert events == ["limit.queued", "limit.acquired", "retry.scheduled", "retry.exhausted"]
    assert (request.events[1].attributes or {})["guarded.wait"] == pytest.approx(1.5)
    assert [(span.attributes or {})["guarded.attempt"] for span in attempts] == [1, 2]
    assert {span.context.trace_id for span in (request, *attempts)} == {request.context.trace_id}
    first, second = attempts
    assert [event.name for event in first.events] == ["circuit.opened"]
    assert first.status.description == "ConnectionError: https://***@gateway refused"
    assert [event.name for event in second.events] == ["circuit.rejected"]
    assert (second.attributes or {})["error.type"] == "CircuitOpen"
    assert CANARY not in "".join(span.to_json() for span in spans)
    telemetry.meter_provider.shutdown()


def test_attempt_spans_end_with_the_subscription() -> None:
    """Sync too; without the option, or after close, there are none."""
    telemetry = Telemetry()
    calls: list[int] = []

    @retry(retries=1, on=ConnectionError, base=0, jitter="none")
    def fetch() -> str:
        calls.append(trace.get_current_span().get_span_context().span_id)
        if len(calls) == 1:
            raise ConnectionError
        return "page"

    with sink.install(attempt_spans=True, tracer_provider=telemetry.tracer_provider):
        assert fetch() == "page"
    assert fetch() == "page"
    names = [span.name for span in telemetry.spans.get_finished_spans()]
    assert names == [f"{__name__}.test_attempt_spans_end_with_the_subscription.<locals>.fetch attempt"] * 2
    assert len({*calls, 0}) == 3
    assert calls[2] == 0


def test_the_instrumentor_is_found_and_installs_once() -> None:
    """What opentelemetry-instrument does: load the entry point, make one, instrument."""
    telemetry = Telemetry()
    for _ in range(2):
        sink.Instrumentor().instrument(skip_dep_check=True, meter_provider=telemetry.meter_provider)
    bus.emit("limit.queued", call(), Policy())
    [point] = telemetry.metrics()["guarded.events"].data.data_points
    assert point.value == 1
    sink.Instrumentor().uninstrument()
    bus.emit("limit.queued", call(), Policy())
    [point] = telemetry.metrics()["guarded.events"].data.data_points
    assert point.value == 1
    telemetry.meter_provider.shutdown()
