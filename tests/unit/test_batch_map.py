"""map_limit and gather_limit, on an event loop and in threads."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import pytest

import guarded
from guarded import (
    Cancelled,
    CancelToken,
    DeadlineExceeded,
    Deadlock,
    Settled,
    asleep,
    checkpoint,
    deadline,
    gather_limit,
    limit,
    map_limit,
    rate,
    remaining,
)
from guarded._core.workers import _Worker, workers
from guarded.batch import settled_of
from guarded.testing import virtual_time

place: ContextVar[str] = ContextVar("place", default="nowhere")


class Expected(Exception):
    """What a body raises on purpose."""


class Source:
    """Items that count how far they were pulled and how often they were closed."""

    def __init__(self, count: int | None, fails_at: int | None = None) -> None:
        self.count = count
        self.fails_at = fails_at
        self.pulled = 0
        self.closed = 0
        self.pulling = 0

    def step(self) -> int | None:
        if self.pulled == self.fails_at:
            raise OSError("the source is gone")
        if self.pulled == self.count:
            return None
        self.pulled += 1
        return self.pulled - 1


class PlainSource(Source):
    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        item = self.step()
        if item is None:
            raise StopIteration
        return item

    def close(self) -> None:
        self.closed += 1


class AsyncSource(Source):
    def __aiter__(self) -> AsyncIterator[int]:
        return self

    async def __anext__(self) -> int:
        assert not self.pulling, "two pulls at once"
        self.pulling += 1
        await asyncio.sleep(0)
        self.pulling -= 1
        item = self.step()
        if item is None:
            raise StopAsyncIteration
        return item

    async def aclose(self) -> None:
        self.closed += 1


class Gauge:
    """How many bodies run at once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = self.peak = self.total = 0

    def __enter__(self) -> None:
        with self.lock:
            self.now += 1
            self.total += 1
            self.peak = max(self.peak, self.now)

    def __exit__(self, *exc_info: object) -> None:
        with self.lock:
            self.now -= 1

    def ended(self) -> int:
        with self.lock:
            return self.total - self.now


def run(batch: Any) -> Any:
    """The result of a batch, whichever kind it is."""
    return asyncio.run(batch) if asyncio.iscoroutine(batch) else batch


def async_body(body: Callable[..., Any], gauge: Gauge) -> Callable[[Any, int], Awaitable[Any]]:
    async def fn(item: Any, index: int) -> Any:
        with gauge:
            await asyncio.sleep(0)
            return body(item, index)

    return fn


def plain_body(body: Callable[..., Any], gauge: Gauge) -> Callable[[Any, int], Any]:
    def fn(item: Any, index: int) -> Any:
        with gauge:
            return body(item, index)

    return fn


KINDS = pytest.mark.parametrize("make", [async_body, plain_body], ids=["async", "threads"])
SOURCES = pytest.mark.parametrize(
    ("make", "source"),
    [(async_body, PlainSource), (async_body, AsyncSource), (plain_body, PlainSource), (plain_body, AsyncSource)],
    ids=["async-plain", "async-async", "threads-plain", "threads-async"],
)


@SOURCES
def test_results_come_in_input_order(make: Any, source: Any) -> None:
    """Whatever ends first; never more at once than allowed; the source is closed once."""
    gauge, items = Gauge(), source(100)
    results = run(map_limit(make(lambda item, index: (item * 2, index), gauge), items, concurrency=3))
    assert results == [(item * 2, item) for item in range(100)]
    assert gauge.peak <= 3
    assert items.closed == 1


@SOURCES
def test_the_first_error_ends_the_batch(make: Any, source: Any) -> None:
    """It is the very object, with a note of the index and nothing of the item; nothing runs when it comes."""
    gauge, items, error = Gauge(), source(None), ValueError("no")

    def body(item: int, index: int) -> int:
        if item == 20:
            raise error
        return item

    with pytest.raises(ValueError, match="no") as caught:
        run(map_limit(make(body, gauge), items, concurrency=4))
    assert caught.value is error
    assert error.__notes__ == ["map_limit: raised for item 20"]
    assert gauge.now == 0
    assert items.closed == 1
    assert items.pulled <= gauge.total + 8
    assert settled_of(error) == []


