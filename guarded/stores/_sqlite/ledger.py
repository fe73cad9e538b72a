"""One rate budget as a store keeps it: what a meter has counted, and who is booked for later.

Pure: the store hands in the text it found and its time, and writes the text it gets. The decisions are those of
`guarded.policies._rate.meters`; the laws are in `contract.rate`. Times are nanoseconds of the store's clock, which
shows whole microseconds.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from guarded.policies._rate.core import Meter
from guarded.policies._rate.meters import make_meter
from guarded.stores.contract.rate import Booked, Mark, Passed, RateRule, Refused

_NS = 1_000_000_000
_US = 1_000
_GRACE = 5 * _NS  # how late a booked caller may come before its place is another's


class _Booking(NamedTuple):
    number: int
    due: int
    cost: int


class Ledger:
    """The count and the bookings of one budget at one moment.

    Args:
        rule: what the budget allows.
        text: what `text` gave before; None for a new one.
        now: the moment.
        paused: until when nobody is admitted.
        epoch: UTC nanoseconds at time 0.
    """

    def __init__(self, rule: RateRule, text: str | None, now: int, paused: int, epoch: int) -> None:
        self._rule = rule
        self._now = now
        self._paused = paused
        self._counts = tuple([count for count, _ in rule.quotas])
        self._serial = 0
        self._bookings: list[_Booking] = []
        if text is None:
            self._meter = self._make(self._counts, rule.burst, epoch)
        else:
            self._load(json.loads(text), epoch)

    def _make(self, counts: tuple[int, ...], burst: int | None, epoch: int) -> Meter:
        quotas = tuple([(count, window) for count, (_, window) in zip(counts, self._rule.quotas, strict=True)])
        return make_meter(self._rule.algorithm, quotas, burst, lambda: epoch)

    def _load(self, kept: dict[str, Any], epoch: int) -> None:
        counts, burst = tuple(kept["counts"]), kept["burst"]
        self._meter = self._make(counts, burst, epoch)
        self._meter.load(kept["meter"])
        if (counts, burst) != (self._counts, self._rule.burst):  # another process has other options, or had
            self._meter.resize(self._now, self._counts, self._rule.burst)
        self._serial = kept["serial"]
        oldest = self._now - self._grace
        self._bookings = [booking for each in kept["bookings"] if (booking := _Booking(*each)).due > oldest]

    @property
    def _grace(self) -> int:
        return min(_GRACE, max([window for _, window in self._rule.quotas]))

    def text(self) -> str:
        """All of it."""
        kept = {
            "counts": self._counts,
            "burst": self._rule.burst,
            "meter": self._meter.state(self._now),
            "bookings": self._bookings,
            "serial": self._serial,
        }
        return json.dumps(kept, separators=(",", ":"))

    def expires(self) -> int:
        """When it will decide like a new one."""
        whole = max(*self._counts, self._rule.burst or 1)
        return max(
            self._meter.earliest(self._now, whole), *[booking.due + self._grace + 1 for booking in self._bookings], 0
        )

    def take(self, cost: int, patience: float) -> Passed | Booked | Refused:
        """See `RateStore.take`."""
        due = self._due(cost)
        if due <= self._now:
            return self._admit(cost)
        if due - self._now > patience * _NS:
            return Refused(_seconds(due - self._now))
        self._serial += 1
        self._bookings.append(_Booking(self._serial, due, cost))
        return Booked(f"b{self._serial}", _seconds(due - self._now))

    def confirm(self, cost: int, mark: Mark) -> Passed | Booked:
        """See `RateStore.confirm`."""
        place = self._place_of(mark)
        due = max(_tick(self._meter.earliest(self._now, cost)), self._paused)
        if place is not None:
            due = max(due, self._bookings[place].due)
        if due > self._now:
            if place is not None:
                self._bookings[place] = self._bookings[place]._replace(due=due)
            return Booked(mark, _seconds(due - self._now))
        if place is not None:
            del self._bookings[place]
        return self._admit(cost)

    def correct(self, mark: Mark, units: int) -> None:
        """See `RateStore.correct`."""
        if mark.startswith("b"):
            place = self._place_of(mark)
            if place is not None:
                left = self._bookings[place].cost + units
                self._bookings[place : place + 1] = [self._bookings[place]._replace(cost=left)] if left > 0 else []
            return
        own = json.loads(mark[1:]) if mark else self._meter.newest()
        if units > 0:
            self._meter.charge(self._now, own, units)
        elif units < 0:
            self._meter.give_back(self._now, own, -units)

    def look(self, cost: int) -> tuple[int, float]:
        """See `RateStore.look`."""
        delay = _seconds(max(0, self._due(cost) - self._now))
        plan, last = self._planned()
        return (plan.free(self._now) if max(last, self._paused) <= self._now else 0), delay

    def _admit(self, cost: int) -> Passed:
        return Passed("a" + json.dumps(self._meter.book(self._now, cost)))

    def _place_of(self, mark: Mark) -> int | None:
        number = int(mark[1:])
        return next((place for place, booking in enumerate(self._bookings) if booking.number == number), None)

    def _due(self, cost: int) -> int:
        """When a newcomer is admitted."""
        if not self._bookings:
            return max(_tick(self._meter.earliest(self._now, cost)), self._paused)
        if self._paused <= self._now and self._all_fit(cost):
            return self._now
        plan, last = self._planned()
        after = max(last, self._now)
        return max(_tick(plan.earliest(after, cost)), self._paused)

    def _all_fit(self, cost: int) -> bool:
        """Whether those booked and a newcomer could all be admitted now: something was given back since."""
        plan = self._meter.copy()
        for each in [*[booking.cost for booking in self._bookings], cost]:
            if plan.earliest(self._now, each) > self._now:
                return False
            plan.book(self._now, each)
        return True

    def _planned(self) -> tuple[Meter, int]:
        """The meter after all bookings, and the time of the last. One overdue is expected at its due time."""
        plan = self._meter.copy()
        last = self._paused if self._paused > self._now else 0
        for booking in self._bookings:
            last = max(_tick(plan.earliest(booking.due, booking.cost)), booking.due, last)
            plan.book(last, booking.cost)
        return plan, last


def _tick(ns: int) -> int:
    """The first moment from then on that the store's clock, in microseconds, can show: so that plans come true."""
    return -(-ns // _US) * _US


def _seconds(ns: int) -> float:
    return ns / 1e9
