"""A rate whose budget lives in a store: the way in, and what is counted there.

One step of the store lets a call through, or books its due time there, in order of arrival over the whole fleet; the
caller sleeps to it and has it confirmed in a second step. While the store cannot be used, the rate goes on with the
lines of this process, or without any, or refuses (`when_store_fails`). Waits are seconds.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Any, cast

from guarded._core import clock, waiters
from guarded._core.call import Call
from guarded._core.keys import Key, digest
from guarded.errors import RateExceeded
from guarded.events.bus import bus
from guarded.policies._rate.hand import UNCOUNTED, Peek, StoredMark
from guarded.policies._rate.lines import Refusal
from guarded.policies._turns import MustWait
from guarded.stores import face_of
from guarded.stores.contract.rate import Booked, Budget, Passed, RateRule, RateStore, Refused
from guarded.stores.health import Access
from guarded.stores.upkeep import upkeep

if TYPE_CHECKING:
    from guarded.policies.rate import Rate


class Visit:
    """One caller's way through a stored rate.

    Attributes:
        mark: of its booking; None while it has none.
        due: monotonic time to sleep to.
    """

    __slots__ = ("_stored", "budget", "call", "cost", "due", "give_up", "key", "mark")

    def __init__(self, stored: StoredRate, call: Call, key: Key, cost: int, max_wait: float) -> None:
        self._stored = stored
        self.call = call
        self.key = key
        self.cost = cost
        self.budget = stored.budget(key)
        self.give_up = inf if max_wait == inf else clock.monotonic() + max_wait
        self.mark: str | None = None
        self.due = 0.0

    def patience(self) -> float:
        """Seconds it may still wait."""
        until = min(self.give_up, self.call.until)
        return inf if until == inf else max(0.0, until - clock.monotonic())

    # A turn of a call under a limit, see `_turns`; also the wait of any other

    def wait(self) -> None:
        """Block until it is due."""
        waiters.sleep(self.call, self.due - clock.monotonic(), self._stored.during)

    async def wait_async(self) -> None:
        """The same for the running task."""
        await waiters.sleep_async(self.call, self.due - clock.monotonic(), self._stored.during)

    def withdraw(self) -> None:
        """Let others have what is booked; it has to be booked anew."""
        self.abandon()

    def abandon(self) -> None:
        """Give the booking up. Harmless when there is none."""
        mark, self.mark = self.mark, None
        if mark is not None:
            self._stored.correct(self.key, mark, self.cost, -self.cost)


class StoredRate:
    """The state of a rate in its store."""

    __slots__ = ("_access", "_policy", "_rule", "_store", "during")

    def __init__(self, policy: Rate) -> None:
        options = policy.options
        self._policy = policy
        self._store: RateStore = face_of(options.store, "rate")
        self._access = Access(policy, options.store.health, options.when_store_fails)
        self._rule = RateRule(options.algorithm, options.quotas, options.burst)
        self.during: str = f"waiting for rate {policy.label!r}"

    def budget(self, key: Key) -> Budget:
        """Whose count it is."""
        name = cast("str", self._policy.name)
        return Budget(name) if key is None else Budget(name, digest(name, key)[:32])

    def enter(self, call: Call, key: Key, cost: int, max_wait: float) -> Any:
        """Be let through, blocking this thread; gives the mark of what was counted.

        Raises RateExceeded, StoreError, Deadlock, DeadlineExceeded, Cancelled.
        """
        visit = Visit(self, call, key, cost, max_wait)
        try:
            reply = self._access.ask(call, self._store.take, self._rule, visit.budget, cost, visit.patience())
            while not isinstance(reply, Passed):
                if not self._books(visit, reply):
                    return self._without(call, key, cost, max_wait)
                waiters.refuse_on_loop_thread(self.during, self._policy.label)
                visit.wait()
                reply = self._access.ask(call, self._store.confirm, self._rule, visit.budget, cost, visit.mark)
        except BaseException:
            visit.abandon()
            raise
        return StoredMark(reply.mark)

    async def enter_async(self, call: Call, key: Key, cost: int, max_wait: float) -> Any:
        """Like `enter`, suspending the running task."""
        visit = Visit(self, call, key, cost, max_wait)
        access, store, rule = self._access, self._store, self._rule
        try:
            reply = await access.ask_async(call, store.take_async, rule, visit.budget, cost, visit.patience())
            while not isinstance(reply, Passed):
                if not self._books(visit, reply):
                    return await self._without_async(call, key, cost, max_wait)
                await visit.wait_async()
                reply = await access.ask_async(call, store.confirm_async, rule, visit.budget, cost, visit.mark)
        except BaseException:
            visit.abandon()
            raise
        return StoredMark(reply.mark)

    def enter_by_turns(self, call: Call, key: Key, cost: int, max_wait: float) -> Any:
        """Be let through, or raise MustWait, which brings the call back when it is due (see `_turns`)."""
        turn, visit = call.turn, call.turn or Visit(self, call, key, cost, max_wait)
        call.turn = None
        if not isinstance(visit, Visit):  # it waited in the lines of this process, since the store failed
            call.turn = turn
            return self._policy.gate.enter_by_turns(call, key, cost, max_wait)
        if visit.mark is None:
            reply: Any = self._access.ask(call, self._store.take, self._rule, visit.budget, cost, visit.patience())
        else:
            reply = self._access.ask(call, self._store.confirm, self._rule, visit.budget, cost, visit.mark)
        return self._turned(visit, reply, max_wait)

    async def enter_by_turns_async(self, call: Call, key: Key, cost: int, max_wait: float) -> Any:
        """The same for a task."""
        turn, visit = call.turn, call.turn or Visit(self, call, key, cost, max_wait)
        call.turn = None
        if not isinstance(visit, Visit):
            call.turn = turn
            return await self._policy.gate.enter_by_turns_async(call, key, cost, max_wait)
        steps, access, given = self._store, self._access, (self._rule, visit.budget, cost)
        if visit.mark is None:
            reply: Any = await access.ask_async(call, steps.take_async, *given, visit.patience())
        else:
            reply = await access.ask_async(call, steps.confirm_async, *given, visit.mark)
        if reply is None and self._access.mode == "local":
            visit.abandon()
            mark = self._policy.lines.take(key, cost)
            return mark if mark is not None else await self._policy.gate.enter_by_turns_async(call, key, cost, max_wait)
        return self._turned(visit, reply, max_wait)

    def _turned(self, visit: Visit, reply: Passed | Booked | Refused | None, max_wait: float) -> Any:
        if isinstance(reply, Passed):
            visit.mark = None
            return StoredMark(reply.mark)
        if self._books(visit, reply):
            raise MustWait(visit)
        if self._access.mode == "open":
            return UNCOUNTED
        mark = self._policy.lines.take(visit.key, visit.cost)
        if mark is None:
            mark = self._policy.gate.enter_by_turns(visit.call, visit.key, visit.cost, max_wait)
        return mark

    def _books(self, visit: Visit, reply: Booked | Refused | None) -> bool:
        """Note what a caller has to wait for; False when the store could not be asked. Raises RateExceeded."""
        if reply is None:
            visit.abandon()
            return False
        if isinstance(reply, Refused):
            raise self._exceeded(visit.call, reply.retry_after)
        first, visit.mark = visit.mark is None, reply.mark
        visit.due = clock.monotonic() + reply.delay
        if visit.due > visit.give_up or visit.due >= visit.call.until:
            visit.abandon()
            raise self._exceeded(visit.call, reply.delay)
        if first:
            bus.emit("rate.delayed", visit.call, self._policy, delay=reply.delay)
        return True

    def _exceeded(self, call: Call, after: float) -> RateExceeded:
        return self._policy.gate.exceeded(call, Refusal(after, 0))

    def _without(self, call: Call, key: Key, cost: int, max_wait: float) -> Any:
        if self._access.mode == "open":
            return UNCOUNTED
        mark = self._policy.lines.take(key, cost)
        return self._policy.gate.enter(call, key, cost, max_wait) if mark is None else mark

    async def _without_async(self, call: Call, key: Key, cost: int, max_wait: float) -> Any:
        if self._access.mode == "open":
            return UNCOUNTED
        mark = self._policy.lines.take(key, cost)
        return await self._policy.gate.enter_async(call, key, cost, max_wait) if mark is None else mark

    def try_take(self, call: Call, key: Key, cost: int) -> bool:
        """Whether the call is let through at once."""
        reply = self._access.ask(call, self._store.take, self._rule, self.budget(key), cost, 0.0)
        if reply is None:
            return self._access.mode == "open" or self._policy.lines.take(key, cost) is not None
        return isinstance(reply, Passed)

    def look(self, call: Call, key: Key, cost: int) -> Peek:
        """What a newcomer would meet; of the lines of this process while the store cannot be asked."""
        reply = self._access.ask(call, self._store.look, self._rule, self.budget(key), cost)
        if reply is None:
            return Peek(*self._policy.lines.look(key, cost))
        return Peek(*reply, 0)

    def correct(self, key: Key, mark: str, cost: int, units: int) -> None:
        """Count more or fewer units for an admission or a booking; an event loop does not wait for it."""
        self._aside(lambda: self._access.tell(self._store.correct, self._rule, self.budget(key), mark, cost, units))

    def pause(self, seconds: float) -> None:
        """Let nobody through in the whole fleet."""
        name = cast("str", self._policy.name)
        self._aside(lambda: self._access.tell(self._store.pause, self._rule, name, seconds))

    def _aside(self, step: Any) -> None:
        if asyncio._get_running_loop() is None:
            step()
        else:

            def once() -> bool:
                step()
                return False

            upkeep.beside(0.0, once)
