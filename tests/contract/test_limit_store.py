"""What every store of limits promises, see `guarded.stores.contract.limit`."""

from __future__ import annotations

import time
from typing import Any

import pytest

from guarded.stores.contract.limit import Full, Granted, Pledge

pytestmark = pytest.mark.real_clock
LEASE = 0.3


def pledge(owner: str, permits: int = 1, limit: int = 2, lease: float = LEASE, key: str = "") -> Pledge:
    """A request for permits of the limit called db."""
    return Pledge(owner, ("db", key), permits, limit, lease)


def test_no_more_than_the_limit(limits: Any) -> None:
    """The next one is told how many are out, and when a lease ends."""
    assert [limits("acquire", pledge(owner), 0.0) for owner in "ab"] == [Granted(1), Granted(2)]
    full = limits("acquire", pledge("c"), 0.0)
    assert isinstance(full, Full)
    assert full.held == 2
    assert full.frees is not None
    assert 0 < full.frees <= LEASE
    assert limits("release", pledge("a"))
    assert limits("acquire", pledge("c"), 0.0) == Granted(2)


def test_a_lease_ends_after_its_length_and_not_before(limits: Any) -> None:
    """The holder has died; the next one is served when the lease is over."""
    limits("acquire", pledge("dead", limit=1), 0.0)
    full = limits("acquire", pledge("next", limit=1), 0.0)
    time.sleep(full.frees - 0.08)
    assert isinstance(limits("acquire", pledge("next", limit=1), 0.0), Full)
    time.sleep(0.09)
    assert limits("acquire", pledge("next", limit=1), 0.0) == Granted(1)


def test_a_renewed_lease_goes_on(limits: Any) -> None:
    """For as long as its holder renews it; an ended one cannot be renewed."""
    limits("acquire", pledge("a", limit=1), 0.0)
    for _ in range(4):
        time.sleep(LEASE / 2)
        assert limits("renew", pledge("a", limit=1))
    assert isinstance(limits("acquire", pledge("b", limit=1), 0.0), Full)
    time.sleep(LEASE + 0.02)
    assert not limits("renew", pledge("a", limit=1))
    assert not limits("release", pledge("a", limit=1))


def test_only_the_owner_gives_back(limits: Any) -> None:
    """A stranger's release changes nothing."""
    limits("acquire", pledge("a", limit=1), 0.0)
    assert not limits("release", pledge("b", limit=1))
    assert limits("look", ("db", "")) == (1, 0)


def test_asking_again_is_not_asking_twice(limits: Any) -> None:
    """A holder that did not hear the answer gets the same permits."""
    limits("acquire", pledge("a"), 0.0)
    limits("acquire", pledge("a"), 0.0)
    assert limits("look", ("db", ""))[0] == 1


def test_weights(limits: Any) -> None:
    """Permits are counted; what a shrunk limit cannot hold runs alone."""
    assert limits("acquire", pledge("a", 3, 5), 0.0) == Granted(3)
    assert isinstance(limits("acquire", pledge("b", 3, 5), 0.0), Full)
    assert limits("acquire", pledge("c", 2, 5), 0.0) == Granted(5)
    assert isinstance(limits("acquire", pledge("d", 4, 2), 0.0), Full)
    limits("release", pledge("a"))
    limits("release", pledge("c"))
    assert limits("acquire", pledge("d", 4, 2), 0.0) == Granted(4)
    assert isinstance(limits("acquire", pledge("e", 1, 2), 0.0), Full)


def test_weights_end_with_their_lease(limits: Any) -> None:
    """All permits of a dead holder come back."""
    limits("acquire", pledge("a", 3, 3, lease=0.05), 0.0)
    time.sleep(0.06)
    assert limits("look", ("db", "")) == (0, 0)


def test_nobody_overtakes_those_who_wait(limits: Any) -> None:
    """A permit that comes free is for the first in line, also while a newcomer asks."""
    limits("acquire", pledge("a", limit=1, lease=5), 0.0)
    assert isinstance(limits("acquire", pledge("first", limit=1), 5.0), Full)
    assert isinstance(limits("acquire", pledge("second", limit=1), 5.0), Full)
    assert limits("look", ("db", "")) == (1, 2)
    limits("release", pledge("a", limit=1))
    assert isinstance(limits("acquire", pledge("newcomer", limit=1), 0.0), Full)
    assert isinstance(limits("acquire", pledge("second", limit=1), 5.0), Full)
    assert limits("acquire", pledge("first", limit=1), 5.0) == Granted(1)
    assert limits("look", ("db", "")) == (1, 1)


def test_a_place_is_lost_by_silence_or_by_leaving(limits: Any) -> None:
    """So that a dead process does not block the others."""
    limits("acquire", pledge("a", limit=1, lease=5), 0.0)
    limits("acquire", pledge("dead", limit=1), 0.1)
    limits("acquire", pledge("leaver", limit=1), 5.0)
    limits("release", pledge("leaver", limit=1))
    limits("release", pledge("a", limit=1))
    time.sleep(0.12)
    assert limits("acquire", pledge("newcomer", limit=1), 0.0) == Granted(1)


def test_keys_have_permits_of_their_own(limits: Any) -> None:
    """One is full, the other free."""
    limits("acquire", pledge("a", limit=1, key="one"), 0.0)
    assert isinstance(limits("acquire", pledge("b", limit=1, key="one"), 0.0), Full)
    assert limits("acquire", pledge("b", limit=1, key="two"), 0.0) == Granted(1)
