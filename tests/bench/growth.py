"""How the cost of one layer, waiter, key or deadline changes while there are ten times as many of them.

Nanoseconds of CPU time each, as a ratio to the smallest number of them: 1 is cost that grows like the work, no faster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from budgets import noop
from measure import measure, measure_whole
from table import Table, times

from guarded import deadline, limit, rate, retry

STEPS = (100, 1_000, 10_000)
KEYS = (100, 1_000, 10_000, 100_000)
DEPTHS = (2, 4, 8, 16)


def waiters(count: int) -> Callable[[], int]:
    """`count` tasks queue for one slot, which goes from hand to hand."""

    async def main() -> None:
        slot = limit(1)

        async def work() -> None:
            async with slot:
                await asyncio.sleep(0)

        await asyncio.gather(*[work() for _ in range(count)])

    return repeated(main, count)


def rate_waiters(count: int) -> Callable[[], int]:
    """`count` tasks wait for one rate, and are let through a quarter at a time."""

    async def main() -> None:
        paced = rate(count // 4, per=count * 1e-4)
        await asyncio.gather(*[paced.acquire_async() for _ in range(count)])

    return repeated(main, count)


def deadlines(count: int, bounded: Callable[[Any], Any]) -> Callable[[], int]:
    """`count` tasks are suspended at once, each under a deadline of its own."""

    async def main() -> None:
        @bounded
        async def body() -> None:
            for _ in range(3):
                await asyncio.sleep(0)

        await asyncio.gather(*[body() for _ in range(count)])

    return repeated(main, count)


def under_timeout(body: Any) -> Any:
    """`asyncio.timeout` as a decorator."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await body()

    return bounded


def repeated(main: Callable[[], Any], count: int) -> Callable[[], int]:
    """A scenario that does `main` so often that it can be timed."""
    repeats = max(1, STEPS[-1] // count)

    async def all_of_it() -> None:
        for _ in range(repeats):
            await main()

    def run() -> int:
        asyncio.run(all_of_it())
        return repeats * count

    return run


def keyed(policy: Callable[[], Any], count: int) -> Callable[[], int]:
    """Calls for `count` keys in turn, all of them in use."""
    call = policy()(lambda key: None)
    keys = [f"key-{number}" for number in range(count)]
    for key in keys:
        call(key)

    def run() -> int:
        for _ in range(KEYS[-1] // count):
            for key in keys:
                call(key)
        return KEYS[-1]

    return run


def depths(rounds: int) -> list[str]:
    """Cost of each layer in stacks of 2 to 16 of them, without that of the first, which has the wrapper in it."""

    def stacked(depth: int) -> Any:
        fn: Any = noop
        for _ in range(depth):
            fn = limit(20)(fn)
        return fn

    best = measure({str(depth): stacked(depth) for depth in (1, *DEPTHS)}, rounds=rounds)
    layers = [(best[str(depth)] - best["1"]) / (depth - 1) for depth in DEPTHS]
    return [" → ".join(map(str, DEPTHS)), "layers", *relative(layers)]


def relative(costs: Sequence[float]) -> list[str]:
    """Ratios to the first, in one cell."""
    return [" → ".join(times(cost / costs[0]) for cost in costs)]


def growth(rounds: int) -> list[Table]:
    """The table; sizes are interleaved."""
    rows = [depths(rounds * 3)]
    families: dict[str, tuple[Sequence[int], Callable[[int], Callable[[], int]]]] = {
        "waiters on one limit": (STEPS, waiters),
        "waiters on one rate": (STEPS, rate_waiters),
        "keys of a limit": (KEYS, lambda count: keyed(lambda: limit(5, key=lambda key: key), count)),
        "keys of a rate": (KEYS, lambda count: keyed(lambda: rate("1000000/s", key=lambda key: key), count)),
        "deadlines at once": (STEPS, lambda count: deadlines(count, deadline(60))),
        "`asyncio.timeout`s at once": (STEPS, lambda count: deadlines(count, under_timeout)),
        "retries at once": (STEPS, lambda count: deadlines(count, retry(retries=3))),
    }
    for what, (sizes, scenario) in families.items():
        best = measure_whole({str(size): scenario(size) for size in sizes}, rounds=rounds)
        rows.append([" → ".join(f"{size:,}" for size in sizes), what, *relative(list(best.values()))])
    return [Table("growth", ["how many", "of what", "cost of each"], rows)]
