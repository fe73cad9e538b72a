"""What guarded costs when callers are in each other's way, beside the standard library, anyio and aiologic.

CPU time of all threads per operation; the ratio of the others is to guarded.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

import aiologic
import anyio
from measure import measure_whole
from table import Table, times

from guarded import limit, rate

SLOTS = 4
THREADS, PER_THREAD = 8, 400
TASKS, PER_TASK = 100, 40

Scenario = Callable[[], int]


def threads(scope: AbstractContextManager[Any], turn: Callable[[], object]) -> Scenario:
    """`THREADS` threads enter `scope` again and again, and let the others run while inside."""

    def work() -> None:
        for _ in range(PER_THREAD):
            with scope:
                turn()

    return lambda: in_threads([work] * THREADS) * PER_THREAD


def tasks(make: Callable[[], AbstractAsyncContextManager[Any]]) -> Scenario:
    """`TASKS` tasks of one loop enter what `make` gives again and again, and let the others run while inside."""
    return lambda: asyncio.run(in_tasks(make())) * PER_TASK


async def in_tasks(scope: AbstractAsyncContextManager[Any]) -> int:
    """The tasks of one loop; how many there were."""

    async def work() -> None:
        for _ in range(PER_TASK):
            async with scope:
                await asyncio.sleep(0)

    await asyncio.gather(*[work() for _ in range(TASKS)])
    return TASKS


def mixed(scope: Any) -> Scenario:
    """Two loops with `TASKS` tasks each and two threads, all on one `scope`."""

    def in_thread() -> None:
        for _ in range(PER_THREAD):
            with scope:
                pass_on()

    def run() -> int:
        in_threads([in_thread, in_thread, lambda: asyncio.run(in_tasks(scope)), lambda: asyncio.run(in_tasks(scope))])
        return 2 * PER_THREAD + 2 * TASKS * PER_TASK

    return run


def in_threads(works: list[Callable[[], Any]]) -> int:
    """Run all at once, each in a thread; how many there were."""
    running = [threading.Thread(target=work) for work in works]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return len(running)


_gate = threading.Event()


def pass_on() -> None:
    """Let other threads run for a moment."""
    _gate.wait(0.0)


def contention(rounds: int) -> list[Table]:
    """The table; rounds of one scenario are interleaved."""
    own = rate("100000000/s")
    scenarios: dict[str, dict[str, Scenario]] = {
        f"{THREADS} threads on {SLOTS} slots": {
            "guarded": threads(limit(SLOTS), pass_on),
            "threading.BoundedSemaphore": threads(threading.BoundedSemaphore(SLOTS), pass_on),
            "aiologic.Semaphore": threads(aiologic.Semaphore(SLOTS), pass_on),
        },
        f"{TASKS} tasks on {SLOTS} slots": {
            "guarded": tasks(lambda: limit(SLOTS)),
            "asyncio.Semaphore": tasks(lambda: asyncio.Semaphore(SLOTS)),
            "anyio.CapacityLimiter": tasks(lambda: anyio.CapacityLimiter(SLOTS)),
            "aiologic.Semaphore": tasks(lambda: aiologic.Semaphore(SLOTS)),
        },
        f"2 threads and 2 loops of {TASKS} tasks on {SLOTS} slots": {
            "guarded": mixed(limit(SLOTS)),
            "aiologic.Semaphore": mixed(aiologic.Semaphore(SLOTS)),
        },
        f"{THREADS} threads on one rate": {
            "guarded": lambda: in_threads([lambda: [own.try_acquire() for _ in range(20_000)]] * THREADS) * 20_000,
            "guarded, one thread": lambda: len([own.try_acquire() for _ in range(160_000)]),
        },
    }
    rows = []
    for what, cases in scenarios.items():
        best = measure_whole(cases, rounds=rounds)
        rows += [[what, name, times(cost / best["guarded"])] for name, cost in best.items() if name != "guarded"]
    return [Table("contention", ["what", "with", "guarded = 1"], rows)]
