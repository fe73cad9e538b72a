"""The state of one circuit in this process: the core under a lock, and what has to be told outside of it.

Changes of state are told (events, then the listeners of the pybreaker register) after the lock is released, in the
order in which they came about, by one thread at a time. A shared store takes this module's place: it gives the same
answers to `admit` and `settle`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from guarded._core import clock
from guarded._core.breaker import CircuitOpen, Reading, RegisteredBreaker, adopt, make
from guarded._core.call import Call
from guarded._core.durations import format_duration
from guarded._core.policy import Policy
from guarded.events.bus import bus
from guarded.policies._circuit_core import (
    CLOSED,
    DISABLED,
    FAILURE,
    HALF_OPEN,
    ISOLATED,
    OPEN,
    SUCCESS,
    Change,
    CircuitCore,
    Outcome,
    Permit,
    Refusal,
    Rules,
    State,
)

_NS: Final = 1_000_000_000
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


class LocalCircuit:
    """Admits calls, counts how they end, and tells who wants to know.

    Attributes:
        passing: the generation, while all calls are admitted without asking; else None. Read without the lock.
        calm: the generation, while passing and a success would change nothing; else None. Read without the lock.
        heard: the register, while anybody listens to it.
    """

    __slots__ = (
        "_acquire",
        "_breaker",
        "_cause",
        "_core",
        "_lock",
        "_pending",
        "_policy",
        "_release",
        "_telling",
        "calm",
        "heard",
        "passing",
    )

    def __init__(self, policy: Policy[Any], rules: Rules) -> None:
        self._policy = policy
        self._lock = threading.Lock()
        self._acquire, self._release = self._lock.acquire, self._lock.release
        self._core = CircuitCore(rules)
        self._pending: deque[tuple[Change, Call | None, BaseException | None]] = deque()
        self._telling = False
        self._cause: BaseException | None = None
        self._breaker: RegisteredBreaker | None = None
        self.heard: RegisteredBreaker | None = None
        self.passing: int | None = None
        self.calm: int | None = None
        self._update(None)

    # Calls

    def admit(self, call: Call, *, enforce: bool) -> Permit | None:
        """Let a call through or raise CircuitOpen; where nothing is enforced, None for one that is not counted."""
        with self._lock:
            answer = self._core.admit(clock.monotonic_ns())
            cause = self._cause
            if self._core.changes:
                self._update(call)
        if self._pending:
            self._tell()
        if isinstance(answer, Permit):
            return answer
        rejection = self._rejection(answer, cause)
        bus.emit(
            "circuit.rejected",
            call,
            self._policy,
            state=answer.state,
            reason=_why(answer) if enforce else f"{_why(answer)}, not enforced",
            retry_after=rejection.retry_after,
            active=answer.trials,
            cause=cause,
        )
        if enforce:
            raise rejection
        return None

    def succeed(self, call: Call, generation: int, started: int | None) -> None:
        """Count the success of a call that was let through while `passing` was `generation`."""
        self._acquire()  # in place of a with statement, which costs as much as all the rest
        try:
            current = generation == self.passing
            if current:
                core = self._core
                core.succeed(clock.monotonic_ns())
                if core.changes or core.window is None:
                    self._update(call)
        finally:
            self._release()
        if not current:
            self.settle(call, Permit(generation, started), SUCCESS, None)
        elif self._pending:
            self._tell()

    def answered(self, permit: Permit) -> None:
        """A stream has given its first item."""
        with self._lock:
            self._core.answered(permit, clock.monotonic_ns())

    def settle(self, call: Call, permit: Permit, outcome: Outcome, error: BaseException | None) -> None:
        """Count how a call ended."""
        if error is not None and outcome == FAILURE:
            self._unchain(error)
        with self._lock:
            now = clock.monotonic_ns()
            count = self._core.settle(permit, outcome, now)
            if count == "counted" and outcome == FAILURE:
                self._cause = error
            self._update(call)
            heard, state = self.heard, self._core.state
        if heard is not None and count == "counted":
            heard.tell_result(error if outcome == FAILURE else None)
        if self._pending:
            self._tell()
        if count == "late":
            duration = None if permit.started is None else max(0, now - permit.started) / _NS
            bus.emit("circuit.late", call, self._policy, state=state, outcome=outcome, duration=duration, cause=error)

    def _unchain(self, error: BaseException) -> None:
        """Let go of older failures: an error raised while handling our rejection would drag all of them along."""
        seen: set[int] = set()
        link: BaseException | None = error.__context__
        while link is not None and id(link) not in seen:
            seen.add(id(link))
            if isinstance(link, CircuitOpen) and link.policy == self._policy.label:
                link.__cause__ = None
            link = link.__context__

    def _rejection(self, refusal: Refusal, cause: BaseException | None) -> CircuitOpen:
        rejection = CircuitOpen(
            _message(self._policy.label, refusal, cause),
            state=refusal.state,
            policy=self._policy.label,
            retry_after=None if refusal.retry_ns is None else refusal.retry_ns / _NS,
        )
        rejection.__cause__ = cause
        return rejection

    # State

    @property
    def state(self) -> State:
        """The state as of the latest call or act."""
        return self._core.state

    def snapshot(self) -> CircuitSnapshot:
        """The figures now."""
        with self._lock:
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

    def move(self, state: State) -> None:
        """Change the state by hand."""
        with self._lock:
            self._core.move(state, clock.monotonic_ns(), "by hand")
            self._update(None)
        self._tell()

    def restart(self) -> None:
        """Close the circuit from whatever state, and forget all that was counted."""
        with self._lock:
            self._core.restart(clock.monotonic_ns())
            self._update(None)
        self._tell()

    def revise(self, rules: Rules) -> None:
        """Go on under other rules."""
        with self._lock:
            self._core.revise(rules)
            self._update(None)

    # The pybreaker register

    @property
    def owner(self) -> str:
        """Name of the circuit."""
        return self._policy.label

    def breaker(self) -> RegisteredBreaker:
        """The register, made at first use."""
        if self._breaker is None:
            rules = self._core.rules
            made = make(
                self,
                fail_max=rules.failures or _NEVER,
                reset_timeout=rules.reset_ns / _NS,
                half_open=rules.half_open,
            )
            with self._lock:
                self._breaker = self._breaker or made
        return self._breaker

    def adopt(self, breaker: Any) -> None:
        """Take over an existing pybreaker: its state, its listeners and its exclusions."""
        if self._breaker is breaker:
            return
        state, failures, opened_at = breaker.current_state, breaker.fail_counter, breaker._state_storage.opened_at
        registered = adopt(breaker, self)
        age = 0.0 if opened_at is None else max(0.0, clock.wall() - opened_at.timestamp())
        with self._lock:
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
        with self._lock:
            self.heard = self._breaker if listens else None
            self._update(None)

    def excludes(self, error: Exception) -> bool:
        """Whether the register has an exclusion that means `error`."""
        breaker = self._breaker
        return breaker is not None and not breaker.is_system_error(error)

    def reading(self) -> Reading:
        """What the register shows."""
        with self._lock:
            core = self._core
            state = _REGISTERED.get(core.state, core.state)
            failures = core.failures if core.state == CLOSED else core.opening.failures
            age = max(0, clock.monotonic_ns() - core.changed_at) / _NS
            return Reading(state, failures, core.successes, clock.wall() - age if state == OPEN else None)

    def count(self, *, failed: bool) -> None:
        """Count the result of a call that went through pybreaker's own ``call``."""
        with self._lock:
            self._core.count(clock.monotonic_ns(), failed=failed)
            self._update(None)
        self._tell()

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
        self.passing = core.generation if unheard and core.passing else None
        self.calm = core.generation if unheard and core.calm else None

    def _tell(self) -> None:
        """Outside the lock: tell what there is to tell, unless another thread is at it."""
        with self._lock:
            if self._telling:
                return
            self._telling = True
        try:
            while (change := self._next()) is not None:
                self._announce(*change)
        except BaseException:  # KeyboardInterrupt in a sink: the next change tells the rest
            self._telling = False
            raise

    def _next(self) -> tuple[Change, Call | None, BaseException | None] | None:
        with self._lock:
            if self._pending:
                return self._pending.popleft()
            self._telling = False  # while holding the lock: whoever adds another one now has to tell it
            return None

    def _announce(self, change: Change, call: Call | None, cause: BaseException | None) -> None:
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


