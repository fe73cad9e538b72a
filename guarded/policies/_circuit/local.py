"""The state of one circuit in this process: the core under a lock, and what has to be told outside of it.

Changes of state are told (events, then the listeners of the pybreaker register) after the lock is released, in the
order in which they came about, by one thread at a time. A shared store takes this module's place: it gives the same
answers to `admit` and `settle`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from guarded._core import clock
from guarded._core.breaker import Reading, RegisteredBreaker, adopt, make
from guarded._core.call import Call
from guarded._core.fork import after_fork
from guarded._core.monitor import Monitor
from guarded.events.bus import Labelled, bus
from guarded.policies._circuit.core import CircuitCore
from guarded.policies._circuit.rejection import let_go_of_older, rejection_of, why
from guarded.policies._circuit.terms import (
    CLOSED,
    DISABLED,
    FAILURE,
    HALF_OPEN,
    ISOLATED,
    OPEN,
    SUCCESS,
    Change,
    Outcome,
    Permit,
    Refusal,
    Rules,
    State,
)

T = TypeVar("T")

_NS: Final = 1_000_000_000
_BATCH: Final = 256  # so many successes are counted together
_NEVER: Final = 2**31 - 1  # fail_max of the register where failures are not counted in a row
_REGISTERED: Final = {ISOLATED: OPEN, DISABLED: CLOSED}  # pybreaker knows neither
_EVENTS: Final = {
    CLOSED: "circuit.closed",
    DISABLED: "circuit.closed",
    OPEN: "circuit.opened",
    HALF_OPEN: "circuit.half_opened",
    ISOLATED: "circuit.isolated",
}


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
    """Admits calls, counts how they end, and tells who wants to know.

    Attributes:
        passing: the generation, while all calls are admitted without asking; else None. Read without the lock.
        calm: the generation, while passing and a success would change nothing; else None. Read without the lock.
        heard: the register, while anybody listens to it.
    """

    __slots__ = (
        "__weakref__",
        "_breaker",
        "_cause",
        "_core",
        "_pending",
        "_policy",
        "_quick",
        "_quick_until",
        "_telling",
        "calm",
        "heard",
        "passing",
    )

    def __init__(self, policy: Labelled, rules: Rules) -> None:
        super().__init__()
        self._policy = policy
        self._core = CircuitCore(rules)
        self._pending: deque[tuple[Change, Call | None, BaseException | None]] = deque()
        self._telling = False
        self._cause: BaseException | None = None
        self._breaker: RegisteredBreaker | None = None
        self._quick: deque[int] = deque()  # when calls succeeded that are not counted yet; one deque per generation
        self.heard: RegisteredBreaker | None = None
        self.passing: int | None = None
        self._update(None)
        after_fork(self, LocalCircuit._forget_calls)

    # Calls

    def admit(self, call: Call, *, enforce: bool) -> Permit | None:
        """Let a call through or raise CircuitOpen; where nothing is enforced, None for one that is not counted."""
        with self, self._lock:
            self._catch_up(call)
            answer = self._core.admit(clock.monotonic_ns())
            cause = self._cause
            if self._core.changes:
                self._update(call)
        self._tell()
        if isinstance(answer, Permit):
            return answer
        self.reject(call, answer, cause, enforce=enforce)
        return None

    def reject(self, call: Call, answer: Refusal, cause: BaseException | None, *, enforce: bool) -> None:
        """Tell of a refused call, and raise CircuitOpen where that is enforced."""
        rejection = rejection_of(answer, self._policy.label, cause)
        bus.emit(
            "circuit.rejected",
            call,
            self._policy,
            state=answer.state,
            reason=why(answer) if enforce else f"{why(answer)}, not enforced",
            retry_after=rejection.retry_after,
            active=answer.trials,
            cause=cause,
        )
        if enforce:
            raise rejection

    def succeed(self, call: Call, generation: int, started: int | None) -> None:
        """Count the success of a call that was let through while `passing` was `generation`."""
        quick, now = self._quick, clock.monotonic_ns()
        if generation == self.passing and now < self._quick_until:
            quick.append(now)
            if len(quick) < _BATCH:
                return
            with self, self._lock:
                self._catch_up(call)
            self._tell()
        else:
            self.settle(call, Permit(generation, started), SUCCESS, None)

    def answered(self, permit: Permit) -> None:
        """A stream has given its first item."""
        with self, self._lock:
            self._core.answered(permit, clock.monotonic_ns())

    def settle(self, call: Call, permit: Permit, outcome: Outcome, error: BaseException | None) -> None:
        """Count how a call ended."""
        if error is not None and outcome == FAILURE:
            let_go_of_older(error, self._policy.label)
        end = (call, permit, outcome, error)
        if self._owned():
            self._inbox.append(end)  # a finalizer, in the middle of a decision of this thread
            return
        with self, self._lock:
            self._catch_up(call)
            self._handle(end)
        self._tell()

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
        if count == "counted" and outcome == FAILURE:
            self._cause = error
        if core.changes or outcome != SUCCESS or core.passing:  # else it changes nothing that others look at
            self._update(call)
        if count == "counted" and self.heard is not None:
            self._outgoing.append(partial(self.heard.tell_result, error if outcome == FAILURE else None))
        elif count == "late":
            self._outgoing.append(partial(self.tell_late, call, permit, outcome, error, now))

    def tell_late(self, call: Call, permit: Permit, outcome: Outcome, error: BaseException | None, now: int) -> None:
        """A result has come too late to be counted."""
        duration = None if permit.started is None else max(0, now - permit.started) / _NS
        bus.emit("circuit.late", call, self._policy, state=self.state, outcome=outcome, duration=duration, cause=error)

    def _carry_out(self, decision: Callable[[], object]) -> None:
        decision()

    def _forget_calls(self) -> None:
        """A forked child: the calls in flight, and whoever held the lock, are in the parent."""
        Monitor.__init__(self)
        self._telling = False
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
            snapshot = CircuitSnapshot(
                state=core.state,
                since=age / _NS if core.generation else None,
                failures=core.failures,
                calls=0 if window is None else window.calls,
                failure_rate=None if rules.failure_rate is None else failure_rate,
                slow_rate=None if rules.slow_rate is None else slow_rate,
                trials=len(core.trials),
                retry_after=max(0, core.open_ns - age) / _NS if core.state == OPEN else None,
            )
        self._tell()
        return snapshot

    def move(self, state: State) -> None:
        """Change the state by hand."""
        self.intervene(lambda core, now: core.move(state, now, "by hand"))

    def restart(self) -> None:
        """Close the circuit from whatever state, and forget all that was counted."""
        self.intervene(CircuitCore.restart)

    def revise(self, rules: Rules) -> None:
        """Go on under other rules."""
        self.intervene(lambda core, now: core.revise(rules))

    def intervene(self, act: Callable[[CircuitCore, int], T]) -> T:
        """Do something to the core, given the time, and tell what came of it."""
        with self, self._lock:
            self._catch_up(None)
            result = act(self._core, clock.monotonic_ns())
            self._update(None)
        self._tell()
        return result

    # The pybreaker register

    @property
    def owner(self) -> str:
        """Name of the circuit."""
        return self._policy.label

    def breaker(self) -> RegisteredBreaker:
        """The register, made at first use."""
        if self._breaker is None:
            rules, fail_max = self.rules, self.rules.failures or _NEVER
            made = make(self, fail_max=fail_max, reset_timeout=rules.reset_ns / _NS, half_open=rules.half_open)
            with self, self._lock:
                self._breaker = self._breaker or made
        return self._breaker

    def adopt(self, breaker: Any) -> None:
        """Take over an existing pybreaker: its state, its listeners and its exclusions."""
        if self._breaker is breaker:
            return
        state, failures, opened_at = breaker.current_state, breaker.fail_counter, breaker._state_storage.opened_at
        registered = adopt(breaker, self)
        age = 0.0 if opened_at is None else max(0.0, clock.wall() - opened_at.timestamp())
        with self, self._lock:
            self._breaker = registered
            self._core.restore(state, clock.monotonic_ns(), age=round(age * _NS), in_a_row=failures)
            self._update(None)
        self.hear(bool(registered.listeners))

    def act(self, state: State) -> None:
        """What somebody did with the register; an isolated circuit is open for it, a disabled one closed."""
        if _REGISTERED.get(self.state) != state:
            self.move(state)

    def hear(self, listens: bool) -> None:
        """Whether anybody listens to the register has changed."""
        with self, self._lock:
            self._catch_up(None)
            self.heard = self._breaker if listens else None
            self._update(None)

    def excludes(self, error: Exception) -> bool:
        """Whether the register has an exclusion that means `error`."""
        breaker = self._breaker
        return breaker is not None and not breaker.is_system_error(error)

    def reading(self) -> Reading:
        """What the register shows."""
        with self, self._lock:
            self._catch_up(None)
            core = self._core
            state = _REGISTERED.get(core.state, core.state)
            failures = core.failures if core.state == CLOSED else core.opening.failures
            age = max(0, clock.monotonic_ns() - core.changed_at) / _NS
            return Reading(state, failures, core.successes, clock.wall() - age if state == OPEN else None)

    def count(self, *, failed: bool) -> None:
        """Count the result of a call that went through pybreaker's own ``call``."""
        self.intervene(lambda core, now: core.count(now, failed=failed))

    # Telling

    def _update(self, call: Call | None) -> None:
        """Under the lock, after whatever the core did: note what there is to tell."""
        core = self._core
        for change in core.changes:
            if change.reason == "by hand":
                self._cause = None
            self._pending.append((change, call, self._cause))
        core.changes.clear()
        if not core.failures and core.state in (CLOSED, DISABLED):
            self._cause = None  # an exception keeps the frames it went through alive
        unheard = self.heard is None
        passing = core.generation if unheard and core.passing else None
        if passing != self.passing:
            self.passing = None  # first, or a call of the generation before could still use the new deque
            self._quick = deque()
        self._quick_until = core.quick_until if unheard else 0
        self.calm = passing if core.calm else None
        self.passing = passing

    def _tell(self) -> None:
        """Outside the lock: tell what there is to tell, unless another thread is at it."""
        if not self._pending:
            return
        with self, self._lock:
            if self._telling:
                return
            self._telling = True
        try:
            while (change := self._next()) is not None:
                self.announce(*change)
        except BaseException:  # KeyboardInterrupt in a sink: the next change tells the rest
            self._telling = False
            raise

    def _next(self) -> tuple[Change, Call | None, BaseException | None] | None:
        with self, self._lock:
            if self._pending:
                return self._pending.popleft()
            self._telling = False  # while holding the lock: whoever adds another one now has to tell it
            return None

    def announce(self, change: Change, call: Call | None, cause: BaseException | None) -> None:
        """Tell the bus and the register of a change."""
        fields: dict[str, Any] = {"state": change.state, "previous": change.previous, "reason": change.reason}
        if change.state == OPEN:
            fields |= {
                "failures": change.failures,
                "failure_rate": change.failure_rate,
                "slow_rate": change.slow_rate,
                "retry_after": None if change.open_ns is None else change.open_ns / _NS,
                "cause": cause,
            }
        elif change.state == HALF_OPEN:
            fields["limit"] = self._core.rules.half_open
        before = _REGISTERED.get(change.previous, change.previous)
        after = _REGISTERED.get(change.state, change.state)
        if before != after or change.state == ISOLATED:
            bus.emit(_EVENTS[change.state], call, self._policy, **fields)
        if before != after and self._breaker is not None:
            self._breaker.tell_change(after)
