"""What the end of a call says about the dependency: success, failure, or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from guarded._core import clock
from guarded._core.call import Call, out_of_time
from guarded.errors import DeadlineExceeded, GuardedError
from guarded.policies import _matching
from guarded.policies._circuit.options import CircuitOptions
from guarded.policies._circuit.terms import FAILURE, NEUTRAL, Outcome, Permit

_QUEUEING = ("queued for", "waiting for", "joining", "starting")
"""What a call was doing when its deadline passed, where that says nothing about the dependency."""


class Judge:
    """Tells what the end of a call says about the dependency. Runs user predicates, so never under a lock."""

    __slots__ = ("_counts", "_excludes", "_ignores", "_slow_call")

    def __init__(self, options: CircuitOptions, excludes: Callable[[Exception], bool]) -> None:
        self._counts = _matching.compile_match(options.on)
        self._ignores = _matching.compile_match(options.ignore)
        self._excludes = excludes
        self._slow_call = options.slow_call

    def __call__(self, call: Call, permit: Permit, error: BaseException) -> tuple[Outcome, BaseException]:
        """The outcome, and the error to give as its reason."""
        if isinstance(error, asyncio.CancelledError) and clock.monotonic() >= call.until:
            error = out_of_time(call)  # how an async body meets the deadline around it
        if not isinstance(error, Exception) or self._is_ours(error) or self._ignores(error) or self._excludes(error):
            return NEUTRAL, error
        if isinstance(error, DeadlineExceeded) and error.until == call.until:
            return (FAILURE if self._ran_long(call, permit, error) else NEUTRAL), error
        return (FAILURE if self._counts(error) else NEUTRAL), error

    @staticmethod
    def _is_ours(error: Exception) -> bool:
        """Whether guarded itself raised all of it: refused, cancelled, misused."""
        return all(
            isinstance(leaf, GuardedError) and not isinstance(leaf, DeadlineExceeded)
            for leaf in _matching.leaves(error)
        )

    def _ran_long(self, call: Call, permit: Permit, error: DeadlineExceeded) -> bool:
        """Whether a call that the deadline around it cut off had enough time to blame the dependency."""
        deadline = call.deadline
        if deadline is None or permit.started is None or error.during.startswith(_QUEUEING):
            return False
        started = permit.started / 1e9
        if self._slow_call is not None:
            enough = self._slow_call
        else:
            enough = (deadline.until - started if deadline.length is None else deadline.length) / 2
        return clock.monotonic() - started >= enough
