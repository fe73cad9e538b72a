"""The meters: an exact log, two buckets, and aligned windows. Each counts for one window; see `_rate.core`."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from guarded.policies._rate.core import Algorithm, Joint, Mark, Meter, Quota

ALIGNMENT = 1_000_000  # nanoseconds; smaller differences to the wall clock are noise of its floats


class Sliding:
    """Never more than `count` units in any window (t - window, t]: exactly `window` later an event no longer counts.

    The exact log: one entry per distinct time, so at most `count` entries, about 50 bytes each. What belongs together
    is changed without a call between, after which a signal handler could raise.
    State: the entries ``(time, units)`` that still count, oldest first.
    """

    __slots__ = ("_check", "_costs", "_newest", "_times", "_total", "count", "window")

    timed = True

    def __init__(self, count: int, window: int) -> None:
        self.count = count
        self.window = window
        self._times: deque[int] = deque()
        self._costs: deque[int] = deque()
        self._total = 0
        self._check = 0  # nothing expires before this
        self._newest = -1  # the last time, if new costs at the same time may be added to its entry

    def take(self, now: int, cost: int) -> Mark | None:
        if now >= self._check:
            self._expire(now)
        total = self._total + cost
        if total > self.count:
            return None
        self._total = total
        if now == self._newest:
            self._costs[-1] += cost
        else:
            self._newest = now
            self._times += (now,)
            self._costs += (cost,)
        return now

    def earliest(self, now: int, cost: int) -> int:
        self._expire(now)
        excess = self._total + cost - self.count
        freed = now
        for time, units in zip(self._times, self._costs, strict=True):
            if excess <= 0:
                break
            excess -= units
            freed = time + self.window
        return max(now, freed)

    def book(self, at: int, cost: int) -> Mark:
        self._expire(at)
        self._add(at, cost)
        return at

    def book_each(self, times: list[int]) -> None:
        if not self._times or times[0] > self._times[-1]:
            ones = (1,) * len(times)
            self._total += len(times)
            self._times += times
            self._costs += ones
            self._newest = times[-1]
        else:
            for at in times:
                self._add(at, 1)

    def give_back(self, now: int, mark: Mark, cost: int) -> None:
        self._expire(now)
        at = bisect_left(self._times, mark + 1) - 1
        while cost > 0 and at >= 0:
            units = min(cost, self._costs[at])
            self._costs[at] -= units
            self._total -= units
            cost -= units
            if not self._costs[at]:
                del self._costs[at], self._times[at]
                self._newest = -1
            at -= 1

    def charge(self, now: int, mark: Mark, cost: int) -> None:
        if mark > now - self.window:
            self._expire(now)
            self._add(mark, cost)

    def newest(self) -> Mark:
        return self._times[-1] if self._times else 0

    def free(self, now: int) -> int:
        self._expire(now)
        return max(0, self.count - self._total)

    def idle(self, now: int) -> bool:
        return not self._times or self._times[-1] <= now - self.window

    def resize(self, now: int, counts: tuple[int, ...], burst: int | None) -> None:
        (self.count,) = counts

    def copy(self) -> Sliding:
        twin = Sliding(self.count, self.window)
        twin._times = self._times.copy()
        twin._costs = self._costs.copy()
        twin._total = self._total
        twin._check = self._check
        return twin

    def state(self, now: int) -> tuple[Any, ...]:
        self._expire(now)
        return tuple(zip(self._times, self._costs, strict=True))

    def load(self, state: Sequence[Any]) -> None:
        self._times = deque([time for time, _ in state])
        self._costs = deque([units for _, units in state])
        self._total = sum(self._costs)
        self._check = 0
        self._newest = self._times[-1] if state else -1

    def _add(self, at: int, cost: int) -> None:
        index = len(self._times)
        while index and self._times[index - 1] > at:
            index -= 1
        self._check = min(self._check, at + self.window)
        self._total += cost
        if index and self._times[index - 1] == at:
            self._costs[index - 1] += cost
        else:
            try:
                self._times.insert(index, at)
            finally:
                self._costs.insert(index, cost)
        self._newest = self._times[-1]

    def _expire(self, now: int) -> None:
        times, costs, oldest = self._times, self._costs, now - self.window
        while times and times[0] <= oldest:
            self._total -= costs[0]
            del times[0], costs[0]
        self._check = (times[0] if times else now) + self.window


class Gcra:
    """On average `count` units per window, and up to `burst` at once: a token bucket that needs one number.

    The generic cell rate algorithm, virtual scheduling form (ITU-T I.371, annex A): the theoretical arrival time
    moves on by window / count for each unit, and may be ahead of the clock by that of `burst` units.
    State: that time, in 1/count of a nanosecond, so that nothing is rounded; and all that was counted, for marks.
    """

    __slots__ = ("_booked", "_credit_of_one", "_tat", "burst", "count", "window")

    timed = False

    def __init__(self, count: int, window: int, burst: int | None = None) -> None:
        self.count = count
        self.window = window
        self.burst = burst or count
        self._credit_of_one = self._credit(1)
        self._tat = 0
        self._booked = 0  # all that was ever counted: a mark is where in this an admission ends

    def _credit(self, cost: int) -> int:
        """How far ahead of the clock the arrival time may be for `cost` to be admitted."""
        return (self.burst - cost) * self.window

    def take(self, now: int, cost: int) -> Mark | None:
        clock, tat = now * self.count, self._tat
        if tat < clock:
            tat = clock
        if tat - clock > (self._credit_of_one if cost == 1 else self._credit(cost)):
            return None
        work = cost * self.window
        self._tat = tat + work
        self._booked = mark = self._booked + work
        return mark

    def earliest(self, now: int, cost: int) -> int:
        return max(now, -((self._credit(cost) - self._tat) // self.count))

    def book(self, at: int, cost: int) -> Mark:
        work = cost * self.window
        self._tat = max(self._tat, at * self.count) + work
        self._booked += work
        return self._booked

    def book_each(self, times: list[int]) -> None:
        for at in times:
            self.book(at, 1)

    def give_back(self, now: int, mark: Mark, cost: int) -> None:
        # What has drained is gone: giving it back would allow a burst on top of the burst. It drains in order, where
        # what is given back in the middle passes for drained: too little may be given back for those before it.
        drained = self._booked - max(0, self._tat - now * self.count)
        work = max(0, min(cost * self.window, mark - drained))
        self._tat -= work
        if mark == self._booked:
            self._booked -= work

    def charge(self, now: int, mark: Mark, cost: int) -> None:
        self.book(now, cost)

    def newest(self) -> Mark:
        return self._booked

    def free(self, now: int) -> int:
        return max(0, (self.burst * self.window - max(0, self._tat - now * self.count)) // self.window)

    def idle(self, now: int) -> bool:
        return self._tat <= now * self.count

    def resize(self, now: int, counts: tuple[int, ...], burst: int | None) -> None:
        (count,) = counts
        self._tat = now * count + max(0, self._tat - now * self.count)  # as many units ahead of the clock as before
        self.count = count
        self.burst = burst or count
        self._credit_of_one = self._credit(1)

    def copy(self) -> Gcra:
        twin = type(self)(self.count, self.window, self.burst)
        twin._tat = self._tat
        twin._booked = self._booked
        return twin

    def state(self, now: int) -> tuple[Any, ...]:
        return (max(self._tat, now * self.count), self._booked)

    def load(self, state: Sequence[Any]) -> None:
        self._tat, self._booked = state


class Leaky(Gcra):
    """Paced: one unit every window / count, never a burst; a call of several units takes the time of several.

    The leaky bucket as a queue (J. S. Turner, "New directions in communications", 1986): it must have run dry.
    State: when it runs dry, in 1/count of a nanosecond; and all that was counted.
    """

    __slots__ = ()

    def _credit(self, cost: int) -> int:
        return 0

    def free(self, now: int) -> int:
        return int(self.idle(now))


class Fixed:
    """At most `count` units in each window, windows aligned to whole multiples since 1970-01-01 00:00 UTC.

    Across a boundary up to 2 x `count` can come within one window's length. Daylight saving moves nothing, since
    windows are UTC. `epoch` gives the UTC nanoseconds at time 0 of the timeline, and is asked once a window: a clock
    set by hand makes one window longer or shorter by up to a half.
    State: the end of the current window, and the units used in it.
    """

    __slots__ = ("_end", "_epoch", "_used", "count", "window")

    timed = False

    def __init__(self, count: int, window: int, epoch: Callable[[], int]) -> None:
        self.count = count
        self.window = window
        self._epoch = epoch
        self._end: int | None = None
        self._used = 0

    def take(self, now: int, cost: int) -> Mark | None:
        end = self._end_at(now)
        if self._used + cost > self.count:
            return None
        self._used += cost
        return end

    def earliest(self, now: int, cost: int) -> int:
        end = self._end_at(now)
        return now if self._used + cost <= self.count else end

    def book(self, at: int, cost: int) -> Mark:
        end = self._end_at(at)
        self._used += cost
        return end

    def book_each(self, times: list[int]) -> None:
        for at in times:
            self.book(at, 1)

    def give_back(self, now: int, mark: Mark, cost: int) -> None:
        if self._end_at(now) == mark:
            self._used = max(0, self._used - cost)

    def charge(self, now: int, mark: Mark, cost: int) -> None:
        if self._end_at(now) == mark:
            self._used += cost

    def newest(self) -> Mark:
        return self._end

    def free(self, now: int) -> int:
        self._end_at(now)
        return max(0, self.count - self._used)

    def idle(self, now: int) -> bool:
        return self._end is None or now >= self._end or not self._used

    def resize(self, now: int, counts: tuple[int, ...], burst: int | None) -> None:
        (self.count,) = counts

    def copy(self) -> Fixed:
        twin = Fixed(self.count, self.window, self._epoch)
        twin._end = self._end
        twin._used = self._used
        return twin

    def state(self, now: int) -> tuple[Any, ...]:
        return (self._end_at(now), self._used)

    def load(self, state: Sequence[Any]) -> None:
        self._end, self._used = state

    def _end_at(self, now: int) -> int:
        """The end of the window that holds `now`; opens it when it is a new one."""
        end = self._end
        if end is not None and now < end:
            return end
        self._used = 0
        if end is None or now >= end + self.window:
            end = now + self.window - (now + self._epoch()) % self.window
        else:
            # The nearest boundary, not the next: a clock a little behind must not make a window of a millisecond.
            end += self.window
            off = (end + self._epoch() + self.window // 2) % self.window - self.window // 2
            if abs(off) > ALIGNMENT:
                end -= off
            if end <= now:
                end += self.window
        self._end = end
        return end


def make_meter(algorithm: Algorithm, quotas: tuple[Quota, ...], burst: int | None, epoch: Callable[[], int]) -> Meter:
    """A meter that has counted nothing yet; `epoch` as in `Fixed`."""
    meters = [_make_one(algorithm, count, window, burst, epoch) for count, window in quotas]
    return meters[0] if len(meters) == 1 else Joint(tuple(meters))


def _make_one(algorithm: Algorithm, count: int, window: int, burst: int | None, epoch: Callable[[], int]) -> Meter:
    if algorithm == "sliding":
        return Sliding(count, window)
    if algorithm == "gcra":
        return Gcra(count, window, burst)
    if algorithm == "leaky":
        return Leaky(count, window)
    return Fixed(count, window, epoch)
