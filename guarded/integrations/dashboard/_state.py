"""What the dashboard tells: one JSON document of how the policies stand and what the calls came to so far.

Counts add up from when the first viewer came; whoever shows them makes rates of the difference between two documents.
Names, numbers and fixed words only; texts of exceptions come in the events, scrubbed there. Seconds and ratios 0..1.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from typing import Any, Final

from guarded import events
from guarded._core import clock
from guarded._core.fork import after_fork
from guarded._core.policy import Policy
from guarded._core.registry import registry
from guarded.events.bus import Subscription, subscribe
from guarded.events.metrics import CALLS, DURATION, REJECTIONS, RETRIES, RETRIES_PER_CALL, WAIT
from guarded.events.model import LEVELS, Event
from guarded.events.redact import scrub_cached
from guarded.events.tally import Sums, Tally, figures

GRACE = 1.0
"""Seconds that it goes on counting without a viewer, who may only be asking for the next stream."""


class Watch:
    """Counts while somebody looks.

    The counts of an earlier viewer stay, so that they never go back while the process lives.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscription: Subscription | None = None
        self.viewers = 0
        self.tally: Tally = Tally()
        after_fork(self, Watch._leave_to_parent)

    def _leave_to_parent(self) -> None:
        """The viewers are not the child's."""
        self._lock = threading.Lock()
        self.viewers = 0
        self._stop()

    @contextmanager
    def viewing(self) -> Iterator[None]:
        """One more viewer for the length of the block."""
        with self._lock:
            self.viewers += 1
            if self._subscription is None:
                self._subscription = subscribe(self.tally, "TRACE")
        try:
            yield
        finally:
            with self._lock:
                self.viewers -= 1
                leaving = self.viewers == 0
            if leaving:
                timer = threading.Timer(GRACE, self._stop_unless_viewed)
                timer.daemon = True
                timer.start()

    def _stop_unless_viewed(self) -> None:
        with self._lock:
            if self.viewers == 0:
                self._stop()

    def stop(self) -> None:
        """Count no more, whoever looks; the next viewer begins it again."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None

    def state(self) -> dict[str, Any]:
        """The document, without events."""
        sums = self.tally.sums()
        now = clock.monotonic()
        totals = figures(sums, max(0.0, now - self.tally.since)).as_dict()
        del totals["rejections"]
        totals["rejected"] = int(sum(found.total for found in sums.get(REJECTIONS.name, {}).values()))
        document: dict[str, Any] = _plain(
            {
                "time": clock.wall(),
                "clock": now,
                "process": os.getpid(),
                "viewers": self.viewers,
                "totals": totals,
                "policies": _policies(sums),
                "functions": _functions(sums),
            }
        )
        return document


_NOTHING: Final = {"rejected": 0, "retries": 0, "waits": 0, "waited": 0.0}


def _policies(sums: Sums) -> list[dict[str, Any]]:
    """Those with a live state to show, then those that are known only by what has happened to them."""
    found: dict[str, dict[str, Any]] = {}
    for name, policy in registry.census().items():
        if policy.kind != "guard":
            shown = scrub_cached(name)
            blank = {"name": shown, "kind": policy.kind, "live": True, **_NOTHING}
            found[shown] = {**blank, **policy.live_state()}
            if policy.kind == "circuit":
                found[shown]["trips_at"] = _trips_at(policy)

    def of(name: str, kind: str) -> dict[str, Any]:
        return found.setdefault(name, {"name": name, "kind": kind, "live": False, **_NOTHING})

    for (name, kind, _), rejected in sums.get(REJECTIONS.name, {}).items():
        of(name, kind)["rejected"] += int(rejected.total)
    for (name, kind), waited in sums.get(WAIT.name, {}).items():
        row = of(name, kind)
        row["waits"] += waited.number - waited.zeros
        row["waited"] += waited.total
    for (name, _), retries in sums.get(RETRIES.name, {}).items():
        of(name, "retry")["retries"] += int(retries.total)
    return list(found.values())


def _trips_at(circuit: Policy[Any]) -> float | None:
    """Failures in a row, or share of failed calls, that open it."""
    rate: float | None = circuit.options.failure_rate
    return circuit.options.failures if rate is None else rate


def _functions(sums: Sums) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for (name, outcome), calls in sums.get(CALLS.name, {}).items():
        lengths = sums.get(DURATION.name, {}).get((name, outcome))
        retries = sums.get(RETRIES_PER_CALL.name, {}).get((name, outcome))
        blank = {"name": name, "calls": 0, "failed": 0, "seconds": 0.0, "longest": 0.0, "retries": 0}
        function = found.setdefault(name, blank)
        function["calls"] += int(calls.total)
        function["failed"] += int(calls.total) if outcome == "failure" else 0
        if lengths is not None:
            function["seconds"] += lengths.total
            function["longest"] = max(function["longest"], lengths.largest)
        if retries is not None:
            function["retries"] += int(retries.total)
    return list(found.values())


class Reader:
    """One viewer's place in the latest events."""

    def __init__(self) -> None:
        self._last: Event | None = None

    def news(self) -> list[dict[str, Any]]:
        """The events since the last time, oldest first; at first all that are kept."""
        kept = events.recent()
        start = 0
        for index in range(len(kept) - 1, -1, -1):
            if kept[index] is self._last:
                start = index + 1
                break
        self._last = kept[-1] if kept else None
        return [event_as_dict(event) for event in kept[start:]]


def event_as_dict(event: Event) -> dict[str, Any]:
    """An event as plain values."""
    found: dict[str, Any] = _plain({**event.fields(), "level": LEVELS[event.level]})
    return found


def _plain(value: Any) -> Any:
    """The same with None for what JSON cannot say."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return value if isfinite(value) else None
    return value if value is None or isinstance(value, (str, int)) else str(value)
