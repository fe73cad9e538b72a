"""Time for tests: it stands still until told to move, or until everyone waits.

All waits of guarded register here while it is installed (see `guarded.testing.virtual_time`). With `auto`,
time jumps to the earliest wait as soon as nobody does anything: a loop with no callback ready and no near
timer of its own, and no thread that registers or ends a wait for `GRACE` real seconds. Whole nanoseconds.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from collections.abc import Callable
from typing import Any

from guarded._core import clock

GRACE = 0.002
IDLE_ROUNDS = 3  # loop iterations without a ready callback; each polls the selector once
NEAR = 1.0  # a real timer of the loop that is due within this many seconds counts as activity


class _Timer:
    """One registered wait; fires at most once."""

    __slots__ = ("_fire", "done", "when")

    def __init__(self, when: int, fire: Callable[[], object]) -> None:
        self.when = when
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
        start: monotonic seconds to begin with.
    """

    def __init__(self, *, auto: bool = True, start: float = 1000.0) -> None:
        self._lock = threading.Lock()
        self._auto = auto
        self._now = round(start * 1e9)
        self._wall = clock.wall() - start
        self._timers: list[tuple[int, int, _Timer]] = []
        self._order = itertools.count()
        self._activity = 0
        self._probing: set[asyncio.AbstractEventLoop] = set()

    def monotonic_ns(self) -> int:
        """Virtual nanoseconds now."""
        return self._now

    def monotonic(self) -> float:
        """Virtual seconds now."""
        return self._now / 1e9

    def wall(self) -> float:
        """Virtual seconds since the epoch: the real ones at the start, moved along."""
        return self._wall + self._now / 1e9

    def advance(self, seconds: float) -> None:
        """Move time by `seconds`, ending the waits that fall due, in their order."""
        self._move(self._now + round(seconds * 1e9))

    def park(self, gate: clock.Gate, until: float | None) -> bool:
        """Wait for `gate`, or until virtual time `until`."""
        if until is None:
            return self._park_for_good(gate)
        if round(until * 1e9) <= self._now:
            return gate.acquire(blocking=False)
        timer = self._register(until, lambda: None)
        while True:
            seen = self._activity
            if gate.acquire(timeout=GRACE if threading.active_count() > 1 or not self._auto else 0.0):
                timer.cancel()
                self._activity += 1
                return True
            if timer.done:
                self._activity += 1
                return gate.acquire(blocking=False)
            if self._auto and seen == self._activity:
                self._jump()

    def _park_for_good(self, gate: clock.Gate) -> bool:
        # Whoever waits without end still has to let time go on for the others.
        while not gate.acquire(timeout=GRACE):
            pass
        self._activity += 1
        return True

    def call_at(
        self, loop: asyncio.AbstractEventLoop, when: float, callback: Callable[..., object], *args: Any
    ) -> _Timer:
        """Run `callback` on `loop` at virtual time `when`."""

        def fire() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(deliver)

        def deliver() -> None:
            if not cancelled:
                callback(*args)

        cancelled: list[bool] = []
        timer = _LoopTimer(round(when * 1e9), fire, cancelled)
        self._add(timer)
        if self._auto and loop not in self._probing:
            self._probing.add(loop)
            loop.call_soon(self._probe, loop, 0, self._activity)
        return timer

    def _probe(self, loop: asyncio.AbstractEventLoop, idle: int, seen: int) -> None:
        """Runs on the loop over and over while it has timers; jumps when the loop is idle."""
        self._drop_done()
        if not self._timers or clock.installed() is not self:
            self._probing.discard(loop)
            return
        if _busy(loop) or seen != self._activity:
            idle = 0
        elif threading.active_count() > 1:
            clock.pause(GRACE / IDLE_ROUNDS)
        idle += 1
        seen = self._activity
        if idle > IDLE_ROUNDS:
            idle = 0
            self._jump()
        loop.call_soon(self._probe, loop, idle, seen)

    def _register(self, when: float, fire: Callable[[], object]) -> _Timer:
        timer = _Timer(round(when * 1e9), fire)
        self._add(timer)
        return timer

    def _add(self, timer: _Timer) -> None:
        with self._lock:
            self._activity += 1
            heapq.heappush(self._timers, (timer.when, next(self._order), timer))

    def _drop_done(self) -> None:
        with self._lock:
            while self._timers and self._timers[0][2].done:
                heapq.heappop(self._timers)

    def _jump(self) -> None:
        self._drop_done()
        with self._lock:
            when = self._timers[0][0] if self._timers else self._now
        self._move(when)

    def _move(self, target: int) -> None:
        while True:
            with self._lock:
                if not self._timers or self._timers[0][0] > target:
                    self._now = max(self._now, target)
                    self._activity += 1
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


def _busy(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the loop has callbacks to run, or a real timer of its own that is due soon."""
    if getattr(loop, "_ready", None):
        return True
    scheduled = getattr(loop, "_scheduled", None)
    return any(not timer.cancelled() and timer.when() - loop.time() < NEAR for timer in scheduled or ())
