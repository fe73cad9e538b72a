"""The ring of the latest events: bounded, ordered, safe to read while it fills."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from guarded.events.model import INFO, Event
from guarded.events.ring import Ring


def event(number: int) -> Event:
    """An event that can be told from others."""
    return Event(float(number), "limit.queued", INFO)


def filled(size: int, count: int) -> Ring:
    """A ring of `size` after `count` events."""
    ring = Ring(size)
    for number in range(count):
        ring(event(number))
    return ring


def test_it_keeps_the_latest() -> None:
    """Older events are dropped, the rest is in order, oldest first."""
    ring = filled(3, 5)
    assert [e.time for e in ring.recent()] == [2.0, 3.0, 4.0]
    assert len(ring) == ring.size == 3


@pytest.mark.parametrize(
    ("n", "times"), [(0, []), (1, [4.0]), (2, [3.0, 4.0]), (99, [2.0, 3.0, 4.0]), (None, [2.0, 3.0, 4.0])]
)
def test_recent_gives_at_most_n(n: int | None, times: list[float]) -> None:
    """The latest n, or as many as there are."""
    assert [e.time for e in filled(3, 5).recent(n)] == times


def test_what_recent_gives_is_a_copy() -> None:
    """Later events do not show up in an answer already given."""
    ring = filled(3, 1)
    before = ring.recent()
    ring(event(9))
    assert len(before) == 1


def test_clear_forgets() -> None:
    """After clear nothing is left."""
    ring = filled(3, 3)
    ring.clear()
    assert ring.recent() == []
    assert repr(ring) == "<Ring: 0 of 3 events>"


@pytest.mark.parametrize("size", [0, -1, True, 2.5, "3", None])
def test_bad_sizes_are_refused(size: Any) -> None:
    """The error names option, value and rule."""
    with pytest.raises(ValueError, match=re.escape(f"size={size!r}: must be an int of at least 1")):
        Ring(size)


@pytest.mark.parametrize("n", [-1, True, 1.5, "3"])
def test_bad_counts_are_refused(n: Any) -> None:
    """A negative count is no slice from the other end."""
    with pytest.raises(ValueError, match=re.escape(f"n={n!r}")):
        Ring(3).recent(n)


def test_a_write_in_the_middle_of_a_read_starts_it_again() -> None:
    """An iterator that notices the change is no error to the reader."""

    class Disturbed(deque[Event]):
        reads = 0

        def __iter__(self) -> Iterator[Event]:
            self.reads += 1
            if self.reads == 1:
                raise RuntimeError("deque mutated during iteration")
            return super().__iter__()

    ring = filled(3, 2)
    ring._events = Disturbed(ring._events, maxlen=3)
    assert [e.time for e in ring.recent()] == [0.0, 1.0]
