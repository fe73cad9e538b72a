"""What the combinators decide, without calls."""

from __future__ import annotations

from guarded._batch.contest import AllOf, AnyOf, Race
from guarded._batch.settled import failure, success


def test_an_answer_without_a_failure_went_well() -> None:
    """Of all, when each has succeeded; of the first, when that one has."""
    every: AllOf[int] = AllOf(2)
    every.take(success(1, 0))
    assert not every.went_well
    every.take(success(2, 1))
    assert every.went_well
    for contest in (AnyOf[int](2), Race[int](2)):
        contest.take(success(1, 1))
        assert contest.went_well
    lost: Race[int] = Race(2)
    lost.take(failure(ValueError(), 0))
    lost.take(success(1, 1))
    assert not lost.went_well
