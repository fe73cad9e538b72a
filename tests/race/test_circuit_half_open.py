"""Many callers at once on one circuit: trials at half-open, one opening for many failures, no lock over user code."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import threading
import time as real_time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pybreaker
import pytest

from guarded import CircuitOpen, circuit
from guarded.policies.circuit import Circuit
from guarded.testing import capture, virtual_time

CALLERS = 50
SECONDS = 20.0


@pytest.fixture(autouse=True)
def _many_switches() -> Iterator[None]:
    """Threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def broken(policy: Circuit) -> None:
    """Let `policy` open."""
    with pytest.raises(ZeroDivisionError):
        policy.call(divmod, 1, 0)
    assert policy.state == "open"


def together(work: Callable[[int], Any], count: int = CALLERS) -> list[Any]:
    """Run `work` in so many threads, all let go at one moment."""
    gate = threading.Barrier(count)

    def one(number: int) -> Any:
        gate.wait(SECONDS)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


class Countdown:
    """An event that is set at the n-th call of `note`."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._left = count
        self.done = threading.Event()

    def note(self) -> None:
        with self._lock:
            self._left -= 1
            if not self._left:
                self.done.set()


@pytest.mark.parametrize("round_", range(4))
@pytest.mark.parametrize("trials", [1, 2, 7])
def test_fifty_threads_at_half_open(trials: int, round_: int) -> None:
    """Exactly so many bodies start; everyone else is rejected at once, while they run."""
    gateway = circuit("gateway", failures=1, reset_after=1, half_open=trials)
    started: list[int] = []
    rejections = Countdown(CALLERS - trials)

    @gateway
    def body(number: int) -> str:
        started.append(number)
        assert rejections.done.wait(SECONDS), "somebody who should be rejected waits"
        return "fine"

    def caller(number: int) -> str:
        try:
            return body(number)
        except CircuitOpen:
            rejections.note()
            return "rejected"

    with virtual_time(auto=False) as moved:
        broken(gateway)
        moved.advance(1)
        results = together(caller)
    assert len(started) == trials
    assert (results.count("fine"), results.count("rejected")) == (trials, CALLERS - trials)
    assert gateway.state == "closed"


@pytest.mark.parametrize("trials", [1, 2, 7])
def test_fifty_tasks_at_half_open(trials: int) -> None:
    """The same for the tasks of one loop."""
    gateway = circuit("gateway", failures=1, reset_after=1, half_open=trials)
    started: list[int] = []

    async def main() -> list[Any]:
        all_rejected = asyncio.Event()

        @gateway
        async def body(number: int) -> str:
            started.append(number)
            await all_rejected.wait()
            return "fine"

        async def caller(number: int) -> str:
            try:
                return await body(number)
            except CircuitOpen:
                rejected.append(number)
                if len(rejected) == CALLERS - trials:
                    all_rejected.set()
                return "rejected"

        rejected: list[int] = []
        return await asyncio.wait_for(asyncio.gather(*map(caller, range(CALLERS))), SECONDS)

    with virtual_time(auto=False) as moved:
        broken(gateway)
        moved.advance(1)
        results = asyncio.run(main())
    assert len(started) == trials
    assert (results.count("fine"), results.count("rejected")) == (trials, CALLERS - trials)
    assert gateway.state == "closed"


def test_threads_and_two_loops_share_the_trials() -> None:
    """Two trials in all, wherever the callers run."""
    gateway = circuit("gateway", failures=1, reset_after=1, half_open=2)
    started: list[str] = []
    rejections = Countdown(28)

    @gateway
    def body() -> None:
        started.append("thread")
        assert rejections.done.wait(SECONDS)

    @gateway
    async def abody() -> None:
        started.append("task")
        while not rejections.done.is_set():
            await asyncio.sleep(0)

    async def acaller() -> None:
        try:
            await abody()
        except CircuitOpen:
            rejections.note()

    async def main() -> None:
        await asyncio.gather(*(acaller() for _ in range(10)))

    def work(number: int) -> None:
        if number < 2:
            asyncio.run(main())
            return
        try:
            body()
        except CircuitOpen:
            rejections.note()

    with virtual_time(auto=False) as moved:
        broken(gateway)
        moved.advance(1)
        together(work, 12)
    assert len(started) == 2
    assert gateway.state == "closed"


@pytest.mark.parametrize("awaits", range(4))
def test_a_trial_cancelled_at_any_await_gives_its_place_back(awaits: int) -> None:
    """The next caller is the trial, without waiting for anything."""
    gateway = circuit("gateway", failures=1, reset_after=1)

    @gateway
    async def hang() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        await asyncio.get_running_loop().create_future()

    @gateway
    async def fine() -> str:
        return "fine"

    async def main() -> None:
        task = asyncio.create_task(hang())
        for _ in range(awaits):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert gateway.snapshot().trials == 0
        assert await fine() == "fine"

    with virtual_time(auto=False) as moved:
        broken(gateway)
        moved.advance(1)
        asyncio.run(main())
    assert gateway.state == "closed"


def test_hung_trials_never_block_recovery() -> None:
    """Every trial_timeout another may try, however many hang; what they end with at last counts for nothing."""
    gateway = circuit("gateway", failures=1, reset_after=1, trial_timeout=10, half_open=2)
    end = threading.Event()
    hanging = threading.Semaphore(0)

    @gateway
    def hang() -> None:
        hanging.release()
        assert end.wait(SECONDS)
        raise ConnectionError

    def ignored() -> None:
        with pytest.raises(ConnectionError):
            hang()

    threads = [threading.Thread(target=ignored) for _ in range(6)]
    with virtual_time(auto=False) as moved:
        broken(gateway)
        moved.advance(1)
        for first, second in zip(threads[::2], threads[1::2], strict=True):
            first.start()
            second.start()
            assert hanging.acquire(timeout=SECONDS)
            assert hanging.acquire(timeout=SECONDS)
            with pytest.raises(CircuitOpen):
                gateway.call(abs, -1)
            moved.advance(10)
        gateway.call(abs, -1)
        gateway.call(abs, -1)
        assert gateway.state == "closed"
        end.set()
        for thread in threads:
            thread.join(SECONDS)
    assert gateway.state == "closed"
    assert gateway.snapshot().failures == 0


def test_simultaneous_failures_open_once() -> None:
    """Fifty failures at one moment: one change, heard once; each caller has its own exception."""
    gateway = circuit("gateway", failures=3)
    changes = []

    class Listener(pybreaker.CircuitBreakerListener):
        def state_change(self, cb: Any, old_state: Any, new_state: Any) -> None:
            changes.append(new_state.name)

    gateway.breaker.add_listener(Listener())
    inside = threading.Barrier(CALLERS)
    errors = [ConnectionError(number) for number in range(CALLERS)]

    @gateway
    def body(number: int) -> None:
        inside.wait(SECONDS)
        raise errors[number]

    def caller(number: int) -> bool:
        try:
            body(number)
        except ConnectionError as error:
            return error is errors[number]
        return False

    with capture() as events:
        assert all(together(caller))
    names = [event.name for event in events if event.layer == "circuit"]
    assert names.count("circuit.opened") == 1
    assert names.count("circuit.late") == CALLERS - 3
    assert changes == ["open"]


def test_successes_from_many_threads_are_all_counted() -> None:
    """The window's totals are exact."""
    gateway = circuit("gateway", failure_rate=1.0, window=100_000)
    divide = gateway(divmod)

    def work(number: int) -> None:
        for _ in range(200):
            divide(1, 1)
        with pytest.raises(ZeroDivisionError):
            divide(1, 0)

    together(work, 16)
    snapshot = gateway.snapshot()
    assert (snapshot.calls, snapshot.failures) == (16 * 201, 16)


