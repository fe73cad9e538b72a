"""What one call costs with guarded and with libraries that do the same job.

Each job has cases that do it on a function that does nothing, sync or async. The first one is guarded, and the ratio of
the others is to it: 3 means three times the cost of guarded.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import aiolimiter
import aiologic
import anyio
import backoff
import hyx.bulkhead
import hyx.circuitbreaker
import hyx.ratelimit
import hyx.retry
import hyx.timeout
import interlock
import limits
import limits.strategies
import pybreaker
import pyrate_limiter
import pyresilience
import stamina
import tenacity
import throttled
from budgets import anoop, noop, pyresilience_four, stack, stack_as_taught
from measure import Async, Sync, measure, measure_in_loop
from table import Table, times

from guarded import circuit, deadline, limit, rate, retry

MANY = 100_000_000  # a quota that is never used up


def in_block(scope: Any) -> Sync:
    """Enter and leave ``with scope``."""

    def enter() -> None:
        with scope:
            pass

    return enter


def in_async_block(make: Callable[[], Any]) -> Async:
    """Enter and leave ``async with``, of a fresh scope if `make` gives one."""

    async def enter() -> None:
        async with make():
            await anoop()

    return enter


def sync_jobs() -> dict[str, dict[str, Sync]]:
    """Jobs on a plain function."""
    breaker, pipeline = pybreaker.CircuitBreaker(), interlock.CircuitBreaker(name="peers")
    fixed, item = (
        limits.strategies.FixedWindowRateLimiter(limits.storage.MemoryStorage()),
        limits.parse(f"{MANY}/second"),
    )
    pyrate = pyrate_limiter.Limiter(pyrate_limiter.Rate(MANY, pyrate_limiter.Duration.SECOND))
    windows = throttled.Throttled(key="key", quota=throttled.per_sec(MANY), using="fixed_window")
    cells = throttled.Throttled(key="key", quota=throttled.per_sec(MANY), using="gcra")
    return {
        "retry, nothing to retry": {
            "guarded": retry(retries=3)(noop),
            "pyresilience": pyresilience.resilient(retry=pyresilience.RetryConfig(max_attempts=4))(noop),
            "backoff": backoff.on_exception(backoff.expo, Exception, max_tries=4)(noop),
            "tenacity": tenacity.retry(stop=tenacity.stop_after_attempt(4))(noop),
            "stamina": stamina.retry(on=Exception, attempts=4)(noop),
        },
        "closed circuit": {
            "guarded": circuit("peers")(noop),
            "guarded, failure_rate": circuit("peers-rate", failure_rate=0.5, min_calls=20)(noop),
            "pybreaker": breaker(noop),
            "pyresilience": pyresilience.resilient(circuit_breaker=pyresilience.CircuitBreakerConfig())(noop),
            "interlock-cb": lambda: pipeline.call_sync(noop),
        },
        "rate decision": {
            "guarded": rate(f"{MANY}/s").try_acquire,
            "guarded, gcra": rate(f"{MANY}/s", algorithm="gcra").try_acquire,
            "limits, fixed window": lambda: fixed.hit(item, "key"),
            "throttled-py, fixed window": windows.limit,
            "throttled-py, gcra": cells.limit,
            "pyrate-limiter": lambda: pyrate.try_acquire("key", blocking=False),
        },
        "limit, uncontended": {
            "guarded": in_block(limit(20)),
            "threading.BoundedSemaphore": in_block(threading.BoundedSemaphore(20)),
            "aiologic.Semaphore": in_block(aiologic.Semaphore(20)),
        },
        "the four": {
            "guarded": stack(noop),
            "guarded, as taught": stack_as_taught(noop),
            "pyresilience": pyresilience_four(noop),
            "by hand": by_hand(noop),
        },
    }


def by_hand(fn: Callable[[], object]) -> Sync:
    """The same four put together from a semaphore, limits, tenacity and pybreaker."""
    semaphore, breaker = threading.BoundedSemaphore(20), pybreaker.CircuitBreaker()
    strategy, item = (
        limits.strategies.FixedWindowRateLimiter(limits.storage.MemoryStorage()),
        limits.parse(f"{MANY}/second"),
    )
    retried = tenacity.retry(stop=tenacity.stop_after_attempt(4))(breaker(fn))

    def call() -> object:
        with semaphore:
            if not strategy.hit(item, "key"):
                raise RuntimeError("rate exceeded")
            return retried()

    return call


def async_jobs() -> dict[str, dict[str, Async]]:
    """Jobs on a coroutine function; to be called in a loop."""
    own, semaphore, capacity = limit(20), asyncio.Semaphore(20), anyio.CapacityLimiter(20)
    mixed, leaky = aiologic.Semaphore(20), aiolimiter.AsyncLimiter(MANY, 1)
    breaker = interlock.CircuitBreaker(name="peers, async")
    timed = pyresilience.TimeoutConfig(seconds=10)
    return {
        "retry, nothing to retry": {
            "guarded": retry(retries=3)(anoop),
            "pyresilience": pyresilience.resilient(retry=pyresilience.RetryConfig(max_attempts=4))(anoop),
            "backoff": backoff.on_exception(backoff.expo, Exception, max_tries=4)(anoop),
            "tenacity": tenacity.retry(stop=tenacity.stop_after_attempt(4))(anoop),
            "stamina": stamina.retry(on=Exception, attempts=4)(anoop),
            "hyx": hyx.retry.retry(attempts=3)(anoop),
        },
        "closed circuit": {
            "guarded": circuit("peers, async")(anoop),
            "pyresilience": pyresilience.resilient(circuit_breaker=pyresilience.CircuitBreakerConfig())(anoop),
            "interlock-cb": lambda: breaker.call_async(anoop),
            "hyx": hyx.circuitbreaker.consecutive_breaker()(anoop),
        },
        "rate": {
            "guarded": rate(f"{MANY}/s")(anoop),
            "aiolimiter": in_async_block(lambda: leaky),
            "hyx, token bucket": hyx.ratelimit.tokenbucket(MANY, 1, MANY)(anoop),
        },
        "limit, uncontended": {
            "guarded": in_async_block(lambda: own),
            "asyncio.Semaphore": in_async_block(lambda: semaphore),
            "aiologic.Semaphore": in_async_block(lambda: mixed),
            "anyio.CapacityLimiter": in_async_block(lambda: capacity),
            "hyx, bulkhead": hyx.bulkhead.bulkhead(20, 20)(anoop),
        },
        "deadline": {
            "guarded": deadline(10)(anoop),
            "asyncio.timeout": in_async_block(lambda: asyncio.timeout(10)),
            "hyx, timeout": hyx.timeout.timeout(10)(anoop),
            "pyresilience": pyresilience.resilient(timeout=timed)(anoop),
        },
        "the four": {
            "guarded": stack(anoop),
            "pyresilience": pyresilience_four(anoop),
        },
        "the four and a deadline": {
            "guarded": deadline(10)(stack(anoop)),
            "pyresilience": pyresilience_four(anoop, timeout=timed),
        },
    }


def beside_guarded(job: str, best: dict[str, float]) -> list[list[str]]:
    """Rows of a table: the others, as multiples of guarded."""
    own = best.pop("guarded")
    return [[job, name, times(cost / own)] for name, cost in best.items()]


def peers(rounds: int) -> list[Table]:
    """The tables of sync and of async jobs; rounds of one job are interleaved."""
    rows = [row for job, cases in sync_jobs().items() for row in beside_guarded(job, measure(cases, rounds=rounds))]
    head = ["job", "with", "guarded = 1"]
    return [Table("peers, sync", head, rows), Table("peers, async", head, asyncio.run(async_rows(rounds)))]


async def async_rows(rounds: int) -> list[list[str]]:
    """The async jobs, made in the loop that runs them, since some have to be."""
    rows = []
    for job, cases in async_jobs().items():
        rows += beside_guarded(job, await measure_in_loop(cases, rounds=rounds))
    return rows
