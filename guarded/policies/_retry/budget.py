"""A bound on the share of calls that are retries, over all callers that share the budget.

Every first attempt earns a part of a retry, every retry spends one; both count for the last 10 seconds only.
A trickle of retries is free, so that callers with little traffic can retry at all.
"""

from __future__ import annotations

import math
import sys
import threading
from dataclasses import dataclass
from typing import Any

from guarded._core import clock
from guarded._core.fork import after_fork
from guarded._core.policy import Policy, Site
from guarded._core.registry import registry

WINDOW = 10  # seconds, counted in slots of one second
_EPSILON = 1e-9  # ten calls at 0.1 each earn one retry


class Ledger:
    """First attempts and retries of the last `WINDOW` seconds. Not thread-safe; time comes in."""

    __slots__ = ("_calls", "_retries", "_second", "calls", "retries")

    def __init__(self) -> None:
        self._calls = [0] * WINDOW
        self._retries = [0] * WINDOW
        self._second = 0
        self.calls = 0
        self.retries = 0

    def deposit(self, now: float) -> None:
        """Count one first attempt."""
        self._calls[self._slot(now)] += 1
        self.calls += 1

    def withdraw(self, now: float, ratio: float, min_per_second: float) -> bool:
        """Count one retry, if there is one to spend."""
        slot = self._slot(now)
        if self.balance(now, ratio, min_per_second) < 1 - _EPSILON:
            return False
        self._retries[slot] += 1
        self.retries += 1
        return True

    def refund(self, now: float) -> None:
        """Take the latest retry back: it did not take place after all."""
        latest = self._slot(now)
        for age in range(WINDOW):
            slot = (latest - age) % WINDOW
            if self._retries[slot]:
                self._retries[slot] -= 1
                self.retries -= 1
                return

    def balance(self, now: float, ratio: float, min_per_second: float) -> float:
        """How many retries could be made now."""
        self._slot(now)
        return min_per_second * WINDOW + ratio * self.calls - self.retries

    def _slot(self, now: float) -> int:
        """The slot of this second, with those that have left the window emptied; time that goes back stands still."""
        second = max(self._second, math.floor(now))
        for passed in range(self._second + 1, min(second, self._second + WINDOW) + 1):
            slot = passed % WINDOW
            self.calls -= self._calls[slot]
            self.retries -= self._retries[slot]
            self._calls[slot] = self._retries[slot] = 0
        self._second = second
        return second % WINDOW


@dataclass(frozen=True, slots=True)
class RetryBudgetOptions:
    """What `RetryBudget` was given."""

    ratio: float = 0.2
    min_per_second: float = 1.0


class RetryBudget(Policy[RetryBudgetOptions]):
    """A budget of retries to share: ``retry(budget=RetryBudget(0.2, name="gateway"))``, then ``budget="gateway"``.

    While a dependency is down, its callers add at most `ratio` of their calls to its load, instead of a
    multiple. The algorithm is that of Finagle's RetryBudget (a windowed token bucket with a reserve,
    com.twitter.finagle.service.RetryBudget); gRPC's retry throttling (gRFC A6) is its relative.

    Args:
        ratio: retries allowed per call, 0 to 1.
        min_per_second: retries per second that are always allowed, at least 0; averaged over 10 seconds.
        name: the budget is the same object wherever this name is used; with other options it is a PolicyConflict.

    Raises:
        ValueError: naming every wrong option; `ratio` and `min_per_second` must not both be 0.
    """

    kind = "retry_budget"

    def __new__(cls, ratio: float = 0.2, min_per_second: float = 1.0, *, name: str | None = None) -> RetryBudget:
        """The budget of that name, or a new one."""
        budget = super().__new__(cls)
        Policy.__init__(budget, _checked(ratio, min_per_second), name=name)
        budget._renew_lock()
        budget._ledger = Ledger()
        after_fork(budget, RetryBudget._renew_lock)
        return registry.intern(budget)

    def _renew_lock(self) -> None:
        # Anew in a forked child, which has no thread that held it; reentrant for a signal handler that makes calls.
        self._lock = threading.RLock()

    _lock: threading.RLock
    _ledger: Ledger

    def __init__(self, ratio: float = 0.2, min_per_second: float = 1.0, *, name: str | None = None) -> None:
        # All is set in __new__: a known name gives an object that is in use.
        pass

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.options, self.name)

    def __repr__(self) -> str:
        name = f", name={self.name!r}" if self.name else ""
        return f"RetryBudget({self.options.ratio:g}, {self.options.min_per_second:g}{name})"

    def check(self, site: Site) -> None:
        """A budget is no layer."""
        raise TypeError(f"{self!r} goes into retry(budget=…) or hedge(budget=…), not on a callable")

    def deposit(self) -> None:
        """Count one call."""
        with self._lock:
            self._ledger.deposit(clock.monotonic())

    def withdraw(self) -> bool:
        """Spend one retry; False when the budget has none left."""
        with self._lock:
            return self._ledger.withdraw(clock.monotonic(), self.options.ratio, self.options.min_per_second)

    def refund(self) -> None:
        """Give back a retry that did not take place."""
        with self._lock:
            self._ledger.refund(clock.monotonic())

    @property
    def balance(self) -> float:
        """How many retries could be made now."""
        with self._lock:
            return self._ledger.balance(clock.monotonic(), self.options.ratio, self.options.min_per_second)

    def live_state(self) -> dict[str, Any]:
        """Calls and retries of the last 10 seconds, and how many retries are left."""
        balance = self.balance
        return {"calls": self._ledger.calls, "retries": self._ledger.retries, "balance": balance}


def _restore(options: RetryBudgetOptions, name: str | None) -> RetryBudget:
    return RetryBudget(options.ratio, options.min_per_second, name=name)


def _checked(ratio: Any, min_per_second: Any) -> RetryBudgetOptions:
    found = []
    if not _is_number(ratio) or not 0 <= ratio <= 1:
        found.append(f"ratio={ratio!r}: must be a ratio from 0 to 1")
    if not _is_number(min_per_second) or not 0 <= min_per_second <= sys.float_info.max:
        found.append(f"min_per_second={min_per_second!r}: must be a finite number of at least 0")
    if not found and ratio == min_per_second == 0:
        found.append("ratio=0, min_per_second=0: allows no retry at all; use retry(retries=0)")
    if found:
        raise ValueError("RetryBudget: " + "; ".join(found))
    return RetryBudgetOptions(float(ratio), float(min_per_second))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def find_budget(budget: RetryBudget | str | None) -> RetryBudget | None:
    """A ``budget`` option resolved: a name is looked up in the registry.

    Raises PolicyNotFound, and TypeError when the name is that of something else.
    """
    if not isinstance(budget, str):
        return budget
    found = registry[budget]
    if not isinstance(found, RetryBudget):
        raise TypeError(f"budget={budget!r}: is a {found.kind}, not a RetryBudget")
    return found


def budget_problem(budget: Any) -> str | None:
    """What is wrong with a ``budget`` option, or None."""
    if budget is None or isinstance(budget, RetryBudget) or (isinstance(budget, str) and budget):
        return None
    return f"budget={budget!r}: must be a RetryBudget, or the name of one"
