"""What follows a failed attempt: the decision both shells of `retry` act on.

No I/O, no clock, no sleeping: time, the wait the other side asked for and randomness come in. The only user
code that runs here are predicates and the backoff function, in the caller's thread and under no lock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal, TypeAlias

from guarded._core.durations import format_duration
from guarded.errors import DeadlineExceeded
from guarded.policies._matching import is_cancellation, leaves
from guarded.policies._retry.backoff import Backoff, Random

Reason: TypeAlias = Literal[
    "cancelled", "deadline", "excluded", "not matched", "exhausted", "retry_after too long", "no time left",
    "one-shot argument", "budget spent",
]  # fmt: skip

_TICK = 1e-9  # sums of seconds are not exact: what starts less than a nanosecond before the deadline does not start


@dataclass(frozen=True, slots=True)
class Stop:
    """No further attempt, and why; `hint` says what would change that."""

    reason: Reason
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Again:
    """Another attempt after `delay` seconds; `own` is the part of it that backoff alone would have given."""

    delay: float
    own: float


@dataclass(frozen=True, slots=True)
class Rules:
    """The options of a retry, ready to decide with.

    Args:
        retries: additional calls allowed.
        matches: whether an error is worth a retry.
        excludes: whether it is not, all the same.
        backoff: the delays.
        max_retry_after: the longest wait the other side may ask for, in seconds.
        on: what to call `matches` in a hint.
    """

    retries: int
    matches: Callable[[Exception], bool]
    excludes: Callable[[Exception], bool]
    backoff: Backoff
    max_retry_after: float
    on: str

    def decide(
        self,
        error: Exception | None,
        *,
        attempt: int,
        now: float,
        until: float,
        asked: float | None,
        previous: float | None,
        rand: Random,
    ) -> Stop | Again:
        """Whether there is an attempt after number `attempt`, and when.

        Args:
            error: what the attempt raised; None when its result was refused.
            now: monotonic seconds.
            until: the effective deadline around the retry, on the same clock; ``inf`` without one.
            asked: seconds the other side wants to be left alone; a floor under the own delay.
            previous: the own delay before this attempt.
            rand: uniform over 0..1.
        """
        if error is not None and (stop := self._worth(error, now, until)) is not None:
            return stop
        if attempt > self.retries:
            return Stop("exhausted")
        own = self.backoff.delay(attempt, previous, rand)
        if asked is not None and asked > self.max_retry_after:
            return Stop(
                "retry_after too long",
                f"asked to wait {format_duration(asked)}: raise max_retry_after to at least that, or come back later",
            )
        delay = own if asked is None else max(own, asked)
        if now + delay >= until - _TICK:
            return Stop("no time left", "allow a longer deadline, or shorter delays")
        return Again(delay, own)

    def _worth(self, error: Exception, now: float, until: float) -> Stop | None:
        if is_cancellation(error):
            return Stop("cancelled")
        if encloses(error, until) or now >= until:
            return Stop("deadline")
        if self.excludes(error):
            return Stop("excluded")
        if not self.matches(error):
            return Stop("not matched", f"add it: on=({self.on}, {_named(type(error))})")
        return None


def encloses(error: Exception, until: float) -> bool:
    """Whether `error` says that the deadline around the retry, at `until`, has passed: no attempt can change that."""
    return until != inf and any(isinstance(leaf, DeadlineExceeded) and leaf.until == until for leaf in leaves(error))


def _named(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
