"""How a deadline runs the rest of a call: in the caller's task, in its thread, or in a worker.

Each shell opens the deadline, runs what is below, and says what became of it. A generator gets one allowance
for all its steps, of which only the time spent inside counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from typing import Any, Final, cast

from guarded._core import clock
from guarded._core.call import Call, Deadline, OwnDeadline, Stream, current, out_of_time
from guarded._core.interrupt import Interrupt, fill, resume
from guarded._core.policy import Args, AsyncNext, Fn, Kwargs, Policy, SyncNext
from guarded._core.token import Token, token_within
from guarded._core.workers import MAX_ABANDONED, Job, workers
from guarded.errors import DeadlineExceeded, Rejected
from guarded.events.bus import bus
from guarded.policies._deadline.options import DeadlineOptions, seconds_of


class DeadlineLayer:
    """One deadline on one callable: opens the point, and says what became of it."""

    __slots__ = ("constant", "label", "late", "policy", "seconds")

    def __init__(self, policy: Policy[DeadlineOptions], wrapped: Any) -> None:
        self.policy = policy
        self.label = policy.label
        self.late = policy.options.late
        self.constant = None if callable(policy.options.seconds) else policy.options.seconds
        self.seconds = seconds_of(policy.options, wrapped)

    def open(self, call: Call, seconds: float) -> Deadline | None:
        """The deadline for the rest of `call`; None when the one around it ends first. Raises when spent."""
        now = clock.monotonic()
        until = now + seconds
        outer = call.deadline
        if outer is not None and outer.until <= until:
            if outer.until <= now:
                raise out_of_time(call, "starting")
            return None
        mine: Deadline = OwnDeadline()  # pyright: ignore[reportCallIssue]
        mine.until = until
        mine.policy = self.label
        mine.length = seconds
        mine.during = "running"
        mine.enforced = False
        if until <= now:
            mine.during = "starting"
            raise self.exceeded(call, mine)
        return mine

    def exceeded(self, call: Call, mine: Deadline) -> DeadlineExceeded:
        """The error of this deadline, told to the bus."""
        outer, call.deadline = call.deadline, mine
        error = out_of_time(call)
        call.deadline = outer
        self.tell(call, error, mine)
        return error

    def tell(self, call: Call, error: DeadlineExceeded, mine: Deadline) -> None:
        """Tell the bus about `error`, if it is about this deadline and not about one further out or in."""
        if error.until == mine.until:
            bus.emit("deadline.exceeded", call, self.policy, reason=error.during, allowed=mine.length)

    def came_late(self, call: Call, mine: Deadline) -> None:
        """A body returned after its point, and its value goes to the caller all the same."""
        allowed = mine.length or 0.0
        duration = clock.monotonic() - (mine.until - allowed)
        bus.emit("deadline.late", call, self.policy, duration=duration, allowed=allowed)

    def refuse_if_swamped(self, call: Call) -> None:
        """Refuse the call when too many bodies hang past their deadlines already."""
        if workers.abandoned >= MAX_ABANDONED:
            raise Rejected(
                f"{call.function}: deadline {self.policy.label!r} has {workers.abandoned} bodies still running after "
                "their callers left; give the client below a time-out of its own, or use mode='cooperative'",
                policy=self.policy.label,
                layer="deadline",
            )


def run_cooperative(
    layer: DeadlineLayer, seconds: float, proceed: SyncNext, call: Call, fn: Fn, args: Args, kwargs: Kwargs
) -> Any:
    mine = layer.open(call, seconds)
    if mine is None:
        return proceed(call, fn, args, kwargs)
    outer, call.deadline = call.deadline, mine
    try:
        result = proceed(call, fn, args, kwargs)
    except DeadlineExceeded as error:
        layer.tell(call, error, mine)
        raise
    finally:
        call.deadline = outer
    if clock.monotonic() >= mine.until:
        if layer.late == "raise":
            raise layer.exceeded(call, mine)
        layer.came_late(call, mine)
    return result


def run_in_worker(
    layer: DeadlineLayer, seconds: float, proceed: SyncNext, call: Call, fn: Fn, args: Args, kwargs: Kwargs
) -> Any:
    mine = layer.open(call, seconds)
    if mine is None:
        around = cast("Deadline", call.deadline)
        if around.enforced:  # it has put us into a worker already
            return proceed(call, fn, args, kwargs)
        mine = Deadline(around.until, around.policy, around.length)  # what else it encloses may not be in a worker
    layer.refuse_if_swamped(call)
    job, token = _start_job(layer, proceed, mine, call, fn, args, kwargs)
    outer = call.token
    try:
        with nullcontext() if outer is None else outer.on_cancel(job.waiter.wake):
            job.waiter.park(mine.until if outer is None else min(mine.until, outer.until))
    except BaseException:
        job.abandon()
        token.cancel("the caller was interrupted")
        raise
    if job.abandon():
        token.cancel("the caller has left")
        bus.emit("deadline.abandoned", call, layer.policy, active=workers.abandoned, allowed=mine.length)
        if outer is not None:
            outer.raise_if_cancelled("running")
        raise layer.exceeded(call, mine)
    try:
        return job.outcome()
    except DeadlineExceeded as error:
        layer.tell(call, error, mine)
        raise


def _start_job(
    layer: DeadlineLayer, proceed: SyncNext, mine: Deadline, call: Call, fn: Fn, args: Args, kwargs: Kwargs
) -> tuple[Job, Token]:
    """Put the rest of the call into a worker: the job, and the token that tells it that nobody waits any more."""
    twin = call.fork()
    twin.deadline = mine
    mine.enforced = True
    twin.token = token = token_within(call.token)
    context = copy_context()
    started = clock.monotonic()

    def body() -> Any:
        current.set(twin)
        return proceed(twin, fn, args, kwargs)

    def on_late(job: Job) -> None:
        duration = clock.monotonic() - started
        bus.emit("deadline.late", twin, layer.policy, duration=duration, allowed=mine.length, cause=job.error)

    job = Job(lambda: context.run(body), on_late)
    try:
        workers.start(job)
    except RuntimeError as error:
        raise Rejected(
            f"{call.function}: no thread can be started for the body under deadline {layer.policy.label!r}, so the "
            f"call was not made: {error}; use mode='cooperative', which needs none",
            policy=layer.policy.label,
            layer="deadline",
        ) from error
    return job, token


_DONE: Final = object()


def async_shell(layer: DeadlineLayer, proceed: AsyncNext, constant: float | None) -> AsyncNext:
    """In the caller's own task, which is cancelled at the point.

    Args:
        layer: the deadline.
        proceed: what is below.
        constant: seconds of each call; None to ask for them.
    """
    ask, open_ = layer.seconds, layer.open

    async def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        seconds = ask(fn, args, kwargs) if constant is None else constant
        mine = open_(call, seconds)
        if mine is None:
            return await proceed(call, fn, args, kwargs)
        outer, call.deadline = call.deadline, mine
        interrupt: Interrupt | None = None
        box: list[Any] = []
        try:
            steps: Any = fill(box, proceed(call, fn, args, kwargs))
            pending = next(steps, _DONE)
            if pending is _DONE:
                return box[0]  # done at once: no timer, no task to look up
            task = asyncio.current_task()
            if task is not None:  # else driven by hand: nothing to cancel, but every wait obeys the point
                interrupt = Interrupt(task)
                interrupt.at(mine.until)
            await resume(steps, pending)
            if interrupt is not None and interrupt.fired:  # the body swallowed the cancellation
                layer.came_late(call, mine)
            return box[0]
        except asyncio.CancelledError as error:
            if interrupt is not None and interrupt.close():
                raise layer.exceeded(call, mine) from error
            raise
        except DeadlineExceeded as error:
            layer.tell(call, error, mine)
            raise
        finally:
            call.deadline = outer
            if interrupt is not None:
                interrupt.close()

    return shell


class _Allowance:
    """What a generator has left of its seconds: only the time spent inside counts."""

    __slots__ = ("left",)

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Take the length of the block off what is left."""
        started = clock.monotonic()
        try:
            yield
        finally:
            self.left -= max(0.0, clock.monotonic() - started)


def stream_shell(layer: DeadlineLayer, proceed: SyncNext) -> SyncNext:
    def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        allowance = _Allowance(layer.seconds(fn, args, kwargs))
        stream = cast("Stream", call.stream)

        def timed(step: SyncNext) -> Any:
            with allowance.spending():
                return run_cooperative(layer, allowance.left, step, call, fn, args, kwargs)

        first = timed(proceed)
        below = stream.step
        stream.step = lambda resume: timed(lambda *_: below(resume))
        return first

    return shell


def async_stream_shell(layer: DeadlineLayer, proceed: AsyncNext) -> AsyncNext:
    async def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        allowance = _Allowance(layer.seconds(fn, args, kwargs))
        stream = cast("Stream", call.stream)

        async def timed(step: AsyncNext) -> Any:
            with allowance.spending():
                return await async_shell(layer, step, allowance.left)(call, fn, args, kwargs)

        first = await timed(proceed)
        below = stream.step
        stream.step = lambda resume: timed(lambda *_: below(resume))
        return first

    return shell
