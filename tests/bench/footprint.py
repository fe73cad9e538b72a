"""Memory per decorated function, key, waiter and deadline; and the time of the import."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

from budgets import stack
from table import Table

from guarded import deadline, limit, rate, retry

BELOW = "import wrapt, loguru"
EVERY_POLICY = ("limit", "rate", "retry", "deadline", "circuit", "idempotent", "fallback", "hedge")
COUNT = 2_000
STARTS = 9


def bytes_each(make: Callable[[], object]) -> float:
    """Traced bytes that `COUNT` of what `make` gives hold."""
    kept = [make() for _ in range(10)]
    gc.collect()
    tracemalloc.start()
    kept = [make() for _ in range(COUNT)]
    gc.collect()
    held = tracemalloc.get_traced_memory()[0] / len(kept)
    tracemalloc.stop()
    return held


def function() -> Callable[[], None]:
    """A fresh function."""

    def fn() -> None: ...

    return fn


def called(policy: Callable[[Any], Any]) -> Callable[[], object]:
    """Makes a fresh guarded function that has been called once, so that it is compiled."""

    def make() -> object:
        guarded_fn = policy(function())
        guarded_fn()
        return guarded_fn

    return make


def keys(policy: Any) -> Callable[[], object]:
    """Makes a permit or an admission for a key of its own."""
    numbers = iter(range(10 * COUNT))
    return lambda: policy.acquire(key=f"key-{next(numbers)}")


def waiting(enter: Callable[[], Any] | None) -> float:
    """Traced bytes of each of `COUNT` tasks that wait for what `enter` gives; None: for an event."""

    async def main() -> float:
        tracemalloc.start()
        entering = asyncio.Event().wait if enter is None else enter
        tasks = [asyncio.ensure_future(entering()) for _ in range(COUNT)]
        for _ in range(3):
            await asyncio.sleep(0)
        held = tracemalloc.get_traced_memory()[0] / COUNT
        tracemalloc.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return held

    return asyncio.run(main())


def import_milliseconds(statement: str) -> float:
    """Best CPU milliseconds of a fresh interpreter for an import."""
    code = f"import time; a = time.process_time_ns(); {statement}; print(time.process_time_ns() - a)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=True) for _ in range(STARTS)]
    return min(int(run.stdout) for run in runs) / 1e6


def footprint() -> list[Table]:
    """Both tables."""
    bare, slot, paced = bytes_each(function), limit(1), rate("1/h")
    slot.acquire()
    paced.acquire()
    plain_task = waiting(None)
    memory = [
        ["function with one layer", bytes_each(called(retry(retries=3))) - bare],
        ["function with limit, rate, retry and circuit", bytes_each(called(stack)) - bare],
        ["key of a limit, in use", bytes_each(keys(limit(5, key=lambda key: key)))],
        ["key of a rate, in use", bytes_each(keys(rate("1000/s", key=lambda key: key)))],
        ["task waiting for a limit, beyond the task", waiting(slot.acquire_async) - plain_task],
        ["task waiting for a rate, beyond the task", waiting(paced.acquire_async) - plain_task],
        ["task under a deadline, beyond the task", waiting(deadline(60)(_forever)) - plain_task],
    ]
    rows = [[what, f"{held:,.0f}"] for what, held in memory]
    below = import_milliseconds(BELOW)
    starts = [[f"`{BELOW}`", f"{below:.0f} ms"]]
    statements = ("import guarded", f"from guarded import {', '.join(EVERY_POLICY)}", "import guarded.config")
    starts += [
        [f"`{statement}` on top", f"{import_milliseconds(f'{BELOW}; {statement}') - below:.0f} ms"]
        for statement in statements
    ]
    return [Table("memory", ["what", "bytes"], rows), Table("import", ["what", "CPU time"], starts)]


async def _forever() -> None:
    await asyncio.Event().wait()
