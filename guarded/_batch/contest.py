"""Several calls at once: what decides, and what the caller then gets. Pure; `contest_runs` drives it."""

from __future__ import annotations

from math import inf
from typing import Any, ClassVar, Generic, TypeVar

from guarded._batch.settled import Settled, cut_off

R = TypeVar("R")

GRACE = 0.1
"""Seconds that a race waits for a loser in a thread, whose token has fired, before it leaves it behind."""


class Contest(Generic[R]):
    """The base of the four combinators.

    Attributes:
        name: the public function.
        waiting: what the caller does meanwhile, for messages.
        decided: whether the others are of no use any more.
        patience: seconds to wait for the others when they run in threads, which nothing can interrupt.
    """

    name: ClassVar[str]
    patience: ClassVar[float] = inf

    def __init__(self, count: int) -> None:
        self.waiting = f"waiting for {self.name}"
        self.outcomes: list[Settled[R] | None] = [None] * count
        self.missing = count
        self.decisive: Settled[R] | None = None
        self.crash: BaseException | None = None  # KeyboardInterrupt, SystemExit: no outcome, goes to the caller

    @property
    def decided(self) -> bool:
        """Whether the caller can have the answer."""
        return self.decisive is not None or self.crash is not None or not self.missing

    @property
    def went_well(self) -> bool:
        """Whether the answer holds no failure, so that it does not matter if the caller's time is up meanwhile."""
        return self.decisive.ok if self.decisive is not None else all(map(_is_success, self.outcomes))

    def take(self, settled: Settled[R]) -> None:
        """One call has ended."""
        if self.outcomes[settled.index] is None:
            self.missing -= 1
        self.outcomes[settled.index] = settled
        if self.decisive is None:
            self._judge(settled)

    def _judge(self, settled: Settled[R]) -> None:
        """Make `settled` decisive, if it is."""

    def answer(self) -> Any:
        """What the caller gets."""
        raise NotImplementedError

    def all(self) -> list[Settled[Any]]:
        """All outcomes in input order; what has not ended is marked as cancelled."""
        return [
            cut_off(index, None, "call") if settled is None else settled for index, settled in enumerate(self.outcomes)
        ]


def _is_success(settled: Settled[Any] | None) -> bool:
    return settled is not None and settled.ok


class AllOf(Contest[R]):
    """Every result, or the first error."""

    name = "all_of"

    def _judge(self, settled: Settled[R]) -> None:
        if not settled.ok:
            self.decisive = settled

    def answer(self) -> list[R]:
        """The results, in input order."""
        if self.decisive is not None:
            self.decisive.result()
        return [settled.result() for settled in self.all()]


class AllSettled(Contest[R]):
    """Every outcome."""

    name = "all_settled"

    def answer(self) -> list[Settled[R]]:
        """The outcomes, in input order."""
        return self.all()


class Race(Contest[R]):
    """The first to end, one way or the other."""

    name = "race"
    patience = GRACE

    def _judge(self, settled: Settled[R]) -> None:
        self.decisive = settled

    def answer(self) -> R:
        """The result, or the error, of the first."""
        assert self.decisive is not None
        return self.decisive.result()


class AnyOf(Contest[R]):
    """The first success."""

    name = "any_of"
    patience = GRACE

    def _judge(self, settled: Settled[R]) -> None:
        if settled.ok:
            self.decisive = settled

    def answer(self) -> R:
        """The result of the first success; all errors, when there is none."""
        if self.decisive is not None:
            return self.decisive.result()
        errors = [settled.error for settled in self.all() if settled.error is not None]
        raise ExceptionGroup(f"any_of: all {len(errors)} failed", errors)