def test_changes_are_told_in_order() -> None:
    """Threads that flip the circuit at once tell each change once, each beginning where the one before ended."""
    gateway = circuit("gateway")
    heard = []

    class Listener(pybreaker.CircuitBreakerListener):
        def state_change(self, cb: Any, old_state: Any, new_state: Any) -> None:
            heard.append((old_state.name, new_state.name))

    gateway.breaker.add_listener(Listener())

    def work(number: int) -> None:
        for _ in range(50):
            gateway.breaker.open()
            gateway.breaker.half_open()
            gateway.breaker.close()

    together(work, 8)
    assert heard
    assert all(before[1] == after[0] for before, after in itertools.pairwise(heard))
    assert heard[-1][1] == gateway.state


@pytest.mark.real_clock
@pytest.mark.parametrize("options", [{}, {"failure_rate": 0.5, "slow_call": 5}])
def test_ten_threads_run_side_by_side(options: dict[str, Any]) -> None:
    """Ten bodies of 0.1 s through one closed circuit take 0.1 s, not one: no lock is held meanwhile."""
    gateway = circuit("gateway", **options)
    nap = gateway(real_time.sleep)
    started = real_time.monotonic()
    together(lambda number: nap(0.1), 10)
    assert real_time.monotonic() - started < 0.5


_FORK = """
import os, threading
from guarded import circuit
from guarded.testing import virtual_time

gateway = circuit("gateway", failures=1, reset_after=1)
held, leave = threading.Event(), threading.Event()

def hold():
    with gateway.local, gateway.local._lock:
        held.set()
        leave.wait(20)

with virtual_time(auto=False) as moved:
    try:
        gateway.call(divmod, 1, 0)
    except ZeroDivisionError:
        moved.advance(1)
    with gateway:
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(20)
        child = os.fork()
        if not child:
            os._exit(gateway.call(abs, -7) if gateway.snapshot().trials == 0 else 1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        leave.set()
        thread.join()
        assert gateway.snapshot().trials == 1
assert code == 7, code

slow = circuit("slow", slow_call=1, slow_rate=0.5, window=10, min_calls=2)
with virtual_time(auto=False) as moved, slow, slow:
    moved.advance(1)
    child = os.fork()
    if not child:
        os._exit(slow.call(abs, -7))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert code == 7, code
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_its_trial_places_and_its_lock() -> None:
    """The trial that is out, and the thread that holds the lock, are in the parent."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", _FORK], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
