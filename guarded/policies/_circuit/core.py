"""What a circuit decides: windows, states, generations and trials. No clock, no lock, no I/O.

Everything kept is a plain value, so that a store can keep the same: ``state``, ``generation``, ``changed_at``,
``open_ns`` (length of the present or next opening), ``in_a_row``, the window's totals and buckets, ``successes`` and
``trials`` (serial number to start) of a half-open circuit, ``running`` and ``overdue`` (calls that may be slow). Each
change of state begins a new generation and empties all the rest. Times are whole nanoseconds of a monotonic clock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

from guarded.policies._circuit.terms import (
    CLOSED,
    DISABLED,
    FAILURE,
    HALF_OPEN,
    ISOLATED,
    NEUTRAL,
    OPEN,
    Change,
    Count,
    Outcome,
    Permit,
    Refusal,
    Rules,
    State,
)
from guarded.policies._circuit.windows import ALWAYS, CallWindow, TimeWindow, Window

GROWTH: Final = 2
"""Each failed recovery multiplies the open time by this, up to ``max_reset_ns``."""

_KEPT: Final = ("state", "changed_at", "open_ns", "opening", "in_a_row", "successes", "window")


class CircuitCore:
    """The state machine of one circuit; see the module for what it keeps."""

    __slots__ = (
        "_serial",
        "changed_at",
        "changes",
        "generation",
        "in_a_row",
        "open_ns",
        "opening",
        "overdue",
        "rules",
        "running",
        "state",
        "successes",
        "trials",
        "window",
    )

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.state: State = CLOSED
        self.generation: int = 0
        self.changed_at = 0
        self.open_ns = rules.reset_ns
        self.opening = Change(OPEN, CLOSED, "by hand")
        self.changes: list[Change] = []  # for whoever drives the core to take and to tell
        self._serial = 0
        self._forget()

    def _forget(self) -> None:
        self.in_a_row = 0
        self.successes: int = 0
        self.trials: dict[int, int] = {}
        self.running: OrderedDict[int, int] = OrderedDict()  # the first is the oldest, found in O(1)
        self.overdue: set[int] = set()
        self.window = _window(self.rules)

    @property
    def passing(self) -> bool:
        """Whether every call is admitted and none is watched, so that nobody need ask."""
        return self.state == DISABLED or (self.state == CLOSED and self.rules.slow_ns is None)

    @property
    def calm(self) -> bool:
        """Whether, passing, a success would change nothing, so that it need not be told."""
        return self.state == DISABLED or (self.passing and self.window is None and not self.in_a_row)

    @property
    def failures(self) -> int:
        """Failures counted: in the window of a failure rate, else in a row."""
        if self.window is not None and self.rules.failure_rate is not None:
            return self.window.failed
        return self.in_a_row

    def admit(self, now: int) -> Permit | Refusal:
        """Let a call through, or not."""
        if self.state == CLOSED:
            if self.rules.slow_ns is None:
                return Permit(self.generation, now)
            self._notice_slow(now, self.rules.slow_ns)
        elif self.state == OPEN:
            self.changed_at = min(self.changed_at, now)  # else a clock that went back would keep it open for ever
            if now - self.changed_at >= self.open_ns:
                self.move(HALF_OPEN, now, "time is up")
        if self.state == CLOSED:
            permit = self._numbered(now)
            self.running[permit.serial] = now
            return permit
        if self.state == HALF_OPEN:
            return self._admit_trial(now)
        return Permit(self.generation, now) if self.state == DISABLED else self._refusal(now)

    def _numbered(self, now: int) -> Permit:
        self._serial += 1
        return Permit(self.generation, now, self._serial)

    def _admit_trial(self, now: int) -> Permit | Refusal:
        for serial, started in tuple(self.trials.items()):
            if now - started >= self.rules.trial_ns:
                del self.trials[serial]
            elif started > now:
                self.trials[serial] = now
        if self.successes + len(self.trials) >= self.rules.half_open:
            return self._refusal(now)
        permit = self._numbered(now)
        self.trials[permit.serial] = now
        return permit

    def _refusal(self, now: int) -> Refusal:
        age = max(0, now - self.changed_at)
        retry = max(0, self.open_ns - age) if self.state == OPEN else None
        return Refusal(self.state, age, retry, len(self.trials), self.opening)

    def _notice_slow(self, now: int, slow_ns: int) -> None:
        """Count the calls that are slow already though they have not ended."""
        while self.running:
            serial, started = next(iter(self.running.items()))
            if now - started < slow_ns:
                break
            del self.running[serial]
            if self.rules.slow_rate is None:
                self._count(now, failed=True, slow=True)  # what it ends with cannot make it better
            else:
                self.overdue.add(serial)
        if self.overdue:
            self._judge(now)

    def answered(self, permit: Permit, now: int) -> None:
        """A stream gave its first item: for being slow, that is its end."""
        permit.answered = now
        if permit.generation == self.generation and self.state == CLOSED and permit.serial:
            permit.settled = self._unwatch(permit)

    def _unwatch(self, permit: Permit) -> bool:
        """Whether the call's slowness has been counted already, as the failure it is."""
        serial, permit.serial = permit.serial, 0
        if self.running.pop(serial, None) is not None:
            return False
        if serial in self.overdue:
            self.overdue.remove(serial)
            return False
        return True

    def settle(self, permit: Permit, outcome: Outcome, now: int) -> Count:
        """Count how a call ended: late when it began before the last change, or lost its place as a trial."""
        if permit.settled:
            return "ignored"
        permit.settled = True
        current = permit.generation == self.generation
        if current and self.state == HALF_OPEN:
            current = self.trials.pop(permit.serial, None) is not None
        elif current and self.state == CLOSED and permit.serial and self._unwatch(permit):
            return "ignored"
        if outcome == NEUTRAL:
            return "ignored"
        if not current:
            return "late"
        slow = self._was_slow(permit, now)
        if self.state == HALF_OPEN:
            self._count_trial(now, failed=outcome == FAILURE, slow=slow)
        elif self.state == CLOSED:
            self._count(now, failed=outcome == FAILURE, slow=slow)
        else:
            return "ignored"
        return "counted"

    def count(self, now: int, *, failed: bool) -> None:
        """Count a result of a call that had no permit."""
        if self.state == HALF_OPEN:
            self._count_trial(now, failed=failed, slow=False)
        elif self.state == CLOSED:
            self._count(now, failed=failed, slow=False)

    def _was_slow(self, permit: Permit, now: int) -> bool:
        if self.rules.slow_ns is None or permit.started is None:
            return False
        ended = now if permit.answered is None else permit.answered
        return ended - permit.started >= self.rules.slow_ns

    @property
    def quick_until(self) -> int:
        """Until when, passing, a success changes nothing but totals, so that it may be told later."""
        if not self.passing or self.window is None:
            return 0
        if not self.window.failed:
            return ALWAYS
        return self.window.steady_until if self.window.calls >= self.rules.min_calls else 0

    def succeed(self, times: deque[int]) -> None:
        """Count, and take out of `times`, the successes that were put off before `quick_until`."""
        self.in_a_row = 0
        if self.window is not None and self.state == CLOSED:
            latest = times[-1]
            self.window.add_successes(times)
            self._judge(latest)
        else:
            times.clear()

    def forget_calls(self) -> None:
        """The calls in flight are gone, and will never be settled."""
        self.trials.clear()
        self.running.clear()
        self.overdue.clear()

    def _count_trial(self, now: int, *, failed: bool, slow: bool) -> None:
        if failed or slow:
            self.move(OPEN, now, "trial failed" if failed else "trial slow")
        else:
            self.successes += 1
            if self.successes >= self.rules.half_open:
                self.move(CLOSED, now, "recovered")

    def _count(self, now: int, *, failed: bool, slow: bool) -> None:
        failed = failed or (slow and self.rules.slow_rate is None)
        self.in_a_row = self.in_a_row + 1 if failed else 0
        if self.window is not None:
            self.window.add(now, failed, slow)
        self._judge(now)

    def _judge(self, now: int) -> None:
        """Open the circuit if a rule is broken."""
        rules, window = self.rules, self.window
        if rules.failures is not None and self.in_a_row >= rules.failures:
            self.move(OPEN, now, "failures")
        if window is None or self.state == OPEN or not (window.failed or window.slow or self.overdue):
            return
        window.move(now)
        failure_rate, slow_rate = self.rates()
        if _broken(rules.failure_rate, failure_rate) and window.calls >= rules.min_calls:
            self.move(OPEN, now, "failure_rate")
        elif _broken(rules.slow_rate, slow_rate) and window.calls + len(self.overdue) >= rules.min_calls:
            self.move(OPEN, now, "slow_rate")

    def rates(self) -> tuple[float, float]:
        """Shares of failed calls, and of slow ones (those still running included), in the window; 0 without calls."""
        window, overdue = self.window, len(self.overdue)
        if window is None:
            return 0.0, 0.0
        return window.failed / max(1, window.calls), (window.slow + overdue) / max(1, window.calls + overdue)

    def move(self, state: State, now: int, reason: str) -> None:
        """Change to `state`, beginning a new generation; nothing happens when that is the state already."""
        previous = self.state
        if state == previous:
            return
        if state == OPEN and reason.startswith("trial"):
            self.open_ns = min(self.open_ns * GROWTH, self.rules.max_reset_ns)
        elif state not in (OPEN, HALF_OPEN):
            self.open_ns = self.rules.reset_ns
        change = self._change(state, previous, reason)
        if state in (OPEN, ISOLATED):
            self.opening = change
        self.state = state
        self.generation += 1
        self.changed_at = now
        self._forget()
        self.changes.append(change)

    def restart(self, now: int) -> None:
        """Close from whatever state, and forget all that was counted."""
        if self.state == CLOSED:
            self.generation += 1
            self._forget()
        else:
            self.move(CLOSED, now, "by hand")

    def begin(self, state: State, now: int, reason: str = "by hand") -> None:
        """Begin `state` anew, also where that is the state already."""
        if self.state == state:
            self.generation += 1
            self.changed_at = now
            self._forget()
        else:
            self.move(state, now, reason)

    def go_back(self, before: CircuitCore) -> None:
        """Be what `before`, a copy, was; the calls in flight belong to neither."""
        previous = self.state
        for name in _KEPT:
            setattr(self, name, getattr(before, name))
        self.generation += 1
        self.forget_calls()
        if self.state != previous:
            self.changes.append(self._change(self.state, previous, "by hand"))

    def _change(self, state: State, previous: State, reason: str) -> Change:
        failure_rate, slow_rate = self.rates()
        failures = self.failures
        if previous == HALF_OPEN:
            failures = int(state == OPEN and reason == "trial failed")
        rules = self.rules
        return Change(
            state,
            previous,
            reason,
            failures,
            failure_rate if rules.failure_rate is not None and previous == CLOSED else None,
            slow_rate if rules.slow_rate is not None and previous == CLOSED else None,
            self.open_ns if state == OPEN else None,
        )

    def restore(self, state: State, now: int, *, age: int, in_a_row: int) -> None:
        """Start from what another register says: `state` since `age`, with failures counted in a row."""
        self.state = state
        self.generation += 1
        self.changed_at = now - age
        self.in_a_row = in_a_row if state == CLOSED else 0

    def revise(self, rules: Rules) -> None:
        """Go on under other rules: the state and its age stay, a window of another kind or length starts empty."""
        before, self.rules = self.rules, rules
        if (before.window_calls, before.window_ns) != (rules.window_calls, rules.window_ns):
            self.window = _window(rules)
        grown = self.open_ns != before.reset_ns
        self.open_ns = min(self.open_ns, rules.max_reset_ns) if grown else rules.reset_ns


def _broken(bound: float | None, share: float) -> bool:
    return bound is not None and share >= bound


def _window(rules: Rules) -> Window | None:
    if rules.window_calls is not None:
        return CallWindow(rules.window_calls)
    return None if rules.window_ns is None else TimeWindow(rules.window_ns)
