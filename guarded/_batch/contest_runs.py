"""Driving a contest: in tasks where anything is async or a loop runs, else in worker threads.

Losers are cancelled and waited for; those in threads have their token fired. Seconds.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from math import inf
from typing import Any, cast

from guarded._batch.contest import Contest
from guarded._batch.offload import all_ended, call_plainly, close_unstarted, in_thread, in_worker
from guarded._batch.plan import context_of_bodies, scope_of, unpack_hint
from guarded._batch.settled import Settled, cut_off, failure, leave_behind, success
from guarded._core import clock, waiters
from guarded._core.kinds import kind_of
from guarded._core.waiters import TaskWaiter, ThreadWaiter
from guarded._core.workers import Job

DONE = "the outcome is decided"


def runs_async(entrants: Sequence[Any], name: str) -> bool:
    """Whether to run in tasks. TypeError for what can neither be awaited nor called."""
    for index, entrant in enumerate(entrants):
        if not inspect.isawaitable(entrant) and not callable(entrant):
            for other in entrants:
                close_unstarted(other)
            what, hint = type(entrant).__qualname__, unpack_hint(entrant)
            raise TypeError(f"{name}: argument {index} is {what}: give awaitables or callables{hint}")
    is_async = any(inspect.isawaitable(entrant) or kind_of(entrant) == "async" for entrant in entrants)
    return is_async or asyncio._get_running_loop() is not None


class _TaskRun:
    """One contest on an event loop."""

    def __init__(self, contest: Contest[Any], entrants: Sequence[Any]) -> None:
        self._contest = contest
        self._entrants = entrants
        self._waiter = TaskWaiter()
        self._futures: dict[asyncio.Future[Any], list[int]] = {}  # one awaitable may stand in several places
        self._caller = scope_of(contest.name, None)
        self._context, self._token = context_of_bodies(scope_of(contest.name, None))

    async def run(self) -> Any:
        contest = self._contest
        try:
            self._start()
            while not contest.decided:
                await waiters.wait_async(self._caller, self._waiter, inf, contest.waiting)
            if not contest.went_well:  # by the caller's own deadline or token, perhaps: then that is what it gets
                waiters.enter(self._caller, contest.waiting)
        except BaseException as error:
            await self._end()
            leave_behind(error, contest.all())
            raise
        await self._end()
        if contest.crash is not None:
            raise contest.crash
        return contest.answer()

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        known: dict[int, asyncio.Future[Any]] = {}
        for index, entrant in enumerate(self._entrants):
            future = known.get(id(entrant))
            if future is None or not inspect.isawaitable(entrant):
                if inspect.isawaitable(entrant):
                    future = asyncio.ensure_future(entrant, loop=loop)
                else:
                    future = loop.create_task(self._call(entrant), context=self._context.copy())
                known[id(entrant)] = future
                future.add_done_callback(self._ended)
            self._futures.setdefault(future, []).append(index)

    async def _call(self, fn: Callable[[], Any]) -> Any:
        if kind_of(fn) == "async":
            return await fn()
        stop = functools.partial(self._token.cancel, DONE)
        result = await in_thread(copy_context(), fn, (), stop, self._contest.patience)
        return await result if inspect.isawaitable(result) else result

    def _ended(self, future: asyncio.Future[Any]) -> None:
        for index in self._futures[future]:
            if future.cancelled():
                self._contest.take(cut_off(index, None, "call"))
            elif (error := future.exception()) is None:
                self._contest.take(success(future.result(), index))
            elif isinstance(error, Exception):
                self._contest.take(failure(error, index))
            else:
                self._contest.crash = error
        if self._contest.decided:
            self._waiter.wake()

    async def _end(self) -> None:
        running = {future for future in self._futures if not future.done()}
        if running:
            self._token.cancel(DONE)
        for future in running:
            future.cancel()
        await all_ended(running)


class _Entrants:
    """Keeps coroutines that were never started from complaining: the task of their contest may be cancelled before
    its first step, or one before them may be of another loop."""

    def __init__(self, entrants: Sequence[Any]) -> None:
        self.all = entrants

    def __del__(self) -> None:
        for entrant in self.all:
            close_unstarted(entrant)


def run_in_tasks(contest: Contest[Any], entrants: Sequence[Any]) -> Coroutine[Any, Any, Any]:
    """The answer of `contest`; all entrants have ended by then."""
    return _run_in_tasks(contest, _Entrants(entrants))


async def _run_in_tasks(contest: Contest[Any], entrants: _Entrants) -> Any:
    return await _TaskRun(contest, entrants.all).run()


class _ThreadRun:
    """One contest in worker threads."""

    def __init__(self, contest: Contest[Any], fns: Sequence[Callable[[], Any]]) -> None:
        self._contest = contest
        self._fns = fns
        self._lock = threading.Lock()  # guards the contest and all that follows
        self._running = 0  # entrants that have begun and not ended; not all begin where there are no more threads
        self._leaving = False  # whether the waiter is for the end of those that run, and not for the answer
        self._waiter = ThreadWaiter()
        self._jobs: list[Job] = []
        self._caller = scope_of(contest.name, None)
        self._context, self._token = context_of_bodies(scope_of(contest.name, None))

    def run(self) -> Any:
        contest = self._contest
        try:
            for index, fn in enumerate(self._fns):
                job, work = in_worker(self._context.copy(), call_plainly, (contest.name, fn, ()))
                self._jobs.append(job)
                with self._lock:
                    self._running += 1
                work.add_done_callback(functools.partial(self._ended, index))
            while not contest.decided:
                waiters.wait(self._caller, self._waiter, inf, contest.waiting)
            if not contest.went_well:
                waiters.enter(self._caller, contest.waiting)
        except BaseException as error:
            self._end()
            leave_behind(error, contest.all())
            raise
        self._end()
        if contest.crash is not None:
            raise contest.crash
        return contest.answer()

    def _ended(self, index: int, work: Future[Any]) -> None:
        error = work.exception()
        settled: Settled[Any] | None
        if error is None:
            settled = success(work.result(), index)
        else:
            settled = failure(error, index) if isinstance(error, Exception) else None
        with self._lock:
            self._running -= 1
            if settled is not None:
                self._contest.take(settled)
            else:
                self._contest.crash = error
            wakes = self._contest.decided or self._leaving
            waiter = self._waiter
        if wakes:
            waiter.wake()

    def _end(self) -> None:
        """Wait for the losers, within the patience; those that still run are left behind."""
        if not self._running:
            return
        self._token.cancel(DONE)
        until = clock.monotonic() + self._contest.patience
        woken = True
        while woken:
            with self._lock:
                waiter = self._waiter = ThreadWaiter()
                self._leaving = True
                if not self._running:
                    return
            woken = waiter.park(until)
        for job in self._jobs:
            job.abandon()


def run_in_threads(contest: Contest[Any], fns: Sequence[Callable[[], Any]]) -> Any:
    """The answer of `contest`."""
    if fns:
        return _ThreadRun(contest, fns).run()
    return cast("Any", contest.answer())
