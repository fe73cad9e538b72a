"""The figures people ask for, counted in this process: the table of ``guarded.events.metrics`` added up in memory.

Nothing is counted until somebody asks: a call that succeeds costs no more than without this module. The first
`stats` begins to count, `collecting` counts for the length of a block. Durations are seconds, ratios 0..1.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from guarded._core import clock
from guarded._core.fork import after_fork
from guarded.events.bus import Subscription, subscribe
from guarded.events.metrics import (
    CALLS,
    DURATION,
    EVENTS_SEEN,
    REJECTIONS,
    RETRIES,
    RETRIES_PER_CALL,
    STATUSES,
    WAIT,
    measure,
)
from guarded.events.model import Event

TOO_MANY: Final = "429"


class Sum(NamedTuple):
    """What one metric has come to under one set of labels; of a counter, `total` is the figure."""

    number: int
    total: float
    largest: float
    zeros: int


Sums = Mapping[str, Mapping[tuple[str, ...], Sum]]
"""By name of the metric, then by the values of its labels."""


@dataclass(frozen=True, slots=True)
class Stats:
    """What the guarded calls of this process came to.

    Attributes:
        seconds: for how long it has been counted.
        calls: calls that ended; a guarded call inside another one counts too.
        succeeded: those that returned.
        failed: those that raised or were refused; the rest was cancelled.
        first_attempt: share of calls that succeeded at the first attempt; None without calls.
        retries: attempts beyond the first, scheduled.
        mean_retries: retries per call; None without calls.
        max_retries: most retries of one call.
        exhausted: calls whose last attempt failed too.
        queued: seconds spent waiting for limits and rates.
        backing_off: seconds of delay between attempts.
        running: seconds of the calls in all, less `queued` and `backing_off`; a duplicate's wait for the run that it
            has joined is in it.
        too_many: answers with HTTP status 429.
        rejections: calls refused or out of time, by policy.
    """

    seconds: float
    calls: int
    succeeded: int
    failed: int
    first_attempt: float | None
    retries: int
    mean_retries: float | None
    max_retries: int
    exhausted: int
    queued: float
    backing_off: float
    running: float
    too_many: int
    rejections: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


class Tally:
    """A sink that adds up.

    An event is put into an inbox, and added up by whoever gets the lock without waiting: a finalizer that emits in
    the middle of it cannot hang.
    """

    __slots__ = ("__weakref__", "_inbox", "_lock", "_sums", "since")

    def __init__(self) -> None:
        self._begin()
        after_fork(self, Tally._begin)  # what was counted so far is the parent's, and so is who holds the lock

    def _begin(self) -> None:
        self.since: float = clock.monotonic()
        self._inbox: deque[Event] = deque()
        self._lock = threading.Lock()
        self._sums: dict[str, dict[tuple[str, ...], list[Any]]] = {}

    def __call__(self, event: Event) -> None:
        """Take one event."""
        self._inbox.append(event)
        if self._lock.acquire(blocking=False):
            try:
                self._add_up()
            finally:
                self._lock.release()

    def _add_up(self) -> None:
        while self._inbox:
            for metric, value, labels in measure(self._inbox.popleft()):
                sums = self._sums.get(metric.name)
                if sums is None:
                    sums = self._sums[metric.name] = {}
                found = sums.get(labels)
                if found is None:
                    found = sums[labels] = [0, 0, 0, 0]
                found[0] += 1
                found[1] += value
                if value > found[2]:
                    found[2] = value
                elif value == 0:
                    found[3] += 1

    def sums(self) -> dict[str, dict[tuple[str, ...], Sum]]:
        """All that was added up so far."""
        with self._lock:
            self._add_up()
            return {name: {labels: Sum(*found) for labels, found in sums.items()} for name, sums in self._sums.items()}

    def stats(self) -> Stats:
        """The figures so far."""
        return figures(self.sums(), max(0.0, clock.monotonic() - self.since))


def figures(sums: Sums, seconds: float) -> Stats:
    """The figures that the sums give."""
    calls = _by(sums, CALLS.name, 1)
    number = int(sum(calls.values()))
    per_call = sums.get(RETRIES_PER_CALL.name, {})
    firsts = sum(found.zeros for (_, outcome), found in per_call.items() if outcome == "success")
    retried = sum(found.total for found in per_call.values())
    waits = _by(sums, WAIT.name, 1)
    backing_off = waits.pop("retry", 0.0)
    queued = sum(waits.values(), 0.0)
    lengths = sum(found.total for found in sums.get(DURATION.name, {}).values())
    return Stats(
        seconds=seconds,
        calls=number,
        succeeded=int(calls.get("success", 0)),
        failed=int(calls.get("failure", 0)),
        first_attempt=firsts / number if number else None,
        retries=int(sum(_by(sums, RETRIES.name, 0).values())),
        mean_retries=retried / number if number else None,
        max_retries=int(max((found.largest for found in per_call.values()), default=0)),
        exhausted=int(_by(sums, EVENTS_SEEN.name, 0).get("retry.exhausted", 0)),
        queued=queued,
        backing_off=backing_off,
        running=max(0.0, lengths - queued - backing_off),
        too_many=int(_by(sums, STATUSES.name, 1).get(TOO_MANY, 0)),
        rejections={policy: int(total) for policy, total in _by(sums, REJECTIONS.name, 0).items()},
    )


def _by(sums: Sums, name: str, label: int) -> dict[str, float]:
    """Totals of one metric by one of its labels."""
    totals: dict[str, float] = {}
    for labels, found in sums.get(name, {}).items():
        totals[labels[label]] = totals.get(labels[label], 0) + found.total
    return totals


class _Process:
    """The one tally that `stats` asks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counting: tuple[Tally, Subscription] | None = None
        after_fork(self, _Process._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def tally(self) -> Tally:
        """The tally, which begins to count when it does not yet."""
        with self._lock:
            if self._counting is None or self._counting[1].closed:
                tally = Tally()
                self._counting = tally, subscribe(tally, "TRACE")
            return self._counting[0]

    def stop(self) -> None:
        """Count no more."""
        with self._lock:
            if self._counting is not None:
                self._counting[1].close()
            self._counting = None


_process: Final = _Process()


def stats() -> Stats:
    """The figures of this process since the first call of `stats`, which begins to count.

    Call it once when the program starts. While it counts, each guarded call costs a few microseconds more.

    Example:
        >>> import guarded
        >>> guarded.stats().calls
        0
        >>> @guarded.retry(retries=2)
        ... def fetch() -> str:
        ...     return "page"
        >>> fetch()
        'page'
        >>> guarded.stats().first_attempt
        1.0
    """
    return _process.tally().stats()


def stop() -> None:
    """Count no more; the next `stats` begins anew."""
    _process.stop()


@contextmanager
def collecting() -> Iterator[Tally]:
    """Count for the length of a block; `Tally.stats` gives the figures, also after it.

    Example:
        >>> from guarded import limit
        >>> from guarded.events import collecting
        >>> with collecting() as tally:
        ...     limit(2).call(len, "abc")
        3
        >>> tally.stats().succeeded
        1
    """
    tally = Tally()
    with subscribe(tally, "TRACE"):
        yield tally
