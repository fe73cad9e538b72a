"""deadline: how long in all.

An absolute point on the monotonic clock, kept in the running `Call`; the effective one is the earliest of all
that enclose a point of the code, and every wait of every layer obeys it. Async bodies are cancelled at the
point; sync bodies run in a worker thread (``mode="thread"``) or cooperate (``mode="cooperative"``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Token
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from guarded._core import clock
from guarded._core.call import Call, Deadline, current
from guarded._core.durations import Duration, parse_duration
from guarded._core.factory import factory
from guarded._core.interrupt import Interrupt
from guarded._core.policy import Args, AsyncNext, Fn, Kwargs, Policy, Site, SyncNext
from guarded._core.registry import registry
from guarded.errors import DeadlineExceeded
from guarded.policies._deadline.shells import (
    DeadlineLayer,
    async_shell,
    async_stream_shell,
    run_cooperative,
    run_in_worker,
    stream_shell,
)

if TYPE_CHECKING:
    pass

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
            return stream_shell(layer, proceed)
        run = run_in_worker if self.options.mode == "thread" else run_cooperative
        ask = layer.seconds
        return lambda call, fn, args, kwargs: run(layer, ask(fn, args, kwargs), proceed, call, fn, args, kwargs)

    def async_layer(self, proceed: AsyncNext, site: Site) -> AsyncNext:
        """In the caller's own task, which is cancelled at the point."""
        layer = DeadlineLayer(self, site.wrapped)
        if site.is_stream:
            return async_stream_shell(layer, proceed)
        return async_shell(layer, proceed, layer.constant)

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


@factory
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

    Example:
        >>> from guarded import deadline, remaining
        >>> @deadline("2s", mode="cooperative")
        ... def query() -> bool:
        ...     return 1.9 < remaining() <= 2
        >>> query()
        True
    """
    options = DeadlineOptions.checked(seconds, mode, late)
    return registry.intern(DeadlinePolicy(options, name=name))
