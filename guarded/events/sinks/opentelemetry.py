"""Events as OpenTelemetry metrics, and as events on the current span; needs the API only.

Metrics are the table in ``guarded.events.metrics``, with its names and units; gauges are read from the policies when
the SDK asks. Attributes are called ``guarded.policy``, ``guarded.layer`` and so on. The command
``opentelemetry-instrument`` finds `Instrumentor` by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from guarded._core.extras import missing
from guarded._core.registry import registry
from guarded.events.bus import Subscription, subscribe
from guarded.events.metrics import METRICS, Metric, gauges, measure
from guarded.events.model import Event, level_number

try:
    from opentelemetry import metrics, trace
    from opentelemetry.metrics import CallbackOptions, Observation

    from guarded.events.sinks._attempt_spans import AttemptSpans
except ModuleNotFoundError as error:
    raise missing(error, __name__, "guarded[opentelemetry]") from error

_PREFIX: Final = "guarded."

Record = Callable[[float, dict[str, str]], None]


def install(
    level: int | str = "TRACE",
    *,
    span_level: int | str = "INFO",
    attempt_spans: bool = False,
    meter_provider: metrics.MeterProvider | None = None,
    tracer_provider: trace.TracerProvider | None = None,
) -> Subscription:
    """Measure events of `level` and up, and add those of `span_level` and up to the current span.

    Args:
        level: TRACE by default, since calls that succeed are events of that level.
        span_level: lowest level that shows up in traces; it cannot be below `level`. The end of a wait always does.
        attempt_spans: give each attempt under a retry a child span, the first one too; it holds what is told in the
            attempt. Of a generator it ends with the first item. Default no.
        meter_provider: where metrics go; the global one by default.
        tracer_provider: where the spans of attempts go; the global one by default.
    """
    lowest, lowest_in_span = level_number(level), level_number(span_level)
    meter = metrics.get_meter("guarded", meter_provider=meter_provider)
    records = {metric.name: _record(metric, meter) for metric in METRICS if metric.kind != "gauge"}

    def write(event: Event) -> None:
        for metric, value, labels in measure(event):
            records[metric.name](value, _attributes(metric, labels))
        if event.level >= lowest_in_span or event.wait:
            _add_to_span(event)

    subscription = subscribe(write, lowest)
    for metric in METRICS:
        if metric.kind == "gauge":
            observe = partial(_observe, metric, subscription)
            meter.create_observable_gauge(metric.name, [observe], metric.unit, metric.meaning)
    if attempt_spans:
        spans = AttemptSpans(trace.get_tracer("guarded", tracer_provider=tracer_provider))
        spans.put_in()
        subscription.on_close(spans.take_out)
    return subscription


def _record(metric: Metric, meter: metrics.Meter) -> Record:
    if metric.kind == "counter":
        return meter.create_counter(metric.name, metric.unit, metric.meaning).add
    return meter.create_histogram(
        metric.name, metric.unit, metric.meaning, explicit_bucket_boundaries_advisory=metric.buckets
    ).record


def _observe(metric: Metric, subscription: Subscription, options: CallbackOptions) -> Iterable[Observation]:
    if subscription.closed:  # the API cannot take an observable instrument back
        return
    for found, value, labels in gauges(registry.snapshot()):
        if found is metric:
            yield Observation(value, _attributes(metric, labels))


def _attributes(metric: Metric, labels: tuple[str, ...]) -> dict[str, str]:
    return {_PREFIX + label: text for label, text in zip(metric.labels, labels, strict=True)}


def _add_to_span(event: Event) -> None:
    span = trace.get_current_span()
    if span.is_recording():
        attributes = {_PREFIX + name: value for name, value in event.details().items()}
        span.add_event(event.name, attributes, timestamp=int(event.time * 1e9))


class Instrumentor:
    """What ``opentelemetry-instrument`` looks for in installed packages, to switch telemetry on without a line of code.

    It stands under the entry point ``opentelemetry_instrumentor``; OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=guarded
    leaves it out.
    """

    _installed: Subscription | None = None

    def instrument(self, **options: Any) -> None:
        """Install the sink once, with the options of `install` that are among `options`."""
        if Instrumentor._installed is None:
            known = ("level", "span_level", "attempt_spans", "meter_provider", "tracer_provider")
            Instrumentor._installed = install(**{name: options[name] for name in known if name in options})

    def uninstrument(self, **options: Any) -> None:
        """Undo `instrument`."""
        if Instrumentor._installed is not None:
            Instrumentor._installed.close()
            Instrumentor._installed = None