@SOURCES
def test_collect_gives_every_outcome_in_input_order(make: Any, source: Any) -> None:
    """Errors are outcomes; their objects are kept."""
    gauge, items = Gauge(), source(30)

    def body(item: int, index: int) -> int:
        if item % 3 == 1:
            raise KeyError(item)
        return -item

    outcomes: list[Settled[int]] = run(map_limit(make(body, gauge), items, errors="collect"))
    assert [settled.index for settled in outcomes] == list(range(30))
    assert [settled.ok for settled in outcomes] == [index % 3 != 1 for index in range(30)]
    assert [settled.value for settled in outcomes] == [None if index % 3 == 1 else -index for index in range(30)]
    assert all(settled.ok or settled.error.args == (settled.index,) for settled in outcomes)  # type: ignore[union-attr]
    assert not any(settled.cancelled for settled in outcomes)
    with pytest.raises(KeyError):
        outcomes[1].result()
    assert items.closed == 1


@SOURCES
def test_a_failing_source_ends_a_batch_that_raises(make: Any, source: Any) -> None:
    """With its own error, the outcomes so far behind it, and the source closed."""
    gauge, items = Gauge(), source(None, fails_at=10)
    with pytest.raises(OSError, match="gone") as caught:
        run(map_limit(make(lambda item, index: item, gauge), items))
    assert items.closed == 1
    assert gauge.now == 0
    assert len(settled_of(caught.value)) == 10


@SOURCES
def test_a_failing_source_lets_a_collecting_batch_finish(make: Any, source: Any) -> None:
    """What was running ends by itself; the outcomes are behind the error of the source."""
    gauge, items = Gauge(), source(None, fails_at=10)
    with pytest.raises(OSError, match="gone") as caught:
        run(map_limit(make(lambda item, index: item, gauge), items, errors="collect"))
    assert [settled.value for settled in settled_of(caught.value)] == list(range(10))
    assert items.closed == 1


def test_a_failing_close_of_the_source_is_raised() -> None:
    """It is the source's last word, and not to be lost."""

    class Bad(PlainSource):
        def close(self) -> None:
            raise OSError("cannot close")

    with pytest.raises(OSError, match="cannot close") as caught:
        map_limit(lambda item: item, Bad(3))
    assert [settled.value for settled in settled_of(caught.value)] == [0, 1, 2]


def test_a_slow_first_item_does_not_stop_the_others() -> None:
    """In both kinds: the first ends after all others have."""
    count = 50

    async def in_tasks() -> list[int]:
        others, done = asyncio.Event(), 0

        async def fn(item: int) -> int:
            nonlocal done
            if item == 0:
                await others.wait()
            done += 1
            if done == count - 1:
                others.set()
            return item

        return await map_limit(fn, range(count), concurrency=2)

    others = threading.Event()
    done: list[int] = []

    def plain(item: int) -> int:
        if item == 0:
            assert others.wait(10)
        done.append(item)
        if len(done) == count - 1:
            others.set()
        return item

    assert asyncio.run(in_tasks()) == list(range(count))
    assert map_limit(plain, range(count), concurrency=2) == list(range(count))
    assert done[-1] == 0


@KINDS
def test_items_are_pulled_no_further_ahead_than_the_window(make: Any) -> None:
    """While no item ends, the source is asked for no more than may wait."""
    gauge, items = Gauge(), PlainSource(None)
    seen: list[int] = []

    def body(item: int, index: int) -> int:
        pulled = items.pulled  # looked at first: others may end, and more be pulled, at any point
        seen.append(pulled - gauge.ended())
        if item == 200:
            raise Expected
        return item

    with pytest.raises(Expected):
        run(map_limit(make(body, gauge), items, concurrency=3, window=5))
    assert max(seen) <= 5
    assert gauge.peak <= 3


