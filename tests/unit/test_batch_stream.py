"""imap_limit: one by one, in both orders, on an event loop and in threads."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, closing
from typing import Any

import pytest

import guarded
from guarded import Cancelled, CancelToken, DeadlineExceeded, Deadlock, Settled, deadline, imap_limit, race
from guarded.batch import settled_of
from guarded.testing import virtual_time


class Expected(Exception):
    """What a body raises on purpose."""


class Items:
    """An endless or bounded source of both kinds, which counts."""

    def __init__(self, count: int | None = None) -> None:
        self.count = count
        self.pulled = self.closed = 0

    def __next__(self) -> int:
        if self.pulled == self.count:
            raise StopIteration
        self.pulled += 1
        return self.pulled - 1

    def __iter__(self) -> Iterator[int]:
        return self

    def close(self) -> None:
        self.closed += 1


class AsyncItems(Items):
    __iter__ = None  # type: ignore[assignment]

    def __aiter__(self) -> AsyncIterator[int]:
        return self

    async def __anext__(self) -> int:
        await asyncio.sleep(0)
        try:
            return next(self)
        except StopIteration:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        self.closed += 1


async def double(item: int) -> int:
    await asyncio.sleep(0)
    return item * 2


async def read(batch: Any) -> list[Any]:
    return [result async for result in batch]


@pytest.mark.parametrize("source", [Items, AsyncItems])
def test_results_one_by_one_from_tasks(source: Any) -> None:
    """In input order; the source is closed once, at its end."""
    items = source(50)
    assert asyncio.run(read(imap_limit(double, items))) == [item * 2 for item in range(50)]
    assert items.closed == 1


def test_results_one_by_one_from_threads() -> None:
    """In input order; the source is closed once, at its end."""
    items = Items(50)
    assert list(imap_limit(lambda item: item * 2, items)) == [item * 2 for item in range(50)]
    assert items.closed == 1


def test_as_completed_from_tasks() -> None:
    """The slow one comes last."""

    async def main() -> list[int]:
        last = asyncio.Event()

        async def fn(item: int) -> int:
            if item == 0:
                await last.wait()
            if item == 9:
                last.set()
            return item

        return await read(imap_limit(fn, range(10), concurrency=2, window=4, as_completed=True))

    results = asyncio.run(main())
    assert sorted(results) == list(range(10))
    assert results.index(0) >= 8


def test_as_completed_from_threads() -> None:
    """The slow one does not hold up the others."""
    last = threading.Event()

    def fn(item: int) -> int:
        if item == 0:
            assert last.wait(10)
        return item

    results = []
    for result in imap_limit(fn, range(10), concurrency=2, as_completed=True):
        results.append(result)
        if len(results) == 9:
            last.set()
    assert results[-1] == 0
    assert sorted(results) == list(range(10))


def test_a_slow_head_stops_starts_at_the_window_only() -> None:
    """In order, with the first one blocked, exactly the window is started, no more and no fewer."""

    async def main() -> None:
        started: list[int] = []
        go_on = asyncio.Event()

        async def fn(item: int) -> int:
            started.append(item)
            if item == 0:
                await go_on.wait()
            return item

        batch = imap_limit(fn, Items(), concurrency=2, window=7)
        first = asyncio.ensure_future(anext(batch))
        for _ in range(50):
            await asyncio.sleep(0)
        assert started == list(range(7))
        go_on.set()
        assert await first == 0
        assert [await anext(batch) for _ in range(6)] == [1, 2, 3, 4, 5, 6]
        await batch.aclose()

    asyncio.run(main())


def test_items_run_while_the_reader_is_busy() -> None:
    """Up to the window, without a read."""

    async def main() -> int:
        items = Items()
        async with aclosing(imap_limit(double, items, concurrency=2, window=6)) as batch:
            assert await anext(batch) == 0
            for _ in range(50):
                await asyncio.sleep(0)
            return items.pulled

    assert asyncio.run(main()) == 7


def test_threads_go_on_while_the_reader_is_busy() -> None:
    """What was pulled before the first result was there is done meanwhile."""
    ended: list[int] = []
    queued, enough = threading.Event(), threading.Event()

    class Source(Items):
        def __next__(self) -> int:
            item = super().__next__()
            if item == 3:
                queued.set()
            return item

    def fn(item: int) -> int:
        queued.wait(10)  # the first result comes only when three more items are queued
        ended.append(item)
        if len(ended) >= 4:
            enough.set()
        return item

    with closing(imap_limit(fn, Source(), concurrency=1, window=4)) as batch:
        assert next(batch) == 0
        assert enough.wait(10)


def test_each_result_read_lets_another_item_begin() -> None:
    """Also when the next one is ready: a slow reader must not let the threads run dry."""
    pulled: list[int] = []
    full, ended = threading.Event(), threading.Semaphore(0)

    def items() -> Iterator[int]:
        for item in range(100):
            pulled.append(item)
            if item == 3:
                full.set()
            yield item

    def fn(item: int) -> int:
        full.wait(10)
        ended.release()
        return item

    batch = imap_limit(fn, items(), concurrency=2, window=4)
    for number in range(4, 8):
        next(batch)
        assert len(pulled) == number
        for _ in range(4 if number == 4 else 1):
            assert ended.acquire(timeout=10)
    batch.close()


@pytest.mark.parametrize("source", [Items, AsyncItems])
@pytest.mark.parametrize("way", ["break", "aclose", "raise", "cancel"])
def test_a_reader_that_stops_ends_a_batch_of_tasks(source: Any, way: str) -> None:
    """However it stops: the others are cancelled and awaited, the source is closed once."""
    items, running = source(), set()

    async def fn(item: int) -> int:
        if item < 3:
            return item
        running.add(item)
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            running.discard(item)
        return item

    async def reading() -> None:
        async with aclosing(imap_limit(fn, items)) as batch:
            async for result in batch:
                if result < 2:
                    continue
                while not running:
                    await asyncio.sleep(0)
                if way == "break":
                    break
                if way == "aclose":
                    await batch.aclose()
                if way == "raise":
                    raise Expected

    async def main() -> None:
        task = asyncio.create_task(reading())
        if way == "cancel":
            while not running:
                await asyncio.sleep(0)
            task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        expected = {"raise": Expected, "cancel": asyncio.CancelledError}.get(way, type(None))
        assert isinstance(outcome, expected)
        assert not running
        assert items.closed == 1
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_a_bare_break_ends_a_batch_of_tasks_soon() -> None:
    """Without `aclosing` the loop closes the dropped generator; nothing is left when it has."""
    items = Items()

    async def main() -> None:
        async for _ in imap_limit(double, items):
            break
        gc.collect()
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1
        assert items.closed == 1

    asyncio.run(main())


@pytest.mark.parametrize("way", ["break", "close", "raise"])
def test_a_reader_that_stops_ends_a_batch_of_threads(way: str) -> None:
    """Guarded waits end, all bodies have ended, the source is closed once."""
    items, running, blocked = Items(), set(), threading.Event()

    def fn(item: int) -> int:
        if item < 3:
            blocked.wait(10)  # the reader may be too fast to let another item be pulled
            return item
        running.add(item)
        blocked.set()
        try:
            guarded.sleep(3600)
        finally:
            running.discard(item)
        return item

    def reading() -> None:
        batch = imap_limit(fn, items)
        for result in batch:
            if result < 2:
                continue
            assert blocked.wait(10)
            if way == "raise":
                raise Expected
            if way == "close":
                batch.close()
            break
        del batch

    if way == "raise":
        with pytest.raises(Expected):
            reading()
        gc.collect()  # the traceback held the generator
    else:
        reading()
    assert not running
    assert items.closed == 1


def test_a_batch_that_is_never_read_does_nothing() -> None:
    """No task, no thread, no complaint."""
    items, more = Items(), AsyncItems()
    imap_limit(lambda item: item, items)
    imap_limit(double, more)
    gc.collect()
    assert (items.pulled, more.pulled) == (0, 0)


def test_results_before_the_error_are_handed_out_first() -> None:
    """Then the error, with its note; nothing runs by then."""

    async def fn(item: int) -> int:
        if item == 3:
            await asyncio.sleep(0)
            raise Expected
        return item

    async def main() -> None:
        results = []
        with pytest.raises(Expected) as caught:
            async for result in imap_limit(fn, Items()):
                results += [result]
        assert results == [0, 1, 2]
        assert caught.value.__notes__ == ["imap_limit: raised for item 3"]
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    plain: list[int] = []
    with pytest.raises(ZeroDivisionError):
        plain.extend(imap_limit(lambda item: 6 // (3 - item), Items(), concurrency=1))
    assert plain == [2, 3, 6]


def test_collect_yields_outcomes() -> None:
    """In order, each with its index."""

    def fn(item: int) -> int:
        if item % 2:
            raise Expected(item)
        return item

    outcomes: list[Settled[int]] = list(imap_limit(fn, range(6), errors="collect"))
    assert [(settled.index, settled.ok) for settled in outcomes] == [(index, index % 2 == 0) for index in range(6)]


def test_a_token_ends_a_batch_whose_reader_is_busy() -> None:
    """What ran is cancelled though nobody waits; the next read says so, with the outcomes nobody has read."""

    async def main() -> None:
        token, cancelled = CancelToken(), asyncio.Event()

        async def fn(item: int) -> int:
            if item > 2:
                try:
                    await asyncio.sleep(3600)
                finally:
                    cancelled.set()
            return item

        batch = imap_limit(fn, Items(), cancel=token)
        assert await anext(batch) == 0
        token.cancel("closing")
        await cancelled.wait()
        with pytest.raises(Cancelled) as caught:
            await read(batch)
        assert caught.value.reason == "closing"
        assert all(settled.index > 0 for settled in settled_of(caught.value))

    asyncio.run(main())


def test_a_token_with_a_time_ends_a_batch_whose_reader_is_busy() -> None:
    """The loop's own timer sees to it."""
    with virtual_time() as time:

        async def main() -> float:
            ended: list[float] = []

            async def fn(item: int) -> int:
                if item:
                    try:
                        await guarded.asleep(100)
                    finally:
                        ended.append(time.monotonic())
                return item

            started = time.monotonic()
            batch = imap_limit(fn, Items(), concurrency=2, cancel=CancelToken.after(5))
            assert await anext(batch) == 0
            await guarded.asleep(20)
            with pytest.raises(Cancelled):
                await anext(batch)
            return ended[0] - started

        assert asyncio.run(main()) == pytest.approx(5)


