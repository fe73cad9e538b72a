"""deadline: how long in all.

An absolute point on the monotonic clock, kept in the running `Call`; the effective one is the earliest of all
that enclose a point of the code, and every wait of every layer obeys it. Async bodies are cancelled at the
point; sync bodies run in a worker thread (``mode="thread"``) or cooperate (``mode="cooperative"``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import Token, copy_context
from dataclasses import dataclass
from datetime import timedelta
from math import isfinite
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Literal, cast

from guarded._core import clock
from guarded._core.call import Call, Deadline, Stream, current, out_of_time
from guarded._core.durations import Duration, parse_duration
from guarded._core.interrupt import Interrupt, resume
from guarded._core.keys import compile_argument
from guarded._core.policy import Args, AsyncNext, Fn, Kwargs, Policy, Site, SyncNext
from guarded._core.registry import registry
from guarded._core.workers import MAX_ABANDONED, Job, workers
from guarded.errors import DeadlineExceeded, Rejected
from guarded.events.bus import bus

if TYPE_CHECKING:
    from guarded.cancel import CancelToken

Mode = Literal["thread", "cooperative"]
Late = Literal["return", "raise"]
Seconds = Callable[[Fn, Args, Kwargs], float]


@dataclass(frozen=True, slots=True)
class DeadlineOptions:
    """What `deadline` was given; `seconds` is a number, or a callable over the arguments."""

    seconds: float | Callable[..., Any]
    mode: Mode = "thread"
    late: Late = "return"

    @classmethod
    def checked(cls, seconds: Any, mode: Any, late: Any) -> DeadlineOptions:
        """Raise one ValueError that names every wrong option."""
        problems = []
        if not callable(seconds):
            try:
                seconds = parse_duration(seconds, option="seconds")
            except ValueError as error:
                problems.append(str(error))
        if mode not in ("thread", "cooperative"):
            problems.append(f"mode must be 'thread' or 'cooperative', not {mode!r}")
        if late not in ("return", "raise"):
            problems.append(f"late must be 'return' or 'raise', not {late!r}")
        elif late == "raise" and mode == "thread":
            problems.append("late='raise' needs mode='cooperative': in mode='thread' a late result is always dropped")
        if problems:
            raise ValueError("deadline: " + "; ".join(problems))
        return cls(seconds, mode, late)


def _seconds_of(options: DeadlineOptions, wrapped: Any) -> Seconds:
    """How many seconds a call is given; a callable's answer may be 0 or less, which means spent."""
    if not callable(options.seconds):
        constant = options.seconds
        return lambda fn, args, kwargs: constant
    ask = compile_argument(options.seconds, wrapped, "seconds")

    def seconds(fn: Fn, args: Args, kwargs: Kwargs) -> float:
        given = ask(fn, args, kwargs)
        if isinstance(given, timedelta):
            return given.total_seconds()
        if isinstance(given, str):
            return parse_duration(given, option="seconds", allow_zero=True)
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not isfinite(given):
            raise ValueError(f"deadline: seconds must be a finite number, a timedelta or a string, not {given!r}")
        return float(given)

    return seconds


class DeadlineLayer:
    """One deadline on one callable: opens the point, and says what became of it."""

    __slots__ = ("label", "late", "policy", "seconds")

    def __init__(self, policy: DeadlinePolicy, wrapped: Any) -> None:
        self.policy = policy
        self.label = policy.label
        self.late = policy.options.late
        self.seconds = _seconds_of(policy.options, wrapped)

    def open(self, call: Call, seconds: float) -> Deadline | None:
        """The deadline for the rest of `call`; None when the one around it ends first. Raises when spent."""
        now = clock.monotonic()
        outer = call.deadline
        if outer is not None and outer.until <= now + seconds:
            if outer.until <= now:
                raise out_of_time(call, "starting")
            return None
        mine = Deadline(now + seconds, self.label, seconds)
        if seconds <= 0:
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
            bus.emit("deadline.exceeded", call, self.policy, reason=error.during)

    def came_late(self, call: Call, started: float) -> None:
        """A body returned after its point, and its value goes to the caller all the same."""
        bus.emit("deadline.late", call, self.policy, duration=clock.monotonic() - started)

    def refuse_if_swamped(self, call: Call) -> None:
        """Refuse the call when too many bodies hang past their deadlines already."""
        if workers.abandoned >= MAX_ABANDONED:
            raise Rejected(
                f"{call.function}: deadline {self.policy.label!r} has {workers.abandoned} bodies still running after "
                "their callers left; give the client below a time-out of its own, or use mode='cooperative'",
                policy=self.policy.label,
                layer="deadline",
            )


