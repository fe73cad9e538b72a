"""What a batch costs per item, beside the standard library's way to do the same; and its peak memory.

Rounds are interleaved and the best of each counts, as time in all; memory is the peak of tracemalloc over one run of
100 000 items, results included. Run ``python tests/bench/bench_batch.py``; prints a table.
"""

from __future__ import annotations

import asyncio
import sys
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from guarded import imap_limit, map_limit

ITEMS, ROUNDS, CONCURRENCY, MANY = 20_000, 7, 10, 100_000


async def nothing(item: int) -> int:
    """The cheapest async body."""
    return item


async def suspends(item: int) -> int:
    """A body that lets the loop go round once, as real ones do."""
    await asyncio.sleep(0)
    return item


def plain(item: int) -> int:
    """The cheapest plain body."""
    return item


def task_group(body: Callable[[int], object], count: int) -> None:
    """`asyncio.TaskGroup` with a semaphore: what people write by hand."""

    async def main() -> list[object]:
        semaphore = asyncio.Semaphore(CONCURRENCY)

        async def one(item: int) -> object:
            async with semaphore:
                return await body(item)  # type: ignore[misc]

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(item)) for item in range(count)]
        return [task.result() for task in tasks]

    assert len(asyncio.run(main())) == count


def in_tasks(body: Callable[[int], object], count: int) -> None:
    """`map_limit` of an async function."""
    assert len(asyncio.run(map_limit(body, range(count), concurrency=CONCURRENCY))) == count  # type: ignore[arg-type]


def one_by_one(body: Callable[[int], object], count: int) -> None:
    """`imap_limit` of an async function."""

    async def main() -> int:
        seen = 0
        async for _ in imap_limit(body, range(count), concurrency=CONCURRENCY):  # type: ignore[attr-defined]
            seen += 1
        return seen

    assert asyncio.run(main()) == count


def pool(body: Callable[[int], object], count: int) -> None:
    """`ThreadPoolExecutor.map`."""
    with ThreadPoolExecutor(CONCURRENCY) as executor:
        assert len(list(executor.map(body, range(count)))) == count


def in_threads(body: Callable[[int], object], count: int) -> None:
    """`map_limit` of a plain function."""
    assert len(map_limit(body, range(count), concurrency=CONCURRENCY)) == count


Way = Callable[[Callable[[int], object], int], None]
GROUPS: list[tuple[str, Callable[[int], object], list[tuple[str, Way]]]] = [
    ("async, returns", nothing, [("TaskGroup", task_group), ("map_limit", in_tasks), ("imap_limit", one_by_one)]),
    ("async, suspends", suspends, [("TaskGroup", task_group), ("map_limit", in_tasks), ("imap_limit", one_by_one)]),
    ("plain", plain, [("Executor.map", pool), ("map_limit", in_threads)]),
]


def seconds(way: Way, body: Callable[[int], object]) -> float:
    """One round."""
    started = time.perf_counter()
    way(body, ITEMS)
    return time.perf_counter() - started


def peak_megabytes(way: Way, body: Callable[[int], object]) -> float:
    """Highest traced memory while `MANY` items go through."""
    tracemalloc.start()
    way(body, MANY)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


def main() -> None:
    """Measure and print."""
    print(f"Python {sys.version.split()[0]}, {ITEMS} items, {CONCURRENCY} at once, best of {ROUNDS} rounds")
    print(f"{'body':<16} {'way':<14} {'µs/item':>8} {'ratio':>7} {'peak MB / 100k':>15}")
    for name, body, ways in GROUPS:
        best = dict.fromkeys((way for way, _ in ways), float("inf"))
        for _ in range(ROUNDS):
            for way, run in ways:
                best[way] = min(best[way], seconds(run, body))
        floor = best[ways[0][0]]
        for way, run in ways:
            cost = best[way] / ITEMS * 1e6
            print(f"{name:<16} {way:<14} {cost:>8.2f} {best[way] / floor:>7.2f} {peak_megabytes(run, body):>15.1f}")


if __name__ == "__main__":
    main()
