"""Cancelled, closed and torn-down calls on a real server: at rest nothing is held, and nobody waits in vain."""

from __future__ import annotations

import asyncio
import gc
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from guarded import CircuitOpen, RateExceeded, circuit, limit, rate
from guarded import testing as kit
from guarded.stores import open_store

pytestmark = pytest.mark.real_clock


@pytest.fixture
def store(valkey: Any) -> Iterator[Any]:
    """A store with leases so long that none ends by itself."""
    made = open_store(valkey.url, timeout=5.0, prefix=f"{uuid.uuid4().hex}:", lease=60)
    yield made
    made.close()


def eventually(holds: Callable[[], bool]) -> None:
    """Within three seconds."""
    give_up = time.monotonic() + 3
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.01)


@pytest.mark.parametrize("seed", range(4))
def test_a_limit_under_random_cancellation(store: Any, seed: int) -> None:
    """While it asks, waits, holds or gives back: never more than three, and in the end all permits are free."""
    chance = random.Random(seed)
    policy = limit(3, name="db", store=store)
    active = peak = done = 0

    @policy
    async def work(seconds: float) -> None:
        nonlocal active, peak, done
        active += 1
        peak = max(peak, active)
        try:
            await asyncio.sleep(seconds)
            done += 1
        finally:
            active -= 1

    async def main() -> None:
        tasks = []
        for _ in range(80):
            task = asyncio.create_task(work(chance.random() * 0.01))
            tasks.append(task)
            if chance.random() < 0.5:
                asyncio.get_running_loop().call_later(chance.random() * 0.1, task.cancel)
            await asyncio.sleep(chance.random() * 0.003)
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    assert peak == 3
    assert done >= 20
    eventually(lambda: store.limits.look(("db", "")) == (0, 0))
    assert policy.snapshot().queued == policy.snapshot().held == 0


def test_a_rate_under_random_cancellation(store: Any) -> None:
    """Those who give up are booked no more: the rest is served about as fast as the rate allows."""
    chance = random.Random(5)
    policy = rate("20/200ms", name="api", store=store)
    served = 0

    @policy
    async def work() -> None:
        nonlocal served
        served += 1

    async def main() -> None:
        tasks = [asyncio.create_task(work()) for _ in range(100)]
        for task in tasks:
            if chance.random() < 0.5:
                asyncio.get_running_loop().call_later(chance.random() * 0.15, task.cancel)
        await asyncio.gather(*tasks, return_exceptions=True)

    began = time.monotonic()
    asyncio.run(main())
    assert 40 <= served <= 70
    assert time.monotonic() - began < 1.5


def test_a_cancelled_trial_gives_its_place_to_the_next(store: Any) -> None:
    """At once, and the circuit still recovers."""
    policy = circuit("gateway", failures=1, reset_after=0.1, store=store)
    with pytest.raises(ConnectionError):
        policy.call(boom)

    @policy
    async def hang() -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        await asyncio.sleep(0.12)
        trial = asyncio.create_task(hang())
        await asyncio.sleep(0.05)
        with pytest.raises(CircuitOpen):
            await hang()
        trial.cancel()
        with pytest.raises(asyncio.CancelledError):
            await trial

    asyncio.run(main())
    assert policy.call(lambda: "up") == "up"
    assert policy.state == "closed"


def boom() -> None:
    """What is down."""
    raise ConnectionError("down")


def test_streams_hold_their_permit_to_their_end(store: Any) -> None:
    """Exhausted, closed, and dropped by the garbage collector; sync and async."""
    policy = limit(5, name="db", store=store)

    @policy
    def items() -> Iterator[int]:
        yield from range(3)

    @policy
    async def items_async() -> AsyncIterator[int]:
        for number in range(3):
            yield number

    def held() -> int:
        return int(store.limits.look(("db", ""))[0])

    stream = items()
    assert next(stream) == 0
    assert held() == 1
    assert list(stream) == [1, 2]
    assert held() == 0
    stream = items()
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert held() == 0
    stream = items()
    next(stream)
    del stream
    gc.collect()
    assert held() == 0

    async def main() -> None:
        assert [item async for item in items_async()] == [0, 1, 2]
        stream = items_async()
        assert await anext(stream) == 0
        eventually(lambda: held() == 1)  # that of the stream before goes back beside the loop
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())
    eventually(lambda: held() == 0)


def test_a_loop_that_is_closed_over_its_tasks_leaves_nothing(store: Any) -> None:
    """A holder and a waiter die with it; the permit comes back without its lease having ended."""
    policy = limit(1, name="db", store=store)

    @policy
    async def hang() -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        tasks = [asyncio.create_task(hang()) for _ in range(3)]
        await asyncio.sleep(0.1)
        del tasks

    asyncio.run(main())
    eventually(lambda: store.limits.look(("db", "")) == (0, 0))
    assert policy.call(lambda: "free") == "free"


def test_two_loops_and_threads_wait_in_one_line(store: Any) -> None:
    """Those of one process are served in order of arrival, one wake-up in this process for each permit."""
    policy = limit(1, name="db", store=store)
    order: list[int] = []
    with kit.capture() as events, policy.acquire() as first:

        async def main() -> None:
            async def take(number: int) -> None:
                async with policy:
                    order.append(number)

            tasks = []
            for number in range(6):
                tasks.append(asyncio.create_task(take(number)))
                await asyncio.sleep(0.02)
            first.release()
            await asyncio.gather(*tasks)

        asyncio.run(main())
    assert order == list(range(6))
    assert [event.name for event in events].count("limit.queued") == 6


def test_a_call_that_comes_again_as_async_counts_once(store: Any) -> None:
    """A plain function that returns an awaitable: what its first try took is given back."""
    pace, permits = rate("1/60s", name="api", store=store, max_wait=0), limit(1, name="db", store=store)

    async def later() -> int:
        return 7

    @permits
    @pace
    def call() -> Any:
        return later()

    async def main() -> None:
        assert await call() == 7
        with pytest.raises(RateExceeded):
            await call()

    asyncio.run(main())
    eventually(lambda: store.limits.look(("db", "")) == (0, 0))
