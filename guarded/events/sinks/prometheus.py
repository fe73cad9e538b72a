"""Events as Prometheus metrics: the table in ``guarded.events.metrics``, as ``guarded_call_duration_seconds`` etc.

What has been counted stays in the registry when the subscription is closed; installed again, it goes on from there.
Gauges are read from the policies by each scrape. Not installed by itself, since counting every success has a price.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Final
from weakref import WeakKeyDictionary

from guarded._core.extras import missing
from guarded._core.registry import registry as policies
from guarded.events.bus import Subscription, subscribe
from guarded.events.metrics import METRICS, Metric, gauges, measure
from guarded.events.model import Event, level_number

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    raise missing(error, __name__, "guarded[prometheus]") from error

_lock: Final = threading.Lock()
_sinks: Final[WeakKeyDictionary[CollectorRegistry, _Sink]] = WeakKeyDictionary()


def install(level: int | str = "TRACE", *, registry: CollectorRegistry = REGISTRY) -> Subscription:
    """Count events of `level` and up into `registry`; once per registry, a second call takes the place of the first.

    TRACE is the default, since calls that succeed are events of that level.
    """
    level = level_number(level)
    with _lock:
        sink = _sinks.get(registry) or _sinks.setdefault(registry, _Sink(registry))
        if sink.subscription is not None:
            sink.subscription.close()
        sink.subscription = subscribe(sink, level)
        return sink.subscription


class _Sink:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.subscription: Subscription | None = None
        self._instruments: dict[str, Any] = {
            metric.name: _instrument(metric, registry) for metric in METRICS if metric.kind != "gauge"
        }
        registry.register(_Gauges())

    def __call__(self, event: Event) -> None:
        for metric, value, labels in measure(event):
            instrument = self._instruments[metric.name].labels(*labels)
            if metric.kind == "counter":
                instrument.inc(value)
            else:
                instrument.observe(value)


class _Gauges(Collector):
    """Asks the policies how they stand, when a scrape asks."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called by the registry."""
        families = {
            metric.name: GaugeMetricFamily(metric.exported, metric.meaning, labels=metric.labels)
            for metric in METRICS
            if metric.kind == "gauge"
        }
        for metric, value, labels in gauges(policies.snapshot()):
            families[metric.name].add_metric(labels, value)
        yield from families.values()


def _instrument(metric: Metric, registry: CollectorRegistry) -> Counter | Histogram:
    if metric.kind == "counter":
        return Counter(metric.exported, metric.meaning, metric.labels, registry=registry)
    return Histogram(metric.exported, metric.meaning, metric.labels, registry=registry, buckets=metric.buckets)
