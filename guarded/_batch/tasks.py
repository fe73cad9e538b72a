"""A batch on an event loop: one task pulls the items, each item is a task in a copy of the caller's context.

Whatever ends the batch, nothing runs any more when its reader is told. All methods run on the loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextvars import copy_context
from math import inf
from typing import Any, Generic, TypeVar, cast

from guarded._batch.course import WAITING, Course
from guarded._batch.offload import all_ended, arrival, in_thread, submit_to
from guarded._batch.plan import Plan, context_of, context_of_bodies
from guarded._batch.settled import Settled, cut_off, failure, success
from guarded._batch.source import AsyncSource, Source
from guarded._batch.window import Window
from guarded._core import clock, waiters
from guarded._core.kinds import kind_of
from guarded._core.waiters import TaskWaiter
from guarded.cancel import CancelToken
from guarded.errors import Cancelled

R = TypeVar("R")
Body = Callable[[Any, int], Awaitable[Any]]


class TaskBatch(Generic[R]):
    """One batch and its one reader; `read` drives it."""

    def __init__(self, plan: Plan, window: Window[R]) -> None:
        self._plan = plan
        self._window = window
        self._loop = asyncio.get_running_loop()
        self._caller = plan.caller()
        self._course = Course(plan.name, plan.errors == "raise", window, self._caller.until)
        self._token: CancelToken | None = None  # tells bodies in threads that nobody waits for them
        self._body = self._make_body()
        self._reports = plan.reports()
        items: Any = plan.items
        self._source: Source[Any] | AsyncSource[Any]
        self._source = AsyncSource(items) if hasattr(type(items), "__aiter__") else Source(items)
        self._puller: asyncio.Task[None] | None = None
        self._pulling = True
        self._tasks: dict[asyncio.Task[Any], int] = {}
        self._room: asyncio.Future[None] | None = None  # what the puller waits for
        self._reader: TaskWaiter | None = None
        self._last_word: BaseException | None = None

    def _make_body(self) -> Body:
        """How an item is run, and the context that each gets a copy of."""
        plan, split = self._plan, self._plan.split
        if plan.is_async and plan.executor is None and plan.name != "gather_limit":
            self._context = context_of(self._caller)
            return lambda item, index: _call(*split(item, index))
        self._context, self._token = context_of_bodies(plan.caller())
        if plan.executor is None:
            return self._run_mixed
        submit = submit_to(plan.executor, self._context, self._caller)

        async def run_on_executor(item: Any, index: int) -> Any:
            return await arrival(submit(*split(item, index)), self._tell_bodies)

        return run_on_executor

    async def _run_mixed(self, item: Any, index: int) -> Any:
        """Async functions here, others in threads; what those give may still have to be awaited."""
        fn, args = self._plan.split(item, index)
        if kind_of(fn) == "async":
            return await fn(*args)
        result = await in_thread(copy_context(), fn, args, self._tell_bodies, inf)
        return await result if inspect.isawaitable(result) else result

    async def read(self) -> AsyncGenerator[Settled[R], None]:
        """The outcomes, in the order of the window; then the error that ended the batch, if any."""
        token = self._caller.token
        registration = None if token is None else token.on_cancel(self._token_fired)
        timer = None
        if token is not None and token.until != inf:
            timer = clock.call_at(self._loop, token.until, self._obey_token)
        try:
            self._puller = self._loop.create_task(self._pull(), context=self._context.copy())
            while True:
                settled = self._window.take()
                if settled is not None:
                    self._make_room()
                    yield settled
                elif self._over():
                    break
                else:
                    self._reader = TaskWaiter()
                    await waiters.wait_async(self._caller, self._reader, inf, WAITING)
        except BaseException as error:
            if self._course.interrupted(error):
                self._stop()
            raise
        finally:
            if registration is not None:
                registration.close()
            if timer is not None:
                timer.cancel()
            await self._leave()
        if self._last_word is not None:
            raise self._last_word

    async def _leave(self) -> None:
        """Wait until nothing runs any more."""
        running: set[asyncio.Future[Any]] = {*self._tasks}
        if self._puller is not None and self._pulling:
            running.add(self._puller)
        try:
            await all_ended(running)
            await self._close_source()  # a puller that was cancelled before its first step has not
        finally:
            self._reports.close()
            self._last_word = self._course.farewell()

    async def _pull(self) -> None:
        """The one puller: takes an item in whenever there is room for it."""
        source, window, course = self._source, self._window, self._course
        try:
            while not course.stopped:
                if not window.has_room():
                    self._room = self._loop.create_future()
                    await self._room
                    continue
                try:
                    item = source.next() if isinstance(source, Source) else await source.next()
                except (StopIteration, StopAsyncIteration):
                    break
                if not course.stopped:
                    self._start(item)
        except Exception as error:
            if course.source_failed(error):
                self._stop()
        finally:
            self._pulling = False
            await self._close_source()
            self._tell_reader()

    async def _close_source(self) -> None:
        try:
            if isinstance(self._source, Source):
                self._source.close()
            else:
                await self._source.close()
        except Exception as error:
            self._course.close_failed(error)

    def _start(self, item: Any) -> None:
        index = self._window.start()
        task = self._loop.create_task(cast("Any", self._body(item, index)), context=self._context.copy())
        self._tasks[task] = index
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        index = self._tasks.pop(task)
        if task.cancelled():
            settled: Settled[R] = cut_off(index, self._course.reason)
        elif (error := task.exception()) is None:
            settled = success(task.result(), index)
        elif isinstance(error, Exception):
            settled = failure(error, index)
        else:
            if self._course.item_crashed(index, error):
                self._stop()
            self._tell_reader()
            return
        if self._course.item_ended(settled):
            self._stop()
        if self._reports.wanted and not settled.cancelled:
            self._reports.tell(settled.ok)
        self._make_room()
        self._tell_reader()

    def _make_room(self) -> None:
        if self._room is not None and self._window.has_room():
            if not self._room.done():
                self._room.set_result(None)
            self._room = None

    def _tell_reader(self) -> None:
        if self._reader is not None and (self._window.ready or self._over()):
            self._reader.wake()
            self._reader = None

    def _over(self) -> bool:
        return not self._pulling and not self._tasks

    def _stop(self) -> None:
        """Cancel what runs; nothing starts any more."""
        self._tell_bodies()
        for task in self._tasks:
            task.cancel()
        if self._puller is not None and self._pulling:  # else it is closing the source, and shall
            self._puller.cancel()

    def _tell_bodies(self) -> None:
        if self._token is not None:
            self._token.cancel(self._course.reason)

    def _token_fired(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._obey_token)
        except RuntimeError:
            pass  # the loop is closed: nothing is left to cancel

    def _obey_token(self) -> None:
        """The reader need not be waiting when the token fires; what runs is cancelled all the same."""
        token = self._caller.token
        if token is None or self._over():
            return
        try:
            token.raise_if_cancelled(WAITING)
        except Cancelled as error:
            if self._course.interrupted(error):
                self._stop()


async def _call(fn: Callable[..., Awaitable[R]], args: tuple[Any, ...]) -> R:
    return await fn(*args)
