"""Cancellation that crosses threads, loops and layers.

A `CancelToken` fires once. Inside ``with token:`` every wait of every layer, in any thread that inherits the
context, ends with `Cancelled`, and guarded async bodies are cancelled. Callbacks run in the thread that cancels.
There is no lock: a signal handler or a finalizer may cancel in the middle of anything. Times are monotonic seconds.
"""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import Token
from math import inf

from guarded._core import clock, waiters
from guarded._core.call import Call, current, out_of_time
from guarded._core.durations import Duration, parse_duration
from guarded.errors import Cancelled

__all__ = ["CancelToken", "Cancelled", "asleep", "checkpoint", "sleep"]


_GONE = object()


class Registration:
    """A callback on a token; `close`, or the end of its ``with`` block, takes it off."""

    __slots__ = ("_callback", "_token")

    def __init__(self, token: CancelToken, callback: Callable[[], object]) -> None:
        self._token = token
        self._callback = callback

    def close(self) -> None:
        """The callback will not be called any more, unless it is running already."""
        self._token._take(self)

    def run(self) -> None:
        """Call back."""
        self._callback()

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class _Scope(Call):
    """What ``with token:`` puts into the context."""

    reset: Token[Call | None]


class CancelToken:
    """A switch that ends waits and guarded async bodies, from any thread.

    Example:
        >>> token = CancelToken()
        >>> token.cancel("shutting down")
        True
        >>> token.cancelled, token.reason
        (True, 'shutting down')
    """

    def __init__(self) -> None:
        self._registrations: dict[Registration, object] = {}  # whoever takes one out calls it back, or never will
        self._trigger = [True]  # whoever takes it out fires
        self._fired = False
        self._reason: str | None = None
        self.until = inf
        """Monotonic time at which the token fires by itself; ``inf`` for one that does not."""

    @classmethod
    def after(cls, duration: Duration) -> CancelToken:
        """A token that fires by itself once `duration` has passed: seconds, a timedelta or ``"10s"``."""
        token = cls()
        seconds = parse_duration(duration, option="duration")
        token.until = clock.monotonic() + seconds
        token._reason = f"{seconds:g} s have passed"
        return token

    @classmethod
    def any(cls, *tokens: CancelToken) -> CancelToken:
        """A token that fires as soon as one of `tokens` does, with its reason; cancelling it leaves them alone."""
        for token in tokens:
            if not isinstance(token, CancelToken):
                raise TypeError(f"CancelToken.any: give tokens, not {token!r}")
        combined = CancelToken()
        ref = weakref.ref(combined)  # a long-lived source must not keep every token that was made from it
        for source in tokens:
            if source.until < combined.until:
                combined.until, combined._reason = source.until, source._reason
            registration = source.on_cancel(functools.partial(_pass_on, source, ref))
            weakref.finalize(combined, registration.close).atexit = False
        return combined

    def cancel(self, reason: str | None = None) -> bool:
        """Fire: end every wait and guarded async body under this token; False when it had fired before.

        The callbacks run here, before this returns; one that raises keeps none of the others from running, and its
        error comes out of this call.
        """
        in_time = clock.monotonic() < self.until
        try:
            self._trigger.pop()
        except IndexError:
            return False
        if in_time:  # else it has fired by itself already, and keeps its reason
            self._reason = reason
        self._fired = True
        with ExitStack() as stack:
            for registration in reversed(list(self._registrations)):
                if self._take(registration):
                    stack.callback(registration.run)
        return in_time

    @property
    def cancelled(self) -> bool:
        """Whether the token has fired."""
        return self._fired or clock.monotonic() >= self.until

    @property
    def reason(self) -> str | None:
        """What was given to `cancel`; None before the token fires."""
        return self._reason if self.cancelled else None

    def checkpoint(self) -> None:
        """Raise Cancelled if the token has fired."""
        self.raise_if_cancelled("running")

    def raise_if_cancelled(self, during: str) -> None:
        """Raise Cancelled, saying what was going on, if the token has fired."""
        if self.cancelled:
            why = f": {self._reason}" if self._reason else ""
            raise Cancelled(f"cancelled while {during}{why}", reason=self._reason)

    def on_cancel(self, callback: Callable[[], object]) -> Registration:
        """Call `callback` when the token is cancelled, in the thread that does it; at once when it was before.

        A token from `after` does not call back when its time comes: nobody runs then. The waits know its time.
        """
        if not callable(callback):
            raise TypeError(f"on_cancel: callback={callback!r} is not callable")
        registration = Registration(self, callback)
        self._registrations[registration] = None
        if self.cancelled and self._take(registration):  # looked at only now: `cancel` may run at any point of this
            registration.run()
        return registration

    def _take(self, registration: Registration) -> bool:
        """Take a callback off; True for the one caller that did."""
        return self._registrations.pop(registration, _GONE) is not _GONE

    def __enter__(self) -> CancelToken:
        scope = _Scope()
        outer = current.get()
        token = self
        if outer is not None:
            scope.adopt(outer)
            if outer.token is not None and outer.token is not self:
                token = CancelToken.any(self, outer.token)
        scope.function = "with token"
        scope.token = token
        scope.reset = current.set(scope)
        return self

    def __exit__(self, *exc_info: object) -> None:
        scope = current.get()
        if not isinstance(scope, _Scope):
            raise RuntimeError("a token's with block was left in another context than it was entered in")
        current.reset(scope.reset)

    def __repr__(self) -> str:
        state = f"cancelled, reason={self._reason!r}" if self.cancelled else "not cancelled"
        return f"<CancelToken: {state}>"


def _pass_on(source: CancelToken, target: weakref.ref[CancelToken]) -> None:
    token = target()
    if token is not None:
        token.cancel(source.reason)


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
