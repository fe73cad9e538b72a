"""What can be counted and measured: one table of names, kinds, units and labels.

`measure` says what one event adds, `gauges` how things stand now; both are pure, and `guarded.stats` and the sinks for
Prometheus and OpenTelemetry are thin drivers of them. Seconds and counts, never milliseconds or percent. Labels are
names of policies, functions and fixed words, so their number stays bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from guarded.events.model import Event
from guarded.events.redact import scrub_cached


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table.

    Attributes:
        name: dotted, without unit.
        kind: how its values add up.
        unit: UCUM: ``s``, or a noun in braces.
        labels: names of the labels, in the order of the values that `measure` gives.
        meaning: one sentence.
        buckets: upper bounds for a histogram.
    """

    name: str
    kind: Literal["counter", "histogram", "gauge"]
    unit: str
    labels: tuple[str, ...]
    meaning: str
    buckets: tuple[float, ...] = ()

    @property
    def exported(self) -> str:
        """The name that Prometheus shows; histograms have further endings of their own."""
        name = self.name.replace(".", "_") + ("_seconds" if self.unit == "s" else "")
        return f"{name}_total" if self.kind == "counter" else name


_SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_COUNTS: Final = (0.0, 1.0, 2.0, 3.0, 5.0, 10.0)
_OF_CALL: Final = ("function", "outcome")
_OF_POLICY: Final = ("policy", "layer")

EVENTS_SEEN: Final = Metric("guarded.events", "counter", "{event}", ("event", "policy"), "Events, by name.")
CALLS: Final = Metric("guarded.calls", "counter", "{call}", _OF_CALL, "Guarded calls that ended.")
DURATION: Final = Metric(
    "guarded.call.duration", "histogram", "s", _OF_CALL, "Length of guarded calls, waits included.", _SECONDS
)
RETRIES_PER_CALL: Final = Metric(
    "guarded.call.retries", "histogram", "{retry}", _OF_CALL, "Retries that a call took.", _COUNTS
)
RETRIES: Final = Metric("guarded.retries", "counter", "{retry}", ("policy", "function"), "Retries scheduled.")
STATUSES: Final = Metric(
    "guarded.error.statuses", "counter", "{response}", ("function", "status"), "HTTP error statuses seen."
)
WAIT: Final = Metric("guarded.wait", "histogram", "s", _OF_POLICY, "Time queued, and between attempts.", _SECONDS)
REJECTIONS: Final = Metric(
    "guarded.rejections", "counter", "{call}", (*_OF_POLICY, "reason"), "Calls refused or out of time."
)
ACTIVE: Final = Metric("guarded.limit.active", "gauge", "{permit}", ("policy",), "Permits held.")
CAPACITY: Final = Metric("guarded.limit.capacity", "gauge", "{permit}", ("policy",), "Permits there are.")
QUEUED: Final = Metric("guarded.queued", "gauge", "{call}", _OF_POLICY, "Calls waiting for a limit or a rate.")
OLDEST: Final = Metric(
    "guarded.limit.oldest.wait", "gauge", "s", ("policy",), "Time that the longest waiter has waited so far."
)
CIRCUIT: Final = Metric(
    "guarded.circuit.state",
    "gauge",
    "{state}",
    ("policy",),
    "0 closed, 1 half-open, 2 open, 3 isolated; -1 disabled.",
)
BALANCE: Final = Metric("guarded.retry.budget", "gauge", "{retry}", ("policy",), "Retries left in a shared budget.")

METRICS: Final = (
    EVENTS_SEEN,
    CALLS,
    DURATION,
    RETRIES_PER_CALL,
    RETRIES,
    STATUSES,
    WAIT,
    REJECTIONS,
    ACTIVE,
    CAPACITY,
    QUEUED,
    OLDEST,
    CIRCUIT,
    BALANCE,
)

Measurement = tuple[Metric, float, tuple[str, ...]]

_STATES: Final = {"disabled": -1, "closed": 0, "half-open": 1, "open": 2, "isolated": 3}
_OF_STATE: Final = {
    "limit": ((ACTIVE, "held"), (CAPACITY, "limit"), (QUEUED, "queued"), (OLDEST, "oldest_wait")),
    "rate": ((QUEUED, "queued"),),
    "circuit": ((CIRCUIT, "state"),),
    "retry_budget": ((BALANCE, "balance"),),
}
# These name the wait that starts, in `delay`; others the one that is over, in `wait`.
_DELAYS: Final = ("rate.delayed", "retry.scheduled")
_REFUSALS: Final = (
    "limit.rejected",
    "rate.rejected",
    "circuit.rejected",
    "idempotent.rejected",
    "idempotent.mismatched",
    "deadline.exceeded",
)
_WAITED: Final = ("limit.acquired", "limit.rejected")


def measure(event: Event) -> Iterator[Measurement]:
    """What one event adds: metric, value (1 for counters), label values."""
    policy = event.policy or ""
    yield EVENTS_SEEN, 1, (event.name, policy)
    if event.name in ("call.succeeded", "call.failed"):
        yield from _of_call(event)
        return
    layer = event.layer or ""
    if event.name == "retry.scheduled":
        yield RETRIES, 1, (policy, event.function or "")
    if event.status is not None and layer == "retry":
        yield STATUSES, 1, (event.function or "", str(event.status))
    waited = event.delay if event.name in _DELAYS else event.wait if event.name in _WAITED else None
    if waited is not None:
        yield WAIT, waited, (policy, layer)
    if event.name in _REFUSALS and not event.cancelled:  # who left the queue was not refused
        yield REJECTIONS, 1, (policy, layer, event.reason or "")


def _of_call(event: Event) -> Iterator[Measurement]:
    labels = (event.function or "", event.outcome or "")
    yield CALLS, 1, labels
    if event.duration is not None:
        yield DURATION, event.duration, labels
    if event.attempts is not None:
        yield RETRIES_PER_CALL, event.attempts - 1, labels
    if event.status is not None:
        yield STATUSES, 1, (event.function or "", str(event.status))


def gauges(snapshot: Mapping[str, Mapping[str, Any]]) -> Iterator[Measurement]:
    """How things stand, by what ``registry.snapshot()`` gives; policies without a name have no gauges."""
    for name, state in snapshot.items():
        kind = state["kind"]
        for metric, key in _OF_STATE.get(kind, ()):
            value = state.get(key)
            number = _STATES.get(value) if isinstance(value, str) else value
            if number is not None:
                policy = scrub_cached(name)
                yield metric, number, (policy,) if len(metric.labels) == 1 else (policy, kind)
