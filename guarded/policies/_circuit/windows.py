"""The windows over which a circuit takes its rates: the latest calls, or the latest stretch of time.

Both keep running totals, so that adding a result and asking for a rate cost the same however long the window is.
Times are whole nanoseconds of whatever monotonic clock the caller uses.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

BUCKETS: Final = 20
"""Parts of a time window. A result counts for at least 19/20 of the window, and never longer than the window."""

MAX_CALLS: Final = 1_000_000
"""Longest count window; it takes one byte per call."""


ALWAYS: Final = 2**63 - 1


class Window(Protocol):
    """Totals over the results that are in the window."""

    calls: int
    failed: int
    slow: int

    @property
    def steady_until(self) -> int:
        """Until when nothing leaves it by age, so that a success cannot raise the share of failures."""
        ...

    def add(self, now: int, failed: bool, slow: bool) -> None:
        """Put the result of one call into the window."""

    def add_successes(self, times: deque[int]) -> None:
        """Put the successes at `times` into the window, and take them out there; others may be adding meanwhile."""

    def move(self, now: int) -> None:
        """Let go of what is too old by now."""


class CallWindow:
    """The latest `size` calls: a ring with one byte per call, bit 0 for failed and bit 1 for slow."""

    __slots__ = ("_at", "_ring", "calls", "failed", "slow")

    def __init__(self, size: int) -> None:
        self._ring = bytearray(size)
        self._at = 0
        self.calls = self.failed = self.slow = 0

    def add(self, now: int, failed: bool, slow: bool) -> None:
        """Put the result of one call in place of the oldest."""
        ring, at = self._ring, self._at
        if self.calls == len(ring):
            self.failed -= ring[at] & 1
            self.slow -= ring[at] >> 1
        else:
            self.calls += 1
        ring[at] = failed | slow << 1
        self.failed += failed
        self.slow += slow
        self._at = (at + 1) % len(ring)

    def add_successes(self, times: deque[int]) -> None:
        """As if each were added by itself."""
        for _ in range(len(times)):
            self.add(times.popleft(), False, False)

    @property
    def steady_until(self) -> int:
        """A success takes the place of an older result; it raises the share of failures at no time."""
        return ALWAYS

    def move(self, now: int) -> None:
        """Nothing ages in a window of calls."""


class TimeWindow:
    """The latest `length` nanoseconds: buckets ``[number, calls, failed, slow]``, the oldest first."""

    __slots__ = ("_buckets", "_from", "_newest", "_to", "_width", "calls", "failed", "slow")

    def __init__(self, length: int) -> None:
        self._width = -(-length // BUCKETS)
        self._buckets: deque[list[int]] = deque()
        self._newest = [0, 0, 0, 0]
        self._from = self._to = 0  # bounds of the newest bucket; equal while there is none
        self.calls = self.failed = self.slow = 0

    def add(self, now: int, failed: bool, slow: bool) -> None:
        """Put the result of one call into the bucket of `now`."""
        if not self._from <= now < self._to:
            self._turn(now)
        bucket = self._newest
        bucket[1] += 1
        self.calls += 1
        if failed:
            bucket[2] += 1
            self.failed += 1
        if slow:
            bucket[3] += 1
            self.slow += 1

    def add_successes(self, times: deque[int]) -> None:
        """As if each were added by itself."""
        first, end, count = self._from, self._to, 0
        for _ in range(len(times)):
            now = times.popleft()
            if not first <= now < end:
                self._newest[1] += count
                self.calls += count
                self._turn(now)
                first, end, count = self._from, self._to, 0
            count += 1
        self._newest[1] += count
        self.calls += count

    @property
    def steady_until(self) -> int:
        """The end of the newest bucket."""
        return self._to

    def _turn(self, now: int) -> None:
        """Make the bucket of `now` the newest."""
        self.move(now)
        number = now // self._width
        # A clock that went back a little may be behind the newest bucket: its result goes there all the same.
        if not self._buckets or self._newest[0] < number:
            self._newest = [number, 0, 0, 0]
            self._buckets.append(self._newest)
            self._from, self._to = number * self._width, (number + 1) * self._width

    def move(self, now: int) -> None:
        """Drop the buckets that have left the window; all of them when the clock went back by more than a window."""
        buckets = self._buckets
        number = now // self._width
        while buckets and abs(number - buckets[0][0]) >= BUCKETS:
            _, calls, failed, slow = buckets.popleft()
            self.calls -= calls
            self.failed -= failed
            self.slow -= slow
        if not buckets:
            self._to = self._from
