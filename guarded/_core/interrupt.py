"""Cancelling the task that runs an async body, and telling that cancellation from anybody else's.

The rules are those of ``asyncio.timeout``: the request is taken back on the way out, so that
``task.cancelling()`` is what it was before, and a cancellation by someone else wins.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import threading
import types
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager
from math import inf
from types import CoroutineType
from typing import Any, cast

from guarded._core import clock
from guarded._core.token import Token


class Interrupt:
    """One possible cancellation of the running task, now or at a time of its loop."""

    __slots__ = ("_before", "_task", "_timers", "closed", "fired")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        self._before = task.cancelling()
        self._timers: LoopTimers | None = None
        self.closed = False
        self.fired = False

    def at(self, when: float) -> None:
        """Fire at monotonic time `when`."""
        self._timers = timers_of(self._task.get_loop())
        self._timers.add(when, self)

    def fire(self) -> None:
        """Cancel the task, once, unless the scope is over; in the loop's own thread."""
        if not self.closed and not self.fired:
            self.fired = True
            self._task.cancel()

    def close(self) -> bool:
        """End the scope and take the request back: True when a CancelledError on its way out is ours alone.

        Only the first call does anything.
        """
        if self.closed:
            return False
        self.closed = True
        if not self.fired:
            if self._timers is not None:
                self._timers.dead += 1
                del self._task  # an entry in the heap may outlive the task by hours
            return False
        return self._task.uncancel() <= self._before


@types.coroutine
def fill(box: list[Any], awaitable: Awaitable[Any]) -> Generator[Any, Any, None]:
    """Await `awaitable` and put its result into `box`.

    The end of a generator that gives nothing is no exception for ``next(steps, default)``, which is much quicker.
    """
    box.append((yield from awaitable if type(awaitable) is CoroutineType else awaitable.__await__()))  # type: ignore[misc]


@types.coroutine
def resume(steps: Generator[Any, Any, None], pending: Any) -> Generator[Any, Any, None]:
    """Await the rest of a generator whose first step has been made already, and gave `pending`.

    ``yield from`` alone would make the next step before `pending` is done. asyncio then sends nothing but None, so
    that the next step can be left to it; what else may come is handed on as in PEP 380.
    """
    while True:
        try:
            sent = yield pending
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as thrown:
            step: Callable[[], Any] = functools.partial(steps.throw, thrown)
        else:
            if sent is None:
                yield from steps
                return
            step = functools.partial(steps.send, sent)
        try:
            pending = step()
        except StopIteration:
            return


class LoopTimers:
    """All deadlines of one event loop behind one timer of the loop.

    Arming and cancelling a loop timer per call costs more than the rest of a guarded call; most deadlines
    are never reached, so a push on a heap and a mark are enough. Dead entries are swept when they are the majority.
    """

    __slots__ = ("_armed", "_clock", "_handle", "_heap", "_loop", "_order", "dead")

    SWEEP = 64  # fewer dead entries than this are not worth a sweep

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[tuple[float, int, Interrupt]] = []
        self._order = itertools.count()
        self._armed = inf
        self._handle: clock.TimerHandle | None = None
        self._clock = clock.installed()
        self.dead = 0

    def add(self, when: float, interrupt: Interrupt) -> None:
        """Fire `interrupt` at monotonic time `when`."""
        if self._clock is not clock.installed():  # a test has just switched between real and virtual time
            self._clock, self._armed = clock.installed(), inf
        if self.dead > self.SWEEP and self.dead * 2 > len(self._heap):
            self._sweep()
        heapq.heappush(self._heap, (when, next(self._order), interrupt))
        if when < self._armed:
            self._arm(when)

    def _arm(self, when: float) -> None:
        before = self._handle
        self._handle = clock.call_at(self._loop, when, self._fire_due)
        self._armed = when
        if before is not None:
            before.cancel()  # last: a signal handler that raises in here leaves one timer too many, never none

    def _fire_due(self) -> None:
        self._armed = inf
        self._handle = None
        heap, now = self._heap, clock.monotonic()
        try:
            while heap and (heap[0][2].closed or heap[0][0] <= now):
                interrupt = heapq.heappop(heap)[2]
                if interrupt.closed:
                    self.dead -= 1
                else:
                    interrupt.fire()
        finally:  # what a task waits for may raise when it is cancelled
            if heap:
                self._arm(heap[0][0])

    def _sweep(self) -> None:
        self._heap[:] = [item for item in self._heap if not item[2].closed]
        heapq.heapify(self._heap)
        self.dead = 0


class _Cache(threading.local):
    """The loop this thread ran last and its timers: two calls in a row nearly always share it."""

    loop: asyncio.AbstractEventLoop | None = None
    timers: LoopTimers | None = None


_cache = _Cache()


def timers_of(loop: asyncio.AbstractEventLoop) -> LoopTimers:
    """The deadlines of `loop`, in its own thread."""
    if _cache.loop is loop:
        return cast("LoopTimers", _cache.timers)
    timers: LoopTimers | None = getattr(loop, _ATTRIBUTE, None)
    if timers is None:
        timers = LoopTimers(loop)
        setattr(loop, _ATTRIBUTE, timers)  # lives and dies with its loop
    _cache.loop, _cache.timers = loop, timers
    return timers


_ATTRIBUTE = "_guarded_timers"


class InterruptOnToken(AbstractContextManager[None]):
    """Cancels the running task when `token` fires within the block; a CancelledError of its own leaves as Cancelled."""

    def __init__(self, token: Token) -> None:
        self._token = token
        self._interrupt: Interrupt | None = None

    def __enter__(self) -> None:
        self._token.raise_if_cancelled("starting")
        task = asyncio.current_task()
        if task is None:
            return
        loop = task.get_loop()
        interrupt = self._interrupt = Interrupt(task)
        self._registration = self._token.on_cancel(lambda: _fire_from_anywhere(loop, interrupt))
        if self._token.until != inf:
            interrupt.at(self._token.until)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if self._interrupt is None:
            return
        self._registration.close()
        if self._interrupt.close() and isinstance(error, asyncio.CancelledError):
            self._token.raise_if_cancelled("running")


def _fire_from_anywhere(loop: asyncio.AbstractEventLoop, interrupt: Interrupt) -> None:
    try:
        loop.call_soon_threadsafe(interrupt.fire)
    except RuntimeError:
        pass  # the loop is closed: nothing is left to cancel
