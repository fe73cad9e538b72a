"""The Prometheus sink against the real library."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest

from guarded import circuit, limit
from guarded._core.call import Call
from guarded.events.bus import bus
from guarded.events.metrics import METRICS
from guarded.events.model import EVENTS
from guarded.events.sinks import prometheus as sink


class Policy:
    """Stands for a limit."""

    label = "db"
    kind = "limit"


@pytest.fixture
def registry() -> Iterator[CollectorRegistry]:
    """A registry of its own that counts everything."""
    registry = CollectorRegistry()
    with sink.install(registry=registry):
        yield registry


def call() -> Call:
    """A call of a function ``f``."""
    made = Call()
    made.function = "f"
    return made


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    """One sample."""
    return registry.get_sample_value(name, labels)


@pytest.mark.parametrize("name", EVENTS)
def test_every_event_is_counted(name: str, registry: CollectorRegistry) -> None:
    """By name and policy."""
    bus.emit(name, call(), Policy())
    assert value(registry, "guarded_events_total", event=name, policy="db") == 1


def test_counters_histograms_and_gauges(registry: CollectorRegistry) -> None:
    """Values add up, are sorted into buckets, or replace each other, by the kind of the metric."""
    for duration in (0.02, 3.0):
        bus.emit("call.succeeded", call(), None, outcome="success", duration=duration, attempts=1)
    of_call = {"function": "f", "outcome": "success"}
    assert value(registry, "guarded_calls_total", **of_call) == 2
    assert value(registry, "guarded_call_duration_seconds_sum", **of_call) == pytest.approx(3.02)
    assert value(registry, "guarded_call_duration_seconds_bucket", le="0.025", **of_call) == 1
    assert value(registry, "guarded_call_retries_bucket", le="0.0", **of_call) == 2


def test_gauges_are_read_by_the_scrape(registry: CollectorRegistry) -> None:
    """They say how things stand at that moment, whatever the latest event said."""
    pool = limit(20, name="db")
    assert value(registry, "guarded_limit_active", policy="db") == 0
    with pool:
        assert value(registry, "guarded_limit_active", policy="db") == 1
        assert value(registry, "guarded_limit_capacity", policy="db") == 20
    circuit("gateway").isolate()
    assert value(registry, "guarded_circuit_state", policy="gateway") == 3


def test_rejections_by_policy_and_reason(registry: CollectorRegistry) -> None:
    """Who refused and why."""
    bus.emit("limit.rejected", call(), Policy(), reason="queue_full")
    assert value(registry, "guarded_rejections_total", policy="db", layer="limit", reason="queue_full") == 1


def test_exported_names_are_those_of_a_scrape(registry: CollectorRegistry) -> None:
    """The names that dashboards and alerts use are what the endpoint shows, with help and type."""
    scrape = generate_latest(registry).decode()
    for metric in METRICS:
        assert f"# HELP {metric.exported} {metric.meaning}\n" in scrape
        assert f"# TYPE {metric.exported} {metric.kind}\n" in scrape


def test_closing_keeps_what_was_counted_and_installing_goes_on() -> None:
    """A counter of a process never goes back."""
    registry = CollectorRegistry()
    for _ in range(2):
        with sink.install(registry=registry):
            bus.emit("limit.queued", None, None)
        bus.emit("limit.queued", None, None)
    assert value(registry, "guarded_events_total", event="limit.queued", policy="") == 2


def test_installing_twice_counts_once() -> None:
    """Two parts of an application may both install it; the last level counts."""
    registry = CollectorRegistry()
    first = sink.install(registry=registry)
    with sink.install("WARNING", registry=registry):
        assert first.closed
        bus.emit("limit.queued", None, None)
        bus.emit("limit.rejected", None, None)
    assert value(registry, "guarded_events_total", event="limit.queued", policy="") is None
    assert value(registry, "guarded_events_total", event="limit.rejected", policy="") == 1


def test_a_wrong_level_leaves_the_former_installed(registry: CollectorRegistry) -> None:
    """The error comes before anything changes."""
    with pytest.raises(ValueError, match="level='LOUD'"):
        sink.install("LOUD", registry=registry)
    bus.emit("limit.queued", None, None)
    assert value(registry, "guarded_events_total", event="limit.queued", policy="") == 1


def test_no_secret_in_a_scrape(registry: CollectorRegistry) -> None:
    """Labels are names and fixed words."""
    bus.emit("call.failed", call(), Policy(), cause=ValueError("password=canary"), outcome="failure")
    bus.emit("limit.rejected", call(), Policy(), reason="token=canary")
    assert "canary" not in generate_latest(registry).decode()
