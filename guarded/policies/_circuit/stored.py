"""A circuit whose state lives in a store: one step to admit a call, one to settle it.

No state is cached: another process may have opened the circuit since, so every call asks. Events and the pybreaker
register are of the process whose call brought a change about; `state` is what the store said last. While the store
cannot be used the circuit of this process takes its place (`when_store_fails`). Times are nanoseconds.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from guarded._core import clock
from guarded._core.call import Call, Stream
from guarded._core.policy import Args, AsyncNext, Fn, Kwargs, Site
from guarded.policies._circuit.local import CircuitSnapshot, LocalCircuit
from guarded.policies._circuit.terms import (
    CLOSED,
    FAILURE,
    HALF_OPEN,
    NEUTRAL,
    OPEN,
    SUCCESS,
    Outcome,
    Permit,
    Refusal,
    State,
)
from guarded.stores import face_of
from guarded.stores.contract.circuit import Admission, CircuitStore, Figures, Let, Settlement
from guarded.stores.health import Access
from guarded.stores.upkeep import upkeep

if TYPE_CHECKING:
    from guarded.policies.circuit import Circuit

_NS = 1_000_000_000


class StoredPermit(Permit):
    """An admitted call; `let` is what the store knows of it."""

    __slots__ = ("let",)

    def __init__(self, let: Let) -> None:
        super().__init__(let.generation, clock.monotonic_ns(), let.serial)
        self.let = let


class StoredCircuit(LocalCircuit):
    """Takes the place of the circuit of this process, and falls back on it."""

    __slots__ = ("_access", "_generation", "_seen", "_store")

    def __init__(self, policy: Circuit) -> None:
        options = policy.options
        self._store: CircuitStore = face_of(options.store, "circuit")
        self._access = Access(policy, options.store.health, options.when_store_fails)
        self._seen: State | None = None
        self._generation = 0
        super().__init__(policy, options.rules)

    @property
    def _name(self) -> str:
        return self._policy.label

    # Calls

    def admit(self, call: Call, *, enforce: bool) -> Permit | None:
        """Let a call through or raise CircuitOpen; see `LocalCircuit.admit`."""
        admission = self._access.ask(call, self._store.admit, self._name, self.rules)
        return self._admitted(call, admission, enforce)

    async def admit_async(self, call: Call, *, enforce: bool) -> Permit | None:
        """Like `admit`, for the running task."""
        admission = await self._access.ask_async(call, self._store.admit_async, self._name, self.rules)
        return self._admitted(call, admission, enforce)

    def _admitted(self, call: Call, admission: Admission | None, enforce: bool) -> Permit | None:
        if admission is None:
            return None if self._access.mode == "open" else super().admit(call, enforce=enforce)
        answer = admission.answer
        self._heard_of(call, admission, None)
        if isinstance(answer, Refusal):
            self.reject(call, answer, self._cause, enforce=enforce)
            return None
        return StoredPermit(answer)

    def succeed(self, call: Call, generation: int, started: int | None) -> None:
        """Never asked: no call passes without a question."""
        raise NotImplementedError

    def settle(self, call: Call, permit: Permit, outcome: Outcome, error: BaseException | None) -> None:
        """Count how a call ended; beside the calls when its caller has no time left."""
        if not isinstance(permit, StoredPermit):
            super().settle(call, permit, outcome, error)
        elif self._must_tell(permit, outcome):
            if clock.monotonic() >= call.until or asyncio._get_running_loop() is not None:
                self.settle_aside(call, permit, outcome, error)
            else:
                settled = self._access.tell(self._store.settle, *self._end(permit, outcome))
                self._settled(call, permit, outcome, error, settled)

    async def settle_async(self, call: Call, permit: Permit, outcome: Outcome, error: BaseException | None) -> None:
        """Like `settle`, for the running task."""
        if not isinstance(permit, StoredPermit):
            super().settle(call, permit, outcome, error)
        elif self._must_tell(permit, outcome):
            if isinstance(error, GeneratorExit) or clock.monotonic() >= call.until:
                self.settle_aside(call, permit, outcome, error)
                return
            try:
                settled = await self._access.tell_async(self._store.settle_async, *self._end(permit, outcome))
            except BaseException:
                self.settle_aside(call, permit, outcome, error)
                raise
            self._settled(call, permit, outcome, error, settled)

    def settle_aside(self, call: Call, permit: StoredPermit, outcome: Outcome, error: BaseException | None) -> None:
        """Count how a call ended, beside the calls."""

        def settle() -> bool:
            settled = self._access.tell(self._store.settle, *self._end(permit, outcome))
            self._settled(call, permit, outcome, error, settled)
            return False

        upkeep.every(0.0, settle)

    def _must_tell(self, permit: StoredPermit, outcome: Outcome) -> bool:
        """Whether the end of a call is news to the store; once."""
        told, permit.settled = permit.settled, True
        return not told and (outcome != NEUTRAL or permit.let.serial != 0)

    def _end(self, permit: StoredPermit, outcome: Outcome) -> tuple[str, Any, Let, Outcome, bool]:
        slow_ns, started = self.rules.slow_ns, cast("int", permit.started)
        ended = clock.monotonic_ns() if permit.answered is None else permit.answered
        slow = slow_ns is not None and ended - started >= slow_ns
        return self._name, self.rules, permit.let, outcome, slow

    def _settled(
        self, call: Call, permit: Permit, outcome: Outcome, error: BaseException | None, settled: Settlement | None
    ) -> None:
        if settled is None:
            return
        if settled.verdict == "late":
            self.tell_late(call, permit, outcome, error, clock.monotonic_ns())
        elif settled.verdict == "counted" and self.heard is not None:
            self.heard.tell_result(error if outcome == FAILURE else None)
        cause = error if outcome == FAILURE and settled.verdict == "counted" else None
        self._heard_of(call, settled, cause)

    def answered(self, permit: Permit) -> None:
        """A stream has given its first item."""
        let = self._answered(permit)
        if let is not None:
            permit.settled = bool(self._access.tell(self._store.answered, self._name, self.rules, let))

    async def answered_async(self, permit: Permit) -> None:
        """Like `answered`, for the running task."""
        let = self._answered(permit)
        if let is not None:
            told = await self._access.tell_async(self._store.answered_async, self._name, self.rules, let)
            permit.settled = bool(told)

    def _answered(self, permit: Permit) -> Let | None:
        """What the store has to be told of, if anything."""
        if not isinstance(permit, StoredPermit):
            super().answered(permit)
            return None
        permit.answered = clock.monotonic_ns()
        if not permit.let.serial or self.rules.slow_ns is None or self._seen == HALF_OPEN:
            return None
        let, permit.let = permit.let, permit.let._replace(serial=0)
        return let

    def _update(self, call: Call | None) -> None:
        super()._update(call)
        self.passing = self.calm = None  # no call passes unasked

    # State

    @property
    def state(self) -> State:
        """The state as the store said last."""
        return super().state if self._seen is None else self._seen

    def snapshot(self) -> CircuitSnapshot:
        """The figures now, of this process while the store cannot be asked."""
        figures = self._access.tell(self._store.look, self._name, self.rules)
        return super().snapshot() if figures is None else self._shown(figures)

    def _shown(self, figures: Figures) -> CircuitSnapshot:
        rules = self.rules
        return CircuitSnapshot(
            state=figures.state,
            since=None if figures.age < 0 else figures.age / _NS,
            failures=figures.failures,
            calls=figures.calls,
            failure_rate=None if rules.failure_rate is None else figures.failure_rate,
            slow_rate=None if rules.slow_rate is None else figures.slow_rate,
            trials=figures.trials,
            retry_after=None if figures.retry_ns is None else figures.retry_ns / _NS,
        )

    def move(self, state: State) -> None:
        """Change the state by hand, here and in the store."""
        super().move(state)
        self._moved(self._access.tell(self._store.move, self._name, self.rules, state))

    def restart(self) -> None:
        """Close the circuit, here and in the store."""
        super().restart()
        self._moved(self._access.tell(self._store.move, self._name, self.rules, None))

    def _moved(self, settled: Settlement | None) -> None:
        if settled is not None:
            self._saw(settled)  # the change has been told by the circuit of this process

    def _heard_of(self, call: Call, reply: Admission | Settlement, cause: BaseException | None) -> None:
        """What the store said: the state, and the changes that this process has to tell."""
        self._saw(reply)
        if cause is not None:
            self._cause = cause
        for change in reply.changes:
            self.announce(change, call, self._cause if change.state == OPEN else None)
            if change.state == CLOSED:
                self._cause = None  # an exception keeps the frames it went through alive

    def _saw(self, reply: Admission | Settlement) -> None:
        if reply.generation >= self._generation:  # answers to several threads come in any order
            self._generation, self._seen = reply.generation, reply.state

    def async_shell(self, circuit: Circuit, proceed: AsyncNext, site: Site) -> AsyncNext:
        """Admit, run, count; a stream is counted at its end."""

        async def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
            permit = await self.admit_async(call, enforce=circuit.options.enforce)
            if permit is None:
                return await proceed(call, fn, args, kwargs)
            circuit.tell_call(fn, args, kwargs)
            try:
                result = await proceed(call, fn, args, kwargs)
            except BaseException as error:
                await self._finish(circuit, call, permit, error)
                raise
            if site.is_stream:
                await self.answered_async(permit)
                cast("Stream", call.stream).exits.append(lambda ended: circuit.finish(call, permit, ended))
            else:
                await self.settle_async(call, permit, SUCCESS, None)
            return result

        return shell

    async def _finish(self, circuit: Circuit, call: Call, permit: Permit, error: BaseException) -> None:
        try:
            outcome, reason = circuit.judge(call, permit, error)
        except BaseException:
            await self.settle_async(call, permit, NEUTRAL, None)
            raise
        await self.settle_async(call, permit, outcome, reason)
