"""The circuit script against the state machine of one process: the same answers, changes and figures.

The script runs on a real server, with the one line that reads its clock taken out: the test says what time it is.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from guarded.policies._circuit.core import CircuitCore
from guarded.policies._circuit.terms import Change, Permit, Refusal, Rules
from guarded.stores import open_store
from guarded.stores._redis import circuits
from guarded.stores._redis.link import Script
from guarded.stores.contract.circuit import Figures, Let

READS_CLOCK = "redis.call('TIME')"
START = 1_800_000_000_000_000
MS = 1_000_000
ROW = Rules(
    failures=3,
    failure_rate=None,
    window_calls=None,
    window_ns=None,
    min_calls=1,
    slow_ns=None,
    slow_rate=None,
    reset_ns=50 * MS,
    max_reset_ns=50 * MS,
    half_open=1,
    trial_ns=200 * MS,
)
CALLS = replace(ROW, failures=None, failure_rate=0.5, window_calls=7, min_calls=4, half_open=2, max_reset_ns=300 * MS)
TIME = replace(CALLS, window_calls=None, window_ns=200 * MS)
SLOW_FAILS = replace(CALLS, slow_ns=60 * MS)
SLOW_RATE = replace(TIME, failure_rate=None, slow_ns=60 * MS, slow_rate=0.5)
BOTH = replace(CALLS, slow_ns=60 * MS, slow_rate=0.6)
RULES = {
    "row": ROW,
    "calls": CALLS,
    "time": TIME,
    "slow-fails": SLOW_FAILS,
    "slow-rate": SLOW_RATE,
    "both": BOTH,
}


class Both:
    """The script and the reference, driven alike."""

    def __init__(self, circuits: Any, client: Any, key: str, rules: Rules) -> None:
        self._circuits = circuits
        self._client = client
        self._key = key
        self.rules = rules
        self.core = CircuitCore(rules)
        self.now = START

    def pass_time(self, us: int) -> None:
        """For both."""
        self.now += us
        self._client.delete(self._key)
        self._client.rpush(self._key, self.now // 1_000_000, self.now % 1_000_000)

    @property
    def ns(self) -> int:
        """The time as the reference takes it."""
        return self.now * 1000

    def admit(self) -> tuple[Let, Permit] | None:
        """A call comes."""
        told, own = self._circuits.admit("c", self.rules), self.core.admit(self.ns)
        self.same(told.state, told.changes)
        if isinstance(own, Refusal):
            assert isinstance(told.answer, Refusal)
            assert (told.answer.state, told.answer.trials) == (own.state, own.trials)
            assert told.answer.retry_ns == own.retry_ns
            return None
        assert isinstance(told.answer, Let)
        assert (told.answer.serial > 0) == (own.serial > 0)
        return told.answer, own

    def settle(self, let: Let, own: Permit, outcome: Any) -> None:
        """A call ends."""
        slow = self.rules.slow_ns is not None and self.ns - own.started >= self.rules.slow_ns
        told = self._circuits.settle("c", self.rules, let, outcome, slow)
        assert told.verdict == self.core.settle(own, outcome, self.ns)
        self.same(told.state, told.changes)

    def move(self, state: Any) -> None:
        """Somebody acts."""
        told = self._circuits.move("c", self.rules, state)
        if state is None:
            self.core.restart(self.ns)
        else:
            self.core.move(state, self.ns, "by hand")
        self.same(told.state, told.changes)

    def look(self) -> None:
        """The figures agree."""
        core, told = self.core, self._circuits.look("c", self.rules)
        if core.window is not None:
            core.window.move(self.ns)
        failure_rate, slow_rate = core.rates()
        calls = 0 if core.window is None else core.window.calls
        age = self.ns - core.changed_at
        wait = max(0, core.open_ns - age) if core.state == "open" else None
        trials = len(core.trials)
        if not core.changed_at:
            age = -1
        figures = (core.failures, calls, failure_rate, slow_rate, trials, core.successes, core.opening.failures)
        assert told == Figures(core.state, age, *figures, wait)

    def same(self, state: str, changes: list[Change]) -> None:
        """State and changes agree."""
        assert state == self.core.state
        assert changes == self.core.changes
        self.core.changes.clear()


@pytest.fixture
def both(valkey: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Both]:
    """A fresh pair."""
    prefix = uuid.uuid4().hex
    script = Script("circuit")
    assert script.text.count(READS_CLOCK) == 1
    script.text = script.text.replace(READS_CLOCK, f"redis.call('LRANGE', '{prefix}now', 0, 1)")
    script.text = script.text.replace("redis.call('PEXPIRE',", "tostring(")  # which would go by the real clock
    script.sha = "0" * 40  # unknown, so that the text is sent
    monkeypatch.setattr(circuits, "_SCRIPT", script)
    store = open_store(valkey.url, timeout=5.0, prefix=prefix)
    with valkey.client() as client:
        yield Both(store.circuits, client, f"{prefix}now", RULES[request.param])
    store.close()


@pytest.mark.parametrize("both", RULES, indirect=True)
@pytest.mark.parametrize("seed", range(8))
def test_same_machine_as_in_one_process(both: Both, seed: int) -> None:
    """Random calls, ends, late ends, hung trials and acts by hand."""
    chance = random.Random(seed)
    out: list[tuple[Let, Permit]] = []
    opened = 0
    weights = chance.choice([(5, 4, 1), (3, 6, 1), (8, 2, 1)])
    for _ in range(150):
        both.pass_time(chance.choice([0, 1, chance.randrange(3_000), chance.randrange(30_000), 90_000]))
        dice = chance.random()
        if dice < 0.5 or not out:
            admitted = both.admit()
            if admitted is not None:
                out.append(admitted)
        elif dice < 0.94:
            let, own = out.pop(chance.randrange(len(out)))
            both.settle(let, own, chance.choices(["success", "failure", "neutral"], weights)[0])
        elif dice < 0.97:
            both.look()
        else:
            both.move(chance.choice([None, "open", "isolated", "disabled", "closed", "half-open"]))
        opened += both.core.state == "open"
    assert opened
