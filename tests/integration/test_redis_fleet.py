"""Many processes on one server: bounds by the server's own log, dead and stopped holders, late owners."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from guarded.stores import open_store
from guarded.stores.contract.limit import Full, Granted, Pledge

pytestmark = [pytest.mark.real_clock, pytest.mark.slow]
WORKER = Path(__file__).with_name("fleet_worker.py")
ROOT = Path(__file__).parents[2]
LEASE = 1.0
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process of the fleet, and end it with the test."""
    started: list[subprocess.Popen[str]] = []

    def run(*words: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(WORKER), *map(str, words)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def line(process: subprocess.Popen[str]) -> str:
    """What it says next."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def most_in_any(times: list[float], window: float) -> int:
    """The largest number of `times` in any (t - window, t]."""
    times.sort()
    most, first = 0, 0
    for index, at in enumerate(times):
        while times[first] <= at - window:
            first += 1
        most = max(most, index - first + 1)
    return most


def test_eight_processes_keep_a_limit_and_a_rate(own_valkey: Any, start: Start, record_property: Any) -> None:
    """8 x 4 threads: never more than 5 holders, and never more than 50 admitted in any second, by the server's log."""
    seconds = 5.0
    processes = [start("both", own_valkey.url, seconds, 4) for _ in range(8)]
    admitted: dict[bytes, float] = {}
    with own_valkey.client() as client:
        for process in processes:
            assert line(process) == "ready"
        while any(process.poll() is None for process in processes):
            log = next(client.scan_iter("guarded:rate:*:log"), None)
            admitted.update(client.zrange(log, 0, -1, withscores=True) if log else [])
            time.sleep(0.1)
        peak, bodies = int(client.get("peak")), len(client.lrange("bodies", 0, -1))
        paced = [float(word) for word in client.lrange("paced", 0, -1)]
    assert [process.returncode for process in processes] == [0] * 8
    most = most_in_any([at / 1e6 for at in admitted.values()], 1.0)
    figures = {"peak": peak, "most": most, "admitted": len(admitted), "bodies": bodies, "body": most_in_any(paced, 1.0)}
    record_property("figures", figures)
    print(figures)
    assert peak == 5
    assert most == 50
    assert len(admitted) >= 50 * (seconds - 1)


def test_kill_9_frees_a_permit_after_its_lease_and_not_before(own_valkey: Any, start: Start) -> None:
    """The next one gets it when the lease is over, counted from the last renewal."""
    holder = start("hold", own_valkey.url, 60)
    assert line(holder) == "ready"
    store = open_store(own_valkey.url, timeout=2.0)
    time.sleep(LEASE * 1.2)  # it has been renewed meanwhile
    holder.kill()
    killed = time.monotonic()
    pledge = Pledge("next", ("db", ""), 1, 1, LEASE)
    while isinstance(answer := store.limits.acquire(pledge, 0.0), Full):
        assert answer.held == 1
        time.sleep(0.005)
    waited = time.monotonic() - killed
    store.close()
    assert isinstance(answer, Granted)
    assert LEASE / 2 < waited < LEASE + 0.3


def test_a_holder_that_outlives_its_lease_learns_of_it(own_valkey: Any, start: Start) -> None:
    """Stopped for longer than its lease, it hears of the loss when it goes on, and its body is told to stop."""
    holder = start("hold", own_valkey.url, 60)
    assert line(holder) == "ready"
    holder.send_signal(signal.SIGSTOP)
    store = open_store(own_valkey.url, timeout=2.0)
    pledge = Pledge("next", ("db", ""), 1, 1, 30.0)
    stopped = time.monotonic()
    while isinstance(store.limits.acquire(pledge, 0.0), Full):
        time.sleep(0.005)
    assert LEASE / 2 < time.monotonic() - stopped < LEASE + 0.3
    holder.send_signal(signal.SIGCONT)
    assert [line(holder), line(holder)] == ["limit.lost", "Cancelled"]
    assert store.limits.look(("db", "")) == (1, 0)  # the late holder has released nothing of the other's
    store.close()


def test_two_processes_never_own_one_key(own_valkey: Any, start: Start) -> None:
    """An owner stopped beyond its lease, a take-over, the return of the late one: one result stays."""
    late = start("charge", own_valkey.url, 3.0, "late")
    assert line(late) == "ready"
    late.send_signal(signal.SIGSTOP)
    second = start("charge", own_valkey.url, 1.5, "second")
    began = time.monotonic()
    assert line(second) == "ready"
    assert time.monotonic() - began > LEASE / 2
    late.send_signal(signal.SIGCONT)
    assert line(second) == "got second"
    assert line(late) == "got late"  # its own caller has its own result; nothing it does changes what is stored
    third = start("charge", own_valkey.url, 0.0, "third")
    assert line(third) == "got second"
    with own_valkey.client() as client:
        assert client.lrange("runs", 0, -1) == [b"late", b"second"]


def test_a_running_key_is_not_taken_over_while_its_owner_lives(own_valkey: Any, start: Start) -> None:
    """A body of several leases: the other process waits for it and gets its result."""
    owner = start("charge", own_valkey.url, LEASE * 3, "owner")
    assert line(owner) == "ready"
    other = start("charge", own_valkey.url, 0.0, "other")
    assert line(other) == "got owner"
    with own_valkey.client() as client:
        assert client.lrange("runs", 0, -1) == [b"owner"]
