"""What a rate hands to its callers: admissions that can be corrected, reservations, and what it says of itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from guarded._core.numbers import is_whole

if TYPE_CHECKING:
    from guarded.policies._rate.queue import Ticket
    from guarded.policies.rate import Rate


@dataclass(frozen=True, slots=True)
class RateSnapshot:
    """State of a rate at one moment.

    Attributes:
        spec: the quotas.
        algorithm: how they are meant.
        free: units that would be admitted now; None where each key has its own.
        queued: callers that wait, of all keys.
        paused: seconds left of a pause; 0 without one.
        keys: keys in use, or not yet forgotten; None without ``key``.
    """

    spec: str
    algorithm: str
    free: int | None
    queued: int
    paused: float
    keys: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Peek:
    """What a call would meet.

    Attributes:
        free: units that calls of cost 1 would get now.
        delay: seconds until the call asked for would be admitted; 0 for now.
        queued: callers that wait already.
    """

    free: int
    delay: float
    queued: int


class StoredMark(str):
    """How a store finds an admission again."""

    __slots__ = ()


UNCOUNTED: Final = "uncounted"
"""The mark of a call that was let through uncounted, because the store could not be asked."""

Spent: TypeAlias = "list[Any]"
"""``[rate, key, mark, cost, outer]``, a list since every call needs one; `outer` is that of a rate further out."""


class Admission:
    """One call that a rate has let through; its cost can be corrected afterwards."""

    __slots__ = ("_spent",)

    def __init__(self, spent: Spent) -> None:
        self._spent = spent

    @property
    def cost(self) -> int:
        """Units counted for it."""
        return self._spent[3]  # type: ignore[no-any-return]

    def refund(self) -> None:
        """Take the whole cost back, as far as it still counts, since the request was not made after all."""
        self.settle(0)

    def settle(self, actual: int) -> None:
        """Correct the cost to `actual` units.

        What is more counts even above the quota, so that later calls wait for it; what is less is given back as far as
        it still counts. ValueError for anything but a whole number from 0 up.
        """
        if not is_whole(actual, 0):
            raise ValueError(f"actual={actual!r}: must be a whole number from 0 up")
        rate, key, mark, cost, _ = self._spent
        self._spent[3] = actual
        if actual != cost:
            rate.correct(key, mark, cost, actual - cost)


class Reservation:
    """A place in the future: sleep `delay` seconds, then go; or `cancel`.

    Its due time moves up when somebody before it gives up.
    """

    __slots__ = ("_rate", "_ticket")

    def __init__(self, rate: Rate, ticket: Ticket) -> None:
        self._rate = rate
        self._ticket = ticket

    @property
    def delay(self) -> float:
        """Seconds from now until it is due; 0 when it is."""
        return self._rate.lines.due(self._ticket)[1]

    @property
    def due(self) -> float:
        """Monotonic time from which on the call may be made."""
        return self._rate.lines.due(self._ticket)[0]

    def cancel(self) -> None:
        """Give it back, as far as it still counts; those behind move up. Harmless when done already."""
        self._rate.lines.withdraw(self._ticket)
