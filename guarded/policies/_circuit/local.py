"""The state of one circuit in this process: the core under a lock, and the telling outside of it.

A call is admitted, runs, and is finished: what its end means is judged outside of the lock, and counted under it. A
store takes the place of the core in `stored`, which answers the same questions.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar, cast

from guarded._core import clock
from guarded._core.breaker import Reading
from guarded._core.call import Call, Stream, out_of_time
from guarded._core.fork import after_fork
from guarded._core.monitor import Monitor
from guarded._core.policy import Args, Fn, Kwargs, Policy
from guarded.policies._circuit.core import CircuitCore
from guarded.policies._circuit.judge import Judge
from guarded.policies._circuit.options import CircuitOptions
from guarded.policies._circuit.rejection import let_go_of_older
from guarded.policies._circuit.telling import Teller, registered
from guarded.policies._circuit.terms import (
    CLOSED,
    DISABLED,
    FAILURE,
    NEUTRAL,
    OPEN,
    SUCCESS,
    Outcome,
    Permit,
    Rules,
    State,
)

T = TypeVar("T")

_NS: Final = 1_000_000_000
_BATCH: Final = 256  # so many successes are counted together


@dataclass(frozen=True, slots=True)
class CircuitSnapshot:
    """Live state of a circuit.

    Attributes:
        state: ``closed``, ``open``, ``half-open``, ``isolated`` or ``disabled``. It is open until the first call after
            the open time makes it half-open.
        since: seconds in that state; None before the first change.
        failures: counted in the window of a failure rate, else in a row.
        calls: results in the window; 0 without a rate.
        failure_rate: share of failed calls in the window, 0..1; None without one.
        slow_rate: share of slow calls in the window, those still running included; None without one.
        trials: trial calls that are out.
        retry_after: seconds until a call is let through; None when nobody can know, and where calls pass.
    """

    state: State
    since: float | None
    failures: int
    calls: int
    failure_rate: float | None
    slow_rate: float | None
    trials: int
    retry_after: float | None


class LocalCircuit(Monitor):
    """Admits calls, counts how they end, and has told who wants to know.

    Attributes:
        policy: whose state this is.
        teller: what tells of it.
        passing: the generation, while all calls are admitted without asking; else None. Read without the lock.
        calm: the generation, while passing and a success would change nothing; else None. Read without the lock.
    """

    __slots__ = (
        "__weakref__",
        "_cause",
        "_core",
        "_judge",
        "_quick",
        "_quick_until",
        "calm",
        "passing",
        "policy",
        "teller",
    )

    def __init__(self, policy: Policy[CircuitOptions]) -> None:
        super().__init__()
        self.policy: Policy[CircuitOptions] = policy
        self.teller: Teller = Teller(policy)
        self._core = CircuitCore(policy.options.rules)
        self._judge = Judge(policy.options, self._excludes)
        self._cause: BaseException | None = None
        self._quick: deque[int] = deque()  # when calls succeeded that are not counted yet; one deque per generation
        self.passing: int | None = None
        self._update(None)
        after_fork(self, LocalCircuit._forget_calls)

    # Calls

    def admit_call(self, call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Permit | None:
        """Like `admit`, and tell the listeners of the register that a call begins."""
        permit = self.admit(call)
        if permit is not None:
            self.teller.tell_call(fn, args, kwargs)
        return permit

    def admit(self, call: Call) -> Permit | None:
        """A permit, or CircuitOpen raised; None lets an uncounted call through where nothing is enforced."""
        with self, self._lock:
            self._catch_up(call)
            answer = self._core.admit(clock.monotonic_ns())
            cause = self._cause
            if self._core.changes:
                self._update(call)
        if isinstance(answer, Permit):
            return answer
        self.teller.refuse(call, answer, cause)
        return None

    def succeed(self, call: Call, generation: int, started: int | None) -> None:
        """Count the success of a call that was let through while `passing` was `generation`."""
        quick, now = self._quick, clock.monotonic_ns()
        if generation == self.passing and now < self._quick_until:
            quick.append(now)
            if len(quick) < _BATCH:
                return
            with self, self._lock:
                self._catch_up(call)
        else:
            self.settle(call, Permit(generation, started), SUCCESS, None)

    def finish(self, call: Call, permit: Permit, error: BaseException | None) -> None:
        """Count how a call ended; what a predicate raises comes out, with the call left uncounted."""
        outcome: Outcome = SUCCESS
        if error is not None:
            try:
                outcome, error = self._judged(call, permit, error)
            except BaseException:
                self.settle(call, permit, NEUTRAL, None)
                raise
        self.settle(call, permit, outcome, error)

    def _judged(self, call: Call, permit: Permit, error: BaseException) -> tuple[Outcome, BaseException]:
        """The outcome that an error means, and the error to give as its reason."""
        outcome, error = self._judge(call, permit, error)
        if outcome == FAILURE:
            let_go_of_older(error, self.policy.label)
        return outcome, error

    def finish_later(self, call: Call, permit: Permit) -> None:
        """A stream has given its first item; it is counted at its end, and as slow by what it took so far."""
        cast("Stream", call.stream).exits.append(lambda ended: self.finish(call, permit, ended))
        self.answered(permit)

    def left_behind(self, call: Call, permit: Permit) -> None:
        """The token of a running sync call has fired: if its time is up, its caller has left."""
        if clock.monotonic() >= call.until:
            self.finish(call, permit, out_of_time(call))

    def answered(self, permit: Permit) -> None:
        """A stream has given its first item."""
        with self, self._lock:
            self._core.answered(permit, clock.monotonic_ns())

    def settle(self, call: Call, permit: Permit, outcome: Outcome, error: BaseException | None) -> None:
        """Count an outcome."""
        end = (call, permit, outcome, error)
        if self._owned():
            self._inbox.append(end)  # a finalizer, in the middle of a decision of this thread
            return
        with self, self._lock:
            self._catch_up(call)
            self._handle(end)

    def _catch_up(self, call: Call | None) -> None:
        """Under the lock: count what has been put off."""
        while self._inbox:
            self._handle(self._inbox.popleft())
        if self._quick:
            self._core.succeed(self._quick)
            self._update(call)

    def _handle(self, message: tuple[Call, Permit, Outcome, BaseException | None]) -> None:
        """Under the lock: count how a call ended."""
        call, permit, outcome, error = message
        core, now = self._core, clock.monotonic_ns()
        count = core.settle(permit, outcome, now)
        if count == "counted":
            if outcome == FAILURE:
                self._cause = error
            if self.teller.heard is not None:
                self._outgoing.append(partial(self.teller.tell_result, error if outcome == FAILURE else None))
        elif count == "late":
            ran = None if permit.started is None else now - permit.started
            self._outgoing.append(partial(self.teller.tell_late, call, core.state, outcome, ran, error))
        if core.changes or outcome != SUCCESS or core.passing:  # else it changes nothing that others look at
            self._update(call)

    def _update(self, call: Call | None) -> None:
        """Under the lock, after whatever the core did: have it told, and say anew who may pass."""
        core, teller = self._core, self.teller
        if core.changes:
            for change in core.changes:
                if change.reason == "by hand":
                    self._cause = None
                teller.add(change, call, self._cause)
            core.changes.clear()
            self._outgoing.append(teller.tell_changes)
        if not core.failures and core.state in (CLOSED, DISABLED):
            self._cause = None  # an exception keeps the frames it went through alive
        unheard = teller.heard is None
        passing = core.generation if unheard and core.passing else None
        if passing != self.passing:
            self.passing = None  # first, or a call of the generation before could still use the new deque
            self._quick = deque()
        self._quick_until = core.quick_until if unheard else 0
        self.calm: int | None = passing if core.calm else None
        self.passing = passing

    def _carry_out(self, decision: Callable[[], object]) -> None:
        decision()

    def _excludes(self, error: Exception) -> bool:
        """Whether the register has an exclusion that means `error`."""
        breaker = self.teller.breaker
        return breaker is not None and not breaker.is_system_error(error)

    def _forget_calls(self) -> None:
        """A forked child: the calls in flight, and whoever held the lock, are in the parent."""
        Monitor.__init__(self)
        self.teller.forget()
        self._core.forget_calls()

    # State

    @property
    def rules(self) -> Rules:
        """The rules in force."""
        return self._core.rules

    @property
    def state(self) -> State:
        """The state as of the latest call or act."""
        return self._core.state

    def snapshot(self) -> CircuitSnapshot:
        """The figures now."""
        with self, self._lock:
            self._catch_up(None)
            core, now = self._core, clock.monotonic_ns()
            rules, window = core.rules, core.window
            if window is not None:
                window.move(now)
            failure_rate, slow_rate = core.rates()
            age = max(0, now - core.changed_at)
            return CircuitSnapshot(
                state=core.state,
                since=age / _NS if core.generation else None,
                failures=core.failures,
                calls=0 if window is None else window.calls,
                failure_rate=None if rules.failure_rate is None else failure_rate,
                slow_rate=None if rules.slow_rate is None else slow_rate,
                trials=len(core.trials),
                retry_after=max(0, core.open_ns - age) / _NS if core.state == OPEN else None,
            )

    def reading(self) -> Reading:
        """The counters that a pybreaker register of this circuit shows."""

        def read(core: CircuitCore, now: int) -> Reading:
            failures = core.failures if core.state == CLOSED else core.opening.failures
            since = clock.wall() - max(0, now - core.changed_at) / _NS
            return Reading(failures, core.successes, since if registered(core.state) == OPEN else None)

        return self.intervene(read)

    def count(self, *, failed: bool) -> None:
        """Count the result of a call that nobody asked this circuit about."""
        self.intervene(lambda core, now: core.count(now, failed=failed))

    def move(self, state: State) -> None:
        """Change the state by hand."""
        self.intervene(lambda core, now: core.move(state, now, "by hand"))

    def restart(self) -> None:
        """Close the circuit from whatever state, and forget all that was counted."""
        self.intervene(CircuitCore.restart)

    def revise(self) -> None:
        """Go on under the policy's options, which are others now."""
        options = self.policy.options
        self._judge = Judge(options, self._excludes)
        self.intervene(lambda core, now: core.revise(options.rules))

    def force(self, state: State) -> CircuitCore:
        """Begin `state` anew; gives what `unforce` needs."""

        def begin(core: CircuitCore, now: int) -> CircuitCore:
            before = copy.copy(core)
            core.begin(state, now)
            return before

        return self.intervene(begin)

    def unforce(self, before: CircuitCore) -> None:
        """Be what the circuit was when it was forced."""
        self.intervene(lambda core, now: core.go_back(before))

    def intervene(self, act: Callable[[CircuitCore, int], T]) -> T:
        """Do something to the core, given the time, and have told what came of it."""
        with self, self._lock:
            self._catch_up(None)
            result = act(self._core, clock.monotonic_ns())
            self._update(None)
        return result
