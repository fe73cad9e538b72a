"""The pure core of batches: windows and the course of a batch."""

from __future__ import annotations

import math
import random

import pytest

from guarded._batch.course import NOBODY, Course
from guarded._batch.settled import cut_off, failure, settled_of, success
from guarded._batch.window import AsCompleted, AtTheEnd, InOrder, Window
from guarded.errors import Cancelled, DeadlineExceeded


def test_no_more_than_at_once_have_not_ended() -> None:
    """Room ends with the number that may run, and comes back with each end."""
    window: AtTheEnd[int] = AtTheEnd(at_once=2, size=8)
    assert [window.start(), window.start()] == [0, 1]
    assert not window.has_room()
    window.finish(success(1, 1))
    assert window.has_room()
    assert (window.started, window.outstanding) == (2, 1)


@pytest.mark.parametrize("order", [InOrder, AsCompleted])
def test_unread_outcomes_count_against_the_window(order: type[Window[int]]) -> None:
    """What is finished but not read takes room; reading gives it back."""
    window = order(2, 3)
    for _ in range(3):
        index = window.start()
        window.finish(success(index, index))
    assert window.unread == 3
    assert not window.has_room()
    assert window.take() == success(0, 0)
    assert window.has_room()


def test_a_slow_head_does_not_stop_starts_inside_the_window() -> None:
    """Item 0 never ends: the others start until the window is full of outcomes that wait for it."""
    window: InOrder[int] = InOrder(2, 6)
    window.start()
    while window.has_room():
        index = window.start()
        window.finish(success(index, index))
        assert window.take() is None
        assert not window.ready
    assert window.started == 6
    window.finish(success(0, 0))
    assert window.ready
    assert [window.take() for _ in range(7)] == [*(success(index, index) for index in range(6)), None]


def test_as_completed_gives_the_order_of_the_ends() -> None:
    """The first to end is the first to be read."""
    window: AsCompleted[int] = AsCompleted(3, 3)
    for _ in range(3):
        window.start()
    for index in (2, 0, 1):
        window.finish(success(index, index))
    read = [settled.index for _ in range(3) if (settled := window.take()) is not None]
    assert read == [2, 0, 1]


@pytest.mark.parametrize("order", [AtTheEnd, InOrder, AsCompleted])
def test_the_rest_is_all_that_was_not_read(order: type[Window[int]]) -> None:
    """In input order, finished ones with their outcome, others marked as cancelled with the reason."""
    window = order(4, 4)
    for _ in range(4):
        window.start()
    boom = failure(ValueError("boom"), 3)
    window.finish(boom)
    window.finish(success(11, 1))
    rest = window.rest("closing")
    assert [settled.index for settled in rest] == [0, 1, 2, 3]
    assert [settled.cancelled for settled in rest] == [True, False, True, False]
    assert rest[3] is boom
    assert isinstance(rest[0].error, Cancelled)
    assert rest[0].error.reason == "closing"


@pytest.mark.parametrize("seed", range(20))
def test_bounds_hold_in_any_interleaving(seed: int) -> None:
    """Started, finished and read at random: the bounds hold and each outcome is read once, in order."""
    rng = random.Random(seed)
    window: InOrder[int] = InOrder(3, 7)
    running: list[int] = []
    read: list[int] = []
    while len(read) < 200:
        if window.has_room() and rng.random() < 0.6:
            running.append(window.start())
        elif running and rng.random() < 0.6:
            index = running.pop(rng.randrange(len(running)))
            window.finish(success(index, index))
        elif (settled := window.take()) is not None:
            read.append(settled.index)
        assert len(running) == window.outstanding <= 3
        assert window.outstanding + window.unread <= 7
    assert read == list(range(200))


def course(raises: bool = True, until: float = math.inf) -> Course[int]:
    """A course with three items under way."""
    made: Course[int] = Course("map_limit", raises, AtTheEnd(3, 6), until)
    for _ in range(3):
        made.window.start()
    return made


