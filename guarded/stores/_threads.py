"""Worker threads for stores whose client can only block."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Final, TypeVar

from guarded._core.fork import after_fork

_THREADS: Final = 8  # stores that block mostly wait for one lock, so that more would not be faster
ResultT = TypeVar("ResultT")


class _Threads:
    """Threads for nothing but steps of stores: those of a loop may all be taken by calls that wait for a step."""

    def __init__(self) -> None:
        self._reset()
        after_fork(self, _Threads._reset)

    def _reset(self) -> None:
        self.pool = ThreadPoolExecutor(_THREADS, "guarded-store")


_threads = _Threads()


async def in_thread(step: Callable[[], ResultT]) -> ResultT:
    """Make a blocking step of a store in a worker thread; it sees the running call and its deadline.

    Where no thread can be had (there are no more, or the process ends) the event loop has to wait for the step.
    """
    context, ended, once = copy_context(), Future[ResultT](), [None]

    def work() -> None:
        try:
            once.pop()
        except IndexError:
            return  # it is in the queue of the threads too
        if ended.set_running_or_notify_cancel():
            try:
                ended.set_result(context.run(step))
            except BaseException as error:
                ended.set_exception(error)

    try:
        _threads.pool.submit(work)
    except RuntimeError:
        work()
    return await asyncio.wrap_future(ended)
