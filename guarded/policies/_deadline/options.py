"""The options of `deadline`, and how many seconds they give to one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from math import isfinite
from typing import Any, Literal

from guarded._core.durations import parse_duration
from guarded._core.keys import compile_argument, key_problem
from guarded._core.policy import Args, Fn, Kwargs
from guarded.policies._matching import title

Mode = Literal["thread", "cooperative"]
Late = Literal["return", "raise"]
Seconds = Callable[[Fn, Args, Kwargs], float]


@dataclass(frozen=True, slots=True)
class DeadlineOptions:
    """What `deadline` was given, checked; `seconds` is a number, or a callable over the arguments."""

    seconds: float | Callable[..., Any]
    mode: Mode = "thread"
    late: Late = "return"

    @classmethod
    def checked(cls, seconds: Any, mode: Any, late: Any) -> DeadlineOptions:
        """The options, or one ValueError that names every wrong one."""
        problems = []
        if callable(seconds):
            if problem := key_problem(seconds):
                problems.append(f"seconds={title(seconds)}: {problem}")
        else:
            try:
                seconds = parse_duration(seconds, option="seconds")
            except ValueError as error:
                problems.append(str(error))
        if mode not in ("thread", "cooperative"):
            problems.append(f"mode={mode!r}: must be 'thread' or 'cooperative'")
        if late not in ("return", "raise"):
            problems.append(f"late={late!r}: must be 'return' or 'raise'")
        elif late == "raise" and mode == "thread":
            problems.append("late='raise' needs mode='cooperative': in mode='thread' a late result is always dropped")
        if problems:
            raise ValueError("deadline: " + "; ".join(problems))
        return cls(seconds, mode, late)


def seconds_of(options: DeadlineOptions, wrapped: Any) -> Seconds:
    """How many seconds a call is given; a callable's answer may be 0 or less, which means spent."""
    if not callable(options.seconds):
        constant = options.seconds
        return lambda fn, args, kwargs: constant
    ask = compile_argument(options.seconds, wrapped, "seconds")

    def seconds(fn: Fn, args: Args, kwargs: Kwargs) -> float:
        given = ask(fn, args, kwargs)
        if isinstance(given, timedelta):
            return given.total_seconds()
        if isinstance(given, str):
            return parse_duration(given, option="seconds", allow_zero=True)
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not isfinite(given):
            raise ValueError(f"deadline: seconds must be a finite number, a timedelta or a string, not {given!r}")
        return float(given)

    return seconds
