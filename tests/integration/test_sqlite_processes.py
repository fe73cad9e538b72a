"""Several real processes on one SQLite file: stopped, killed, forked, and all at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from guarded import StoreError, idempotent, rate
from guarded.stores import open_store
from guarded.testing import capture

pytestmark = pytest.mark.real_clock
LEASE = 0.9

ONE_RUN = """
import json, os, sys, time
import guarded
from guarded.stores import open_store
from guarded.testing import capture

def tell(what, **more):
    print(json.dumps({"what": what, "at": time.time(), **more}), flush=True)

options = json.loads(sys.argv[2])

@guarded.idempotent("order", store=sys.argv[1], **options)
def charge(order):
    tell("running")
    return sys.stdin.readline().strip()

with capture() as events:
    try:
        result = charge("one")
    except Exception as error:
        tell("raised", error=type(error).__name__)
    else:
        tell("returned", result=result)
tell("events", names=[event.name for event in events], reasons=[event.fields().get("reason") for event in events])
"""


class Worker:
    """A process that runs one guarded call, and says what happens in it."""

    def __init__(self, script: str, *args: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", script, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def hears(self, what: str) -> dict[str, Any]:
        """The next thing it says, which must be this one."""
        assert self._process.stdout is not None
        said = json.loads(self._process.stdout.readline() or "{}")
        assert said.get("what") == what, said
        return said

    def tell(self, line: str) -> None:
        """Let its body return this."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def signal(self, number: int) -> float:
        """Send a signal; when that was."""
        os.kill(self._process.pid, number)
        return time.time()

    def end(self) -> None:
        """Whatever it does, it does it no more."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Starts workers on one file."""
    workers: list[Worker] = []

    def start(script: str = ONE_RUN, *args: str, **options: Any) -> Worker:
        workers.append(Worker(script, f"sqlite:///{tmp_path}/store.db", *(args or [json.dumps(options)])))
        return workers[-1]

    yield start
    for worker in workers:
        worker.end()


def test_a_stopped_owner_loses_its_key_and_learns_of_it(start: Callable[..., Worker]) -> None:
    """SIGSTOP beyond the lease: another process takes over, not before; the late result overwrites nothing."""
    late = start(lease=LEASE)
    late.hears("running")
    stopped = late.signal(signal.SIGSTOP)
    other = start(lease=LEASE)
    took_over = other.hears("running")["at"]
    assert took_over >= stopped + LEASE * 2 / 3 - 0.05, "a lease is renewed at a third, and not shorter"
    other.tell("by the other")
    assert other.hears("returned")["result"] == "by the other"
    assert "idempotent.abandoned" in other.hears("events")["names"]
    late.signal(signal.SIGCONT)
    late.tell("by the late one")
    assert late.hears("returned")["result"] == "by the late one", "its caller gets what its own function has returned"
    assert "lease lost" in late.hears("events")["reasons"]
    third = start(lease=LEASE)
    assert third.hears("returned")["result"] == "by the other"


def test_a_late_owner_cannot_disturb_the_run_that_took_over(start: Callable[..., Worker]) -> None:
    """It returns while the other still runs: its result is not stored, and the other's is."""
    late = start(lease=LEASE)
    late.hears("running")
    late.signal(signal.SIGSTOP)
    other = start(lease=LEASE)
    other.hears("running")
    late.signal(signal.SIGCONT)
    late.tell("by the late one")
    late.hears("returned")
    watcher = start(lease=LEASE, on_duplicate="reject")
    assert watcher.hears("raised")["error"] == "InProgress"
    other.tell("by the other")
    other.hears("returned")
    assert start(lease=LEASE).hears("returned")["result"] == "by the other"


def test_after_kill_9_the_key_is_run_again_when_its_lease_has_ended(start: Callable[..., Worker]) -> None:
    """Not before: a lease is all that says whether the owner is alive."""
    killed = start(lease=LEASE)
    killed.hears("running")
    at = killed.signal(signal.SIGKILL)
    other = start(lease=LEASE)
    assert at + LEASE * 2 / 3 - 0.05 <= other.hears("running")["at"] <= at + LEASE + 3
    other.tell("again")
    assert other.hears("returned")["result"] == "again"
    assert "idempotent.abandoned" in other.hears("events")["names"]


def test_after_kill_9_nobody_runs_the_key_again_where_that_is_not_wanted(start: Callable[..., Worker]) -> None:
    """The outcome is unknown, and every caller is told so."""
    killed = start(lease=LEASE, on_abandoned="raise")
    killed.hears("running")
    killed.signal(signal.SIGKILL)
    for _ in range(2):
        other = start(lease=LEASE, on_abandoned="raise")
        assert other.hears("raised")["error"] == "Abandoned"


CROWD = """
import os, sys, time
import guarded
from guarded.stores import open_store

store, marker, log = open_store(sys.argv[1], timeout=10), sys.argv[2], os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND)

@guarded.idempotent("key", store=store, ttl=0.002, lease=5)
def alone(key):
    os.close(os.open(marker, os.O_CREAT | os.O_EXCL))  # fails when another process is in here
    os.write(log, b"x")
    time.sleep(0.001)
    os.unlink(marker)

until = time.monotonic() + 2
while time.monotonic() < until:
    alone("one")
    time.sleep(0.002)
"""


