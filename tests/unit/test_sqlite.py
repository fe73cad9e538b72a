"""The SQLite store: its options, its clock, its file."""

from __future__ import annotations

import os
import pickle
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guarded import deadline, rate
from guarded._core import clock
from guarded.errors import DeadlineExceeded
from guarded.stores import open_store
from guarded.stores._sqlite.link import Transaction
from guarded.stores.contract.idempotent import Claim, Finished, Running, Started
from guarded.stores.contract.rate import Budget, Passed, RateRule, Refused
from guarded.stores.sqlite import SQLiteStore

RULE = RateRule("sliding", ((2, 10_000_000_000),))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    """A store on a file that does not exist yet."""
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    yield store
    store.close()


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A wall clock to set by hand."""
    at = [1_700_000_000.0]
    monkeypatch.setattr(clock, "wall", lambda: at[0])
    return at


def rows(store: Any, table: str) -> int:
    """How many there are."""
    return int(store.link.run(lambda file: file.find(f"SELECT count(*) FROM {table}")[0], "NORMAL"))


def test_one_address_is_one_store(tmp_path: Path) -> None:
    """Pickled too; its name is the file."""
    store = open_store(f"sqlite:///{tmp_path}/a.db", timeout="3s")
    assert open_store(f"sqlite:///{tmp_path}/a.db", timeout="3s") is store
    for each in (store, open_store(f"sqlite:///{tmp_path}/a.db")):
        assert pickle.loads(pickle.dumps(each)) is each
    assert store.name == f"sqlite:///{tmp_path}/a.db"
    assert repr(store) == f"SQLiteStore({store.name!r})"
    assert not (tmp_path / "a.db").exists(), "made at the first step"


@pytest.mark.parametrize("url", ["sqlite:///", "sqlite:///:memory:", "sqlite://host/file", "sqlite:///folder/"])
def test_bad_options_are_told_at_once(url: str) -> None:
    """All of them, by name."""
    with pytest.raises(ValueError, match=r"store: timeout=0: .*; probe='x': .*; url=.*must name a file"):
        SQLiteStore(url, timeout=0, probe="x")


def test_a_clock_set_back_does_not_lengthen_a_lease(store: Any, wall: list[float]) -> None:
    """The store's clock stands still from there, then goes on at the old pace."""
    store.idempotent.begin("key", Claim("one", None, 10.0, 60.0))
    wall[0] -= 3600
    assert store.idempotent.begin("key", Claim("two", None, 10.0, 60.0)) == Running(left=10.0)
    store.idempotent.renew("key", Claim("one", None, 10.0, 60.0))
    wall[0] += 9.5
    assert store.idempotent.begin("key", Claim("two", None, 10.0, 60.0)) == Running(left=0.5)
    wall[0] += 0.5
    assert store.idempotent.begin("key", Claim("two", None, 10.0, 60.0)) == Started(abandoned_for=10.0)


def test_a_clock_set_back_holds_up_no_rate(store: Any, wall: list[float]) -> None:
    """Retry-after is true however the wall clock is set meanwhile."""
    assert isinstance(store.rates.take(RULE, Budget("api"), 2, 0.0), Passed)
    wall[0] -= 86_400
    store.rates.correct(RULE, Budget("api"), "", 1, 0)  # notices it
    refused = store.rates.take(RULE, Budget("api"), 1, 0.0)
    assert refused == Refused(10.0)
    wall[0] += refused.retry_after
    assert isinstance(store.rates.take(RULE, Budget("api"), 1, 0.0), Passed)


def test_what_has_expired_goes_as_new_rows_come(store: Any, wall: list[float]) -> None:
    """A few with each, more than one: the file does not grow with what is over."""
    claim = Claim("one", None, 1.0, 1.0)
    for number in range(40):
        store.idempotent.begin(f"key {number}", claim)
        store.rates.take(RULE, Budget("api", str(number)), 1, 0.0)
    assert (rows(store, "records"), rows(store, "budgets")) == (40, 40)
    wall[0] += 60
    for number in range(5):
        store.idempotent.begin(f"new {number}", claim)
        store.rates.take(RULE, Budget("new", str(number)), 1, 0.0)
    assert (rows(store, "records"), rows(store, "budgets")) == (5, 5)


def test_a_step_that_fails_changes_nothing(store: Any) -> None:
    """And the next one goes on."""

    def half(file: Transaction) -> None:
        file.write("INSERT INTO pauses VALUES ('api', 1)")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.link.run(half, "FULL")
    assert rows(store, "pauses") == 0


def test_a_file_that_is_gone_or_another_is_noticed(store: Any, tmp_path: Path) -> None:
    """What was in it is lost; nobody goes on writing into a file that nobody else sees."""
    claim = Claim("one", None, 10.0, 60.0)
    store.idempotent.begin("key", claim)
    for name in os.listdir(tmp_path):
        (tmp_path / name).unlink()
    assert store.idempotent.begin("key", Claim("two", None, 10.0, 60.0)) == Started()
    assert (tmp_path / "store.db").exists()


