"""The copies of one hedged call, in worker threads or in tasks, until one succeeds or all have failed.

A copy works on a fork of the call and in a copy of the caller's context. Whoever leaves, for whatever reason,
leaves no copy behind that still thinks somebody waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Any, NoReturn

from guarded._core import clock, waiters
from guarded._core.call import Call, current
from guarded._core.policy import Args, AsyncNext, Fn, Kwargs, Policy, SyncNext
from guarded._core.token import Token, token_within
from guarded._core.workers import Job, workers
from guarded.events.bus import bus
from guarded.events.redact import cause_of
from guarded.policies._exceptions import reraise
from guarded.policies._hedge.core import Race
from guarded.policies._hedge.options import HedgeOptions
from guarded.policies._retry.budget import RetryBudget


class Contest:
    """One hedged call: its race, and what has become of the copies that ended.

    Args:
        policy: the hedge.
        observe: takes how many seconds a copy ran.
        budget: what additional copies are charged to.
        call: the call that is hedged.
        after: seconds before the next copy starts.
    """

    __slots__ = ("_began", "_budget", "_failures", "_policy", "call", "observe", "race")

    def __init__(
        self,
        policy: Policy[HedgeOptions],
        observe: Callable[[float], None],
        budget: RetryBudget | None,
        call: Call,
        after: float,
    ) -> None:
        self.race = Race(after, policy.options.max_hedges)
        self.call = call
        self.observe = observe
        self._policy = policy
        self._budget = budget
        self._failures: list[Exception] = []
        self._began = clock.monotonic()

    def next_copy(self, running: int) -> int | None:
        """The number of the copy to start now, if any is due, in time, and allowed by the budget."""
        race, now = self.race, clock.monotonic()
        if race.due > now:
            return None
        if race.started == 0:
            return race.start(now)
        if now >= self.call.until or (self._budget is not None and not self._budget.withdraw()):
            race.stop()
            return None
        cause = self._failures[-1] if self._failures and race.why == "failed" else None
        waited = now - self._began
        bus.emit(
            "hedge.launched", self.call, self._policy, delay=waited, active=running + 1, cause=cause, reason=race.why
        )
        return race.start(now)

    def lost(self, error: BaseException) -> None:
        """A copy raised; control flow goes straight to the caller."""
        if not isinstance(error, Exception):
            reraise(error)
        self._failures.append(error)
        self.race.fail(clock.monotonic())

    def won(self, number: int, losers: list[float]) -> None:
        """Copy `number` has the answer; `losers` are the times at which those still running started."""
        now = clock.monotonic()
        for started in losers:
            self.observe(now - started)  # it took at least that long
        if number > 0:
            bus.emit(
                "hedge.won", self.call, self._policy,
                duration=now - self._began, active=len(losers), attempts=self.race.started,
            )  # fmt: skip

    def all_failed(self) -> NoReturn:
        """Raise what the first copy that failed raised; the others are noted on it."""
        first = self._failures[0]
        for other in self._failures[1:]:
            note = f"another copy of the call failed too: {cause_of(other)}"
            if other is not first and note not in getattr(first, "__notes__", ()):
                first.add_note(note)
        self._failures.clear()
        try:
            reraise(first)
        finally:
            del first


def adopt(context: Context) -> None:
    """Make what the winner has set in its context variables visible to the caller, as if it had run in place."""
    for variable, value in context.items():
        if variable is not current and variable.get(_UNSET) is not value:
            variable.set(value)


_UNSET: Any = object()


@dataclass(slots=True)
class _Copy:
    """One run of the rest of the stack in a worker thread or a task of its own."""

    number: int
    started: float
    context: Context
    twin: Call


def _new_copy(call: Call, number: int) -> _Copy:
    return _Copy(number, clock.monotonic(), copy_context(), call.fork())


@dataclass(slots=True)
class _ThreadCopy:
    copy: _Copy
    job: Job
    token: Token


def _start_thread(
    contest: Contest, waiter: waiters.ThreadWaiter, copy: _Copy, proceed: SyncNext, fn: Fn, args: Args, kwargs: Kwargs
) -> _ThreadCopy:
    twin = copy.twin
    twin.token = token = token_within(twin.token)

    def body() -> Any:
        current.set(twin)
        result = proceed(twin, fn, args, kwargs)
        if not token.cancelled:  # a loser has been counted, with the time it had run, when it lost
            contest.observe(clock.monotonic() - copy.started)
        return result

    job = Job(lambda: copy.context.run(body), lambda job: None, waiter)
    workers.start(job)
    return _ThreadCopy(copy, job, token)


def run_in_threads(contest: Contest, proceed: SyncNext, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
    """Run copies in worker threads until one succeeds or all have failed."""
    call = contest.call
    waiter = waiters.ThreadWaiter()  # any copy that ends wakes it, once or more
    running: list[_ThreadCopy] = []
    try:
        while True:
            for ended in [one for one in running if one.job.done]:
                running.remove(ended)
                if ended.job.error is None:
                    contest.won(ended.copy.number, [one.copy.started for one in running])
                    adopt(ended.copy.context)
                    return ended.job.result
                error, ended.job.error = ended.job.error, None
                contest.lost(error)
                del error
            while (number := contest.next_copy(len(running))) is not None:
                try:
                    running.append(_start_thread(contest, waiter, _new_copy(call, number), proceed, fn, args, kwargs))
                except RuntimeError:  # there are no more threads to be had
                    contest.race.stop()
                    if number == 0:
                        return _run_in_place(contest, proceed, fn, args, kwargs)
            if not running:
                contest.all_failed()
            waiters.wait(call, waiter, contest.race.due, "running")
    finally:
        for loser in running:
            loser.job.abandon()
            loser.token.cancel("nobody waits for this copy of the call any more")


def _run_in_place(contest: Contest, proceed: SyncNext, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
    started = clock.monotonic()
    result = proceed(contest.call, fn, args, kwargs)
    contest.observe(clock.monotonic() - started)
    return result


@dataclass(slots=True)
class _TaskCopy:
    copy: _Copy
    task: asyncio.Task[Any]


def _start_task(contest: Contest, copy: _Copy, proceed: AsyncNext, fn: Fn, args: Args, kwargs: Kwargs) -> _TaskCopy:
    async def body() -> Any:
        current.set(copy.twin)
        result = await proceed(copy.twin, fn, args, kwargs)
        contest.observe(clock.monotonic() - copy.started)
        return result

    return _TaskCopy(copy, asyncio.get_running_loop().create_task(body(), context=copy.context))


async def run_in_tasks(contest: Contest, proceed: AsyncNext, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
    """Run copies in tasks until one succeeds or all have failed."""
    call = contest.call
    running: list[_TaskCopy] = []
    try:
        while True:
            for ended in [one for one in running if one.task.done()]:
                running.remove(ended)
                error = _error_of(ended.task)
                if error is None:
                    contest.won(ended.copy.number, [one.copy.started for one in running])
                    adopt(ended.copy.context)
                    return ended.task.result()
                contest.lost(error)
                del error
            while (number := contest.next_copy(len(running))) is not None:
                running.append(_start_task(contest, _new_copy(call, number), proceed, fn, args, kwargs))
            if not running:
                contest.all_failed()
            await _until_one_ends(call, running, contest.race.due)
    finally:
        await _end(running)


async def _until_one_ends(call: Call, running: list[_TaskCopy], due: float) -> None:
    waiter = waiters.TaskWaiter()

    def wake(task: asyncio.Task[Any]) -> None:
        waiter.wake()

    for one in running:
        one.task.add_done_callback(wake)
    try:
        await waiters.wait_async(call, waiter, due, "running")
    finally:
        for one in running:
            one.task.remove_done_callback(wake)


def _error_of(task: asyncio.Task[Any]) -> BaseException | None:
    """What a task that is done raised; a cancellation it brought upon itself included."""
    if task.cancelled():
        return asyncio.CancelledError()
    return task.exception()


async def _end(losers: list[_TaskCopy]) -> None:
    """Cancel the losers and wait for their end; their errors are theirs alone."""
    for loser in losers:
        loser.task.add_done_callback(_error_of)  # retrieved, even when a second cancellation ends the wait below
        loser.task.cancel()
    if losers:
        await asyncio.wait([loser.task for loser in losers])
