"""Batches on executors: thread pools, process pools, Dask, and those that refuse."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from contextvars import ContextVar
from typing import Any

import pytest

from guarded import (
    Cancelled,
    CancelToken,
    deadline,
    gather_limit,
    imap_limit,
    limit,
    map_limit,
    registry,
    remaining,
    retry,
    sleep,
)
from guarded.batch import settled_of

place: ContextVar[str] = ContextVar("place", default="nowhere")


@retry(retries=2, base=0.001, name="executor-retry")
@limit(3, name="executor-limit")
def square(item: int) -> tuple[int, int, list[str]]:
    """What a worker process runs: it tells where, and which policies it found there."""
    return item * item, os.getpid(), sorted(name for name in registry if name.startswith("executor-"))


def fails_at_five(item: int, index: int) -> int:
    if item == 5:
        raise KeyError("five")
    return index


async def on_a_loop(item: int) -> int:
    await asyncio.sleep(0)
    return item + 1


def time_left(item: int) -> float:
    return remaining()


def dies(item: int) -> int:
    os._exit(3)


def pid() -> int:
    return os.getpid()


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    """A real process pool, which imports this module by its name."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("forkserver")) as pool:
        yield pool


@pytest.fixture(scope="module")
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.mark.real_clock
def test_a_process_pool_finds_policies_by_name(processes: ProcessPoolExecutor) -> None:
    """The function travels by its name, and comes with the policies that its module makes there."""
    results = map_limit(square, range(20), executor=processes)
    assert [value for value, _, _ in results] == [item * item for item in range(20)]
    assert os.getpid() not in {where for _, where, _ in results}
    assert all(names == ["executor-limit", "executor-retry"] for _, _, names in results)


@pytest.mark.real_clock
def test_all_ways_of_a_batch_on_a_process_pool(processes: ProcessPoolExecutor) -> None:
    """Errors, outcomes, streams, thunks, coroutine functions, an event loop."""
    with pytest.raises(KeyError, match="five") as caught:
        map_limit(fails_at_five, range(100), executor=processes)
    assert caught.value.__notes__[-1] == "map_limit: raised for item 5"
    outcomes = map_limit(fails_at_five, range(8), executor=processes, errors="collect")
    assert [settled.ok for settled in outcomes] == [index != 5 for index in range(8)]
    assert sorted(imap_limit(abs, [-3, -2, -1], executor=processes, as_completed=True)) == [1, 2, 3]
    assert os.getpid() not in gather_limit(pid, pid, executor=processes)
    assert asyncio.run(map_limit(on_a_loop, range(5), executor=processes)) == [1, 2, 3, 4, 5]
    with closing(imap_limit(abs, iter(int, 1), executor=processes)) as endless:
        assert next(endless) == 0


@pytest.mark.real_clock
def test_the_seconds_left_travel_to_a_process(processes: ProcessPoolExecutor) -> None:
    """A deadline around the batch holds on the other side too."""
    with deadline(30, mode="cooperative"):
        (left,) = map_limit(time_left, [0], executor=processes)
    assert 0 < left <= 30
    assert map_limit(time_left, [0], executor=processes) == [float("inf")]


@pytest.mark.real_clock
def test_a_process_that_dies_breaks_its_items_only() -> None:
    """They fail with the error of the pool; the batch ends."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("forkserver")) as pool:
        outcomes = map_limit(dies, range(3), executor=pool, errors="collect", concurrency=1)
        assert all(isinstance(settled.error, BrokenProcessPool) for settled in outcomes)
        with pytest.raises(BrokenProcessPool):
            asyncio.run(map_limit(on_a_loop, range(3), executor=pool))


def test_a_thread_pool_keeps_the_context(threads: ThreadPoolExecutor) -> None:
    """It shares our memory, so each item has its copy; and no more than `concurrency` are on it at once."""
    lock, now, peak = threading.Lock(), [0], [0]

    def fn(item: int) -> str:
        with lock:
            now[0] += 1
            peak[0] = max(peak[0], now[0])
        seen = place.get()
        place.set("item")
        with lock:
            now[0] -= 1
        return seen

    token = place.set("caller")
    try:
        assert map_limit(fn, range(50), executor=threads, concurrency=2) == ["caller"] * 50
    finally:
        place.reset(token)
    assert peak[0] <= 2


def test_a_token_reaches_items_on_a_thread_pool(threads: ThreadPoolExecutor) -> None:
    """Guarded waits end there as anywhere; items that had not begun are cancelled in the pool's queue."""
    token, running = CancelToken(), threading.Barrier(5)

    def fn(item: int) -> None:
        running.wait(10)
        sleep(3600)

    def cancel() -> None:
        running.wait(10)
        token.cancel("enough")

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(Cancelled, match="enough") as caught:
        map_limit(fn, range(100), executor=threads, concurrency=8, cancel=token)
    thread.join()
    assert 4 <= len(settled_of(caught.value)) <= 8
    assert all(settled.cancelled for settled in settled_of(caught.value))


