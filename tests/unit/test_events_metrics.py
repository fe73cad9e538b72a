"""What the events add up to, without any metrics library."""

from __future__ import annotations

from typing import Any

import pytest

from guarded import RetryBudget, circuit, limit, rate, registry, retry
from guarded.events.metrics import METRICS, Metric, gauges, measure
from guarded.events.model import EVENTS, Event


def measured(name: str, **fields: Any) -> dict[str, tuple[float, tuple[str, ...]]]:
    """What one event gives, by metric, besides the count of events."""
    event = Event(0.0, name, EVENTS[name].level, **fields)
    found = {metric.name: (value, labels) for metric, value, labels in measure(event)}
    assert found.pop("guarded.events") == (1, (name, fields.get("policy", "")))
    return found


LIMIT = {"policy": "db", "layer": "limit"}
RETRY = {"policy": "again", "layer": "retry", "function": "f"}
CALL = {"function": "f", "outcome": "success"}


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        (
            "call.succeeded",
            {**CALL, "duration": 0.5, "attempts": 3},
            {
                "guarded.calls": (1, ("f", "success")),
                "guarded.call.duration": (0.5, ("f", "success")),
                "guarded.call.retries": (2, ("f", "success")),
            },
        ),
        ("call.failed", {"function": "f", "outcome": "failure"}, {"guarded.calls": (1, ("f", "failure"))}),
        (
            "call.failed",
            {"function": "f", "outcome": "failure", "status": 429},
            {"guarded.calls": (1, ("f", "failure")), "guarded.error.statuses": (1, ("f", "429"))},
        ),
        (
            "limit.acquired",
            {**LIMIT, "active": 3, "queued": 0, "limit": 5, "wait": 0.0},
            {"guarded.wait": (0.0, ("db", "limit"))},
        ),
        ("limit.queued", {**LIMIT, "queued": 1}, {}),
        (
            "limit.rejected",
            {**LIMIT, "reason": "timeout", "wait": 2.0},
            {"guarded.rejections": (1, ("db", "limit", "timeout")), "guarded.wait": (2.0, ("db", "limit"))},
        ),
        (
            "rate.delayed",
            {"policy": "api", "layer": "rate", "delay": 0.1},
            {"guarded.wait": (0.1, ("api", "rate"))},
        ),
        (
            "retry.scheduled",
            {**RETRY, "delay": 0.25, "status": 429},
            {
                "guarded.retries": (1, ("again", "f")),
                "guarded.error.statuses": (1, ("f", "429")),
                "guarded.wait": (0.25, ("again", "retry")),
            },
        ),
        ("retry.exhausted", {**RETRY, "status": 503, "wait": 1.0}, {"guarded.error.statuses": (1, ("f", "503"))}),
        (
            "deadline.exceeded",
            {"policy": "10s", "layer": "deadline", "reason": "running", "wait": 1.0},
            {"guarded.rejections": (1, ("10s", "deadline", "running"))},
        ),
        ("circuit.opened", {"policy": "gw", "layer": "circuit"}, {}),
        ("config.reloaded", {"source": "x", "changes": 2}, {}),
    ],
)
def test_what_an_event_adds(name: str, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    """Each event gives exactly these measurements, with these labels."""
    assert measured(name, **fields) == expected


@pytest.mark.parametrize(
    "name", [name for name in EVENTS if name.endswith((".rejected", ".mismatched")) or name == "deadline.exceeded"]
)
def test_every_refusal_counts_as_a_rejection(name: str) -> None:
    """No layer's refusals are forgotten."""
    assert "guarded.rejections" in measured(name, policy="p", layer=name.partition(".")[0])


@pytest.mark.parametrize("name", EVENTS)
def test_bare_events_are_counted(name: str) -> None:
    """An event with nothing but its name gives finite values and as many labels as its metric says."""
    for metric, value, labels in measure(Event(0.0, name, EVENTS[name].level)):
        assert value >= 0
        assert len(labels) == len(metric.labels)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_the_table_is_complete(metric: Metric) -> None:
    """Names are dotted and unique, units are given, and histograms have rising buckets."""
    assert metric.name.startswith("guarded.")
    assert [other.name for other in METRICS].count(metric.name) == 1
    assert metric.unit
    assert metric.meaning.endswith(".")
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert bool(metric.buckets) == (metric.kind == "histogram")


def test_gauges_say_how_things_stand() -> None:
    """Of each named policy that has a state worth a gauge; a name that looks like a credential is scrubbed."""
    with limit(3, name="db"):
        rate("5/s", name="api")
        circuit("gw").isolate()
        circuit("password=canary")
        RetryBudget(0.1, 2, name="budget")
        retry(name="again")
        found = [(metric.name, value, labels) for metric, value, labels in gauges(registry.snapshot())]
    assert found == [
        ("guarded.limit.active", 1, ("db",)),
        ("guarded.limit.capacity", 3, ("db",)),
        ("guarded.queued", 0, ("db", "limit")),
        ("guarded.limit.oldest.wait", 0.0, ("db",)),
        ("guarded.queued", 0, ("api", "rate")),
        ("guarded.circuit.state", 3, ("gw",)),
        ("guarded.circuit.state", 0, ("password=***",)),
        ("guarded.retry.budget", 20.0, ("budget",)),
    ]
