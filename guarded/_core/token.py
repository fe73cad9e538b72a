"""A switch that ends waits and async bodies, crossing threads, loops and layers.

There is no lock: a signal handler or a finalizer may fire a token in the middle of anything. Callbacks run in the
thread that fires it. Times are monotonic seconds.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from math import inf
from typing import Self

from guarded._core import clock
from guarded._core.durations import Duration, parse_duration
from guarded.errors import Cancelled

_GONE = object()


class Registration:
    """A callback on a token; `close`, or the end of its ``with`` block, takes it off."""

    __slots__ = ("_callback", "_token")

    def __init__(self, token: Token, callback: Callable[[], object]) -> None:
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


class Token:
    """A switch that fires once, from any thread; `guarded.CancelToken` is one that also opens blocks."""

    def __init__(self) -> None:
        self._registrations: dict[Registration, object] = {}  # whoever takes one out calls it back, or never will
        self._firing: dict[str, list[str | None]] = {}  # "first" to its reason, once somebody has fired
        self.until = inf
        """Monotonic time at which the token fires by itself; ``inf`` for one that does not."""
        self.lapse: str | None = None
        """The reason it then has."""

    @classmethod
    def after(cls, duration: Duration) -> Self:
        """A token that fires by itself once `duration` has passed: seconds, a timedelta or ``"10s"``."""
        token = cls()
        seconds = parse_duration(duration, option="duration")
        token.until = clock.monotonic() + seconds
        token.lapse = f"{seconds:g} s have passed"
        return token

    @classmethod
    def any(cls, *tokens: Token) -> Self:
        """A token that fires as soon as one of `tokens` does, with its reason; cancelling it leaves them alone."""
        for token in tokens:
            if not isinstance(token, Token):
                raise TypeError(f"CancelToken.any: give tokens, not {token!r}")
        combined = cls()
        ref: weakref.ref[Token] = weakref.ref(
            combined
        )  # a long-lived source must not keep every token that was made from it
        for source in tokens:
            if source.until < combined.until:
                combined.until, combined.lapse = source.until, source.lapse
            registration = source.on_cancel(functools.partial(_pass_on, source, ref))
            weakref.finalize(combined, registration.close).atexit = False
        return combined

    def cancel(self, reason: str | None = None) -> bool:
        """Fire: end every wait and guarded async body under this token; False when it had fired before.

        The callbacks run here, before this returns; one that raises keeps none of the others from running, and its
        error comes out of this call.
        """
        in_time = clock.monotonic() < self.until
        mine = [reason if in_time else self.lapse]
        first = self._firing.setdefault("first", mine) is mine  # in one step, however many fire at once
        with ExitStack() as stack:  # also when another was first: a signal handler may have cut it short by raising
            for registration in reversed(list(self._registrations)):
                if self._take(registration):
                    stack.callback(registration.run)
        return first and in_time

    @property
    def cancelled(self) -> bool:
        """Whether the token has fired."""
        return bool(self._firing) or clock.monotonic() >= self.until

    @property
    def reason(self) -> str | None:
        """What was given to `cancel`; None before the token fires."""
        if self._firing:
            return self._firing["first"][0]
        return self.lapse if self.cancelled else None

    def checkpoint(self) -> None:
        """Raise Cancelled if the token has fired."""
        self.raise_if_cancelled("running")

    def raise_if_cancelled(self, during: str) -> None:
        """Raise Cancelled, saying what was going on, if the token has fired."""
        if self.cancelled:
            reason = self.reason
            raise Cancelled(f"cancelled while {during}{f': {reason}' if reason else ''}", reason=reason)

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

    def __repr__(self) -> str:
        state = f"cancelled, reason={self.reason!r}" if self.cancelled else "not cancelled"
        return f"<CancelToken: {state}>"


def token_within(around: Token | None) -> Token:
    """A token of one's own, which also fires with the one around it, if there is any."""
    return Token() if around is None else Token.any(around)


def _pass_on(source: Token, target: weakref.ref[Token]) -> None:
    token = target()
    if token is not None:
        token.cancel(source.reason)
