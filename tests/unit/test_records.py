"""The life of one idempotency record, at its exact boundaries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from guarded.policies._idempotent.records import Record, begin, complete, may_release, renew
from guarded.stores.contract.idempotent import Abandoned, Claim, Finished, Mismatch, Running, Started

MINE = Claim("one", "print", lease=30.0, ttl=600.0)
YOURS = replace(MINE, owner="two")


def running() -> Record[Any]:
    """What `MINE` wrote at 100: its lease ends at 130, the record at 730."""
    answer, record = begin(None, MINE, 100.0)
    assert answer == Started()
    assert record == Record("one", "print", since=100.0, until=130.0, expires=730.0)
    assert record is not None
    return record


def test_a_lease_ends_at_its_end() -> None:
    """Others are told what is left of it; from its end on they may take over, or are told of the abandoned run."""
    assert begin(running(), YOURS, 129.0) == (Running(left=1.0), None)
    assert begin(running(), YOURS, 130.0) == (
        Started(abandoned_for=30.0),
        Record("two", "print", since=130.0, until=160.0, expires=760.0),
    )
    assert begin(running(), replace(YOURS, take_over=False), 130.0) == (Abandoned(30.0), None)


def test_a_record_is_forgotten_when_it_expires() -> None:
    """A moment before it still counts; at that time it is absent, for every step."""
    assert begin(running(), replace(YOURS, take_over=False), 729.0)[0] == Abandoned(629.0)
    assert begin(running(), replace(YOURS, take_over=False), 730.0)[0] == Started()
    assert complete(running(), YOURS, "late", 729.0) is None
    assert complete(running(), YOURS, "new", 730.0) is not None
    assert (may_release(running(), MINE, 729.0), may_release(running(), MINE, 730.0)) == (True, False)
    assert renew(running(), MINE, 729.0) is not None
    assert renew(running(), MINE, 730.0) is None


def test_the_owner_starts_its_lease_over() -> None:
    """By claiming again or by renewing: the start stays, the ends move."""
    moved = replace(running(), until=150.0, expires=750.0)
    assert begin(running(), MINE, 120.0) == (Started(), moved)
    assert renew(running(), MINE, 120.0) == moved
    assert renew(running(), YOURS, 120.0) is None
    assert renew(None, MINE, 120.0) is None
    assert not may_release(running(), YOURS, 120.0)
    assert not may_release(None, MINE, 120.0)


def test_a_finished_record_is_replayed_with_its_age() -> None:
    """The age counts from the end of the run, and is never negative where a clock went back."""
    done = complete(running(), MINE, "value", 110.0)
    assert done == Record(None, "print", since=110.0, until=710.0, expires=710.0, payload="value")
    assert begin(done, YOURS, 115.0) == (Finished("value", 5.0), None)
    assert begin(done, YOURS, 109.0) == (Finished("value", 0.0), None)
    assert complete(done, MINE, "other", 111.0) is None
    assert renew(done, MINE, 111.0) is None


def test_fingerprints_are_compared_only_where_both_have_one() -> None:
    """Other arguments are a mismatch, which says whether the run has ended; without a fingerprint all fit."""
    other = replace(YOURS, fingerprint="other")
    assert begin(running(), other, 110.0) == (Mismatch(running=True), None)
    assert begin(complete(running(), MINE, "value", 110.0), other, 111.0) == (Mismatch(running=False), None)
    assert begin(running(), replace(YOURS, fingerprint=None), 110.0)[0] == Running(left=20.0)
    assert begin(replace(running(), fingerprint=None), other, 110.0)[0] == Running(left=20.0)
