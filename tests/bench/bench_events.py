"""What it costs to be seen: one guarded call with no sink, with the figures, Prometheus and OpenTelemetry; one run.

    PYTHONPATH=. python tests/bench/bench_events.py

CPU time of the calling thread, best of many rounds, all cases in turn.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from measure import Sync, measure
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry

from guarded import circuit, events, limit, rate, registry, retry
from guarded.events.sinks import opentelemetry, prometheus


def noop() -> None:
    """What is guarded."""


def slow(event: events.Event) -> None:
    """A sink that takes some 100 µs of the processor."""
    sum(range(10_000))


def installed(install: Callable[[], Any], call: Sync) -> Sync:
    """`call`, while a sink is installed for the length of one batch of calls."""

    def batch() -> None:
        with install():
            for _ in range(BATCH):
                call()

    return batch


BATCH = 500


def main() -> None:
    """Print the table."""
    events.set_level("OFF")
    guarded = retry(retries=3)(circuit("gateway")(noop))
    guarded = limit(20, name="db")(rate("100000000/s", name="api")(guarded))
    prometheus_registry = CollectorRegistry()
    meters = MeterProvider(metric_readers=[InMemoryMetricReader()])
    tracers = TracerProvider()
    cases: dict[str, Callable[[], Any]] = {
        "no sink": ExitStack,
        "guarded.stats()": events.collecting,
        "Prometheus": lambda: prometheus.install(registry=prometheus_registry),
        "OpenTelemetry metrics": lambda: opentelemetry.install(meter_provider=meters),
        "… and a span per attempt": lambda: opentelemetry.install(
            attempt_spans=True, meter_provider=meters, tracer_provider=tracers
        ),
        "a slow sink": lambda: events.subscribe(slow, "TRACE"),
        "the same in the background": lambda: events.subscribe(events.in_background(slow, size=100), "TRACE"),
    }
    found = measure({name: installed(install, guarded) for name, install in cases.items()}, rounds=9)
    print(f"limit + rate + retry + circuit on a no-op, CPython {platform.python_version()}; µs of CPU per call\n")
    for name, nanoseconds in found.items():
        print(f"{name:28}{nanoseconds / BATCH / 1000:10.2f}")


if __name__ == "__main__":
    with registry.isolated():
        main()