@KINDS
def test_each_item_has_a_copy_of_the_callers_context(make: Any) -> None:
    """It sees what the caller set, and neither another item nor the caller sees what it sets."""
    gauge = Gauge()
    token = place.set("caller")

    def body(item: int, index: int) -> str:
        before = place.get()
        place.set(f"item {item}")
        return before

    try:
        assert run(map_limit(make(body, gauge), range(20), concurrency=2)) == ["caller"] * 20
        assert place.get() == "caller"
    finally:
        place.reset(token)


@KINDS
def test_a_shared_limit_holds_for_batches_and_others(make: Any) -> None:
    """A policy on the function draws on the budget of its name, whatever the batch would allow."""
    gauge, budget = Gauge(), limit(2, name="db")
    fn = budget(make(lambda item, index: item, gauge))
    assert run(map_limit(fn, range(30), concurrency=8)) == list(range(30))
    assert gauge.peak <= 2
    assert budget.snapshot().held == 0


@KINDS
def test_a_shared_rate_paces_a_batch(make: Any) -> None:
    """Ten items at two a second take four seconds and a half of virtual time at least."""
    with virtual_time() as time:
        started = time.monotonic()
        fn = rate("2/s")(make(lambda item, index: item, Gauge()))
        assert run(map_limit(fn, range(10), concurrency=5)) == list(range(10))
        assert time.monotonic() - started >= 4.0


@KINDS
def test_an_item_may_hold_what_its_caller_holds(make: Any) -> None:
    """A limit that the caller holds, taken again by an item with no permit free, is noticed, not waited for."""
    db = limit(1, name="db")
    fn = db(make(lambda item, index: item, Gauge()))

    async def main() -> None:
        async with db:
            await map_limit(fn, [1])

    if make is async_body:
        with pytest.raises(Deadlock, match="inside itself"):
            asyncio.run(main())
    else:
        with db, pytest.raises(Deadlock, match="inside itself"):
            map_limit(fn, [1])


def test_plain_functions_on_a_running_loop() -> None:
    """The list is awaitable there, since blocking would freeze the loop; the function runs in threads."""
    loop_thread: list[int] = []

    def where(item: int) -> bool:
        return threading.get_ident() != loop_thread[0]

    async def main() -> list[bool]:
        loop_thread.append(threading.get_ident())
        return await map_limit(where, range(5))  # type: ignore[misc, no-any-return]

    assert asyncio.run(main()) == [True] * 5


def test_functions_that_give_awaitables_work_on_a_running_loop() -> None:
    """A lambda around a coroutine function is awaited, and so are thunks."""

    async def double(item: int) -> int:
        await asyncio.sleep(0)
        return item * 2

    async def main() -> tuple[list[int], list[object]]:
        doubled = await map_limit(lambda item: double(item), range(3))
        unlike = await gather_limit(lambda: double(4), double_nine, lambda: "plain")  # type: ignore[misc]
        return doubled, unlike

    async def double_nine() -> int:
        return await double(9)

    assert asyncio.run(main()) == ([0, 2, 4], [8, 18, "plain"])


def test_functions_that_give_coroutines_fail_in_plain_code() -> None:
    """Nobody could await them there; the error says so, and no coroutine complains."""

    async def double(item: int) -> int:
        return item * 2

    with pytest.raises(TypeError, match="no event loop is running"):
        map_limit(lambda item: double(item), range(3))  # type: ignore[unused-coroutine]


