"""The options of `retry`: what they are, and everything that can be wrong with them, told at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from guarded._core.durations import parse_duration
from guarded._core.kinds import kind_of
from guarded.http import transient
from guarded.policies import _matching
from guarded.policies._matching import Matches
from guarded.policies._retry.backoff import Backoff, Given, Jitter, factor_problem, jitter_problem, read_given
from guarded.policies._retry.budget import RetryBudget, budget_problem

DEFAULT_RETRIES = 3


@dataclass(frozen=True, slots=True)
class RetryOptions:
    """What `retry` was given, checked; durations in seconds, ``attempts`` told as ``retries``."""

    retries: int = DEFAULT_RETRIES
    on: Matches = transient
    on_result: Callable[[Any], object] | None = None
    unless: Matches = ()
    base: float = 0.25
    factor: float = 2.0
    max_delay: float = 5.0
    jitter: Jitter | float = "full"
    backoff: Given = None
    retry_after: bool = True
    max_retry_after: float = 60.0
    budget: RetryBudget | str | None = None
    before_retry: Callable[[Exception | None, int], object] | None = None

    @classmethod
    def checked(cls, retries: Any, attempts: Any, given: dict[str, Any]) -> RetryOptions:
        """The options, or one ValueError that names every wrong one."""
        found: list[str] = []
        values = dict(given)
        values["retries"] = _read_retries(retries, attempts, found)
        for option in ("on", "unless"):
            values[option] = _matching.tidy(given[option])
            found.extend(_matching.problems(option, values[option]))
        before = len(found)
        for option in ("base", "max_delay", "max_retry_after"):
            values[option] = _read_duration(option, given[option], found)
        if len(found) == before and values["base"] > values["max_delay"]:
            found.append(f"base={given['base']!r}: must not be above max_delay={given['max_delay']!r}")
        try:
            values["backoff"] = read_given(given["backoff"], values["retries"])
        except ValueError as error:
            found.append(str(error))
        if not isinstance(given["retry_after"], bool):
            found.append(f"retry_after={given['retry_after']!r}: must be True or False")
        found.extend(
            problem
            for problem in (
                factor_problem(given["factor"]),
                jitter_problem(given["jitter"]),
                budget_problem(given["budget"]),
                _function_problem("on_result", given["on_result"], may_be_async=False),
                _function_problem("before_retry", given["before_retry"], may_be_async=True),
            )
            if problem
        )
        if found:
            raise ValueError("retry: " + "; ".join(found))
        return cls(**values)

    @property
    def law(self) -> Backoff:
        """The delays."""
        return Backoff(self.base, self.factor, self.max_delay, self.jitter, self.backoff)


def _read_retries(retries: Any, attempts: Any, found: list[str]) -> int:
    if retries is not None and attempts is not None:
        found.append(f"retries={retries!r}, attempts={attempts!r}: give one of them; attempts are retries + 1")
    if attempts is not None:
        option, value, least = "attempts", attempts, 1
    else:
        option, value, least = "retries", DEFAULT_RETRIES if retries is None else retries, 0
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        found.append(f"{option}={value!r}: must be a whole number of at least {least}")
        return DEFAULT_RETRIES
    return value - least


def _read_duration(option: str, given: Any, found: list[str]) -> float:
    try:
        return parse_duration(given, option=option, allow_zero=True)
    except ValueError as error:
        found.append(str(error))
        return 0.0


def _function_problem(option: str, given: Any, *, may_be_async: bool) -> str | None:
    if given is None:
        return None
    if not callable(given) or isinstance(given, type):
        return f"{option}={given!r}: must be a function"
    kind = kind_of(cast("Callable[..., Any]", given))
    if kind == "sync" or (may_be_async and kind == "async"):
        return None
    return f"{option}={_matching.title(given)}: must be a plain function" + (" or an async one" if may_be_async else "")
