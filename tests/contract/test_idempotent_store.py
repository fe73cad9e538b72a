"""What every store of idempotency records promises, see `guarded.stores.contract.idempotent`."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from guarded.stores.contract.idempotent import Abandoned, Claim, Finished, IdempotentStore, Mismatch, Running, Started

pytestmark = pytest.mark.real_clock
KEY = "5f" * 32
LEASE = 0.15


def claim(owner: str = "one", **changes: Any) -> Claim:
    """What an owner brings: half a minute of lease, an hour of life."""
    return replace(Claim(owner, "print", 30.0, 3600.0), **changes)


def test_is_a_store(records: Any) -> None:
    """By its protocol, and by a name without secrets."""
    assert isinstance(records.target, IdempotentStore)
    assert records.target.durable is (records.name != "memory")
    assert "@" not in records.target.name


def test_a_new_key_is_the_first_caller_s(records: Any) -> None:
    """Others are told how long its lease lasts; it may ask again."""
    assert records("begin", KEY, claim()) == Started()
    running = records("begin", KEY, claim("two"))
    assert isinstance(running, Running)
    assert 25 < running.left <= 30
    assert records("begin", KEY, claim()) == Started()


@pytest.mark.parametrize("payload", [b"", b"\0", b"v" * 100_000, bytes(range(256))])
def test_finished_is_replayed_to_everybody(records: Any, payload: bytes) -> None:
    """Byte by byte, with the age of the result, to its own owner too."""
    records("begin", KEY, claim())
    assert records("complete", KEY, claim(), payload) is True
    for owner in ("one", "two"):
        found = records("begin", KEY, claim(owner))
        assert isinstance(found, Finished)
        assert bytes(found.payload) == payload
        assert 0 <= found.age < 5


def test_a_finished_result_is_never_overwritten(records: Any) -> None:
    """Not by another owner, not by its own, not by any step."""
    records("begin", KEY, claim())
    records("complete", KEY, claim(), b"first")
    for owner in ("one", "two"):
        assert records("complete", KEY, claim(owner), b"second") is False
        assert records("renew", KEY, claim(owner)) is False
        assert records("release", KEY, claim(owner)) is False
    assert bytes(records("begin", KEY, claim("two")).payload) == b"first"


def test_another_owner_can_do_nothing_to_a_running_record(records: Any) -> None:
    """And its owner still can."""
    records("begin", KEY, claim())
    for step, more in (("complete", [b"x"]), ("renew", []), ("release", [])):
        assert records(step, KEY, claim("two"), *more) is False
    assert records("renew", KEY, claim()) is True
    assert records("complete", KEY, claim(), b"mine") is True


def test_released_is_as_if_it_had_never_been(records: Any) -> None:
    """Another print may come, once."""
    records("begin", KEY, claim())
    assert records("release", KEY, claim()) is True
    assert records("release", KEY, claim()) is False
    assert records("begin", KEY, claim("two", fingerprint="other")) == Started()


def test_other_arguments_mismatch_in_every_state(records: Any) -> None:
    """Running, abandoned, finished; where either side has no fingerprint nothing is compared."""
    other = claim("two", fingerprint="other")
    records("begin", KEY, claim(lease=LEASE))
    assert records("begin", KEY, other) == Mismatch(running=True)
    time.sleep(LEASE + 0.03)
    assert records("begin", KEY, other) == Mismatch(running=True)
    assert records("complete", KEY, claim(), b"x") is True
    assert records("begin", KEY, other) == Mismatch(running=False)
    assert isinstance(records("begin", KEY, claim("two", fingerprint=None)), Finished)


def test_a_record_without_a_fingerprint_matches_any(records: Any) -> None:
    """It was made by a call that compares nothing."""
    records("begin", KEY, claim(fingerprint=None))
    assert isinstance(records("begin", KEY, claim("two")), Running)


def test_a_lease_that_has_run_out_is_taken_over(records: Any) -> None:
    """Not before; the new owner learns how long ago the old one began, and the old one can do nothing any more."""
    records("begin", KEY, claim(lease=LEASE))
    assert isinstance(records("begin", KEY, claim("two")), Running)
    time.sleep(LEASE + 0.03)
    taken = records("begin", KEY, claim("two"))
    assert isinstance(taken, Started)
    assert taken.abandoned_for is not None
    assert LEASE <= taken.abandoned_for < 5
    assert records("renew", KEY, claim()) is False
    assert records("release", KEY, claim()) is False
    assert records("complete", KEY, claim(), b"late") is False
    assert records("complete", KEY, claim("two"), b"new") is True
    assert records("complete", KEY, claim(), b"late") is False
    assert bytes(records("begin", KEY, claim("three")).payload) == b"new"


def test_what_may_not_be_taken_over_is_abandoned(records: Any) -> None:
    """Until its owner comes back after all."""
    records("begin", KEY, claim(lease=LEASE))
    time.sleep(LEASE + 0.03)
    found = records("begin", KEY, claim("two", take_over=False))
    assert isinstance(found, Abandoned)
    assert LEASE <= found.age < 5
    assert records("complete", KEY, claim(), b"late but first") is True
    assert isinstance(records("begin", KEY, claim("two", take_over=False)), Finished)


def test_a_renewed_lease_starts_over(records: Any) -> None:
    """An owner that renews keeps the key for as long as it likes; one late for it has it still, if nobody took it."""
    records("begin", KEY, claim(lease=0.4))
    for _ in range(3):
        time.sleep(0.2)
        assert records("renew", KEY, claim(lease=0.4)) is True
        assert isinstance(records("begin", KEY, claim("two")), Running)
    time.sleep(0.45)
    assert records("renew", KEY, claim(lease=30.0)) is True
    assert isinstance(records("begin", KEY, claim("two")), Running)


def test_a_result_lives_its_time_from_completion(records: Any) -> None:
    """Not from the start of the run; afterwards the key is a new one."""
    short = claim(ttl=0.3)
    records("begin", KEY, short)
    time.sleep(0.2)
    records("complete", KEY, short, b"x")
    time.sleep(0.2)
    assert isinstance(records("begin", KEY, claim("two")), Finished)
    time.sleep(0.15)
    assert records("begin", KEY, claim("two", fingerprint="other")) == Started()


def test_an_abandoned_run_is_remembered_for_its_time(records: Any) -> None:
    """And forgotten then, even by those who would not take it over."""
    records("begin", KEY, claim(lease=0.05, ttl=0.1))
    time.sleep(0.2)
    assert records("begin", KEY, claim("two", take_over=False)) == Started()


def test_completing_a_record_that_is_gone_writes_it(records: Any) -> None:
    """The effect has happened, and nobody else owns the key."""
    assert records("complete", KEY, claim(), b"x") is True
    assert bytes(records("begin", KEY, claim("two")).payload) == b"x"


def test_keys_know_nothing_of_each_other(records: Any) -> None:
    """One is finished, the other starts."""
    records("begin", KEY, claim())
    records("complete", KEY, claim(), b"x")
    assert records("begin", KEY[::-1], claim()) == Started()


def test_one_of_many_threads_starts_and_one_takes_over(records: Any) -> None:
    """Whoever asks at once: one owner, each time."""
    threads = 8
    for lease in (LEASE, 30.0):
        barrier = threading.Barrier(threads)

        def ask(number: int, lease: float = lease, barrier: threading.Barrier = barrier) -> Any:
            barrier.wait(10)
            return records("begin", KEY, claim(f"{lease}-{number}", lease=lease))

        with ThreadPoolExecutor(threads) as pool:
            replies = list(pool.map(ask, range(threads)))
        assert sorted(type(reply).__name__ for reply in replies) == ["Running"] * (threads - 1) + ["Started"]
        time.sleep(LEASE + 0.05)