def test_an_item_whose_turn_comes_too_late_does_not_begin() -> None:
    """A thread of the pool may take it before its batch has taken it back."""

    class Quick(ThreadPoolExecutor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            future = super().submit(fn, *args, **kwargs)
            future.cancel = lambda: False  # type: ignore[method-assign]
            waiting.append(future)
            if len(waiting) == 8:
                full.set()
            return future

    token, begun, waiting, full = CancelToken(), [], [], threading.Event()

    def fn(item: int) -> None:
        begun.append(item)
        full.wait(10)
        token.cancel("enough")
        sleep(3600)

    with Quick(1) as pool, pytest.raises(Cancelled, match="enough"):
        map_limit(fn, range(100), executor=pool, concurrency=8, cancel=token)
    assert begun == [0]


def test_fail_fast_on_an_executor_waits_for_what_runs(threads: ThreadPoolExecutor) -> None:
    """From a loop and from plain code."""
    running: set[int] = set()

    def fn(item: int) -> None:
        running.add(item)
        try:
            if item == 3:
                raise KeyError
            sleep(0.01)
        finally:
            running.discard(item)

    with pytest.raises(KeyError):
        map_limit(fn, range(1000), executor=threads)
    assert not running

    async def main() -> None:
        with pytest.raises(KeyError):
            await map_limit(fn, range(1000), executor=threads)  # type: ignore[misc]
        assert not running

    asyncio.run(main())


def test_an_executor_that_takes_nothing() -> None:
    """Its refusal is the outcome of each item."""
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    outcomes = map_limit(abs, range(3), executor=pool, errors="collect")
    assert [type(settled.error) for settled in outcomes] == [RuntimeError] * 3
    with pytest.raises(RuntimeError, match="shutdown"):
        map_limit(abs, range(3), executor=pool)


class AtOnce(Executor):
    """An executor of somebody else that runs everything in place."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def test_an_executor_that_runs_in_place() -> None:
    """Futures that are done when they are handed over are fine, for many items too."""
    assert map_limit(abs, range(5000), executor=AtOnce()) == list(range(5000))
    assert list(imap_limit(abs, range(100), executor=AtOnce())) == list(range(100))


@pytest.mark.slow
@pytest.mark.real_clock
@pytest.mark.filterwarnings("ignore")
def test_dask_runs_a_batch(tmp_path: Any) -> None:
    """Through the executor that Dask's own client gives, in worker processes, with policies by name."""
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(
        n_workers=1,
        threads_per_worker=2,
        processes=True,
        dashboard_address=None,
        local_directory=str(tmp_path),
        host="127.0.0.1",
    )
    with cluster, distributed.Client(cluster) as client, client.get_executor() as executor:
        results = map_limit(square, range(12), executor=executor)
        assert [value for value, _, _ in results] == [item * item for item in range(12)]
        assert os.getpid() not in {where for _, where, _ in results}
        assert all(names == ["executor-limit", "executor-retry"] for _, _, names in results)
        with pytest.raises(KeyError):
            map_limit(fails_at_five, range(50), executor=executor)
        assert asyncio.run(map_limit(on_a_loop, range(5), executor=executor)) == [1, 2, 3, 4, 5]
        started = time.monotonic()
        with closing(imap_limit(abs, iter(int, 1), executor=executor)) as endless:
            assert [next(endless) for _ in range(5)] == [0] * 5
        assert time.monotonic() - started < 30
