"""Telling the bus how a call ended."""

from __future__ import annotations

from guarded._core import clock
from guarded._core.call import Call
from guarded.events.bus import bus
from guarded.events.model import TRACE


def told_succeeded(call: Call, started: float) -> None:
    """The call gave its result."""
    if bus.threshold <= TRACE:
        bus.emit("call.succeeded", call, None, duration=max(0.0, clock.monotonic() - started), outcome="success")


def told_failed(call: Call, started: float, error: BaseException) -> None:
    """The call raised: a failure, or neutral when it was cut off."""
    failed = isinstance(error, Exception)
    bus.emit(
        "call.failed",
        call,
        None,
        duration=max(0.0, clock.monotonic() - started),
        outcome="failure" if failed else "neutral",
        cancelled=None if failed else True,
        cause=error,
    )
