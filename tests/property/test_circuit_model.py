"""The circuit's core against a reference that keeps everything that happened and works it out anew each time."""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from guarded.policies._circuit.core import CircuitCore
from guarded.policies._circuit.terms import Permit, Refusal, Rules

PARTS = 20


@dataclass(eq=False)
class Run:
    """One admitted call, as the reference sees it."""

    epoch: int
    began: int
    trial: bool
    decided: bool = False  # its slowness has been counted as a failure
    over: bool = False


@dataclass
class Result:
    """One counted result."""

    at: int
    failed: bool
    slow: bool


class Reference:
    """Slow and obvious: lists of runs and results, filtered whenever a question comes."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.state = "closed"
        self.epoch = 0
        self.since = 0
        self.opening = rules.reset_ns
        self.results: list[Result] = []
        self.runs: list[Run] = []
        self.trials_won = 0

    def go(self, state: str, now: int) -> None:
        self.state, self.since = state, now
        self.epoch += 1
        self.results, self.runs, self.trials_won = [], [], 0

    def window(self, now: int) -> list[Result]:
        rules = self.rules
        if rules.window_calls is not None:
            return self.results[-rules.window_calls :]
        assert rules.window_ns is not None
        part = -(-rules.window_ns // PARTS)
        return [result for result in self.results if now // part - result.at // part < PARTS]

    def in_a_row(self) -> int:
        count = 0
        for result in reversed(self.results):
            if not result.failed:
                break
            count += 1
        return count

    def hanging(self, now: int) -> list[Run]:
        slow_ns = self.rules.slow_ns
        if slow_ns is None or self.rules.slow_rate is None:
            return []
        return [run for run in self.runs if run.decided]

    def broken(self, now: int) -> bool:
        rules = self.rules
        if rules.failures is not None and self.in_a_row() >= rules.failures:
            return True
        if rules.window_calls is None and rules.window_ns is None:
            return False
        window, hanging = self.window(now), self.hanging(now)
        share = sum(result.failed for result in window) / max(1, len(window))
        if rules.failure_rate is not None and len(window) >= rules.min_calls and share >= rules.failure_rate:
            return True
        total = len(window) + len(hanging)
        if rules.slow_rate is not None and total >= rules.min_calls:
            return (sum(result.slow for result in window) + len(hanging)) / total >= rules.slow_rate
        return False

    def count(self, now: int, failed: bool, slow: bool) -> None:
        self.results.append(Result(now, failed or (slow and self.rules.slow_rate is None), slow))
        if self.broken(now):
            self.go("open", now)

    def admit(self, now: int) -> Run | None:
        rules = self.rules
        if self.state == "closed" and rules.slow_ns is not None:
            for run in self.runs:
                if self.state == "closed" and not run.decided and now - run.began >= rules.slow_ns:
                    run.decided = True
                    if rules.slow_rate is None:
                        self.count(now, failed=True, slow=True)
            if self.state == "closed" and self.hanging(now) and self.broken(now):
                self.go("open", now)
        if self.state == "open" and now - self.since >= self.opening:
            self.go("half-open", now)
        if self.state in ("open", "isolated"):
            return None
        if self.state == "half-open":
            self.runs = [run for run in self.runs if now - run.began < rules.trial_ns]
            if self.trials_won + len(self.runs) >= rules.half_open:
                return None
        run = Run(self.epoch, now, self.state == "half-open")
        self.runs.append(run)
        return run

    def end(self, run: Run, outcome: str, now: int) -> None:
        current = run.epoch == self.epoch and run in self.runs
        if not current:
            return
        self.runs.remove(run)
        slow = self.rules.slow_ns is not None and now - run.began >= self.rules.slow_ns
        if outcome == "neutral" or (run.decided and self.rules.slow_rate is None):
            return
        if self.state == "closed":
            self.count(now, outcome == "failure", slow)
        elif self.state == "half-open":
            if outcome == "failure" or slow:
                self.opening = min(self.opening * 2, self.rules.max_reset_ns)
                self.go("open", now)
            else:
                self.trials_won += 1
                if self.trials_won >= self.rules.half_open:
                    self.opening = self.rules.reset_ns
                    self.go("closed", now)

    def force(self, state: str, now: int) -> None:
        if state != self.state:
            if state not in ("open", "half-open"):
                self.opening = self.rules.reset_ns
            self.go(state, now)


@st.composite
def rule_sets(draw: st.DrawFn) -> Rules:
    """Any combination that the options allow, small enough to be met often."""
    by_rate = draw(st.booleans())
    slow_ns = draw(st.none() | st.integers(1, 50))
    slow_rate = None if slow_ns is None else draw(st.none() | st.sampled_from([0.2, 0.5, 0.75, 1.0]))
    window_calls = window_ns = None
    if by_rate or slow_rate is not None:
        if draw(st.booleans()):
            window_calls = draw(st.integers(1, 8))
        else:
            window_ns = draw(st.integers(1, 400))
    reset_ns = draw(st.integers(1, 60))
    return Rules(
        failures=None if by_rate else draw(st.integers(1, 4)),
        failure_rate=draw(st.sampled_from([0.1, 0.3, 0.5, 1.0])) if by_rate else None,
        window_calls=window_calls,
        window_ns=window_ns,
        min_calls=draw(st.integers(1, 4 if window_calls is None else window_calls)),
        slow_ns=slow_ns,
        slow_rate=slow_rate,
        reset_ns=reset_ns,
        max_reset_ns=reset_ns * draw(st.integers(1, 5)),
        half_open=draw(st.integers(1, 3)),
        trial_ns=draw(st.integers(1, 60)),
    )


class CircuitMachine(RuleBasedStateMachine):
    """Drives both with the same calls and compares what they say after every step."""

    calls: Any = Bundle("calls")

    @initialize(rules=rule_sets())
    def begin(self, rules: Rules) -> None:
        self.now = 1000
        self.core = CircuitCore(rules)
        self.reference = Reference(rules)
        self.put_off: deque[int] = deque()

    @rule(by=st.integers(1, 60))
    def advance(self, by: int) -> None:
        self.now += by

    @rule(target=calls)
    def admit(self) -> Any:
        self.catch_up()
        expected = self.reference.admit(self.now)
        answer = self.core.admit(self.now)
        assert isinstance(answer, Permit) == (expected is not None)
        if isinstance(answer, Refusal):
            assert answer.state == self.reference.state
            if answer.state == "open":
                assert answer.retry_ns == self.reference.opening - (self.now - self.reference.since) > 0
            else:
                assert answer.retry_ns is None
        return expected, answer

    @rule(call=calls, outcome=st.sampled_from(["success", "failure", "neutral"]))
    def end(self, call: Any, outcome: Any) -> None:
        expected, permit = call
        if expected is None or expected.over:
            return
        expected.over = True
        self.catch_up()
        self.reference.end(expected, outcome, self.now)
        self.core.settle(permit, outcome, self.now)

    @rule()
    def quick_success(self) -> None:
        """The short way that a call takes when nobody has to be asked."""
        if self.core.passing:
            run = self.reference.admit(self.now)
            assert run is not None
            self.reference.end(run, "success", self.now)
            if self.core.calm:
                pass
            elif self.now < self.core.quick_until:
                self.put_off.append(self.now)
            else:
                self.catch_up()
                self.core.settle(Permit(self.core.generation, None), "success", self.now)

    def catch_up(self) -> None:
        """As before anything that takes the lock."""
        if self.put_off:
            self.core.succeed(self.put_off)

    @rule(state=st.sampled_from(["open", "closed", "half-open", "isolated", "disabled"]))
    def force(self, state: Any) -> None:
        self.catch_up()
        self.reference.force(state, self.now)
        self.core.move(state, self.now, "by hand")

    @rule()
    def wait_out(self) -> None:
        """Exactly `retry_after` after a refusal a call is admitted."""
        if self.core.state == "open":
            answer = self.core.admit(self.now)
            self.reference.admit(self.now)
            if isinstance(answer, Refusal):
                assert answer.retry_ns is not None
                self.now += answer.retry_ns
                assert isinstance(self.core.admit(self.now), Permit)
                assert self.reference.admit(self.now) is not None

    @invariant()
    def same_state(self) -> None:
        if not hasattr(self, "core"):
            return
        core, reference = self.core, self.reference
        assert core.state == reference.state
        if core.state == "closed" and not self.put_off:  # what is put off must not be missed in the state above
            assert core.in_a_row == reference.in_a_row()
            if core.window is not None:
                mine = copy.deepcopy(core.window)  # asking must not be what makes it right
                mine.move(self.now)
                window = reference.window(self.now)
                assert (mine.calls, mine.failed, mine.slow) == (
                    len(window),
                    sum(result.failed for result in window),
                    sum(result.slow for result in window),
                )
        if core.state == "half-open":
            assert core.successes == reference.trials_won
            assert core.successes + len(core.trials) <= core.rules.half_open


def test_core_and_reference_agree() -> None:
    """Over random rules, calls, outcomes, times and acts by hand."""
    run_state_machine_as_test(
        CircuitMachine, settings=settings(max_examples=250, stateful_step_count=50, deadline=None)
    )