def test_no_two_of_many_processes_are_inside_at_once(start: Callable[..., Worker], tmp_path: Path) -> None:
    """Each asks again and again for one key, whose results live two milliseconds."""
    log = tmp_path / "log"
    log.touch()
    script = [sys.executable, "-c", CROWD, f"sqlite:///{tmp_path}/store.db", str(tmp_path / "marker"), str(log)]
    crowd = [subprocess.Popen(script, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    for process in crowd:
        _, complaint = process.communicate(timeout=60)
        assert process.returncode == 0, complaint
    assert log.stat().st_size > 20, "it did run many times"


RATES = """
import json, sys, threading, time
from guarded.stores import open_store
from guarded.stores.contract.rate import Booked, Budget, Passed, RateRule

rule = RateRule(sys.argv[2], tuple(tuple(each) for each in json.loads(sys.argv[3])))
rates, budget, admitted = open_store(sys.argv[1], timeout=10).rates, Budget("api"), []
until = time.monotonic() + 1.5

def ask(patience):
    while time.monotonic() < until:
        reply = rates.take(rule, budget, 1, patience)
        while isinstance(reply, Booked):
            time.sleep(reply.delay)
            reply = rates.confirm(rule, budget, 1, reply.mark)
        if isinstance(reply, Passed):
            admitted.append(reply.mark)
        else:
            time.sleep(reply.retry_after / 3)

threads = [threading.Thread(target=ask, args=(patience,)) for patience in (0.0, 5.0)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps({"what": "admitted", "marks": admitted}))
"""


def admissions(start: Callable[..., Worker], processes: int, algorithm: str, *quotas: tuple[int, int]) -> list[str]:
    """The marks of all that several processes were let through for."""
    workers = [start(RATES, algorithm, json.dumps(quotas)) for _ in range(processes)]
    marks = [worker.hears("admitted")["marks"] for worker in workers]
    assert all(marks), "none of them starves"
    return [mark for each in marks for mark in each]


def test_processes_never_exceed_one_sliding_rate(start: Callable[..., Worker]) -> None:
    """By the moments the store counted them at: never more than the quota in any window of that length."""
    window = 200_000_000
    times = sorted(int(mark[1:]) for mark in admissions(start, 4, "sliding", (10, window)))
    assert len(times) > 30
    for first, beyond in zip(times, times[10:], strict=False):
        assert beyond - first >= window


def test_processes_never_exceed_one_fixed_rate(start: Callable[..., Worker]) -> None:
    """A mark is the end of the window that an admission was counted in."""
    marks = admissions(start, 4, "fixed", (10, 200_000_000))
    assert max(marks.count(mark) for mark in marks) == 10


@pytest.mark.parametrize("algorithm", ["gcra", "leaky"])
def test_processes_never_exceed_one_bucket(start: Callable[..., Worker], algorithm: str) -> None:
    """On average: all that was let through fits into the time it took, and one burst."""
    before = time.monotonic()
    marks = admissions(start, 3, algorithm, (20, 500_000_000))
    assert len(marks) <= (time.monotonic() - before) * 40 + (20 if algorithm == "gcra" else 1)
    assert len(marks) > 30


def test_a_forked_child_goes_on_with_its_own_connection(tmp_path: Path) -> None:
    """While other threads of the parent are in the middle of steps; neither harms the other's file."""
    store = open_store(f"sqlite:///{tmp_path}/store.db", timeout=10)
    runs = tmp_path / "runs"
    ended = threading.Event()

    @idempotent("key", store=store)
    def once(key: str) -> str:
        with runs.open("a") as log:
            log.write(f"{key}\n")
        return key

    def keep_busy() -> None:
        number = 0
        while not ended.is_set():
            once(f"{threading.get_ident()}-{number}")
            number += 1

    threads = [threading.Thread(target=keep_busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(5):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    status = int(once(f"child-{number}") != f"child-{number}")
                finally:
                    os._exit(status)
            assert os.waitpid(child, 0)[1] == 0
            assert once(f"child-{number}") == f"child-{number}"
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    keys = runs.read_text().split()
    assert len(keys) == len(set(keys)), "a child's results are replayed by its parent"
    store.close()


def test_a_file_that_another_process_keeps_costs_one_time_out(tmp_path: Path) -> None:
    """Who is stopped in the middle of a step is waited for once; then calls are told at once. It is one event."""
    store = open_store(f"sqlite:///{tmp_path}/store.db", timeout=0.3, probe=0.6)

    @idempotent("key", store=store)
    def work(key: str) -> str:
        return key

    limited = rate("2/minute", name="api", store=store)
    assert work("first") == "first"
    assert limited.try_acquire()
    holder = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute('BEGIN IMMEDIATE'); "
    )
    command = [sys.executable, "-c", holder + "print('held', flush=True); sys.stdin.read()", f"{tmp_path}/store.db"]
    with capture() as events, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        before = time.monotonic()
        for _ in range(20):
            with pytest.raises(StoreError):
                work("second")
            limited.try_acquire()  # by the budget of this process: no error, and no wait
        assert 0.25 < time.monotonic() - before < 0.9, "once for all of them"
        process.kill()
        process.wait()
        time.sleep(0.7)
        assert work("second") == "second"
        assert not limited.try_acquire(cost=2), "what was counted in the file is counted still"
    names = [event.name for event in events if event.name.startswith("store.")]
    assert names == ["store.failed", "store.recovered"]
    store.close()
