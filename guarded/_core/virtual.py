"""Time for tests: it stands still until told to move, or until everyone waits.

All waits of guarded register here while it is installed (see `guarded.testing.virtual_time`). With `auto`,
time jumps to the earliest wait as soon as nobody does anything: every loop with such waits has no callback ready and
no near timer of its own, and every other thread is parked here or stands in a wait of the standard library. A thread
that is busy, or blocked where that cannot be told, is waited for, but for `PATIENCE` only. Whole nanoseconds.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from guarded._core import clock
from guarded._core.durations import Duration, parse_duration_ns
from guarded._core.workers import workers

GRACE = 0.001  # real seconds between two looks at what the others do
SETTLE = 0.01  # real seconds to wait for a thread in a wait of the standard library: it may have been woken just now
PATIENCE = 0.25  # real seconds to wait for a thread that does something else
IDLE_ROUNDS = 3  # loop iterations without a ready callback; each polls the selector once
WAITS = frozenset(
    {"park", "wait", "join", "_wait_for_tstate_lock", "_shutdown", "select", "get", "_worker", "_next_event"}
)
WAITING_IN = ("clock.py", "threading.py", "queue.py", "selectors.py", "thread.py", "background.py")
NEAR = 1.0  # a real timer of the loop that is due within this many seconds counts as activity


class _Timer:
    """One registered wait; fires at most once."""

    __slots__ = ("_fire", "done", "when")

    def __init__(self, when: int, fire: Callable[[], object]) -> None:
        self.when: int = when
        self._fire = fire
        self.done = False

    def cancel(self) -> None:
        self.done = True

    def fire(self) -> None:
        if not self.done:
            self.done = True
            self._fire()


class VirtualTime:
    """The clock that `virtual_time` gives.

    Args:
        auto: jump to the earliest wait when nobody does anything; False moves only by `advance`.
        start: monotonic seconds to begin with; None for the next full second.
    """

    def __init__(self, *, auto: bool = True, start: float | None = None) -> None:
        if start is None:
            start = float(math.ceil(clock.monotonic()))
        self._lock = threading.Lock()
        self._auto = auto
        self._now = round(start * 1e9)
        self._wall = clock.wall() - start
        self._timers: list[tuple[int, int, _Timer]] = []
        self._order = itertools.count()
        self._activity = 0
        self._parked: dict[int, clock.Gate] = {}  # threads that wait here
        self._probing: set[asyncio.AbstractEventLoop] = set()
        self._idle_loops: dict[int, asyncio.AbstractEventLoop] = {}  # threads whose loop does nothing but probe
        # Threads that stand where they stood before (a test runner's, blocked in a read) have no part in this; a worker
        # may have been handed its next body.
        own = workers.idle()
        self._still = {ident: _place(frame) for ident, frame in _others().items() if ident not in own}

    def monotonic_ns(self) -> int:
        """Virtual nanoseconds now."""
        return self._now

    def monotonic(self) -> float:
        """Virtual seconds now."""
        return self._now / 1e9

    def wall(self) -> float:
        """Virtual seconds since the epoch: the real ones at the start, moved along."""
        return self._wall + self._now / 1e9

    def advance(self, seconds: Duration) -> None:
        """Move time by `seconds`, or a duration such as ``"1h"``, ending the waits that fall due, in their order."""
        self._move(self._now + parse_duration_ns(seconds, option="seconds", allow_zero=True))

    def park(self, gate: clock.Gate, until: float | None) -> bool:
        """Wait for `gate`, or until virtual time `until`."""
        when = self._now if until is None else _moment(until)
        if until is not None and when <= self._now:
            return gate.acquire(blocking=False)
        me = threading.get_ident()
        timer = _Timer(when, lambda: self._parked.pop(me, None))
        self._parked[me] = gate
        self._activity += 1
        if until is not None:
            self._add(timer)
        try:
            return self._poll(gate, timer, until)
        finally:
            self._parked.pop(me, None)
            timer.cancel()
            self._activity += 1

    def _poll(self, gate: clock.Gate, timer: _Timer, until: float | None) -> bool:
        seen, quiet = self._activity, 0.0
        while not gate.acquire(timeout=GRACE if threading.active_count() > 1 or not self._auto else 0.0):
            if timer.done:
                return gate.acquire(blocking=False)
            if clock.installed() is not self:  # the block is over: whoever is still parked waits on in real time
                return clock.park(gate, None if until is None else clock.monotonic() + until - self.monotonic())
            if seen != self._activity:
                seen, quiet = self._activity, 0.0
            elif self._auto and quiet >= self._patience() and gate.locked():  # not woken while that was found out
                self._jump(seen)
            else:
                quiet += GRACE
        return True

    def _patience(self) -> float:
        """How many real seconds of quiet it takes to be sure that no other thread is about to do something."""
        patience = 0.0
        frames = _others()  # first, since whom a thread woke before it went idle must be seen awake below
        known = workers.idle()
        known.update(ident for ident, loop in list(self._idle_loops.items()) if not _busy(loop))
        known.update(ident for ident, gate in list(self._parked.items()) if gate.locked())  # else it is just waking up
        for ident, frame in frames.items():
            if ident not in known:
                code = frame.f_code
                if code.co_name in WAITS and code.co_filename.endswith(WAITING_IN):
                    patience = max(patience, SETTLE)
                elif self._still.get(ident) != _place(frame):
                    patience = PATIENCE
        return patience

    def call_at(
        self, loop: asyncio.AbstractEventLoop, when: float, callback: Callable[..., object], *args: Any
    ) -> _Timer:
        """Run `callback` on `loop` at virtual time `when`."""

        me = threading.get_ident()

        def fire() -> None:
            self._idle_loops.pop(me, None)
            if not loop.is_closed():
                loop.call_soon_threadsafe(deliver)

        def deliver() -> None:
            if not cancelled:
                callback(*args)

        cancelled: list[bool] = []
        timer = _LoopTimer(_moment(when), fire, cancelled)
        self._add(timer)
        if self._auto and loop not in self._probing:
            self._probing.add(loop)
            loop.call_soon(self._probe, loop, 0, 0.0, self._activity)
        return timer

    def _probe(self, loop: asyncio.AbstractEventLoop, idle: int, quiet: float, seen: int) -> None:
        """Runs on the loop over and over while there are timers; jumps when everyone is idle."""
        me = threading.get_ident()
        self._idle_loops.pop(me, None)
        self._drop_done()
        if not self._timers or clock.installed() is not self:
            self._probing.discard(loop)
            return
        if _busy(loop) or seen != self._activity:
            idle, quiet = 0, 0.0
            if not getattr(loop, "_ready", None):
                clock.pause(GRACE)  # a timer of the loop is waited for, which takes no spinning
        idle += 1
        seen = self._activity
        if idle > IDLE_ROUNDS:
            if quiet >= self._patience() and not _busy(loop):
                idle, quiet = 0, 0.0
                self._jump(seen)
            else:
                self._idle_loops[me] = loop
                clock.pause(GRACE)
                quiet += GRACE
        loop.call_soon(self._probe, loop, idle, quiet, seen)

    def _add(self, timer: _Timer) -> None:
        with self._lock:
            self._activity += 1
            heapq.heappush(self._timers, (timer.when, next(self._order), timer))

    def _drop_done(self) -> None:
        with self._lock:
            while self._timers and self._timers[0][2].done:
                heapq.heappop(self._timers)

    def _jump(self, seen: int) -> None:
        """Move to the earliest wait, unless something has happened since the activity was `seen`."""
        self._drop_done()
        with self._lock:
            if seen != self._activity or not self._timers:
                return
            self._activity += 1  # of two threads that want to jump at once, one does
            when = self._timers[0][0]
        self._move(when)

    def _move(self, target: int) -> None:
        while True:
            with self._lock:
                self._activity += 1
                if not self._timers or self._timers[0][0] > target:
                    self._now = max(self._now, target)
                    return
                when, _, timer = heapq.heappop(self._timers)
                self._now = max(self._now, when)
            timer.fire()


class _LoopTimer(_Timer):
    """A timer whose callback may be cancelled even after it fired, before the loop runs it."""

    __slots__ = ("_cancelled",)

    def __init__(self, when: int, fire: Callable[[], object], cancelled: list[bool]) -> None:
        super().__init__(when, fire)
        self._cancelled = cancelled

    def cancel(self) -> None:
        self.done = True
        self._cancelled.append(True)


def _others() -> dict[int, FrameType]:
    """Where the other threads stand; not one's own frame, which would hold itself, and with it all its callers have."""
    frames = sys._current_frames()
    del frames[threading.get_ident()]
    return frames


def _place(frame: FrameType) -> tuple[int, int]:
    """Where a thread is: which activation of which function, and how far in it."""
    return id(frame), frame.f_lasti


def _busy(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the loop has callbacks to run, or a real timer of its own that is due soon."""
    if getattr(loop, "_ready", None):
        return True
    scheduled = getattr(loop, "_scheduled", None)
    return any(not timer.cancelled() and timer.when() - loop.time() < NEAR for timer in scheduled or ())


def _moment(when: float) -> int:
    """The nanosecond at which seconds have reached `when` for whoever compares them, which rounding may miss by one."""
    moment = round(when * 1e9)
    return moment if moment / 1e9 >= when else moment + 1
