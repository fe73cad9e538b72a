"""What `rate` asks of a store, sync and async.

A store counts per budget what was admitted, and books due times for callers that wait. Every method is one atomic step
that reads the store's own clock, which never goes back for one budget; a step that cannot be made raises, and what it
raises never reaches a guarded call as it is. Times are seconds where a caller sees them, rounded up to the store's
resolution of a microsecond; costs are whole units.

Laws, the same as those of `guarded.policies._rate.core`, which a store may use to decide:

- Refused, then asked again `retry_after` later with nothing else happening: admitted. A refusal changes nothing.
- Several windows are all or nothing. In a sliding window an event counts in ``(t - window, t]``.
- First come, first served: a newcomer is due after everybody booked before it, and admitted at once only where those
  booked keep what they need. Who is booked sleeps `Booked.delay`, then asks `confirm`, which counts it at the moment
  it really goes on; where that is too much by then, since others were late, it sleeps on. So the quota holds for the
  moments of the admissions, whatever the callers do. A booking whose caller never comes is dropped in the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from guarded.policies._rate.core import Algorithm, Quota

Mark: TypeAlias = str
"""How a store finds an admission or a booking again; whatever text it likes."""


@dataclass(frozen=True)
class RateRule:
    """What a budget allows.

    Attributes:
        algorithm: how the quotas are meant.
        quotas: units and window in nanoseconds, all of which hold.
        burst: units at once, ``gcra`` only; None for the whole quota.
    """

    algorithm: Algorithm
    quotas: tuple[Quota, ...]
    burst: int | None = None

    @cached_property
    def shape(self) -> str:
        """What has to stay the same for counts to mean the same: a budget of another shape is another one."""
        return "-".join([self.algorithm, *[str(window) for _, window in self.quotas]])


class Budget(NamedTuple):
    """Whose count it is: the name of the rate, and a digest of the key; both go into the store's own key."""

    rate: str
    key: str = ""


class Passed(NamedTuple):
    """Admitted now."""

    mark: Mark


class Booked(NamedTuple):
    """Sleep `delay` seconds, then `confirm`; or `correct` it to nothing when the caller gives up."""

    mark: Mark
    delay: float


class Refused(NamedTuple):
    """Nothing has changed; the same question is admitted in `retry_after` seconds."""

    retry_after: float


@runtime_checkable
class RateStore(Protocol):
    """Budgets of units per time; see the module for the laws."""

    def take(self, rule: RateRule, budget: Budget, cost: int, patience: float) -> Passed | Booked | Refused:
        """Admit at once, book a due time at most `patience` seconds away (``inf`` for any), or refuse.

        With a patience of 0 nothing is booked.
        """
        ...

    def confirm(self, rule: RateRule, budget: Budget, cost: int, mark: Mark) -> Passed | Booked:
        """The caller of a booking goes on now: count it, or have it sleep on (with the mark to confirm then).

        A booking the store knows no more (dropped, or the store was emptied) is treated as one that is due.
        """
        ...

    def correct(self, rule: RateRule, budget: Budget, mark: Mark, cost: int, units: int) -> None:
        """Count `units` more, or fewer when negative, for an admission or booking of `cost`, as far as it still counts.

        What is more counts even above the quota. A booking corrected by its whole cost is cancelled. An empty mark
        means what was admitted last.
        """
        ...

    def look(self, rule: RateRule, budget: Budget, cost: int) -> tuple[int, float]:
        """Units that calls of cost 1 would get now, and seconds until `cost` would be admitted; changes nothing."""
        ...

    def pause(self, rule: RateRule, rate: str, seconds: float) -> None:
        """Admit nobody to any budget of `rate` for so long, or until an earlier pause ends that lasts longer."""
        ...

    async def take_async(
        self, rule: RateRule, budget: Budget, cost: int, patience: float
    ) -> Passed | Booked | Refused: ...

    async def confirm_async(self, rule: RateRule, budget: Budget, cost: int, mark: Mark) -> Passed | Booked: ...

    async def correct_async(self, rule: RateRule, budget: Budget, mark: Mark, cost: int, units: int) -> None: ...

    async def look_async(self, rule: RateRule, budget: Budget, cost: int) -> tuple[int, float]: ...

    async def pause_async(self, rule: RateRule, rate: str, seconds: float) -> None: ...
