"""What an adaptive limit learns from its calls, and from which of them."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from guarded._core import clock
from guarded._core.call import Call
from guarded.errors import DeadlineExceeded, Rejected
from guarded.policies._limit.adaptive import Adaptive, Estimator

if TYPE_CHECKING:
    from guarded.policies.limit import Limit


class Learner:
    """Feeds the estimator of an adaptive limit; samples that come in while it learns are let go."""

    __slots__ = ("_busy", "_estimator", "_limit", "_spec")

    def __init__(self, limit: Limit, spec: Adaptive) -> None:
        self._limit = limit
        self._spec = spec
        self._estimator: Estimator | None = spec.estimator()
        self.renew_lock()

    def renew_lock(self) -> None:
        """A new lock; in a forked child too, where nobody would release the old one."""
        self._busy = threading.Lock()

    def override(self, size: int) -> int:
        """Set a size by hand and go on from there; 0 stops learning until there is another. Gives the previous size."""
        spec = self._spec
        start = min(max(size, spec.min_limit), spec.max_limit)
        with self._busy:
            self._estimator = replace(spec, initial=start).estimator() if size else None
            return self._limit.apply(size)

    def learn(self, call: Call, started: float, inflight: int, error: BaseException | None) -> None:
        """Take one call into account, if it says anything about the load."""
        dropped = error is not None
        if error is not None and not _speaks_of_overload(call, error):
            return
        latency = max(0.0, clock.monotonic() - started)
        if not self._busy.acquire(blocking=False):
            return
        try:
            if self._estimator is None:
                return
            size = self._estimator.observe(latency, inflight, dropped)
            previous = self._limit.apply(size)
        finally:
            self._busy.release()
        self._limit.tell_resized(call, previous, size, "adapted")


def _speaks_of_overload(call: Call, error: BaseException) -> bool:
    """Whether a failure is the kind that too many calls at once would cause; our own waits and refusals are not."""
    if isinstance(error, DeadlineExceeded):
        return error.during == "running"
    if isinstance(error, Exception):
        from guarded.http import transient  # only a failing call of an adaptive limit needs the tables

        return not isinstance(error, Rejected) and transient(error)
    if isinstance(error, GeneratorExit) or call.deadline is None:
        return False
    return call.deadline.during == "running" and clock.monotonic() >= call.deadline.until