def _run_cooperative(
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
        layer.came_late(call, mine.until - seconds)
    return result


def _run_in_worker(
    layer: DeadlineLayer, seconds: float, proceed: SyncNext, call: Call, fn: Fn, args: Args, kwargs: Kwargs
) -> Any:
    mine = layer.open(call, seconds)
    if mine is None:
        mine = cast("Deadline", call.deadline)
        if mine.enforced:  # the deadline around this one has put us into a worker already
            return proceed(call, fn, args, kwargs)
    layer.refuse_if_swamped(call)
    job, token = _start_job(layer, proceed, mine, call, fn, args, kwargs)
    try:
        with nullcontext() if call.token is None else call.token.on_cancel(job.waiter.wake):
            woken = job.waiter.park(mine.until)
    except BaseException:
        job.abandon()
        token.cancel("the caller was interrupted")
        raise
    if job.abandon():
        token.cancel("the caller has left")
        bus.emit("deadline.abandoned", call, layer.policy, active=workers.abandoned)
        if woken and call.token is not None:
            call.token.raise_if_cancelled("running")
        raise layer.exceeded(call, mine)
    try:
        return job.outcome()
    except DeadlineExceeded as error:
        layer.tell(call, error, mine)
        raise


def _start_job(
    layer: DeadlineLayer, proceed: SyncNext, mine: Deadline, call: Call, fn: Fn, args: Args, kwargs: Kwargs
) -> tuple[Job, CancelToken]:
    """Put the rest of the call into a worker: the job, and the token that tells it that nobody waits any more."""
    from guarded.cancel import CancelToken  # cancel.py sits above the core

    twin = call.fork()
    twin.deadline = mine
    mine.enforced = True
    twin.token = token = CancelToken() if call.token is None else CancelToken.any(call.token)
    context = copy_context()
    started = clock.monotonic()

    def body() -> Any:
        current.set(twin)
        return proceed(twin, fn, args, kwargs)

    def on_late(job: Job) -> None:
        bus.emit("deadline.late", twin, layer.policy, duration=clock.monotonic() - started, cause=job.error)

    job = Job(lambda: context.run(body), on_late)
    workers.start(job)
    return job, token


async def _run_async(
    layer: DeadlineLayer, seconds: float, proceed: AsyncNext, call: Call, fn: Fn, args: Args, kwargs: Kwargs
) -> Any:
    mine = layer.open(call, seconds)
    if mine is None:
        return await proceed(call, fn, args, kwargs)
    outer, call.deadline = call.deadline, mine
    interrupt: Interrupt | None = None
    try:
        awaitable = proceed(call, fn, args, kwargs)
        if type(awaitable) is CoroutineType:
            try:
                awaitable = resume(awaitable, awaitable.send(None))
            except StopIteration as stop:
                return stop.value  # done at once: no timer, no task to look up
        task = asyncio.current_task()
        if task is None:  # driven by hand: nothing to cancel, but every wait obeys the point
            return await awaitable
        interrupt = Interrupt(task)
        interrupt.at(mine.until)
        result = await awaitable
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
    if interrupt.fired:  # the body swallowed the cancellation
        layer.came_late(call, mine.until - seconds)
    return result


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


def _stream_shell(layer: DeadlineLayer, proceed: SyncNext) -> SyncNext:
    def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        allowance = _Allowance(layer.seconds(fn, args, kwargs))
        stream = cast("Stream", call.stream)

        def timed(step: SyncNext) -> Any:
            with allowance.spending():
                return _run_cooperative(layer, allowance.left, step, call, fn, args, kwargs)

        first = timed(proceed)
        below = stream.step
        stream.step = lambda resume: timed(lambda *_: below(resume))
        return first

    return shell


def _async_stream_shell(layer: DeadlineLayer, proceed: AsyncNext) -> AsyncNext:
    async def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        allowance = _Allowance(layer.seconds(fn, args, kwargs))
        stream = cast("Stream", call.stream)

        async def timed(step: AsyncNext) -> Any:
            with allowance.spending():
                return await _run_async(layer, allowance.left, step, call, fn, args, kwargs)

        first = await timed(proceed)
        below = stream.step
        stream.step = lambda resume: timed(lambda *_: below(resume))
        return first

    return shell


class _Scope(Call):
    """What ``with deadline(…):`` opens; lives in the context between enter and exit."""

    reset: Token[Call | None]
    layer: DeadlineLayer
    started: float
    interrupt: Interrupt | None = None
    mine: Deadline | None = None


class DeadlinePolicy(Policy[DeadlineOptions]):
    """A deadline to put on callables, or around a block: ``with deadline("5s"):`` and ``async with``.

    In a sync block, waits and `checkpoint` obey and nothing else can; an async block is cancelled at the point.
    """

    kind = "deadline"

    def __repr__(self) -> str:
        options = self.options
        seconds = getattr(options.seconds, "__name__", "…") if callable(options.seconds) else f"{options.seconds:g}"
        mode = "" if options.mode == "thread" else f", mode={options.mode!r}"
        late = "" if options.late == "return" else f", late={options.late!r}"
        return f"deadline({seconds}{mode}{late}{f', name={self.name!r}' if self.name else ''})"

    def worst_case(self, calls: float, seconds: float, site: Site) -> tuple[float, float]:
        """Cuts whatever takes longer, but for sync bodies that only cooperate."""
        enforced = site.kind.startswith("async") or self.options.mode == "thread"
        if callable(self.options.seconds) or not enforced:
            return calls, seconds
        return calls, min(seconds, self.options.seconds)

    def sync_layer(self, proceed: SyncNext, site: Site) -> SyncNext:
        """Thread or cooperative, as the options say; a generator always cooperates."""
        layer = DeadlineLayer(self, site.wrapped)
        if site.is_stream:
            return _stream_shell(layer, proceed)
        run = _run_in_worker if self.options.mode == "thread" else _run_cooperative
        ask = layer.seconds
        return lambda call, fn, args, kwargs: run(layer, ask(fn, args, kwargs), proceed, call, fn, args, kwargs)

    def async_layer(self, proceed: AsyncNext, site: Site) -> AsyncNext:
        """In the caller's own task, which is cancelled at the point."""
        layer = DeadlineLayer(self, site.wrapped)
        if site.is_stream:
            return _async_stream_shell(layer, proceed)
        ask = layer.seconds
        return lambda call, fn, args, kwargs: _run_async(layer, ask(fn, args, kwargs), proceed, call, fn, args, kwargs)

    def __enter__(self) -> None:
        self._open_scope()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        scope = self._close_scope()
        if scope.mine is None:
            return
        if isinstance(error, DeadlineExceeded):
            scope.layer.tell(scope, error, scope.mine)
        elif error is None and clock.monotonic() >= scope.mine.until:
            if self.options.late == "raise":
                raise scope.layer.exceeded(scope, scope.mine)
            scope.layer.came_late(scope, scope.started)

    async def __aenter__(self) -> None:
        scope = self._open_scope()
        task = asyncio.current_task()
        if scope.mine is not None and task is not None:
            scope.interrupt = Interrupt(task)
            scope.interrupt.at(scope.mine.until)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        scope = self._close_scope()
        if scope.mine is None or scope.interrupt is None:
            return
        ours = scope.interrupt.close()
        if ours and isinstance(error, asyncio.CancelledError):
            raise scope.layer.exceeded(scope, scope.mine) from error
        if isinstance(error, DeadlineExceeded):
            scope.layer.tell(scope, error, scope.mine)
        elif error is None and scope.interrupt.fired:
            scope.layer.came_late(scope, scope.started)

    def _open_scope(self) -> _Scope:
        if callable(self.options.seconds):
            raise TypeError("a deadline over the arguments of a function cannot be used in a with statement")
        scope = _Scope()
        outer = current.get()
        if outer is not None:
            scope.adopt(outer)
        scope.function = "with deadline"
        scope.layer = DeadlineLayer(self, None)
        scope.started = clock.monotonic()
        scope.mine = scope.layer.open(scope, self.options.seconds)
        scope.deadline = scope.mine or scope.deadline
        scope.reset = current.set(scope)
        return scope

    @staticmethod
    def _close_scope() -> _Scope:
        scope = current.get()
        if not isinstance(scope, _Scope):
            raise RuntimeError("a deadline's with block was left in another context than it was entered in")
        current.reset(scope.reset)
        return scope


def deadline(
    seconds: Duration | Callable[..., Any],
    *,
    mode: Mode = "thread",
    late: Late = "return",
    name: str | None = None,
) -> DeadlinePolicy:
    """Give a call so much time in all, every wait in every layer below included.

    Which mode to choose, for sync functions: ``"thread"`` when the caller must go on in time whatever the body does;
    ``"cooperative"`` when the body belongs to the caller's thread (database sessions, thread-locals) and its own
    client time-outs can be bounded by `guarded.remaining()`.

    Args:
        seconds: seconds, a timedelta or a string such as ``"10s"``; or a callable over the arguments, whose answer
            may be 0 or less: the call is then refused as spent.
        mode: sync only. ``"thread"`` returns to the caller on time and leaves a body that still runs behind in its
            worker thread, where `remaining()` is 0 and the token has fired; its late result is dropped and reported.
            ``"cooperative"`` stays in the caller's thread.
        late: cooperative only. What to do with a result that comes late: ``"return"`` it with an event, or ``"raise"``.
        name: register the policy under this name.

    Raises:
        ValueError: an option is wrong; all wrong ones are named.

    Calls raise DeadlineExceeded, also a TimeoutError; its `during` says what the time was spent on.
    """
    options = DeadlineOptions.checked(seconds, mode, late)
    return registry.intern(DeadlinePolicy(options, name=name))
