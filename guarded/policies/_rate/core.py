"""What a rate has let through, and when it can let more through: what a meter is (see `_rate.meters`).

A meter decides and counts; it reads no clock, takes no lock and never waits. Times are whole nanoseconds on a timeline
that never goes back, units are whole numbers, and so is all state, which a store can hold and a script can
repeat (`state` says how it is laid out). Invariant: what is admissible stays admissible while nothing else happens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol, TypeAlias

Algorithm = Literal["sliding", "gcra", "leaky", "fixed"]
Quota: TypeAlias = tuple[int, int]  # units, window in nanoseconds
Mark: TypeAlias = Any  # how a meter finds an admission again: an int; a tuple of them for several windows


class Meter(Protocol):
    """One key's count under one algorithm.

    Attributes:
        timed: whether an admission can be found again by its time too: that is as good a mark.
    """

    @property
    def timed(self) -> bool: ...

    def take(self, now: int, cost: int) -> Mark | None:
        """Count `cost` at `now`, or change nothing and give None when that would be too much."""
        ...

    def earliest(self, now: int, cost: int) -> int:
        """When `cost` would be admitted if nothing else happened: `now` or later."""
        ...

    def book(self, at: int, cost: int) -> Mark:
        """Count `cost` at `at`, which is not before anything counted so far."""
        ...

    def book_each(self, times: list[int]) -> None:
        """Count one unit at each of `times`, in order, some of them perhaps before what was counted last."""
        ...

    def give_back(self, now: int, mark: Mark, cost: int) -> None:
        """Stop counting `cost` units of an admission, as far as they still count at `now`."""
        ...

    def charge(self, now: int, mark: Mark, cost: int) -> None:
        """Count `cost` more units for an admission, even above the quota."""
        ...

    def newest(self) -> Mark:
        """The mark of what was counted last."""
        ...

    def free(self, now: int) -> int:
        """Units that single calls of cost 1 would get at `now`."""
        ...

    def idle(self, now: int) -> bool:
        """Whether it decides like a new one from `now` on."""
        ...

    def resize(self, now: int, counts: tuple[int, ...], burst: int | None) -> None:
        """Go on with other quotas for the same windows."""
        ...

    def copy(self) -> Meter:
        """An independent twin."""
        ...

    def state(self, now: int) -> tuple[Any, ...]:
        """All that decides, as plain values."""
        ...

    def load(self, state: Sequence[Any]) -> None:
        """Go on from what `state` gave to a meter for the same quotas."""
        ...


class Joint:
    """Several windows at once, all or nothing. State: that of each window."""

    __slots__ = ("_meters", "timed")

    def __init__(self, meters: tuple[Meter, ...]) -> None:
        self._meters = meters
        self.timed = all(meter.timed for meter in meters)

    def take(self, now: int, cost: int) -> Mark | None:
        marks: list[Mark] = []
        for meter in self._meters:
            mark = meter.take(now, cost)
            if mark is None:
                for taken, own in zip(self._meters, marks, strict=False):
                    taken.give_back(now, own, cost)
                return None
            marks.append(mark)
        return tuple(marks)

    def earliest(self, now: int, cost: int) -> int:
        return max([meter.earliest(now, cost) for meter in self._meters])

    def book(self, at: int, cost: int) -> Mark:
        return tuple([meter.book(at, cost) for meter in self._meters])

    def book_each(self, times: list[int]) -> None:
        for meter in self._meters:
            meter.book_each(times)

    def give_back(self, now: int, mark: Mark, cost: int) -> None:
        for meter, own in self._marked(mark):
            meter.give_back(now, own, cost)

    def charge(self, now: int, mark: Mark, cost: int) -> None:
        for meter, own in self._marked(mark):
            meter.charge(now, own, cost)

    def _marked(self, mark: Mark) -> Iterable[tuple[Meter, Mark]]:
        """Each meter with its own mark."""
        marks = mark if isinstance(mark, tuple) else (mark,) * len(self._meters)
        return zip(self._meters, marks, strict=True)

    def newest(self) -> Mark:
        return tuple([meter.newest() for meter in self._meters])

    def free(self, now: int) -> int:
        return min([meter.free(now) for meter in self._meters])

    def idle(self, now: int) -> bool:
        return all(meter.idle(now) for meter in self._meters)

    def resize(self, now: int, counts: tuple[int, ...], burst: int | None) -> None:
        for meter, count in zip(self._meters, counts, strict=True):
            meter.resize(now, (count,), burst)

    def copy(self) -> Joint:
        return Joint(tuple([meter.copy() for meter in self._meters]))

    def state(self, now: int) -> tuple[Any, ...]:
        return tuple([meter.state(now) for meter in self._meters])

    def load(self, state: Sequence[Any]) -> None:
        for meter, own in zip(self._meters, state, strict=True):
            meter.load(own)
