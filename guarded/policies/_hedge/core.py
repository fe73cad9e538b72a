"""When the copies of a hedged call start: the decision both shells of `hedge` act on.

No I/O, no clock, no waiting: time comes in. Seconds throughout; copy 0 is the call itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from math import inf
from typing import Any, Literal

from guarded._core.durations import parse_duration

RESERVOIR = 1000  # latencies kept; the latest ones
FEWEST = 20  # latencies that a percentile is worth anything from
_STALE = 16  # observations after which a percentile is taken anew
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?)")


class Latencies:
    """How long the latest calls took. Not thread-safe."""

    __slots__ = ("_cached", "_fresh", "_next", "_ring")

    def __init__(self) -> None:
        self._ring: list[float] = []
        self._next = 0
        self._cached: dict[float, float] = {}
        self._fresh = 0

    def observe(self, seconds: float) -> None:
        """Take one more, in place of the oldest when full."""
        if len(self._ring) < RESERVOIR:
            self._ring.append(seconds)
        else:
            self._ring[self._next] = seconds
            self._next = (self._next + 1) % RESERVOIR
        self._fresh += 1

    def quantile(self, q: float) -> float | None:
        """The nearest-rank quantile, up to `_STALE` observations old; None while there are too few to tell."""
        if len(self._ring) < max(FEWEST, math.ceil(1 / (1 - q) - 1e-9)):
            return None
        if self._fresh >= _STALE:
            self._cached.clear()
            self._fresh = 0
        found = self._cached.get(q)
        if found is None:
            found = self._cached[q] = sorted(self._ring)[math.ceil(q * len(self._ring) - 1e-9) - 1]
        return found

    def __len__(self) -> int:
        return len(self._ring)


class Race:
    """One hedged call: how many copies may still start, and when the next one does.

    Attributes:
        due: monotonic time at which the next copy starts; ``inf`` when none does any more.
        why: ``"slow"``, or ``"failed"`` when a copy has failed and the next one need not wait.
        started: copies started so far.
    """

    __slots__ = ("_after", "_copies", "due", "started", "why")

    def __init__(self, after: float, max_hedges: int) -> None:
        self._after = after
        self._copies = 1 + max_hedges
        self.started = 0
        self.due = -inf
        self.why: Literal["slow", "failed"] = "slow"

    def start(self, now: float) -> int:
        """A copy starts: its number."""
        number = self.started
        self.started += 1
        self.due = now + self._after if self.started < self._copies else inf
        self.why = "slow"
        return number

    def fail(self, now: float) -> None:
        """A copy has failed: the next one starts at once."""
        if self.started < self._copies:
            self.due = min(self.due, now)
            self.why = "failed"

    def stop(self) -> None:
        """Start no more copies."""
        self._copies = self.started
        self.due = inf


def read_after(given: Any) -> float | str:
    """An ``after`` option: seconds, or ``"p95"`` as it is. Raises ValueError."""
    if isinstance(given, str) and given.startswith("p"):
        quantile_of(given)
        return given
    return parse_duration(given, option="after", allow_zero=True)


def quantile_of(percentile: str) -> float:
    """0.95 for ``"p95"``. Raises ValueError for what needs more latencies than are kept."""
    match = _PERCENTILE.fullmatch(percentile)
    q = float(match[1]) / 100 if match else 0.0
    if not 0 < q < 1 - 0.5 / RESERVOIR:
        raise ValueError(f"after={percentile!r}: must be a percentile from 'p1' to 'p99.9', or a duration")
    return q


def delay_of(after: float | str, latencies: Latencies) -> Callable[[], float | None]:
    """How long to wait before the first copy; None while a percentile cannot be told."""
    if isinstance(after, str):
        q = quantile_of(after)
        return lambda: latencies.quantile(q)
    return lambda: after