def test_a_token_stops_threads_whose_reader_is_busy() -> None:
    """No further item is begun, and none is pulled by the next read."""
    token, items = CancelToken(), Items()
    batch = imap_limit(lambda item: item, items, concurrency=1, cancel=token)
    assert next(batch) == 0
    token.cancel()
    pulled = items.pulled
    with pytest.raises(Cancelled):
        list(batch)
    assert items.pulled == pulled
    assert items.closed == 1


def test_a_deadline_around_a_plain_reader() -> None:
    """The wait for the next result obeys it."""
    with virtual_time():
        scope = deadline(5, mode="cooperative")
        with scope, pytest.raises(DeadlineExceeded):
            for _ in imap_limit(lambda item: guarded.sleep(2), Items(), concurrency=1):
                pass


def test_a_plain_batch_is_not_read_on_a_loop() -> None:
    """A generator made outside blocks, so a loop's thread is refused."""
    batch = imap_limit(lambda item: guarded.sleep(60), [1])

    async def main() -> None:
        with pytest.raises(Deadlock, match="imap_limit would block"):
            next(batch)

    asyncio.run(main())


def test_an_endless_source_that_waits_is_cancelled() -> None:
    """The pull that hangs is cancelled, sees it, and the source is closed after."""
    events: list[str] = []

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                events.append("pull cancelled")
                raise
        finally:
            events.append("closed")

    async def main() -> None:
        async with aclosing(imap_limit(double, source())) as batch:
            assert await anext(batch) == 2
            await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    assert events == ["pull cancelled", "closed"]


def test_a_source_that_swallows_its_cancellation() -> None:
    """The item it gives all the same is not started, and it is asked no more."""
    started: list[int] = []

    async def source() -> AsyncIterator[int]:
        yield 0
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
        yield 1
        yield 2

    async def fn(item: int) -> int:
        started.append(item)
        return item

    async def main() -> None:
        async with aclosing(imap_limit(fn, source())) as batch:
            assert await anext(batch) == 0
            await asyncio.sleep(0)

    asyncio.run(main())
    assert started == [0]


def test_a_loser_in_a_race_is_closed_too() -> None:
    """Batches nest in combinators: the one that loses leaves nothing running."""
    items = AsyncItems()

    async def consume() -> int:
        async with aclosing(imap_limit(double, items)) as batch:
            return sum([result async for result in batch])

    async def main() -> None:
        assert await race(consume(), asyncio.sleep(0.01, "first")) == "first"
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    assert items.closed == 1
