"""Units of a rate that may be taken without its lock.

A pass stands for one unit that was free when the pass was made, hence is free at any later time. Taking it is a ``pop``
from `passes`; whoever did that appends the time of the admission to `times`. Whoever has the lock and wants to decide
calls `recall` first: it takes back the passes that are left, and has the meter count the times. A caller that has
popped but not yet appended is counted from then on, until its own time is there. This needs no more than atomic list
methods, with the GIL or without. Nanoseconds.
"""

from __future__ import annotations

from typing import Final

from guarded.policies._rate.core import Meter

_MOST: Final = 256


class Advance:
    """The passes of one meter, whose admissions are found again by their times.

    Attributes:
        passes, times: see above.
        open: whether there may be anything to recall.
    """

    __slots__ = ("_granted", "_meter", "_missing", "_size", "open", "passes", "times")

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._granted = 0  # passes made since the last recall
        self._size = 1  # how many to make next: twice as many as were used
        self._missing: list[int] = []  # when callers were missed that had popped, but not appended
        self.open = False
        self.passes: list[bool] = []
        self.times: list[int] = []

    def grant(self, now: int) -> None:
        """Make passes, as far as there are free units."""
        self._granted = min(self._size, self._meter.free(now))
        self.passes.extend((True,) * self._granted)
        self.open = True

    def recall(self, last: int) -> int:
        """Count what was taken; gives the time of the latest admission, or `last` when that is later."""
        taken, self._granted = self._granted, 0
        while self.passes:
            try:
                self.passes.pop()
                taken -= 1
            except IndexError:
                break  # somebody was faster
        self._size = min(2 * taken + 1, _MOST)
        times = self.times[:]
        del self.times[: len(times)]
        if times:
            if times[0] < last or sorted(times) != times:  # where the clock goes back, no time passes
                times = [last := max(last, time) for time in times]
            self._meter.book_each(times)
            last = times[-1]
        self._count_missing(len(self._missing) + taken - len(times), last)
        self.open = bool(self._missing)
        return last

    def _count_missing(self, missing: int, now: int) -> None:
        while len(self._missing) > missing:
            self._meter.give_back(now, self._missing.pop(), 1)
        while len(self._missing) < missing:
            self._meter.book(now, 1)
            self._missing.append(now)
