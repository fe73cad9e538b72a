"""deadline: how long in all.

An absolute point on the monotonic clock, kept in the running `Call`; the effective one is the earliest of all
that enclose a point of the code, and every wait of every layer obeys it. Async bodies are cancelled at the
point; sync bodies run in a worker thread (``mode="thread"``) or cooperate (``mode="cooperative"``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from guarded._core import clock
from guarded._core.call import Deadline, Scope
from guarded._core.durations import Duration
from guarded._core.factory import factory
from guarded._core.interrupt import Interrupt
from guarded._core.policy import AsyncNext, Policy, Site, SyncNext
from guarded._core.registry import registry
from guarded.errors import DeadlineExceeded
from guarded.policies._deadline.options import DeadlineOptions, Late, Mode
from guarded.policies._deadline.shells import (
    DeadlineLayer,
    async_shell,
    async_stream_shell,
    run_cooperative,
    run_in_worker,
    stream_shell,
)

__all__ = ["DeadlineOptions", "DeadlinePolicy", "deadline"]


class _Block(Scope):
    """What ``with deadline(…):`` opens."""

    layer: DeadlineLayer
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
        self._open_block()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        block = _Block.leave(self)
        if block.mine is None:
            return
        if isinstance(error, DeadlineExceeded):
            block.layer.tell(block, error, block.mine)
        elif error is None and clock.monotonic() >= block.mine.until:
            if self.options.late == "raise":
                raise block.layer.exceeded(block, block.mine)
            block.layer.came_late(block, block.mine)

    async def __aenter__(self) -> None:
        block = self._open_block()
        task = asyncio.current_task()
        if block.mine is not None and task is not None:
            block.interrupt = Interrupt(task)
            block.interrupt.at(block.mine.until)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        block = _Block.leave(self)
        if block.mine is None or block.interrupt is None:
            return
        ours = block.interrupt.close()
        if ours and isinstance(error, asyncio.CancelledError):
            raise block.layer.exceeded(block, block.mine) from error
        if isinstance(error, DeadlineExceeded):
            block.layer.tell(block, error, block.mine)
        elif error is None and block.interrupt.fired:
            block.layer.came_late(block, block.mine)

    def _open_block(self) -> _Block:
        if callable(self.options.seconds):
            raise TypeError("a deadline over the arguments of a function cannot be used in a with statement")
        block = _Block(self, "with deadline")
        block.layer = DeadlineLayer(self, None)
        block.mine = block.layer.open(block, self.options.seconds)
        block.deadline = block.mine or block.deadline
        block.enter()
        return block


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
