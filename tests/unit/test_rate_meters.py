"""The meters by themselves: corrections and boundaries that a whole rate hides."""

from __future__ import annotations

from typing import Any

import pytest

from guarded.policies._rate.core import Algorithm, Meter
from guarded.policies._rate.meters import make_meter

ALGORITHMS: list[Algorithm] = ["sliding", "gcra", "leaky", "fixed"]


def meter(algorithm: Algorithm = "sliding", *quotas: tuple[int, int], burst: int | None = None) -> Meter:
    """Its windows are aligned to time 0."""
    return make_meter(algorithm, quotas, burst, lambda: 0)


def test_a_log_gives_back_across_entries_from_the_mark_on_backwards() -> None:
    """As many units as asked for and no more; what was counted after the mark stays."""
    log = meter("sliding", (10, 100))
    for at, cost in ((0, 2), (10, 3), (20, 4)):
        log.take(at, cost)
    log.give_back(20, 10, 4)
    assert log.state(20) == ((0, 1), (20, 4))
    log.give_back(20, 5, 9)
    assert log.state(20) == ((20, 4),)


def test_a_log_takes_what_comes_out_of_order() -> None:
    """In the order of time, one entry for each time, each gone one window after its own."""
    log = meter("sliding", (10, 100))
    log.take(50, 1)
    log.book_each([10, 20, 50, 60])
    log.charge(60, 20, 2)
    assert log.state(60) == ((10, 1), (20, 3), (50, 2), (60, 1))
    assert log.newest() == 60
    assert [log.free(now) for now in (109, 110, 119, 120)] == [3, 4, 4, 7]
    assert [log.idle(now) for now in (159, 160)] == [False, True]


def test_a_log_charges_nothing_for_what_no_longer_counts() -> None:
    """An admission that left the window a moment ago is not counted anew."""
    log = meter("sliding", (10, 100))
    log.take(0, 1)
    log.charge(99, 0, 1)
    assert log.free(99) == 8
    log.charge(100, 0, 1)
    assert log.free(100) == 10


def test_a_log_says_when_enough_is_free() -> None:
    """What is too old does not count any more, and neither is too much waited for."""
    log = meter("sliding", (4, 100))
    for at in (0, 10, 20, 30):
        log.take(at, 1)
    assert [log.earliest(50, cost) for cost in (1, 2, 4)] == [100, 110, 130]
    assert [log.earliest(115, cost) for cost in (1, 2, 3)] == [115, 115, 120]


def test_a_bucket_gives_back_only_what_has_not_drained() -> None:
    """Of the newest admission all that is left; of one before it what has not drained in its order."""
    bucket = meter("gcra", (10, 100), burst=5)
    first = bucket.take(0, 2)
    bucket.take(0, 2)
    assert bucket.free(0) == 1
    bucket.give_back(10, first, 2)  # one unit of it has drained
    assert bucket.free(10) == 3
    last = bucket.take(10, 3)
    bucket.give_back(10, last, 1)
    assert bucket.free(10) == 1


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("quotas", [((4, 100),), ((4, 100), (6, 1_000))])
def test_copies_and_states_decide_alike_and_apart(algorithm: Any, quotas: Any) -> None:
    """A twin and a meter that was loaded answer as the first does, and count for themselves."""
    first = meter(algorithm, *quotas)
    assert first.take(150, 1) is not None
    loaded = meter(algorithm, *quotas)
    loaded.load(first.state(150))
    for other in (first.copy(), loaded):
        assert other.state(150) == first.state(150)
        assert (other.free(150), other.idle(150)) == (first.free(150), first.idle(150))
        assert other.newest() == first.newest()
        other.book(other.earliest(150, 1), 1)
        assert other.state(150) != first.state(150)


def test_a_resized_bucket_is_as_many_units_ahead_as_before() -> None:
    """Halving the quota halves what comes back meanwhile, not what is used."""
    bucket = meter("gcra", (10, 100))
    bucket.take(0, 6)
    bucket.resize(0, (8,), None)
    assert bucket.free(0) == 2


def test_several_windows_are_resized_marked_and_corrected_each() -> None:
    """The tightest decides; a refusal by the second leaves nothing in the first."""
    joint = meter("sliding", (4, 100), (5, 1_000))
    mark = joint.take(0, 3)
    assert joint.newest() == mark == (0, 0)
    assert joint.free(0) == 1
    joint.charge(0, mark, 1)
    assert joint.free(0) == 0
    joint.give_back(0, mark, 2)
    assert joint.free(0) == 2
    joint.resize(0, (9, 4), None)
    assert joint.free(0) == 2
    assert joint.take(0, 3) is None
    assert joint.state(0) == (((0, 2),), ((0, 2),))
    assert joint.earliest(0, 3) == 1_000


def test_a_refund_in_an_old_window_changes_nothing_in_the_new_one() -> None:
    """Neither does a charge; in their own window both count."""
    fixed = meter("fixed", (4, 100))
    old = fixed.take(50, 2)
    fixed.charge(99, old, 1)
    assert fixed.free(99) == 1
    fixed.take(100, 2)
    fixed.give_back(100, old, 1)
    fixed.charge(100, old, 1)
    assert fixed.free(100) == 2


def test_one_mark_of_time_serves_all_windows() -> None:
    """Where an admission is found by its time, each window finds its own."""
    joint = meter("sliding", (4, 100), (5, 1_000))
    joint.take(7, 1)
    joint.charge(7, 7, 2)
    assert joint.state(7) == (((7, 3),), ((7, 3),))


def test_one_time_is_one_entry_of_the_log() -> None:
    """Also where units are booked in bulk, and in a log that was loaded, empty or not."""
    log = meter("sliding", (10, 100))
    log.load(())
    assert log.take(0, 1) == 0
    log.book_each([0, 5])
    assert log.state(5) == ((0, 2), (5, 1))
    log.load(log.state(5))
    log.take(5, 1)
    assert log.state(5) == ((0, 2), (5, 2))


def test_a_booking_on_an_idle_bucket_starts_at_its_time() -> None:
    """What was not used before it is not used up later."""
    bucket = meter("gcra", (10, 100), burst=5)
    bucket.book(1_000, 1)
    assert bucket.free(1_000) == 4


def test_a_new_window_is_free_for_whoever_only_asks() -> None:
    """Nothing has to be taken for the old one to end."""
    fixed = meter("fixed", (4, 100))
    fixed.take(50, 3)
    assert [fixed.free(now) for now in (99, 100)] == [1, 4]


def test_a_window_whose_boundary_moved_into_the_past_gives_way_to_the_next() -> None:
    """The clock was set while a window was open: the new boundary has passed already."""
    ms, epoch = 1_000_000, [0]
    fixed = make_meter("fixed", ((4, 100 * ms),), None, lambda: epoch[0])
    fixed.take(50 * ms, 1)
    epoch[0] = 40 * ms
    assert fixed.state(180 * ms) == (260 * ms, 0)