def test_the_first_error_ends_a_batch_that_raises() -> None:
    """It carries a note with the index; later errors change nothing."""
    state = course()
    error = ValueError("secret")
    assert not state.item_ended(success(1, 0))
    assert state.item_ended(failure(error, 1))
    assert state.stopped
    assert not state.item_ended(failure(KeyError(), 2))
    assert state.farewell() is error
    assert error.__notes__ == ["map_limit: raised for item 1"]
    assert settled_of(error) == []


def test_the_deadline_of_the_batch_may_show_in_an_item_first() -> None:
    """It is still the batch that was cut short; an item's own deadline is an error like others."""
    own, whole = DeadlineExceeded("own", until=5.0), DeadlineExceeded("whole", until=9.0)
    for error, left_behind in ((own, 0), (whole, 3)):
        state = course(until=9.0)
        state.item_ended(failure(error, 1))
        assert state.farewell() is error
        assert len(settled_of(error)) == left_behind


def test_errors_do_not_end_a_batch_that_collects() -> None:
    """They are outcomes like others."""
    state = course(raises=False)
    assert not state.item_ended(failure(ValueError(), 1))
    assert not state.stopped
    assert state.farewell() is None


@pytest.mark.parametrize("raises", [True, False])
def test_a_failing_source_is_raised_with_the_outcomes(raises: bool) -> None:
    """At once by a batch that raises; after what is running by one that collects."""
    state = course(raises)
    error = OSError("gone")
    assert state.source_failed(error) is raises
    assert not state.source_failed(ValueError("second"))
    state.item_ended(success(5, 0))
    assert state.farewell() is error
    assert error.__notes__ == ["map_limit: raised by the source of its items, after 3 of them"]
    assert [settled.ok for settled in settled_of(error)] == [True, False, False]


def test_an_interrupted_reader_wins() -> None:
    """Its own exception goes out, with the outcomes, and the reason of a token goes to those that are cut off."""
    state = course()
    error = Cancelled("cancelled", reason="shutdown")
    assert state.interrupted(error)
    assert state.reason == "shutdown"
    state.item_ended(cut_off(0, state.reason))
    assert state.farewell() is error
    assert [settled.cancelled for settled in settled_of(error)] == [True] * 3
    other = course()
    other.interrupted(KeyboardInterrupt())
    assert other.reason == NOBODY
    assert not other.interrupted(KeyboardInterrupt())


def test_control_flow_of_an_item_is_no_outcome() -> None:
    """SystemExit out of an item ends a collecting batch too, even after an error of the source."""
    state = course(raises=False)
    state.source_failed(ValueError())
    exit_ = SystemExit(3)
    assert state.item_crashed(0, exit_)
    assert state.farewell() is exit_


@pytest.mark.parametrize("raises", [True, False])
def test_a_crashed_item_is_read_only_where_outcomes_are(raises: bool) -> None:
    """A batch that raises hands out results only; a second crash does not end it again."""
    state: Course[int] = Course("imap_limit", raises, InOrder(2, 4), math.inf)
    for _ in range(2):
        state.window.start()
    assert state.item_crashed(0, SystemExit(1))
    assert state.window.ready is not raises
    assert not state.item_crashed(1, SystemExit(2))


def test_a_batch_lets_go_of_its_error() -> None:
    """Else the error's traceback, which leads to the batch, and the batch would keep each other alive."""
    state = course()
    state.item_ended(failure(ValueError(), 0))
    assert state.farewell() is not None
    assert state.error is None


def test_outcomes_are_found_behind_causes() -> None:
    """The error that a deadline or asyncio.run makes of the one that carried the outcomes still leads to them."""
    inner = KeyboardInterrupt()
    state = course()
    state.interrupted(inner)
    state.farewell()
    with pytest.raises(TimeoutError) as caught:
        raise TimeoutError from inner
    assert len(settled_of(caught.value)) == 3
    cyclic = ValueError()
    cyclic.__cause__ = cyclic
    assert settled_of(cyclic) == []
