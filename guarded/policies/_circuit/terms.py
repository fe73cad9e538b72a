"""The words of a circuit: its states, outcomes, rules, and what passes between its core and whoever drives it.

Times are whole nanoseconds of a monotonic clock, ratios 0..1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

State = Literal["closed", "open", "half-open", "isolated", "disabled"]
Outcome = Literal["success", "failure", "neutral"]
Count = Literal["counted", "late", "ignored"]

CLOSED: Final = "closed"
OPEN: Final = "open"
HALF_OPEN: Final = "half-open"
ISOLATED: Final = "isolated"
DISABLED: Final = "disabled"

SUCCESS: Final = "success"
FAILURE: Final = "failure"
NEUTRAL: Final = "neutral"


@dataclass(frozen=True, slots=True)
class Rules:
    """The options of a circuit as the core needs them: ratios 0..1, times in nanoseconds."""

    failures: int | None
    failure_rate: float | None
    window_calls: int | None
    window_ns: int | None
    min_calls: int
    slow_ns: int | None
    slow_rate: float | None
    reset_ns: int
    max_reset_ns: int
    half_open: int
    trial_ns: int


class Permit:
    """An admitted call: what its result needs to be counted, once.

    Attributes:
        generation: of the circuit when the call was admitted.
        started: when that was; None where the length of the call does not matter.
        serial: its number in ``trials`` or ``running``; 0 when it is in neither.
        answered: when a stream gave its first item; None while it has not, and for plain calls.
        settled: whether its result has been counted.
    """

    __slots__ = ("answered", "generation", "serial", "settled", "started")

    def __init__(self, generation: int, started: int | None, serial: int = 0) -> None:
        self.generation: int = generation
        self.started: int | None = started
        self.serial: int = serial
        self.answered: int | None = None
        self.settled: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call that is not admitted.

    Attributes:
        state: why: open, isolated, or half-open with all trials out.
        age: how long the circuit has been in that state.
        retry_ns: when exactly a call will be admitted; None when nobody can know.
        trials: how many trials are out.
        opening: the change that opened the circuit.
    """

    state: State
    age: int
    retry_ns: int | None
    trials: int
    opening: Change


@dataclass(frozen=True, slots=True)
class Change:
    """A change of state, and the figures at that moment.

    Attributes:
        reason: which rule was broken (``failures``, ``failure_rate``, ``slow_rate``), ``trial failed``, ``trial slow``,
            ``time is up``, ``recovered``, ``by hand``, or ``last known`` from a store that cannot be asked now.
        failures: in a row, or in the window where there is a failure rate.
        failure_rate, slow_rate: shares in the window; None without one.
        open_ns: how long the circuit will be open; None when it is not, or has no end.
    """

    state: State
    previous: State
    reason: str
    failures: int = 0
    failure_rate: float | None = None
    slow_rate: float | None = None
    open_ns: int | None = None
