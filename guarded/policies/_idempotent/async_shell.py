"""The async shell of `idempotent`: each run goes on in a task of its own, which belongs to no caller.

Cancelling a caller makes it leave; the last one that leaves cancels the task and waits until it has unwound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context, copy_context
from math import inf
from typing import Any, TypeVar

from guarded._core import clock, waiters
from guarded._core.call import Call, current, out_of_time
from guarded._core.policy import Args, AsyncNext, Fn, Kwargs
from guarded._core.token import Token
from guarded._core.waiters import TaskWaiter
from guarded.errors import DeadlineExceeded
from guarded.policies._idempotent.core import AGAIN, JOINING, Conduct, is_own, polls
from guarded.policies._idempotent.inflight import Entry, Phase, Run, Step
from guarded.policies._idempotent.outcomes import Cut, Failed, Neutral, Outcome, Returned
from guarded.stores.contract.idempotent import Running

ResultT = TypeVar("ResultT")
_UNSET: Any = object()


class AsyncShell:
    """Drives each run in a task of its own, on the loop of its first caller."""

    def __init__(self, conduct: Conduct, proceed: AsyncNext) -> None:
        self._conduct = conduct
        self._proceed = proceed

    async def __call__(self, call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        conduct = self._conduct
        key, claim = conduct.identity.of(fn, args, kwargs)
        while (result := await self._attend(Run(key, claim), call, fn, args, kwargs)) is AGAIN:
            pass
        return result

    async def _attend(self, mine: Run, call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        """The outcome of `mine`, or of the run of its key that there is; AGAIN when that is none for this caller."""
        conduct = self._conduct
        entry: Entry | None = None
        try:
            entry = conduct.runs.enter(mine, call, join=conduct.joins, make=TaskWaiter)
            step, leads = entry.step, entry.step is Step.LEAD
            if isinstance(entry.waiter, TaskWaiter):
                context = self._launch(mine, call, fn, args, kwargs) if leads else None
                if step is Step.JOIN:
                    conduct.joined(entry.run, call)
                if entry.run.outcome is None or step is Step.WATCH:
                    await self._wait(entry.run, call, entry.waiter, leads)
                if context is not None:
                    _adopt(context)
                if step is Step.WATCH:
                    return AGAIN
            elif step is not Step.TAKE:
                conduct.refuse(entry, call)
            return conduct.deliver(entry.run, call, leads)
        except BaseException:
            if mine.task is None:  # it never came to have one
                conduct.withdraw(mine, call)
            raise
        finally:
            del mine  # an exception in flight has this frame in its traceback
            entry = None

    def _launch(self, run: Run, call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Context | None:
        """Start the task of a run, in a copy of its first caller's context; None when the store has it finished."""
        conduct = self._conduct
        if not conduct.store.durable:  # answers at once: a replay needs no task
            try:
                verdict = conduct.begin(run, call)
            except Exception as error:
                verdict = Failed(error)
            if verdict is not None and not isinstance(verdict, Running):
                conduct.runs.settle(run, verdict)
                return None
        twin = call.fork()
        twin.deadline = run.deadline
        twin.token = None if call.token is None else Token()  # its own, since the run outlives its first caller
        twin.held, twin.key = (run, None), run.key
        run.token = twin.token
        context = copy_context()
        context.run(current.set, twin)
        work = self._work(run, twin, fn, args, kwargs)
        run.task = asyncio.get_running_loop().create_task(work, context=context)
        run.task.add_done_callback(lambda task: self._ended(run, twin, task))
        return context

    def _ended(self, run: Run, call: Call, task: asyncio.Task[None]) -> None:
        """The task is over; if it never came to its first line, or was torn down, so is the run."""
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        conduct = self._conduct
        if conduct.store.durable and run.claimed and run.phase not in (Phase.SAVING, Phase.OVER):
            conduct.release_later(run, at_once=True)  # here it would block the loop
        conduct.withdraw(run, call, error)
        run.task = None  # task → context → call → run → task is a cycle

    async def _wait(self, run: Run, call: Call, waiter: TaskWaiter, leads: bool) -> None:
        runs = self._conduct.runs
        try:
            await waiters.wait_async(call, waiter, inf, "running" if leads else JOINING)
        except GeneratorExit:  # torn down, perhaps by the garbage collector
            runs.vanish(run, waiter)
            raise
        except BaseException as error:
            if leads and call.deadline is not None and run.deadline is not None:
                call.deadline.during = run.deadline.during
            runs.leave(run, waiter)
            task = run.task
            if task is not None and run.phase is Phase.ENDING and run.loop is waiter.loop:
                await _unwound(task)
                self._ended(run, call, task)  # its callbacks may still be on their way
                if isinstance(run.outcome, (Returned, Failed)):
                    return  # the body had its own answer to the cancellation
            if leads and isinstance(error, DeadlineExceeded):
                raise out_of_time(call) from None
            raise

    async def _work(self, run: Run, twin: Call, fn: Fn, args: Args, kwargs: Kwargs) -> None:
        conduct = self._conduct
        try:
            outcome = None if run.claimed else await self._ask(run, twin)
            if outcome is None:
                conduct.runs.advance(run, Phase.GOING)
                outcome = await self._run(run, twin, fn, args, kwargs)
        except Exception as error:
            outcome = Cut(error) if is_own(run, twin, error) else Failed(error)
        except (GeneratorExit, KeyboardInterrupt, SystemExit):
            raise  # torn down: nothing can be awaited any more
        except BaseException as error:
            await self._release(run)
            conduct.runs.settle(run, Neutral(None if run.phase is Phase.ENDING else error))
            raise
        if run.phase is not Phase.OVER:
            await self._release(run)
            conduct.runs.settle(run, outcome)
        del outcome

    async def _ask(self, run: Run, twin: Call) -> Outcome | None:
        conduct = self._conduct
        for pause in polls():
            run.claimed = True  # as in `Conduct.begin`
            try:
                reply = await _whole(conduct.store.begin_async(run.key, run.claim))
            except Exception as error:
                raise conduct.unreachable(run, twin, error) from error
            verdict = conduct.begun(run, twin, reply)
            if not isinstance(verdict, Running):
                return verdict
            conduct.runs.advance(run, Phase.GOING)
            # no mere sleep: the run of another process is waited for
            await waiters.wait_async(twin, TaskWaiter(), clock.monotonic() + min(pause, verdict.left), JOINING)
        raise AssertionError("polls never end")

    async def _run(self, run: Run, twin: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Outcome:
        conduct = self._conduct
        started = clock.monotonic()
        outcome: Returned | Failed | Cut
        try:
            value = await self._proceed(twin, fn, args, kwargs)
        except Exception as error:
            outcome = conduct.raised(run, twin, error)
        else:
            outcome = conduct.returned(run, twin, value)
        try:
            if isinstance(outcome, Cut) or outcome.payload is None:
                return outcome
            if conduct.store.durable:
                await self._save(run, twin, outcome, started)
            else:
                conduct.save(run, twin, outcome, started)
            return outcome
        finally:
            del outcome  # the traceback of a failure has this frame: no cycle through its outcome

    async def _save(self, run: Run, twin: Call, outcome: Returned | Failed, started: float) -> None:
        """Like `Conduct.save`; a cancellation that comes meanwhile has come too late."""
        conduct = self._conduct
        run.claimed = False
        try:
            took = await _whole(conduct.store.complete_async(run.key, run.claim, outcome.payload))
        except BaseException as problem:
            conduct.runs.settle(run, outcome, keep=True)
            conduct.save_later(run, twin, outcome.payload, problem)
            if not isinstance(problem, Exception):
                raise
        else:
            conduct.accepted(run, twin, outcome, took, clock.monotonic() - started)

    async def _release(self, run: Run) -> None:
        if not run.claimed:
            return
        if not self._conduct.store.durable:
            self._conduct.release(run)
            return
        run.claimed = False
        try:
            await _whole(self._conduct.store.release_async(run.key, run.claim))
        except Exception:
            self._conduct.release_later(run)


async def _whole(step: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Await a step of a store to its end whatever cancels meanwhile, and only then let the cancellation go on."""
    task = asyncio.ensure_future(step)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # looked at, so that nobody reports it
        raise cancelled
    return task.result()


async def _unwound(task: asyncio.Task[None]) -> None:
    """Wait until a cancelled task has come to its end; cancelling the waiter again cancels the task again."""
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()


def _adopt(context: Context) -> None:
    """Let the first caller see what the body has set in its context, as if it had run in the caller's own task."""
    for variable, value in context.items():
        if variable is not current and variable.get(_UNSET) is not value:
            variable.set(value)
