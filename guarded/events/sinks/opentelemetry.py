"""Events as OpenTelemetry metrics, and as events on the current span; needs the API only.

Metrics are the table in ``guarded.events.metrics``, with its names and units. The attributes of both are called
``guarded.policy``, ``guarded.layer`` and so on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from opentelemetry import metrics, trace

from guarded.events.bus import Subscription, subscribe
from guarded.events.metrics import METRICS, Metric, measure
from guarded.events.model import HEAD, Event, level_number

_PREFIX: Final = "guarded."

Record = Callable[[float, dict[str, str]], None]


def install(
    level: int | str = "TRACE",
    *,
    span_level: int | str = "INFO",
    meter_provider: metrics.MeterProvider | None = None,
) -> Subscription:
    """Measure events of `level` and up, and add those of `span_level` and up to the current span.

    Args:
        level: TRACE by default, since calls that succeed are events of that level.
        span_level: lowest level that shows up in traces; it cannot be below `level`.
        meter_provider: where metrics go; the global one by default.
    """
    meter = metrics.get_meter("guarded", meter_provider=meter_provider)
    records = {metric: _record(metric, meter) for metric in METRICS}
    lowest_in_span = level_number(span_level)

    def write(event: Event) -> None:
        for metric, value, values in measure(event):
            labels = zip(metric.labels, values, strict=True)
            records[metric](value, {_PREFIX + label: text for label, text in labels})
        if event.level >= lowest_in_span:
            _add_to_span(event)

    return subscribe(write, level)


def _record(metric: Metric, meter: metrics.Meter) -> Record:
    if metric.kind == "counter":
        return meter.create_counter(metric.name, metric.unit, metric.meaning).add
    if metric.kind == "gauge":
        return meter.create_gauge(metric.name, metric.unit, metric.meaning).set
    return meter.create_histogram(
        metric.name, metric.unit, metric.meaning, explicit_bucket_boundaries_advisory=metric.buckets
    ).record


def _add_to_span(event: Event) -> None:
    span = trace.get_current_span()
    if span.is_recording():
        attributes = {_PREFIX + name: value for name, value in event.fields().items() if name not in HEAD}
        span.add_event(event.name, attributes, timestamp=int(event.time * 1e9))
