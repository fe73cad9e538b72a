"""One retried call between its attempts: asks the core, charges the budget, tells the bus.

Everything here is shared by the sync and the async shell; none of it waits.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, cast

from guarded._core import clock
from guarded._core.call import Call
from guarded._core.keys import one_shot
from guarded._core.policy import Args, Kwargs, Policy, Site
from guarded.events.bus import bus
from guarded.events.model import INFO, WARNING
from guarded.http import retry_after_of, status_of
from guarded.policies._exceptions import chain, reraise
from guarded.policies._matching import compile_exclusion, compile_match, title
from guarded.policies._retry.budget import find_budget
from guarded.policies._retry.core import Again, Rules, Stop
from guarded.policies._retry.options import RetryOptions

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """What a `before_retry` hook returns to end the call as a success with `value`."""

    value: T


_NO_TIME: Final = Stop("no time left", "allow a longer deadline, or shorter delays")


class Layer:
    """A retry compiled for one callable."""

    __slots__ = ("budget", "hook", "is_stream", "on_result", "policy", "retry_after", "rules")

    def __init__(self, policy: Policy[RetryOptions], site: Site) -> None:
        options = policy.options
        self.policy = policy
        self.is_stream = site.is_stream
        self.on_result = None if site.is_stream else options.on_result  # a stream has no result when it starts
        self.hook = options.before_retry
        self.budget = find_budget(options.budget)
        self.retry_after = options.retry_after
        self.rules = Rules(
            options.retries,
            compile_match(options.on),
            compile_exclusion(options.unless),
            options.law,
            options.max_retry_after,
            title(options.on).strip("(,)"),
        )


class Run:
    """One call whose first attempt has failed.

    Holds no exception: its frames would live on during the next attempt.
    """

    __slots__ = ("_args", "_kwargs", "_outer", "call", "layer", "own", "waited")

    def __init__(self, layer: Layer, call: Call, outer: int | None, args: Args, kwargs: Kwargs) -> None:
        self.layer = layer
        self.call = call
        self.own: float | None = None
        self.waited = 0.0
        self._outer = outer
        self._args = args
        self._kwargs = kwargs
        call.count_attempt(1)

    @property
    def attempt(self) -> int:
        """Number of the attempt that has just ended."""
        return cast("int", self.call.attempt)

    def begin_next(self) -> None:
        """The next attempt starts."""
        self.call.attempt = self.attempt + 1
        self.call.count_attempt(self.attempt)

    def next_delay(self, error: Exception | None, result: object = None) -> float | None:
        """Seconds until the next attempt, or None when there is none; tells the bus which.

        Args:
            error: what the attempt raised; None when its `result` was refused.
            result: what it returned.

        Raises what a predicate or the backoff function raises, chained to `error` by the caller's except block.
        """
        source = result if error is None else error
        asked = retry_after_of(source) if self.layer.retry_after else None
        verdict = self.layer.rules.decide(
            error,
            attempt=self.attempt,
            now=clock.monotonic(),
            until=self.call.until,
            asked=asked,
            previous=self.own,
            rand=random.random,
        )
        if isinstance(verdict, Again):
            verdict = self._refused() or verdict
        if isinstance(verdict, Stop):
            if verdict.reason in ("retry_after too long", "no time left"):
                _leave_on(error, asked)
            self._tell_stop(verdict, error, source, asked)
            return None
        self.own = verdict.own
        self.waited += verdict.delay
        self._tell_scheduled(verdict, error, source, asked)
        return verdict.delay

    def _refused(self) -> Stop | None:
        """Why a retry that the rules allow may not take place; else the budget is charged for it."""
        spent = one_shot(self._args, self._kwargs)
        if spent is not None:
            return Stop("one-shot argument", f"{spent} is used up by one attempt: pass a list, bytes or a function")
        if self.layer.budget is not None and not self.layer.budget.withdraw():
            return Stop("budget spent")
        return None

    def _tell_scheduled(self, again: Again, error: Exception | None, source: object, asked: float | None) -> None:
        call, policy, retries = self.call, self.layer.policy, self.layer.rules.retries
        if self.attempt == 1 and self._is_nested():
            bus.emit("retry.nested", call, policy, retries=retries, hint="keep the outer or the inner retry, not both")
        if bus.threshold > INFO:
            return
        bus.emit(
            "retry.scheduled",
            call,
            policy,
            delay=again.delay,
            retries=retries,
            cause=error,
            reason="result" if error is None else "error",
            retry_after=asked,
            status=status_of(source),
        )

    def _tell_stop(self, stop: Stop, error: Exception | None, source: object, asked: float | None) -> None:
        if stop.reason == "cancelled" or bus.threshold > WARNING:
            return
        call, policy, attempts, retries = self.call, self.layer.policy, self.attempt, self.layer.rules.retries
        status = status_of(source)
        if stop.reason == "exhausted":
            why = "result" if error is None else "error"
            bus.emit(
                "retry.exhausted", call, policy,
                attempts=attempts, retries=retries, cause=error, reason=why, status=status, wait=self.waited,
            )  # fmt: skip
        elif stop.reason == "budget spent":
            bus.emit("retry.budget_spent", call, policy, attempts=attempts, retries=retries, cause=error, status=status)
        else:
            bus.emit(
                "retry.gave_up", call, policy,
                attempts=attempts, retries=retries, cause=error, reason=stop.reason, hint=stop.hint,
                retry_after=asked, status=status, wait=self.waited,
            )  # fmt: skip

    def _is_nested(self) -> bool:
        if self._outer is not None:
            return True
        around = self.call.parent
        while around is not None:
            if around.attempt is not None:
                return True
            around = around.parent
        return False

    @property
    def during(self) -> str:
        """What the wait is called in errors."""
        return f"backing off before attempt {self.attempt + 1}"

    @contextmanager
    def between(self, failed: Exception | None) -> Iterator[None]:
        """Around wait and hook: what cuts them off is chained to the failure, and the retry is not charged."""
        try:
            if self.call.token is not None:
                self.call.token.raise_if_cancelled(self.during)
            yield
        except BaseException as cut:
            self._give_back()
            if isinstance(cut, Exception):
                chain(cut, failed)
            raise

    def conclude(self, verdict: object, failed: Exception | None, result: Any) -> Done[Any] | None:
        """What comes of the wait and the hook's verdict: how the call ends, or None for the next attempt."""
        if isinstance(verdict, Done):
            self._give_back()
            self.recovered("before_retry")
            return verdict
        if not self.is_late():
            return None
        self._give_back()
        self._tell_stop(_NO_TIME, failed, result if failed is None else failed, None)
        if failed is not None:
            reraise(failed)
        return Done(result)

    def _give_back(self) -> None:
        """The retry that the budget was charged for does not take place."""
        if self.layer.budget is not None:
            self.layer.budget.refund()

    def is_late(self) -> bool:
        """Whether the deadline has passed, so that no attempt may start."""
        return clock.monotonic() >= self.call.until

    def recovered(self, reason: str | None = None) -> None:
        """Tell that the call has succeeded after all."""
        policy = self.layer.policy
        bus.emit("retry.recovered", self.call, policy, attempts=self.attempt, wait=self.waited, reason=reason)


def _leave_on(error: Exception | None, asked: float | None) -> None:
    """Keep what the other side asked for on the error, for whoever schedules the call again later."""
    if error is not None and asked is not None and getattr(error, "retry_after", None) is None:
        try:
            error.retry_after = asked  # type: ignore[attr-defined]
        except AttributeError:
            pass  # an exception with slots has no place for it
