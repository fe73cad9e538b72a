"""The only module that reads time or waits for it.

The clocks are names of this module, so that freezegun, which rebinds names, moves every policy; an installed
``VirtualClock`` rebinds them too. Monotonic seconds (float) or nanoseconds (int) inside the process,
wall-clock seconds since the epoch only for show.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol


class TimerHandle(Protocol):
    """What ``call_at`` gives back."""

    def cancel(self) -> None:
        """Make the timer never fire; harmless when it already did."""


class Gate(Protocol):
    """A lock used as a one-shot gate: taken when made, released to wake whoever parks on it."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...

    def release(self) -> None: ...

    def locked(self) -> bool: ...


class VirtualClock(Protocol):
    """Time that moves only when told to, or when everyone waits (see ``guarded.testing``)."""

    def monotonic(self) -> float: ...

    def monotonic_ns(self) -> int: ...

    def wall(self) -> float: ...

    def park(self, gate: Gate, until: float | None) -> bool: ...

    def call_at(
        self, loop: asyncio.AbstractEventLoop, when: float, callback: Callable[..., object], *args: Any
    ) -> TimerHandle: ...


_virtual: VirtualClock | None = None
_lead = 0  # nanoseconds by which time in this process is ahead of the real clock, see `catch_up`


def install(clock: VirtualClock | None) -> VirtualClock | None:
    """Replace real time by `clock` (None: back to real time); return what was installed before."""
    global _virtual, monotonic, monotonic_ns
    previous, _virtual = _virtual, clock
    if clock is not None:
        monotonic, monotonic_ns = clock.monotonic, clock.monotonic_ns
    elif _lead:
        monotonic, monotonic_ns = _leading, _leading_ns
    else:
        monotonic, monotonic_ns = time.monotonic, time.monotonic_ns
    return previous


def catch_up(moment: int) -> None:
    """Go on in real time from `moment`, in nanoseconds, should it lie ahead.

    When virtual time ends, policies keep what they counted in it. Were time to go back then, a circuit that opened
    there would not close, and a used-up rate not recover, before the real clock got there too.
    """
    global _lead
    if moment > monotonic_ns():
        _lead = moment - time.monotonic_ns()
        install(None)


def _leading() -> float:
    return time.monotonic() + _lead / 1e9


def _leading_ns() -> int:
    return time.monotonic_ns() + _lead


def installed() -> VirtualClock | None:
    """The clock in the place of real time, if any."""
    return _virtual


def pause(seconds: float) -> None:
    """Block this thread for real `seconds`, whatever clock is installed."""
    time.sleep(seconds)


monotonic: Callable[[], float] = time.monotonic
"""Seconds that never go back, from an arbitrary point. Look it up at each use: `install` and freezegun rebind it."""

monotonic_ns: Callable[[], int] = time.monotonic_ns
"""The same clock in whole nanoseconds; look it up at each use too."""


def wall() -> float:
    """Seconds since the Unix epoch: for show and for HTTP dates, never for a decision in process."""
    return time.time() + _lead / 1e9 if _virtual is None else _virtual.wall()


def park(gate: Gate, until: float | None) -> bool:
    """Block this thread until `gate` is released (True) or monotonic time `until` is reached (False)."""
    if _virtual is not None:
        return _virtual.park(gate, until)
    if until is None:
        return gate.acquire()
    # One wait, not a loop that asks the clock again: under freezegun the clock stands still while real time passes.
    timeout = min(until - monotonic(), threading.TIMEOUT_MAX)
    return gate.acquire(timeout=timeout) if timeout > 0 else gate.acquire(blocking=False)


def call_at(loop: asyncio.AbstractEventLoop, when: float, callback: Callable[..., object], *args: Any) -> TimerHandle:
    """Run `callback(*args)` on `loop` at monotonic time `when`; to be called in the loop's thread."""
    if _virtual is not None:
        return _virtual.call_at(loop, when, callback, *args)
    return loop.call_later(max(0.0, when - monotonic()), callback, *args)
