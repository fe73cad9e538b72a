"""Cancellation that crosses threads, loops and layers, and sleeps that obey it.

A `CancelToken` fires once. Inside ``with token:`` every wait of every layer, in any thread that inherits the
context, ends with `Cancelled`, and guarded async bodies are cancelled.
"""

from __future__ import annotations

import asyncio

from guarded._core import clock, waiters
from guarded._core.call import Call, Scope, current, out_of_time
from guarded._core.durations import Duration, parse_duration
from guarded._core.token import Token
from guarded.errors import Cancelled

__all__ = ["CancelToken", "Cancelled", "asleep", "checkpoint", "sleep"]


class CancelToken(Token):
    """A switch that ends waits and guarded async bodies, from any thread.

    Example:
        >>> token = CancelToken()
        >>> token.cancel("shutting down")
        True
        >>> token.cancelled, token.reason
        (True, 'shutting down')
    """

    def __enter__(self) -> CancelToken:
        scope = Scope(self, "with token")
        around = scope.token
        scope.token = self if around is None or around is self else Token.any(self, around)
        scope.enter()
        return self

    def __exit__(self, *exc_info: object) -> None:
        Scope.leave(self)


def _here() -> Call:
    """The running call, or an empty one outside of any."""
    return current.get() or Call()


def checkpoint() -> None:
    """Raise DeadlineExceeded when the time of the running call is up, Cancelled when its token has fired."""
    call = current.get()
    if call is None:
        return
    if call.token is not None:
        call.token.raise_if_cancelled("running")
    if call.deadline is not None and clock.monotonic() >= call.deadline.until:
        raise out_of_time(call)


def sleep(duration: Duration) -> None:
    """Block this thread for `duration`, or until the deadline or the token of the running call ends it.

    Raises Deadlock where it would freeze an event loop: use `asleep` there.
    """
    seconds = parse_duration(duration, option="duration", allow_zero=True)
    if seconds == 0:
        checkpoint()
        return
    waiters.refuse_on_loop_thread("guarded.sleep")
    waiters.sleep(_here(), seconds, "sleeping")


async def asleep(duration: Duration) -> None:
    """Suspend this task for `duration`, or until the deadline or the token of the running call ends it."""
    seconds = parse_duration(duration, option="duration", allow_zero=True)
    if seconds == 0:
        checkpoint()
        await asyncio.sleep(0)
        return
    await waiters.sleep_async(_here(), seconds, "sleeping")
