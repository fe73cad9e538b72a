"""Events as Prometheus metrics: the table in ``guarded.events.metrics``, as ``guarded_call_duration_seconds`` etc.

What has been counted stays in the registry when the subscription is closed; installed again, it goes on from there.
"""

from __future__ import annotations

import threading
from typing import Any, Final
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from guarded.events.bus import Subscription, subscribe
from guarded.events.metrics import METRICS, Metric, measure
from guarded.events.model import Event, level_number

_UNITS: Final = {"s": "_seconds"}

_lock: Final = threading.Lock()
_sinks: Final[WeakKeyDictionary[CollectorRegistry, _Sink]] = WeakKeyDictionary()


def exported_name(metric: Metric) -> str:
    """The name a scrape shows for `metric`; histograms have further endings of their own."""
    name = metric.name.replace(".", "_") + _UNITS.get(metric.unit, "")
    return f"{name}_total" if metric.kind == "counter" else name


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
        self._instruments: dict[Metric, Any] = {metric: _instrument(metric, registry) for metric in METRICS}

    def __call__(self, event: Event) -> None:
        for metric, value, labels in measure(event):
            instrument = self._instruments[metric].labels(*labels)
            if metric.kind == "counter":
                instrument.inc(value)
            elif metric.kind == "histogram":
                instrument.observe(value)
            else:
                instrument.set(value)


def _instrument(metric: Metric, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    name = exported_name(metric)
    if metric.kind == "counter":
        return Counter(name, metric.meaning, metric.labels, registry=registry)
    if metric.kind == "gauge":
        return Gauge(name, metric.meaning, metric.labels, registry=registry)
    return Histogram(name, metric.meaning, metric.labels, registry=registry, buckets=metric.buckets)