def test_a_damaged_file_raises_until_it_is_replaced(store: Any, tmp_path: Path) -> None:
    """As sqlite3 tells it: policies turn that into their own errors."""
    (tmp_path / "store.db").write_bytes(b"no database" * 1000)
    with pytest.raises(sqlite3.DatabaseError):
        store.idempotent.begin("key", Claim("one", None, 10.0, 60.0))
    (tmp_path / "store.db").unlink()
    assert store.idempotent.begin("key", Claim("one", None, 10.0, 60.0)) == Started()


def test_a_file_of_another_version_is_refused(store: Any, tmp_path: Path) -> None:
    """Rather than read as what it is not."""
    with sqlite3.connect(tmp_path / "store.db") as other:
        other.execute("PRAGMA user_version = 7")
    other.close()
    with pytest.raises(sqlite3.NotSupportedError, match="version 7"):
        store.idempotent.begin("key", Claim("one", None, 10.0, 60.0))


@pytest.mark.real_clock
def test_a_step_ends_at_the_deadline_of_its_call(store: Any) -> None:
    """Another thread is in the file for longer than the call has."""
    limited = rate("5/minute", name="api", store=store)
    assert limited.try_acquire()
    inside, leave = threading.Event(), threading.Event()

    def hold(file: Transaction) -> None:
        inside.set()
        leave.wait(10)

    @deadline(0.1, mode="cooperative")
    @limited
    def work() -> None: ...

    holder = threading.Thread(target=store.link.run, args=(hold, "NORMAL"))
    holder.start()
    inside.wait(10)
    before = clock.monotonic()
    try:
        with pytest.raises(DeadlineExceeded):
            work()
        assert clock.monotonic() - before < 1.5
    finally:
        leave.set()
        holder.join()
    assert store.health.since is None, "one step cut short says nothing about the store"


def test_records_survive_being_closed(store: Any) -> None:
    """They are in the file."""
    claim = Claim("one", None, 10.0, 60.0)
    store.idempotent.begin("key", claim)
    store.idempotent.complete("key", claim, b"result")
    store.close()
    assert isinstance(store.idempotent.begin("key", Claim("two", None, 10.0, 60.0)), Finished)


@pytest.mark.real_clock
def test_a_step_ends_at_the_deadline_of_its_call_when_another_process_is_in_the_file(
    store: Any, tmp_path: Path
) -> None:
    """SQLite itself waits there, no longer than the call has; later calls have their usual patience again."""
    limited = rate("5/minute", name="api", store=store)
    assert limited.try_acquire()
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    for number in range(20):  # it counts whole milliseconds, and must not come back before the deadline
        before = clock.monotonic()
        with pytest.raises(DeadlineExceeded):
            deadline(0.01 + number / 7000, mode="cooperative")(limited(lambda: None))()
        assert clock.monotonic() - before < 1.5
        assert store.health.since is None
        store.health._misses = 0  # three in a row would say something about the store
    other.rollback()
    other.close()
    assert limited.peek().free == 4
    assert store.link._settings[1] == store.link.timeout * 1000


@pytest.mark.real_clock
@pytest.mark.parametrize("ends", [True, False])
def test_a_new_file_that_another_process_is_in(tmp_path: Path, ends: bool) -> None:
    """Its log mode cannot be set meanwhile, and SQLite does not wait for that: we do, within the time-out."""
    store = open_store(f"sqlite:///{tmp_path}/store.db", timeout=5 if ends else 0.1)
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE theirs (a)")
    other.execute("BEGIN EXCLUSIVE")
    leaving = threading.Timer(0.05, other.rollback)
    if ends:
        leaving.start()
        assert isinstance(store.rates.take(RULE, Budget("api"), 1, 0.0), Passed)
        leaving.join()
    else:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            store.rates.take(RULE, Budget("api"), 1, 0.0)
    other.close()
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_does_not_wait_for_a_step_for_ever(tmp_path: Path) -> None:
    """It goes on after the time-out. To the child the file is in use for good, which is an error, and harms nobody."""
    script = """
import os, sqlite3, sys, threading, warnings
from guarded.stores import open_store
from guarded.stores.contract.rate import Budget, Passed, RateRule, Refused
warnings.simplefilter("ignore")
store = open_store("sqlite:///" + sys.argv[1], timeout=0.05)
ask = lambda: store.rates.take(RateRule("sliding", ((2, 10**13),)), Budget("api"), 1, 0.0)
assert isinstance(ask(), Passed)
inside, leave = threading.Event(), threading.Event()
thread = threading.Thread(target=store.link.run, args=(lambda file: (inside.set(), leave.wait(20)), "NORMAL"))
thread.start()
inside.wait(20)
child = os.fork()
if not child:
    for _ in range(2):
        try:
            ask()
        except sqlite3.OperationalError:
            continue
        os._exit(3)
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
leave.set()
thread.join()
assert isinstance(ask(), Passed) and isinstance(ask(), Refused)
sys.exit(code)
"""
    command = [sys.executable, "-c", script, str(tmp_path / "store.db")]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0
