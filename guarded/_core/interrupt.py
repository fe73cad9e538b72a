"""Cancelling the task that runs an async body, and telling that cancellation from anybody else's.

The rules are those of ``asyncio.timeout``: the request is taken back on the way out, so that
``task.cancelling()`` is what it was before, and a cancellation by someone else wins.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from math import inf
from typing import TYPE_CHECKING, Any

from guarded._core import clock

if TYPE_CHECKING:
    from guarded.cancel import CancelToken


class Interrupt:
    """One possible cancellation of the running task."""

    __slots__ = ("_before", "_closed", "_task", "fired")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        self._before = task.cancelling()
        self._closed = False
        self.fired = False

    def fire(self) -> None:
        """Cancel the task, once, unless the scope is over; in the loop's own thread."""
        if not self._closed and not self.fired:
            self.fired = True
            self._task.cancel()

    def close(self) -> bool:
        """End the scope and take the request back: True when a CancelledError on its way out is ours alone.

        Only the first call does anything.
        """
        if self._closed:
            return False
        self._closed = True
        return self.fired and self._task.uncancel() <= self._before


class _Entry:
    """One deadline in the heap of its loop."""

    __slots__ = ("_timers", "callback")

    def __init__(self, timers: LoopTimers, callback: Callable[[], object]) -> None:
        self._timers = timers
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Never call back; the heap forgets the entry when it comes by."""
        if self.callback is not None:
            self.callback = None
            self._timers.dead += 1


class LoopTimers:
    """All deadlines of one event loop behind one timer of the loop.

    Arming and cancelling a loop timer per call costs more than the rest of a guarded call; most deadlines
    are never reached, so a push on a heap and a mark are enough. Dead entries are swept when they are the majority.
    """

    __slots__ = ("_armed", "_clock", "_handle", "_heap", "_loop", "_order", "dead")

    SWEEP = 64  # fewer dead entries than this are not worth a sweep

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[tuple[float, int, _Entry]] = []
        self._order = itertools.count()
        self._armed = inf
        self._handle: clock.TimerHandle | None = None
        self._clock = clock.installed()
        self.dead = 0

    def add(self, when: float, callback: Callable[[], object]) -> _Entry:
        """Call `callback` on the loop at monotonic time `when`."""
        if self._clock is not clock.installed():  # a test has just switched between real and virtual time
            self._clock, self._armed = clock.installed(), inf
        if self.dead > self.SWEEP and self.dead * 2 > len(self._heap):
            self._sweep()
        entry = _Entry(self, callback)
        heapq.heappush(self._heap, (when, next(self._order), entry))
        if when < self._armed:
            self._arm(when)
        return entry

    def _arm(self, when: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._armed = when
        self._handle = clock.call_at(self._loop, when, self._run_due)

    def _run_due(self) -> None:
        self._armed = inf
        self._handle = None
        heap, now = self._heap, clock.monotonic()
        while heap and (heap[0][2].callback is None or heap[0][0] <= now):
            callback = heapq.heappop(heap)[2].callback
            if callback is None:
                self.dead -= 1
            else:
                callback()
        if heap:
            self._arm(heap[0][0])

    def _sweep(self) -> None:
        self._heap[:] = [item for item in self._heap if item[2].callback is not None]
        heapq.heapify(self._heap)
        self.dead = 0


class _Cache(threading.local):
    """The loop this thread ran last and its timers: two calls in a row nearly always share it."""

    loop: asyncio.AbstractEventLoop | None = None
    timers: LoopTimers | None = None


_cache = _Cache()


def timers_of(loop: asyncio.AbstractEventLoop) -> LoopTimers:
    """The deadlines of `loop`, in its own thread."""
    if _cache.loop is loop and _cache.timers is not None:
        return _cache.timers
    timers: LoopTimers | None = getattr(loop, _ATTRIBUTE, None)
    if timers is None:
        timers = LoopTimers(loop)
        setattr(loop, _ATTRIBUTE, timers)  # lives and dies with its loop
    _cache.loop, _cache.timers = loop, timers
    return timers


_ATTRIBUTE = "_guarded_timers"


class InterruptOnToken(AbstractContextManager[None]):
    """Cancels the running task when `token` fires within the block; a CancelledError of its own leaves as Cancelled."""

    def __init__(self, token: CancelToken) -> None:
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
        self._timer = None if self._token.until == inf else timers_of(loop).add(self._token.until, interrupt.fire)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if self._interrupt is None:
            return
        self._registration.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._interrupt.close() and isinstance(error, asyncio.CancelledError):
            self._token.raise_if_cancelled("running")


def _fire_from_anywhere(loop: asyncio.AbstractEventLoop, interrupt: Interrupt) -> None:
    try:
        loop.call_soon_threadsafe(interrupt.fire)
    except RuntimeError:
        pass  # the loop is closed: nothing is left to cancel
