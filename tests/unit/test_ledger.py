"""One budget as a store keeps it: written down and read again before every step."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guarded.stores._sqlite.ledger import Ledger
from guarded.stores.contract.rate import Booked, Passed, RateRule, Refused

MS = 1_000_000
START = 1_700_000_000_000_000_000
ALGORITHMS = ("sliding", "gcra", "leaky", "fixed")


class Book:
    """Keeps the text between two steps, and the time."""

    def __init__(self, algorithm: Any, *quotas: tuple[int, int], burst: int | None = None) -> None:
        self.rule = RateRule(algorithm, tuple([(count, window * MS) for count, window in quotas]), burst)
        self.text: str | None = None
        self.now = START
        self.paused = 0
        self.expires = 0

    def __call__(self, step: str, *args: Any) -> Any:
        ledger = Ledger(self.rule, self.text, self.now, self.paused, 0)
        reply = getattr(ledger, step)(*args)
        if not isinstance(reply, Refused) and step != "look":
            self.text = ledger.text()
            self.expires = ledger.expires()
        return reply

    def sleep(self, seconds: float) -> None:
        """Exactly so long, to the microsecond of the store."""
        self.now += round(seconds * 1e6) * 1000

    def fill(self) -> None:
        """Take single units until no more are to be had."""
        while isinstance(self("take", 1, 0.0), Passed):
            pass


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_law_holds_behind_bookings_too(algorithm: str) -> None:
    """Refused, then exactly so much later admitted, when those before have come on time or not at all."""
    for come in (True, False):
        book = Book(algorithm, (3, 100), (7, 1000))
        book.fill()
        booked = [book("take", cost, inf) for cost in (1, 2, 1)]
        refused = book("take", 2, 0.0)
        began = book.now
        for each in booked if come else ():
            book.now = began
            book.sleep(each.delay)
            assert isinstance(book("confirm", booked.index(each) % 2 + 1, each.mark), Passed)
        book.now = began
        book.sleep(refused.retry_after)
        assert isinstance(book("take", 2, 0.0), Passed)


def test_a_newcomer_passes_when_all_could_go_now() -> None:
    """Something was given back: those booked keep their units, and there is one more."""
    book = Book("sliding", (4, 100))
    big = book("take", 4, 0.0)
    first = book("take", 1, inf)
    book("correct", big.mark, -2)
    assert isinstance(book("take", 1, 0.0), Passed)
    assert isinstance(book("take", 1, 0.0), Refused), "the last free unit is for whoever was booked before"
    book.sleep(first.delay)
    assert isinstance(book("confirm", 1, first.mark), Passed)


def test_a_booking_nobody_comes_for_is_dropped() -> None:
    """A window after its time at the latest, so that a dead process blocks nobody for good."""
    book = Book("sliding", (1, 100))
    book.fill()
    lost = [book("take", 1, inf) for _ in range(3)]
    book.sleep(lost[-1].delay + 0.101)
    assert isinstance(book("take", 1, 0.0), Passed)
    late = book("confirm", 1, lost[0].mark)
    assert isinstance(late, Booked), "it is one of many now"
    book.sleep(late.delay)
    assert isinstance(book("confirm", 1, late.mark), Passed)


def test_a_booking_can_shrink_and_grow() -> None:
    """Its units count as it is confirmed with."""
    book = Book("sliding", (4, 100))
    book.fill()
    one = book("take", 3, inf)
    book("correct", one.mark, -1)
    book("correct", one.mark, 0)
    two = book("take", 2, inf)
    assert two.delay == one.delay, "both fit into the same window now"
    book("correct", one.mark, 2)
    assert book("take", 1, inf).delay > two.delay


def test_other_quotas_of_the_same_shape_go_on_with_the_count() -> None:
    """A process with new options meets what one with the old ones has counted."""
    for algorithm in ("sliding", "gcra", "fixed"):
        book = Book(algorithm, (4, 1000))
        assert isinstance(book("take", 3, 0.0), Passed)
        book.rule = RateRule(algorithm, ((5, 1000 * MS),))
        assert book("look", 1)[0] == 2
        assert isinstance(book("take", 2, 0.0), Passed)
        assert isinstance(book("take", 1, 0.0), Refused)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_it_decides_like_a_new_one_when_it_expires(algorithm: str) -> None:
    """Not later than it says, and in a store that forgets it then, nothing is lost."""
    book = Book(algorithm, (3, 100), (5, 400))
    book.fill()
    book.now = book.expires
    fresh = Book(algorithm, (3, 100), (5, 400))
    fresh.now = book.now
    assert book("look", 3) == fresh("look", 3)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_pause_holds_back_newcomers_and_those_booked(algorithm: str) -> None:
    """And nobody at its end."""
    book = Book(algorithm, (2, 100))
    book.fill()
    booked = book("take", 1, inf)
    book.paused = book.now + 300 * MS
    assert book("look", 1)[0] == 0
    book.sleep(booked.delay)
    held = book("confirm", 1, booked.mark)
    assert isinstance(held, Booked)
    book.now = book.paused
    assert isinstance(book("confirm", 1, held.mark), Passed)


STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "book", "confirm", "cancel"]), st.integers(0, 60), st.integers(1, 3)),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(3, 6), st.integers(20, 90)), min_size=1, max_size=2), STEPS)
def test_sliding_windows_hold_for_the_moments_of_admission(quotas: list[tuple[int, int]], steps: Any) -> None:
    """Whoever is booked, comes late, early, twice or never: by an independent count."""
    book = Book("sliding", *quotas)
    events: list[tuple[int, int]] = []
    booked: list[tuple[str, int]] = []
    for step, passed, cost in steps:
        book.now += passed * MS
        if step == "cancel" and booked:
            mark, units = booked.pop(0)
            book("correct", mark, -units)
            continue
        if step == "confirm" and booked:
            mark, cost = booked[0]
            reply = book("confirm", cost, mark)
        else:
            reply = book("take", cost, inf if step == "book" else 0.0)
            if isinstance(reply, Booked):
                booked.append((reply.mark, cost))
        if isinstance(reply, Passed):
            if step == "confirm" and booked:
                booked.pop(0)
            events.append((book.now, cost))
        for count, window in quotas:
            assert sum(units for at, units in events if at > book.now - window * MS) <= count
