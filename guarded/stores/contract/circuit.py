"""What `circuit` asks of a store, sync and async; what is done by hand, sync only.

A store keeps one state machine for all processes that say the same name, the one of `guarded.policies._circuit.core`:
state, generation, windows, trials, and the calls that may be slow. Every method is one atomic step by the store's own
clock that raises when it cannot be made; rules come with each step. Whoever makes a step that changes the state is told
of the change, so that each is told once in the fleet. Times are nanoseconds, ratios 0..1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from guarded.policies._circuit.terms import Change, Count, Outcome, Refusal, Rules, State


class Let(NamedTuple):
    """A call is admitted; `serial` is its number where it is watched, else 0."""

    generation: int
    serial: int


class Admission(NamedTuple):
    """The answer to a call, the state and generation after it, and the changes it brought about."""

    answer: Let | Refusal
    state: State
    generation: int
    changes: list[Change]


class Settlement(NamedTuple):
    """What became of a result, the state and generation after it, and the changes it brought about."""

    verdict: Count
    state: State
    generation: int
    changes: list[Change]


@dataclass(frozen=True, slots=True)
class Figures:
    """A circuit at one moment.

    Attributes:
        age: how long it has been in `state`; -1 before the first change.
        failures: in the window where there is a failure rate, else in a row.
        opened_by: failures at its latest opening.
        successes: trials that have succeeded.
        retry_ns: when exactly a call will be admitted; None where nobody can know, or where calls pass.
    """

    state: State
    age: int
    failures: int
    calls: int
    failure_rate: float
    slow_rate: float
    trials: int
    successes: int
    opened_by: int
    retry_ns: int | None


@runtime_checkable
class CircuitStore(Protocol):
    """State machines by name."""

    def admit(self, name: str, rules: Rules) -> Admission:
        """Let a call through, or not."""
        ...

    def settle(self, name: str, rules: Rules, let: Let, outcome: Outcome, slow: bool) -> Settlement:
        """Count how a call ended."""
        ...

    def answered(self, name: str, rules: Rules, let: Let) -> bool:
        """A stream gave its first item and cannot become slow any more; whether it is counted as slow already."""
        ...

    def move(self, name: str, rules: Rules, state: State | None) -> Settlement:
        """Change the state by hand; None closes it from whatever state and forgets all that was counted."""
        ...

    def look(self, name: str, rules: Rules) -> Figures:
        """The figures now; changes nothing."""
        ...

    async def admit_async(self, name: str, rules: Rules) -> Admission: ...

    async def settle_async(self, name: str, rules: Rules, let: Let, outcome: Outcome, slow: bool) -> Settlement: ...

    async def answered_async(self, name: str, rules: Rules, let: Let) -> bool: ...
