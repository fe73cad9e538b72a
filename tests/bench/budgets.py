"""The budgets of the project: what a layer may cost, as a ratio within one run.

Each row names what is measured, against what, and the bound. `measured` runs them all.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import interlock
import limits
import limits.strategies
import pyresilience
import stamina
import wrapt
from bench_batch import ITEMS, Way, in_tasks, suspends, task_group
from measure import measure, measure_async, measure_whole
from table import Table, times

from guarded import circuit, deadline, events, limit, rate, registry, retry


@dataclass(frozen=True)
class Row:
    """One budget: `figure` may be at most `bound` times `reference`, both in nanoseconds."""

    what: str
    against: str
    bound: float
    figure: float
    reference: float

    @property
    def ratio(self) -> float:
        """How often the reference fits in."""
        return self.figure / self.reference

    @property
    def kept(self) -> bool:
        """Whether the bound holds."""
        return self.ratio <= self.bound


def noop() -> None:
    """What everything is wrapped around."""


async def anoop() -> None:
    """What everything async is wrapped around."""


def pass_through(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """The cheapest wrapt wrapper."""
    return wrapped(*args, **kwargs)


async def apass_through(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """The cheapest async wrapt wrapper."""
    return await wrapped(*args, **kwargs)


def stack(fn: Any, depth: int = 4) -> Any:
    """limit, rate, retry, circuit: the first `depth` of them, from inside out."""
    layers = [
        circuit(f"bench-{id(fn)}-{depth}"),
        retry(retries=3),
        rate("100000000/s", burst=None),
        limit(20),
    ]
    for layer in layers[:depth]:
        fn = layer(fn)
    return fn


def stack_as_taught(fn: Any) -> Any:
    """The four in the order that the docs teach."""
    return limit(20)(retry(retries=3)(circuit(f"taught-{id(fn)}")(rate("100000000/s")(fn))))


def pyresilience_four(fn: Any, **more: Any) -> Any:
    """pyresilience with the same four, and `more`."""
    return pyresilience.resilient(
        retry=pyresilience.RetryConfig(max_attempts=4),
        circuit_breaker=pyresilience.CircuitBreakerConfig(),
        bulkhead=pyresilience.BulkheadConfig(max_concurrent=20),
        rate_limiter=pyresilience.RateLimiterConfig(max_calls=100_000_000, period=1.0),
        **more,
    )(fn)


def _limits_hit() -> Callable[[], object]:
    strategy = limits.strategies.FixedWindowRateLimiter(limits.storage.MemoryStorage())
    item = limits.parse("100000000/minute")
    return lambda: strategy.hit(item, "key")


def sync_rows(rounds: int) -> list[Row]:
    """The sync budgets."""
    semaphore, own = threading.BoundedSemaphore(20), limit(20)
    decision = rate("100000000/s")
    breaker = interlock.CircuitBreaker(name="bench")
    stamina_noop = stamina.retry(on=Exception, attempts=4)(noop)

    def with_semaphore() -> None:
        with semaphore:
            pass

    def with_limit() -> None:
        with own:
            pass

    best = measure(
        {
            "wrapt": wrapt.FunctionWrapper(noop, pass_through),
            "one": stack(noop, 1),
            "two": stack(noop, 2),
            "three": stack(noop, 3),
            "four": stack(noop),
            "taught": stack_as_taught(noop),
            "pyresilience": pyresilience_four(noop),
            "semaphore": with_semaphore,
            "limit": with_limit,
            "rate": decision.try_acquire,
            "limits": _limits_hit(),
            "circuit": circuit("bench")(noop),
            "window": circuit("bench-rate", failure_rate=0.5, min_calls=20)(noop),
            "interlock": lambda: breaker.call_sync(noop),
            "retry": retry(retries=3)(noop),
            "stamina": stamina_noop,
        },
        rounds=rounds,
    )
    layer = (best["four"] - best["one"]) / 3
    return [
        Row("limit + rate + retry + circuit, sync", "wrapt pass-through", 2.5, best["four"], best["wrapt"]),
        Row("the same in the order taught", "wrapt pass-through", 2.5, best["taught"], best["wrapt"]),
        Row("each further layer", "wrapt pass-through", 0.45, layer, best["wrapt"]),
        Row("uncontended limit, sync", "threading.BoundedSemaphore", 1.0, best["limit"], best["semaphore"]),
        Row("rate decision", "limits, fixed window", 1 / 5, best["rate"], best["limits"]),
        Row("closed circuit", "interlock-cb", 1 / 4, best["circuit"], best["interlock"]),
        Row("closed circuit with a failure rate", "interlock-cb", 1 / 4, best["window"], best["interlock"]),
        Row("retry, nothing to retry", "stamina", 1 / 10, best["retry"], best["stamina"]),
        Row("the four, sync", "pyresilience with the same four", 0.5, best["four"], best["pyresilience"]),
    ]


def async_rows(rounds: int) -> list[Row]:
    """The async budgets."""
    own = limit(20)
    semaphore = asyncio.Semaphore(20)

    async def with_semaphore() -> None:
        async with semaphore:
            pass

    async def with_limit() -> None:
        async with own:
            pass

    async def with_timeout() -> None:
        async with asyncio.timeout(10):
            await anoop()

    best = measure_async(
        {
            "wrapt": wrapt.FunctionWrapper(anoop, apass_through),
            "four": stack(anoop),
            "five": deadline(10)(stack(anoop)),
            "pyresilience": pyresilience_four(anoop),
            "pyresilience timeout": pyresilience_four(anoop, timeout=pyresilience.TimeoutConfig(seconds=10)),
            "semaphore": with_semaphore,
            "limit": with_limit,
            "deadline": deadline(10)(anoop),
            "timeout": with_timeout,
        },
        rounds=rounds,
    )
    return [
        Row("the four and a deadline, async", "wrapt pass-through, async", 5.0, best["five"], best["wrapt"]),
        Row("uncontended limit, async", "asyncio.Semaphore", 1.3, best["limit"], best["semaphore"]),
        Row("deadline, async", "asyncio.timeout", 0.4, best["deadline"], best["timeout"]),
        Row("the four, async", "pyresilience with the same four", 0.4, best["four"], best["pyresilience"]),
        Row(
            "the four and a deadline, async",
            "pyresilience with a timeout too",
            0.15,
            best["five"],
            best["pyresilience timeout"],
        ),
    ]


def batch_rows(rounds: int) -> list[Row]:
    """The budget of `map_limit`, on items that suspend once."""
    best = measure_whole(
        {name: partial(batched, way) for name, way in (("own", in_tasks), ("group", task_group))}, rounds=rounds
    )
    return [Row("map_limit, per item", "asyncio.TaskGroup and Semaphore", 1.0, best["own"], best["group"])]


def batched(way: Way) -> int:
    """One batch; how many items it had."""
    way(suspends, ITEMS)
    return ITEMS


def measured(rounds: int = 15) -> list[Row]:
    """All budgets, measured now."""
    level = events.set_level("ERROR")
    try:
        with registry.isolated():
            return sync_rows(rounds) + async_rows(rounds) + batch_rows(max(3, rounds // 5))
    finally:
        events.set_level(level)


def table_of(rows: list[Row]) -> Table:
    """The budgets as a table."""
    head = ["what", "against", "bound", "measured", ""]
    return Table(
        "budgets",
        head,
        [
            [row.what, row.against, f"≤ {row.bound:.2f}", times(row.ratio), "kept" if row.kept else "**missed**"]
            for row in rows
        ],
    )


def main() -> None:
    """Print the table; with ``--json`` what a program can read."""
    rows = measured()
    print(json.dumps([asdict(row) for row in rows]) if "--json" in sys.argv else table_of(rows))


if __name__ == "__main__":
    main()
