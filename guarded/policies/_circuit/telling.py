"""What a circuit tells: events to the bus; calls, results and changes to the listeners of its pybreaker register.

Nothing is told under the circuit's lock. Changes of state are told in the order in which they came about, by one thread
at a time, which goes on with those that come up meanwhile.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from guarded._core.call import Call
from guarded._core.policy import Args, Fn, Kwargs, Policy
from guarded.events.bus import bus
from guarded.policies._circuit.options import CircuitOptions
from guarded.policies._circuit.rejection import rejection_of, why
from guarded.policies._circuit.terms import CLOSED, DISABLED, HALF_OPEN, ISOLATED, OPEN, Change, Outcome, Refusal, State

if TYPE_CHECKING:
    from guarded._core.breaker import RegisteredBreaker

_NS: Final = 1_000_000_000
_REGISTERED: Final[dict[State, State]] = {ISOLATED: OPEN, DISABLED: CLOSED}
_EVENTS: Final = {
    CLOSED: "circuit.closed",
    DISABLED: "circuit.closed",
    OPEN: "circuit.opened",
    HALF_OPEN: "circuit.half_opened",
    ISOLATED: "circuit.isolated",
}


def registered(state: State) -> State:
    """What pybreaker calls a state: it knows neither isolated nor disabled."""
    return _REGISTERED.get(state, state)


class Teller:
    """Tells what becomes of one circuit.

    Attributes:
        breaker: the pybreaker register, once there is one.
        heard: the same, while anybody listens to it.
    """

    __slots__ = ("_lock", "_owned", "_pending", "_policy", "breaker", "heard")

    def __init__(self, policy: Policy[CircuitOptions]) -> None:
        self._policy = policy
        self.breaker: RegisteredBreaker | None = None
        self.heard: RegisteredBreaker | None = None
        self.forget()

    def forget(self) -> None:
        """In a forked child: what is still to be told is the parent's to tell."""
        self._pending: deque[tuple[Change, Call | None, BaseException | None]] = deque()
        self._lock = threading.RLock()  # who has it tells; nobody ever waits for it
        self._owned: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]

    def add(self, change: Change, call: Call | None, cause: BaseException | None) -> None:
        """Have a change told by the next `tell_changes`."""
        self._pending.append((change, call, cause))

    def tell_changes(self) -> None:
        """Tell the changes there are, unless somebody is at it, who will come to them."""
        while self._pending and not self._owned():  # else a sink acts on the circuit it hears of
            try:
                if not self._lock.acquire(blocking=False):
                    return
                while self._pending:
                    self.tell_change(*self._pending.popleft())
            except BaseException:  # not ``finally``: there a signal handler could raise before the release
                if self._owned():
                    self._lock.release()
                raise
            self._lock.release()

    def tell_change(self, change: Change, call: Call | None, cause: BaseException | None) -> None:
        """Tell of one change now."""
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
            fields["limit"] = self._policy.options.half_open
        after = registered(change.state)
        differs = after != registered(change.previous)
        if differs or change.state == ISOLATED:
            bus.emit(_EVENTS[change.state], call, self._policy, **fields)
        if differs and self.breaker is not None:
            self.breaker.tell_change(after)

    def tell_call(self, fn: Fn, args: Args, kwargs: Kwargs) -> None:
        """Tell the listeners that a call begins."""
        if self.heard is not None:
            self.heard.tell_call(fn, args, kwargs)

    def tell_result(self, error: BaseException | None) -> None:
        """Tell the listeners that a result was counted, as a failure when there is an error."""
        if self.heard is not None:
            self.heard.tell_result(error)

    def tell_late(
        self, call: Call, state: State, outcome: Outcome, ran_ns: int | None, error: BaseException | None
    ) -> None:
        """A result has come too late to be counted."""
        duration = None if ran_ns is None else max(0, ran_ns) / _NS
        bus.emit("circuit.late", call, self._policy, state=state, outcome=outcome, duration=duration, cause=error)

    def refuse(self, call: Call, answer: Refusal, cause: BaseException | None) -> None:
        """Tell of a call that is not admitted, and raise CircuitOpen where that is enforced."""
        enforce = self._policy.options.enforce
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
