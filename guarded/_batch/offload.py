"""Running a plain function elsewhere: in a worker thread of guarded, or on an executor.

A body that runs in another thread cannot be interrupted: it is told to stop by its token, and waited for. Seconds.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from concurrent import futures
from concurrent.futures import Executor, Future
from contextvars import Context
from math import inf
from types import CoroutineType
from typing import Any, TypeVar

from guarded._core import clock
from guarded._core.call import Call, Deadline, current
from guarded._core.waiters import TaskWaiter
from guarded._core.workers import Job, workers

R = TypeVar("R")
Args = tuple[Any, ...]


def in_worker(context: Context, fn: Callable[..., R], args: Args) -> tuple[Job, Future[R]]:
    """Start `fn` in a worker thread, in `context`."""
    work: Future[R] = Future()
    work.set_running_or_notify_cancel()

    def body() -> None:
        try:
            result = context.run(fn, *args)
        except BaseException as error:
            work.set_exception(error)
        else:
            work.set_result(result)

    job = Job(body, lambda late: None)
    workers.start(job)
    return job, work


async def in_thread(
    context: Context, fn: Callable[..., R], args: Args, stop: Callable[[], object], patience: float
) -> R:
    """Run `fn` in a worker thread. A cancelled caller calls `stop` and still waits for the end, up to `patience`."""
    job, work = in_worker(context, _for_a_future, (fn, args))
    try:
        return await arrival(work, stop, patience)
    except asyncio.CancelledError:
        job.abandon()
        raise


def _for_a_future(fn: Callable[..., R], args: Args) -> R:
    try:
        return fn(*args)
    except StopIteration as error:  # asyncio's futures refuse it, and whoever waits would hang
        raise RuntimeError(f"{fn!r} raised StopIteration") from error


async def arrival(work: Future[R], stop: Callable[[], object], patience: float = inf) -> R:
    """The outcome of work in another thread. A cancelled caller calls `stop`, and still waits, up to `patience`."""
    ended = asyncio.wrap_future(work)
    try:
        await asyncio.wait({ended})
    except asyncio.CancelledError:
        stop()
        work.cancel()
        work.add_done_callback(_drop)
        await _ended_within(ended, patience)
        if ended.done():
            _ = ended.cancelled() or ended.exception()  # else asyncio complains that nobody looked
        else:
            ended.cancel()
        raise
    return ended.result()


def _drop(work: Future[Any]) -> None:
    """Nobody wants the outcome; a coroutine would complain that nobody awaited it."""
    if not work.cancelled() and work.exception() is None:
        close_unstarted(work.result())


def close_unstarted(value: object) -> None:
    """Spare a coroutine that nobody will await the complaint about it."""
    if inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
        value.close()


async def _ended_within(future: asyncio.Future[Any], patience: float) -> None:
    waiter = TaskWaiter()
    future.add_done_callback(lambda _: waiter.wake())
    until = clock.monotonic() + patience
    while not future.done():
        try:
            await waiter.park(until)
        except asyncio.CancelledError:
            waiter = TaskWaiter()  # cancelled once more: it makes nothing end sooner
        else:
            return


async def all_ended(futures: set[asyncio.Future[Any]]) -> None:
    """Wait for what was cancelled, and for its callbacks. A cancellation of the caller goes to them too, then out."""
    cancelled: asyncio.CancelledError | None = None
    while futures:
        try:
            await asyncio.wait(futures)
        except asyncio.CancelledError as error:
            cancelled = error
            for future in futures:
                future.cancel()
        futures = {future for future in futures if not future.done()}
    if cancelled is not None:
        raise cancelled


def call_plainly(what: str, fn: Callable[..., Any], args: Args) -> Any:
    """Call a plain function where no event loop could await what it gives."""
    result = fn(*args)
    if type(result) is CoroutineType:
        result.close()
        raise TypeError(
            f"{what}: a plain function gave a coroutine, and no event loop is running: call it from async code, or "
            "give an `async def`"
        )
    return result


def submit_to(executor: Executor, context: Context, caller: Call) -> Callable[[Callable[..., Any], Args], Future[Any]]:
    """How to put a call on `executor`: with its context where it shares our memory, else with the seconds left."""
    if _shares_memory(executor):
        return lambda fn, args: executor.submit(context.copy().run, _begin, fn, args)

    def submit(fn: Callable[..., Any], args: Args) -> Future[Any]:
        seconds = None if caller.until == inf else max(0.0, caller.until - clock.monotonic())
        return executor.submit(run_far_away, fn, args, seconds)

    return submit


def _shares_memory(executor: Executor) -> bool:
    apart: Any = getattr(futures, "InterpreterPoolExecutor", ())  # derives from ThreadPoolExecutor, and pickles
    return isinstance(executor, futures.ThreadPoolExecutor) and not isinstance(executor, apart)


def _begin(fn: Callable[..., Any], args: Args) -> Any:
    """Run a call whose turn has come, unless its batch has ended meanwhile."""
    call = current.get()
    if call is not None and call.token is not None:
        call.token.raise_if_cancelled("waiting for a thread")
    return run_to_end(fn, args)


def run_far_away(fn: Callable[..., Any], args: Args, seconds: float | None) -> Any:
    """Run a call in another process, with the seconds it has left there."""
    if seconds is None:
        return run_to_end(fn, args)
    call = Call()
    call.function = "batch"
    call.deadline = Deadline(clock.monotonic() + seconds, length=seconds)
    token = current.set(call)
    try:
        return run_to_end(fn, args)
    finally:
        current.reset(token)


def run_to_end(fn: Callable[..., Any], args: Args) -> Any:
    """The result of a call; that of a coroutine function on an event loop of its own."""
    result = fn(*args)
    return asyncio.run(_awaited(result)) if type(result) is CoroutineType else result


async def _awaited(coroutine: Coroutine[Any, Any, R]) -> R:
    return await coroutine
