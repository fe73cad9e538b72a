"""Telling the bus how a call ended."""

from __future__ import annotations

from guarded._core import clock
from guarded._core.call import Call
from guarded.errors import Cancelled
from guarded.events.bus import bus
from guarded.events.model import TRACE


def told_succeeded(call: Call, started: float) -> None:
    """The call gave its result."""
    if bus.threshold <= TRACE:
        duration = max(0.0, clock.monotonic() - started)
        bus.emit("call.succeeded", call, None, duration=duration, outcome="success", attempts=call.attempts or 1)


def told_failed(call: Call, started: float, error: BaseException) -> None:
    """The call raised: a failure, or neutral when it was cut off, by its task or by a token."""
    failed = isinstance(error, Exception) and not isinstance(error, Cancelled)
    bus.emit(
        "call.failed",
        call,
        None,
        duration=max(0.0, clock.monotonic() - started),
        outcome="failure" if failed else "neutral",
        cancelled=None if failed else True,
        cause=error,
        attempts=call.attempts or 1,
        status=_status_to_tell(call, error) if failed else None,
    )


def _status_to_tell(call: Call, error: BaseException) -> int | None:
    """The HTTP status behind `error`, unless a retry or a call further in has told or will tell it."""
    told = call.attempts is not None or call.told == id(error)
    around, retried = call.parent, False
    while around is not None:
        around.told = id(error)
        retried = retried or around.attempt is not None
        around = around.origin or around.parent
    if told or retried:
        return None
    from guarded.http import status_of  # the core does without it until something fails while somebody listens

    return status_of(error)
