"""A circuit whose state lives in a store: one step to admit a call, one to settle it.

No state is cached: another process may have opened the circuit since, so every call asks. Events and listeners are of
the process whose call brought a change about; `state` is what the store said last. While the store cannot be used, the
circuit of this process takes its place and goes on from there. Times are nanoseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

from guarded._core import clock
from guarded._core.breaker import Reading
from guarded._core.call import Call, Stream
from guarded._core.policy import Args, AsyncNext, Fn, Kwargs, Policy, Site
from guarded.errors import StoreError
from guarded.policies._circuit.core import CircuitCore
from guarded.policies._circuit.local import CircuitSnapshot, LocalCircuit
from guarded.policies._circuit.options import CircuitOptions
from guarded.policies._circuit.telling import registered
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
    Rules,
    State,
)
from guarded.stores import face_of
from guarded.stores.contract.circuit import Admission, CircuitStore, Figures, Let, Settlement
from guarded.stores.health import Access
from guarded.stores.upkeep import upkeep

_NS: Final = 1_000_000_000


class StoredPermit(Permit):
    """An admitted call; `let` is what the store knows of it, `trial` whether it takes one of the places for trials."""

    __slots__ = ("let", "trial")

    def __init__(self, let: Let, trial: bool) -> None:
        super().__init__(let.generation, clock.monotonic_ns(), let.serial)
        self.let = let
        self.trial = trial


class _End(NamedTuple):
    """How a call ended: what the store is to be told, and what others are."""

    call: Call
    let: Let
    outcome: Outcome
    error: BaseException | None
    slow: bool
    ran_ns: int


class StoredCircuit(LocalCircuit):
    """Takes the place of the circuit of this process, and falls back on it; so does a test that forces a state."""

    __slots__ = ("_access", "_forced", "_generation", "_seen", "_store")

    def __init__(self, policy: Policy[CircuitOptions]) -> None:
        options = policy.options
        self._store: CircuitStore = face_of(options.store, "circuit")
        self._access = Access(policy, options.store.health, options.when_store_fails)
        self._seen: State | None = None  # what the store said last; None while this process decides
        self._generation = 0
        self._forced = 0  # blocks of tests in which this process decides
        super().__init__(policy)

    @property
    def _name(self) -> str:
        return self.policy.label

    # Calls

    def admit(self, call: Call) -> Permit | None:
        """Let a call through or raise CircuitOpen; see `LocalCircuit.admit`."""
        if self._forced:
            return super().admit(call)
        return self._admitted(call, self._access.ask(call, self._store.admit, self._name, self.rules))

    async def admit_async(self, call: Call) -> Permit | None:
        """Like `admit`, for the running task."""
        if self._forced:
            return super().admit(call)
        return self._admitted(call, await self._access.ask_async(call, self._store.admit_async, self._name, self.rules))

    def _admitted(self, call: Call, admission: Admission | None) -> Permit | None:
        if admission is None:
            if self._access.mode == "open":
                return None
            self._take_over()
            return super().admit(call)
        answer = admission.answer
        self._heard_of(call, admission)
        if isinstance(answer, Refusal):
            self.teller.refuse(call, answer, None if answer.opening.reason == "by hand" else self._cause)
            return None
        return StoredPermit(answer, admission.state == HALF_OPEN)

    def succeed(self, call: Call, generation: int, started: int | None) -> None:
        """Never asked: no call passes without a question."""
        raise NotImplementedError

    async def finish_async(self, call: Call, permit: Permit, error: BaseException | None) -> None:
        """Like `finish`, for the running task."""
        outcome: Outcome = SUCCESS
        if error is not None:
            try:
                outcome, error = self._judged(call, permit, error)
            except BaseException:
                await self._settle_async(call, permit, NEUTRAL, None)
                raise
        await self._settle_async(call, permit, outcome, error)

    def settle(self, call: Call, permit: Permit, outcome: Outcome, error: BaseException | None) -> None:
        """Count an outcome; beside the calls when its caller has no time left, or runs an event loop."""
        if not isinstance(permit, StoredPermit):
            super().settle(call, permit, outcome, error)
        elif (end := self._end_of(call, permit, outcome, error)) is not None:
            if clock.monotonic() >= call.until or asyncio._get_running_loop() is not None:
                self._settle_aside(end)
            else:
                self._settle_now(end)

    async def _settle_async(self, call: Call, permit: Permit, outcome: Outcome, error: BaseException | None) -> None:
        if not isinstance(permit, StoredPermit):
            super().settle(call, permit, outcome, error)
        elif (end := self._end_of(call, permit, outcome, error)) is not None:
            if isinstance(error, GeneratorExit) or clock.monotonic() >= call.until:
                self._settle_aside(end)
                return
            try:
                settled = await self._access.tell_async(self._store.settle_async, *self._step(end))
            except BaseException:
                if end.let.serial:  # else it may be counted already, and would be a second time
                    self._settle_aside(end)
                raise
            self._settled(end, settled)

    def _end_of(self, call: Call, permit: StoredPermit, outcome: Outcome, error: BaseException | None) -> _End | None:
        """How a call has ended just now; None when that is no news to the store."""
        told, permit.settled = permit.settled, True
        if told or (outcome == NEUTRAL and not permit.let.serial):
            return None
        now, started, slow_ns = clock.monotonic_ns(), cast("int", permit.started), self.rules.slow_ns
        took = (now if permit.answered is None else permit.answered) - started
        return _End(call, permit.let, outcome, error, slow_ns is not None and took >= slow_ns, now - started)

    def _step(self, end: _End) -> tuple[str, Rules, Let, Outcome, bool]:
        return self._name, self.rules, end.let, end.outcome, end.slow

    def _settle_now(self, end: _End) -> None:
        self._settled(end, self._access.tell(self._store.settle, *self._step(end)))

    def _settle_aside(self, end: _End) -> None:
        def settle() -> bool:
            self._settle_now(end)
            return False

        upkeep.beside(0.0, settle)

    def _settled(self, end: _End, settled: Settlement | None) -> None:
        """The store has counted the end of a call, or not."""
        if settled is None:
            return
        if settled.verdict == "late":
            self.teller.tell_late(end.call, settled.state, end.outcome, end.ran_ns, end.error)
        elif settled.verdict == "counted":
            failed = end.outcome == FAILURE
            self.teller.tell_result(end.error if failed else None)
            if failed or settled.state == CLOSED:
                self._cause = end.error  # of a success none: an exception keeps the frames it went through alive
        self._heard_of(end.call, settled)

    def answered(self, permit: Permit) -> None:
        """A stream has given its first item."""
        if not isinstance(permit, StoredPermit):
            super().answered(permit)
        elif self._may_become_slow(permit):
            self._was_answered(permit, self._access.tell(self._store.answered, self._name, self.rules, permit.let))

    async def answered_async(self, permit: Permit) -> None:
        """Like `answered`, for the running task."""
        if not isinstance(permit, StoredPermit):
            super().answered(permit)
        elif self._may_become_slow(permit):
            told = await self._access.tell_async(self._store.answered_async, self._name, self.rules, permit.let)
            self._was_answered(permit, told)

    def _may_become_slow(self, permit: StoredPermit) -> bool:
        """Whether the store has to be told of the first item: it watches the call, and not as a trial."""
        permit.answered = clock.monotonic_ns()
        return permit.let.serial != 0 and not permit.trial

    def _was_answered(self, permit: StoredPermit, counted: bool | None) -> None:
        if counted is not None:
            permit.settled = counted  # as the slow call that it is
            permit.let = permit.let._replace(serial=0)

    def async_shell(self, proceed: AsyncNext, site: Site) -> AsyncNext:
        """Admit, run, count; a stream is counted at its end."""

        async def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
            permit = await self.admit_async(call)
            if permit is None:
                return await proceed(call, fn, args, kwargs)
            self.teller.tell_call(fn, args, kwargs)
            try:
                result = await proceed(call, fn, args, kwargs)
                if site.is_stream:
                    await self.answered_async(permit)
            except BaseException as error:
                await self.finish_async(call, permit, error)
                raise
            if site.is_stream:
                cast("Stream", call.stream).exits.append(lambda ended: self.finish(call, permit, ended))
            else:
                await self.finish_async(call, permit, None)
            return result

        return shell

    # State

    @property
    def state(self) -> State:
        """The state as the store said last, of this process while that takes its place."""
        return super().state if self._forced or self._seen is None else self._seen

    def _update(self, call: Call | None) -> None:
        super()._update(call)
        self.passing = self.calm = None  # no call passes unasked

    def _heard_of(self, call: Call | None, reply: Admission | Settlement) -> None:
        """What the store said: the state, and the changes that this process has to tell."""
        if reply.generation >= self._generation:  # answers to several threads come in any order
            self._generation, self._seen = reply.generation, reply.state
        for change in reply.changes:
            if change.reason == "by hand" or change.state == CLOSED:
                self._cause = None
            self.teller.tell_change(change, call, self._cause)

    def _take_over(self) -> None:
        """The store cannot be asked: this process decides, and goes on from what the store said last."""

        def begin(core: CircuitCore, now: int) -> None:
            if self._seen is not None:
                core.begin(self._seen, now, "last known")
                core.changes.clear()  # it is none
                self._seen = None

        self.intervene(begin)

    def _figures(self) -> Figures | None:
        """The figures in the store; None while this process decides."""
        return None if self._forced else self._access.tell(self._store.look, self._name, self.rules)

    def snapshot(self) -> CircuitSnapshot:
        """The figures now, of this process while that takes the store's place."""
        figures, rules = self._figures(), self.rules
        if figures is None:
            return super().snapshot()
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

    def reading(self) -> Reading:
        """The counters that a pybreaker register of this circuit shows; asks the store."""
        figures = self._figures()
        if figures is None:
            return super().reading()
        failures = figures.failures if figures.state == CLOSED else figures.opened_by
        since = clock.wall() - max(0, figures.age) / _NS
        return Reading(failures, figures.successes, since if registered(figures.state) == OPEN else None)

    # By hand

    def count(self, *, failed: bool) -> None:
        """Count the result of a call that nobody asked this circuit about, as that of one that asks now."""
        admission = None if self._forced else self._access.tell(self._store.admit, self._name, self.rules)
        if admission is None:
            super().count(failed=failed)
            return
        self._heard_of(None, admission)
        if isinstance(admission.answer, Let):
            outcome: Outcome = FAILURE if failed else SUCCESS
            settled = self._access.tell(self._store.settle, self._name, self.rules, admission.answer, outcome, False)
            if settled is not None:
                self._heard_of(None, settled)

    def move(self, state: State) -> None:
        """Change the state by hand, for all processes; StoreError when the store cannot be told."""
        self._act(state, lambda core, now: core.move(state, now, "by hand"))

    def restart(self) -> None:
        """Close the circuit, for all processes; StoreError when the store cannot be told."""
        self._act(None, CircuitCore.restart)

    def _act(self, state: State | None, act: Callable[[CircuitCore, int], None]) -> None:
        if self._forced:
            self.intervene(act)
            return
        settled = self._access.tell(self._store.move, self._name, self.rules, state)
        if settled is not None:
            self._heard_of(None, settled)
            return
        self._take_over()
        self.intervene(act)
        raise StoreError(
            f"circuit {self._name!r} is {self.state} in this process only: store {self._access.health.name!r}, "
            "which the others ask, cannot be told; do it again when the store is back",
            policy=self._name,
            store=self._access.health.name,
        )

    def force(self, state: State) -> CircuitCore:
        """Begin `state` in this process, which decides alone until `unforce`; the store is neither asked nor moved."""
        self._forced += 1
        return super().force(state)

    def unforce(self, before: CircuitCore) -> None:
        """Have the store decide again."""
        super().unforce(before)
        self._forced -= 1
