"""An event loop in which waiting takes no time: when nobody has anything to do, its clock jumps to the next timer.

For one thread, whose tasks wait for each other and for guarded's clock only; so a simulated hour takes as long as what
happens in it. Whole nanoseconds, from zero. For tests beside real threads there is ``guarded.testing.virtual_time``.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from guarded._core import clock
from guarded.errors import Deadlock

T = TypeVar("T")


class LoopTime:
    """The clock of such a loop, installed as guarded's own."""

    def __init__(self) -> None:
        self.now = 0

    def monotonic(self) -> float:
        """Seconds since the start."""
        return self.now / 1e9

    def monotonic_ns(self) -> int:
        """Nanoseconds since the start."""
        return self.now

    def wall(self) -> float:
        """The same: a simulation has no date."""
        return self.monotonic()

    def park(self, gate: clock.Gate, until: float | None) -> bool:
        """A thread that waits would stop the only one there is."""
        raise Deadlock("a plain function waits inside a simulation, which has one thread only")

    def call_at(
        self, loop: asyncio.AbstractEventLoop, when: float, callback: Callable[..., object], *args: Any
    ) -> clock.TimerHandle:
        """A timer of the loop, whose time this is."""
        return loop.call_at(when, callback, *args)


class _Selector(selectors.SelectSelector):
    def __init__(self, time: LoopTime) -> None:
        super().__init__()
        self._time = time

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise Deadlock("everyone waits, and nothing will ever wake them")
            self._time.now += math.ceil(max(0.0, timeout) * 1e9)
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, time: LoopTime) -> None:
        super().__init__(_Selector(time))
        self._virtual = time

    def time(self) -> float:
        return self._virtual.monotonic()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end, like ``asyncio.run``, with its own time in the place of real time."""
    time = LoopTime()
    previous = clock.install(time)
    try:
        with asyncio.Runner(loop_factory=lambda: _Loop(time)) as runner:
            return runner.run(main)
    finally:
        clock.install(previous)
