"""Batches under many items: flat memory, bounds under a tiny switch interval, seeded interleavings."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, closing
from typing import Any

import pytest

import guarded
from guarded import CancelToken, imap_limit, map_limit

ITEMS = 200_000


class Endless:
    """An endless async source that notes when it is closed."""

    def __init__(self) -> None:
        self.pulled = self.closed = 0

    def __aiter__(self) -> AsyncIterator[int]:
        return self

    async def __anext__(self) -> int:
        self.pulled += 1
        return self.pulled

    async def aclose(self) -> None:
        self.closed += 1


@pytest.mark.slow
@pytest.mark.parametrize("as_completed", [False, True])
def test_memory_stays_flat_over_an_endless_async_source(as_completed: bool) -> None:
    """200 000 items: never more than 10 in flight, and no more memory at the end than near the start."""
    source, flying, peak = Endless(), 0, 0

    async def body(item: int) -> bytes:
        nonlocal flying, peak
        flying += 1
        peak = max(peak, flying)
        await asyncio.sleep(0)
        flying -= 1
        return b"x" * 100

    async def main() -> list[int]:
        sizes = []
        seen = 0
        async with aclosing(imap_limit(body, source, concurrency=10, as_completed=as_completed)) as results:
            async for _ in results:
                seen += 1
                if seen % (ITEMS // 10) == 0:
                    gc.collect()
                    sizes.append(sys.getallocatedblocks())
                if seen == ITEMS:
                    break
        return sizes

    blocks = asyncio.run(main())
    assert max(blocks) - blocks[0] < 1000  # there are 20 000 items between two looks
    assert peak == 10
    assert source.closed == 1
    assert source.pulled <= ITEMS + 20


def test_memory_stays_flat_in_threads() -> None:
    """The same for a plain function and a plain source."""
    blocks = []
    with closing(imap_limit(lambda item: b"x" * 100, itertools.count(), concurrency=4)) as results:
        for seen, _ in enumerate(results):
            if seen and seen % 10_000 == 0:
                gc.collect()
                blocks.append(sys.getallocatedblocks())
            if seen == 50_000:
                break
    assert max(blocks) - blocks[0] < 1000


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads are switched as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("seed", range(10))
def test_bounds_of_threads_hold_at_any_switch(seed: int) -> None:
    """Results in order, no more at once than allowed, each item once, errors and ends at random."""
    rng = random.Random(seed)
    concurrency = rng.randint(1, 6)
    fails = {rng.randrange(300) for _ in range(rng.choice([0, 1, 20]))}
    lock, now, peak, ran = threading.Lock(), 0, 0, []

    def body(item: int) -> int:
        nonlocal now, peak
        with lock:
            now += 1
            peak = max(peak, now)
            ran.append(item)
        try:
            if rng.random() < 0.1:
                guarded.sleep(0.0001)
        finally:
            with lock:
                now -= 1
        if item in fails:
            raise KeyError(item)
        return item

    outcomes = map_limit(body, iter(range(300)), concurrency=concurrency, errors="collect")
    assert [settled.index for settled in outcomes] == list(range(300))
    assert {settled.index for settled in outcomes if not settled.ok} == fails
    assert sorted(ran) == list(range(300))
    assert peak <= concurrency
    ran.clear()
    stop_at = rng.randrange(1, 100)
    results = []
    batch = imap_limit(body, range(300), concurrency=concurrency, window=concurrency + 3, errors="collect")
    for settled in batch:
        results.append(settled.index)
        if len(results) == stop_at:
            break
    batch.close()
    assert results == list(range(stop_at))
    assert now == 0
    assert len(ran) <= stop_at + concurrency + 3


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("seed", range(10))
def test_a_token_from_another_thread_at_any_moment(seed: int) -> None:
    """The batch ends one way or the other, with every item that was pulled accounted for, and nothing running."""
    rng = random.Random(seed)
    token, lock, running = CancelToken(), threading.Lock(), 0
    pulled: list[int] = []

    def items() -> Iterator[int]:
        for item in range(500):
            pulled.append(item)
            yield item

    def body(item: int) -> int:
        nonlocal running
        with lock:
            running += 1
        try:
            guarded.sleep(rng.random() * 0.001)
        finally:
            with lock:
                running -= 1
        return item

    timer = threading.Timer(rng.random() * 0.05, token.cancel, args=("now",))
    timer.start()
    try:
        outcomes = map_limit(body, items(), concurrency=3, errors="collect", cancel=token)
    except guarded.Cancelled as error:
        outcomes = guarded.batch.settled_of(error)
    timer.join()
    assert running == 0
    assert [settled.index for settled in outcomes] == list(range(len(outcomes)))
    assert len(outcomes) == len(pulled)
    assert all(settled.ok or settled.cancelled for settled in outcomes)


@pytest.mark.parametrize("seed", range(20))
def test_seeded_interleavings_of_tasks(seed: int) -> None:
    """Bodies, sources and readers of random length; cancelled, failing or read to the end: the invariants hold."""
    rng = random.Random(seed)
    concurrency = rng.randint(1, 5)
    window = concurrency + rng.randint(0, 5)
    count, fails_at = rng.randint(1, 60), rng.choice([None, None, rng.randrange(60)])
    leaves_at = rng.choice([None, rng.randint(1, 30)])
    closed, flying, started, read = 0, 0, 0, 0

    async def turns(most: int) -> None:
        for _ in range(rng.randint(0, most)):
            await asyncio.sleep(0)

    async def items() -> AsyncIterator[int]:
        nonlocal closed
        try:
            for item in range(count):
                await turns(2)
                yield item
        finally:
            closed += 1

    async def body(item: int) -> int:
        nonlocal flying, started
        flying += 1
        started += 1
        assert flying <= concurrency
        assert started - read <= window
        try:
            await turns(6)
            if item == fails_at:
                raise KeyError(item)
            return item
        finally:
            flying -= 1

    async def main() -> list[int]:
        nonlocal read
        results: list[int] = []
        source: Callable[[], Any] = lambda: imap_limit(body, items(), concurrency=concurrency, window=window)  # noqa: E731
        async with aclosing(source()) as batch:
            try:
                async for result in batch:
                    read += 1
                    results.append(result)
                    await turns(3)
                    if read == leaves_at:
                        break
            except KeyError:
                assert fails_at is not None
        assert (flying, closed) == (0, 1)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return results

    results = asyncio.run(main())
    assert results == list(range(len(results)))
    if fails_at is None or fails_at >= count:
        assert len(results) == min(count, leaves_at or count)
