"""What a policy does about a store that cannot be used, and how it finds out that it can be used again.

A store that has failed is left alone but for one probe in each period, the next step that somebody wants to make. So it
costs one time-out once in a period; the other calls are told at once. One ``store.failed`` and one ``store.recovered``
for each failure, whatever the number of calls and policies. Whatever a store raises stays in here. Times are seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from guarded._core import clock, waiters
from guarded._core.call import Call, out_of_time
from guarded._core.fork import after_fork
from guarded.errors import StoreError
from guarded.events.bus import Labelled, bus

PROBE: Final = 1.0
_ENOUGH = 3  # answers in a row that did not come in the little time that deadlines left
ReplyT = TypeVar("ReplyT")


class Shortened(Exception):
    """A step got less than its time, since a deadline was near, and ended without an answer."""


class Reported(Exception):
    """A step could not be made, and the bus has heard of it; says why, in words that quote nothing."""


class Health:
    """Whether one store works, as far as this process knows.

    Args:
        name: what events call the store.
        probe: seconds between two looks at a store that has failed.
    """

    def __init__(self, name: str, probe: float = PROBE) -> None:
        self.name = name
        self.probe = probe
        self.since: float | None = None
        """When it failed; None while it works."""
        self._next = 0.0
        self._misses = 0
        self._epoch = 0  # number of the present stretch of working or not; what was asked in another one tells nothing
        self._lock = threading.Lock()
        after_fork(self, Health._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def may_ask(self) -> int | None:
        """A number to come back with when a step may be tried; of a store that has failed, one in each probe period."""
        if self.since is None:
            return self._epoch
        with self._lock:
            now = clock.monotonic()
            if self.since is not None and now < self._next:
                return None
            self._next = now + self.probe
            return self._epoch

    def worked(self, asked: int, call: Call | None, policy: Labelled) -> None:
        """A step was made."""
        self._misses = 0
        if self.since is None:
            return
        with self._lock:
            if asked != self._epoch or self.since is None:
                return
            self._epoch += 1
            since, self.since = self.since, None
        bus.emit("store.recovered", call, policy, store=self.name, duration=max(0.0, clock.monotonic() - since))

    def failed(self, asked: int, call: Call | None, policy: Labelled, error: BaseException, mode: str) -> None:
        """A step could not be made."""
        if isinstance(error, Shortened):
            self._misses += 1
            if self._misses < _ENOUGH:
                return
        with self._lock:
            if asked != self._epoch:
                return
            now = clock.monotonic()
            self._next = now + self.probe
            if self.since is not None:
                return
            self.since = now
            self._epoch += 1
        bus.emit("store.failed", call, policy, store=self.name, mode=mode, cause=error)


class Access:
    """The steps of one policy on its store.

    Args:
        policy: for events and errors.
        health: of the store.
        mode: what the policy does while it cannot be used.
    """

    __slots__ = ("_policy", "health", "mode")

    def __init__(self, policy: Labelled, health: Health, mode: str) -> None:
        self._policy = policy
        self.health: Health = health
        self.mode: str = mode

    def step(self, call: Call | None, step: Callable[..., ReplyT], *args: Any) -> ReplyT:
        """Make a step; raises `Reported` when it cannot be made, whatever the store raises."""
        asked = self._may_ask()
        try:
            reply = step(*args)
        except Exception as error:
            raise self._failed(asked, call, error) from error
        self.health.worked(asked, call, self._policy)
        return reply

    async def step_async(self, call: Call | None, step: Callable[..., Awaitable[ReplyT]], *args: Any) -> ReplyT:
        """The same for the running task."""
        asked = self._may_ask()
        try:
            reply = await step(*args)
        except Exception as error:
            raise self._failed(asked, call, error) from error
        self.health.worked(asked, call, self._policy)
        return reply

    def ask(self, call: Call, step: Callable[..., ReplyT], *args: Any) -> ReplyT | None:
        """Make a step; None when the policy has to do without, StoreError where it must not.

        Raises DeadlineExceeded or Cancelled when the call has no use for the answer.
        """
        self._before(call)
        try:
            return self.step(call, step, *args)
        except Reported as problem:
            self._without(call, problem)
        return None

    async def ask_async(self, call: Call, step: Callable[..., Awaitable[ReplyT]], *args: Any) -> ReplyT | None:
        """The same for the running task."""
        self._before(call)
        try:
            return await self.step_async(call, step, *args)
        except Reported as problem:
            self._without(call, problem)
        return None

    def tell(self, step: Callable[..., ReplyT], *args: Any) -> ReplyT | None:
        """Make a step that is of no use to a call any more; None when that cannot be."""
        try:
            return self.step(None, step, *args)
        except Reported:
            return None

    async def tell_async(self, step: Callable[..., Awaitable[ReplyT]], *args: Any) -> ReplyT | None:
        """The same for the running task."""
        try:
            return await self.step_async(None, step, *args)
        except Reported:
            return None

    @property
    def _during(self) -> str:
        return f"waiting for store {self.health.name!r}"

    def _before(self, call: Call) -> None:
        if call.deadline is not None or call.token is not None:
            waiters.refuse_in_vain(call, self._during)

    def _may_ask(self) -> int:
        asked = self.health.may_ask()
        if asked is None:
            raise Reported("it has just failed and is not asked yet")
        return asked

    def _failed(self, asked: int, call: Call | None, error: Exception) -> Reported:
        self.health.failed(asked, call, self._policy, error, self.mode)
        return Reported(type(error).__name__)

    def _without(self, call: Call, problem: Reported) -> None:
        if isinstance(problem.__cause__, Shortened) and clock.monotonic() >= call.until:
            raise out_of_time(call, self._during) from None
        if self.mode == "closed":
            raise StoreError(
                f"{call.function or 'call'}: store {self.health.name!r} of {self._policy.kind} {self._policy.label!r} "
                f"cannot be used, so the call was not made: {problem}; bring it back, or use when_store_fails='local'",
                policy=self._policy.label,
                store=self.health.name,
            ) from None