def _why(refusal: Refusal) -> str:
    return "trials out" if refusal.state == HALF_OPEN else refusal.state


def _message(name: str, refusal: Refusal, cause: BaseException | None) -> str:
    age = format_duration(refusal.age / _NS)
    if refusal.state == ISOLATED:
        return f"circuit {name!r} has been isolated by hand for {age}; reset() lets calls through again"
    seen = _seen(refusal.opening)
    last = "" if cause is None else f", the last with {type(cause).__qualname__}"
    if refusal.state == HALF_OPEN:
        return (
            f"circuit {name!r} has been half-open for {age} and all its {refusal.trials} trial calls are out, "
            f"after {seen}{last}; try again when they have ended, or do without"
        )
    wait = format_duration((refusal.retry_ns or 0) / _NS)
    return f"circuit {name!r} has been open for {age} after {seen}{last}; try again in {wait}, or do without"


def _seen(opening: Change) -> str:
    """What opened the circuit, in words."""
    words: dict[str, Callable[[], str]] = {
        "failures": lambda: f"{opening.failures} failures in a row",
        "failure_rate": lambda: f"{opening.failures} failures, {opening.failure_rate or 0:.2g} of the calls",
        "slow_rate": lambda: f"{opening.slow_rate or 0:.2g} of the calls were slow",
        "trial failed": lambda: "a failed trial call",
        "trial slow": lambda: "a slow trial call",
    }
    return words[opening.reason]() if opening.reason in words else "it was opened by hand"