def test_gather_limit_of_plain_functions() -> None:
    """In order, at most so many at once; errors as for map_limit."""
    gauge = Gauge()
    thunks = [lambda number=number: plain_body(lambda item, index: item, gauge)(number, 0) for number in range(9)]
    assert gather_limit(*thunks, concurrency=2) == list(range(9))
    assert gauge.peak <= 2
    outcomes = gather_limit(lambda: 1, lambda: 1 // 0, errors="collect")
    assert [settled.ok for settled in outcomes] == [True, False]
    with pytest.raises(ZeroDivisionError) as caught:
        gather_limit(lambda: 1, lambda: 1 // 0)
    assert caught.value.__notes__ == ["gather_limit: raised for item 1"]


def test_a_token_ends_a_batch_of_tasks_and_leaves_its_outcomes() -> None:
    """From another thread: what ended keeps its outcome, what ran is marked, what was not pulled is not there."""
    token, blocked = CancelToken(), []

    async def fn(item: int) -> int:
        if item >= 5:
            blocked.append(item)
            if len(blocked) == 4:
                threading.Thread(target=token.cancel, args=("enough",)).start()
            await asyncio.sleep(3600)
        return item

    with pytest.raises(Cancelled) as caught:
        asyncio.run(map_limit(fn, range(1000), concurrency=4, cancel=token))
    assert caught.value.reason == "enough"
    outcomes = settled_of(caught.value)
    assert [settled.value for settled in outcomes] == [0, 1, 2, 3, 4, None, None, None, None]
    assert [settled.cancelled for settled in outcomes] == [False] * 5 + [True] * 4


@pytest.mark.parametrize("errors", ["raise", "collect"])
def test_a_token_ends_a_batch_of_threads_and_leaves_its_outcomes(errors: Any) -> None:
    """Guarded waits in the bodies end; items that were only queued are marked too."""
    token, blocked = CancelToken(), threading.Barrier(3)

    def fn(item: int) -> int:
        if item >= 2:
            blocked.wait(10)
            guarded.sleep(3600)
        return item

    def cancel() -> None:
        blocked.wait(10)
        token.cancel("enough")

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(Cancelled) as caught:
        map_limit(fn, range(1000), concurrency=2, errors=errors, cancel=token)
    thread.join()
    outcomes = settled_of(caught.value)
    assert [settled.value for settled in outcomes[:2]] == [0, 1]
    assert len(outcomes) >= 4
    assert all(settled.cancelled for settled in outcomes[2:])
    assert [settled.index for settled in outcomes] == list(range(len(outcomes)))


@KINDS
def test_a_token_that_has_fired_lets_nothing_start(make: Any) -> None:
    """The source is closed without having been asked."""
    token, gauge, items = CancelToken(), Gauge(), PlainSource(5)
    token.cancel("before")
    with pytest.raises(Cancelled):
        run(map_limit(make(lambda item, index: item, gauge), items, cancel=token))
    assert (gauge.total, items.pulled, items.closed) == (0, 0, 1)


@KINDS
def test_the_token_around_the_caller_ends_the_batch(make: Any) -> None:
    """`with token:` needs no argument."""
    token, gauge = CancelToken(), Gauge()

    def body(item: int, index: int) -> None:
        if item == 3:
            token.cancel("from inside")
        checkpoint()

    async def in_scope() -> None:
        with token:
            await map_limit(make(body, gauge), range(1000))

    with pytest.raises(Cancelled):
        if make is async_body:
            asyncio.run(in_scope())
        else:
            with token:
                map_limit(make(body, gauge), range(1000))
    assert gauge.total < 20


@KINDS
def test_a_token_with_a_time_ends_the_batch(make: Any) -> None:
    """`CancelToken.after` fires without anybody calling it."""
    with virtual_time() as time:
        started = time.monotonic()

        async def slow(item: int) -> None:
            await asleep(100)

        fn: Any = slow if make is async_body else lambda item: guarded.sleep(100)
        with pytest.raises(Cancelled, match="10 s have passed"):
            run(map_limit(fn, range(10), cancel=CancelToken.after("10s")))
        assert time.monotonic() - started == pytest.approx(10)


def test_task_cancellation_leaves_the_outcomes() -> None:
    """The CancelledError that comes out of the batch leads to them, also from outside the task."""

    async def main() -> None:
        reached = asyncio.Event()

        async def fn(item: int) -> int:
            if item == 3:
                reached.set()
                await asyncio.sleep(3600)
            return item

        task = asyncio.create_task(map_limit(fn, range(4), concurrency=4))
        await reached.wait()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert [settled.value for settled in settled_of(caught.value)] == [0, 1, 2, None]

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["thread", "cooperative"])
def test_a_deadline_over_a_batch_of_threads(mode: Any) -> None:
    """The items obey what is left of the caller's time, and so does the caller."""
    with virtual_time() as time:
        seen: list[float] = []

        def fn(item: int) -> None:
            seen.append(remaining())
            guarded.sleep(4)

        @deadline(10, mode=mode)
        def everything() -> None:
            map_limit(fn, range(100), concurrency=2)

        started = time.monotonic()
        with pytest.raises(DeadlineExceeded) as caught:
            everything()
        assert time.monotonic() - started == pytest.approx(10)
        assert [round(left) for left in seen[:4]] == [10, 10, 6, 6]
    if mode == "cooperative":
        assert [settled.ok for settled in settled_of(caught.value)][:4] == [True] * 4


def test_a_deadline_over_a_batch_of_tasks() -> None:
    """All items are cancelled and awaited at the point; the outcomes are behind the DeadlineExceeded."""
    with virtual_time() as time:
        ended = Gauge()

        async def fn(item: int) -> int:
            with ended:
                await asleep(4)
            return item

        @deadline(10)
        async def everything() -> None:
            await map_limit(fn, range(100), concurrency=2)

        started = time.monotonic()
        with pytest.raises(DeadlineExceeded) as caught:
            asyncio.run(everything())
        assert time.monotonic() - started == pytest.approx(10)
        assert ended.now == 0
        assert [settled.value for settled in settled_of(caught.value)] == [0, 1, 2, 3, None, None]


@KINDS
def test_an_exit_of_an_item_is_no_outcome(make: Any) -> None:
    """SystemExit goes to the caller, also out of a collecting batch."""
    gauge = Gauge()

    def body(item: int, index: int) -> None:
        if item == 2:
            raise SystemExit(7)

    with pytest.raises(SystemExit) as caught:
        run(map_limit(make(body, gauge), range(1000), errors="collect"))
    assert caught.value.code == 7
    assert gauge.now == 0


def test_an_item_that_is_cancelled_from_inside() -> None:
    """It counts as cancelled, and its CancelledError never reaches the caller, whom nobody has cancelled."""

    async def fn(item: int) -> int:
        if item == 1:
            raise asyncio.CancelledError
        return item

    async def main() -> None:
        outcomes = await map_limit(fn, range(3), errors="collect")
        assert [settled.cancelled for settled in outcomes] == [False, True, False]
        with pytest.raises(Cancelled, match="item 1 was cancelled"):
            await map_limit(fn, range(3))
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    asyncio.run(main())


def test_a_body_that_swallows_its_cancellation_is_waited_for() -> None:
    """Fail-fast leaves nothing running: the batch ends when the last body has."""
    events: list[str] = []

    async def fn(item: int) -> None:
        if item == 0:
            await asyncio.sleep(0)
            raise Expected
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            for _ in range(5):
                await asyncio.sleep(0)
            events.append("cleaned up")

    with pytest.raises(Expected):
        asyncio.run(map_limit(fn, range(2)))
    assert events == ["cleaned up"]


def test_a_second_cancellation_during_the_clean_up() -> None:
    """It reaches the bodies that still clean up, and the batch still waits for them."""
    log: list[str] = []

    async def fn(item: int) -> None:
        for name in ("first", "second"):
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                log.append(name)

    async def main() -> None:
        task = asyncio.create_task(map_limit(fn, [1]))
        for _ in range(2):
            for _ in range(5):
                await asyncio.sleep(0)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        log.append("batch")

    asyncio.run(main())
    assert log == ["first", "second", "batch"]


def test_fail_fast_waits_for_threads() -> None:
    """A thread cannot be interrupted: the error comes when the last body has ended, and no other has begun."""
    running, told = Gauge(), threading.Event()

    def fn(item: int) -> None:
        with running:
            if item == 0:
                raise Expected
            with suppress(Cancelled):
                guarded.sleep(3600)
            assert not told.wait(0.02)

    with pytest.raises(Expected):
        map_limit(fn, range(100), concurrency=3)
    told.set()
    assert running.now == 0
    assert running.total <= 3


def test_no_thread_to_be_had_is_an_error_and_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's own error comes out, when what did start has ended; the next batch is as any."""
    started, start, ended = [], _Worker.start, []
    monkeypatch.setattr(workers, "_idle", [])

    def limited(worker: _Worker) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(worker)
        start(worker)

    def fn(item: int) -> int:
        with suppress(Cancelled):
            guarded.sleep(3600)
        ended.append(item)
        return item

    with monkeypatch.context() as patched:
        patched.setattr(_Worker, "start", limited)
        with pytest.raises(RuntimeError, match="can't start new thread") as caught:
            map_limit(fn, range(10), concurrency=4)
        assert sorted(ended) == [0, 1]
        assert [settled.ok for settled in settled_of(caught.value)] == [True, True, False]
    assert map_limit(abs, range(10)) == list(range(10))


def test_ctrl_c_ends_a_batch_of_threads() -> None:
    """The bodies' guarded waits end, and the KeyboardInterrupt leads to the outcomes."""
    blocked = threading.Barrier(3)
    main_thread = threading.get_ident()

    def fn(item: int) -> int:
        if item > 1:
            blocked.wait(10)
            guarded.sleep(3600)
        return item

    def press() -> None:
        blocked.wait(10)
        while sys._current_frames()[main_thread].f_code.co_name != "park":
            time.sleep(0.001)
        time.sleep(0.02)  # then it is in the system's own wait, which a signal ends; one just before it waits as well
        signal.pthread_kill(main_thread, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background ignores it
    thread = threading.Thread(target=press)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            map_limit(fn, range(100), concurrency=2)
    finally:
        signal.signal(signal.SIGINT, before)
    thread.join()
    outcomes = settled_of(caught.value)
    assert [settled.value for settled in outcomes[:2]] == [0, 1]
    assert len(outcomes) > 3
    assert all(settled.cancelled for settled in outcomes[2:])


def test_files_stay_open() -> None:
    """An open file belongs to whoever opened it."""
    import io

    lines = io.StringIO("a\nbb\n")
    assert map_limit(lambda line: len(line.strip()), lines) == [1, 2]
    assert not lines.closed


def test_generators_of_items_see_the_end() -> None:
    """A generator is closed where it stands when the batch fails, in the thread that pulled it."""
    seen: list[object] = []

    def items() -> Iterator[int]:
        try:
            yield from range(1000)
        finally:
            seen.append(threading.current_thread())

    with pytest.raises(ZeroDivisionError):
        map_limit(lambda item: 1 // (3 - item), items())
    assert seen == [threading.current_thread()]


def test_raising_stop_iteration_does_not_hang() -> None:
    """The oddest error of all: futures refuse it, and generators turn it into another."""

    def fn(item: int) -> None:
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        map_limit(fn, [1])

    async def main() -> None:
        await map_limit(fn, [1])  # type: ignore[misc]

    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(main())
    (outcome,) = map_limit(fn, [1], errors="collect")
    assert isinstance(outcome.error, StopIteration)
