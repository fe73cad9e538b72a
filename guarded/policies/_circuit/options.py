"""The options of `circuit`: what they are, everything that can be wrong with them, and the rules they come to."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from guarded._core.breaker import defaults_of, owner_of
from guarded._core.durations import parse_duration, parse_duration_ns
from guarded._core.policy import name_problem
from guarded.policies import _matching
from guarded.policies._circuit.terms import Rules
from guarded.policies._circuit.windows import MAX_CALLS
from guarded.policies._matching import Matches
from guarded.policies._store_option import WhenStoreFails, read_store

FAILURES = 5
MIN_CALLS = 10
WINDOW = timedelta(seconds=60)
RESET_AFTER = 30.0
TRIAL_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class CircuitOptions:
    """What `circuit` was given, checked and with its defaults; durations in seconds, ratios 0..1.

    `failures` is None where there is a `failure_rate`; `window` is a number of calls or a timedelta, and None
    with `min_calls` where there is no rate.
    """

    failures: int | None = FAILURES
    failure_rate: float | None = None
    window: int | timedelta | None = field(default=None, metadata={"filled_in": WINDOW})
    min_calls: int | None = field(default=None, metadata={"filled_in": MIN_CALLS})
    slow_call: float | None = None
    slow_rate: float | None = None
    reset_after: float = RESET_AFTER
    max_reset_after: float | None = None
    half_open: int = 1
    trial_timeout: float = TRIAL_TIMEOUT
    on: Matches = Exception
    ignore: Matches = ()
    breaker: Any = None
    enforce: bool = True
    store: Any = None
    when_store_fails: WhenStoreFails = "local"

    @classmethod
    def checked(cls, name: str, given: dict[str, Any]) -> CircuitOptions:
        """The options, or one ValueError that names every wrong one."""
        problem = "name=None: must be a text" if name is None else name_problem(name)
        found = [problem] if problem else []
        values = _with_defaults(given, found)
        owner = owner_of(given["breaker"])
        if owner not in (None, name):
            found.append(f"breaker={given['breaker']!r}: is the register of circuit {owner!r} already")
        _check_what_opens(values, found)
        _check_window(given, values, found)
        for option in ("slow_call", "reset_after", "max_reset_after", "trial_timeout"):
            values[option] = _duration(option, values[option], found)
        if given["trial_timeout"] is None:
            found.append("trial_timeout=None: must be a duration, or one hung trial would block recovery for ever")
        reset_after, most = values["reset_after"], values["max_reset_after"]
        if reset_after is not None and most is not None and most < reset_after:
            found.append(f"max_reset_after={given['max_reset_after']!r}: must not be below reset_after={reset_after:g}")
        _count("half_open", values["half_open"], found)
        for option in ("on", "ignore"):
            values[option] = _matching.tidy(values[option])
            found.extend(_matching.problems(option, values[option]))
        if values["on"] == ():
            found.append("on=(): must name at least one exception type, or nothing ever fails")
        if not isinstance(values["enforce"], bool):
            found.append(f"enforce={values['enforce']!r}: must be True or False")
        values["store"] = read_store(values["store"], "circuit", name, values["when_store_fails"], found)
        if values["store"] is not None and values["breaker"] is not None:
            found.append("breaker: its state cannot be that of a store too: drop one")
        if found:
            raise ValueError("circuit: " + "; ".join(found))
        return cls(**values)

    @property
    def rules(self) -> Rules:
        """The options as the core needs them."""
        by_time = isinstance(self.window, timedelta)
        reset_ns = parse_duration_ns(self.reset_after)
        return Rules(
            failures=self.failures,
            failure_rate=self.failure_rate,
            window_calls=None if by_time else self.window,  # type: ignore[arg-type]
            window_ns=parse_duration_ns(self.window) if by_time else None,  # type: ignore[arg-type]
            min_calls=self.min_calls or 1,
            slow_ns=None if self.slow_call is None else parse_duration_ns(self.slow_call),
            slow_rate=self.slow_rate,
            reset_ns=reset_ns,
            max_reset_ns=reset_ns if self.max_reset_after is None else parse_duration_ns(self.max_reset_after),
            half_open=self.half_open,
            trial_ns=parse_duration_ns(self.trial_timeout),
        )


def _with_defaults(given: dict[str, Any], found: list[str]) -> dict[str, Any]:
    """What was not given comes from an adopted breaker, else from the defaults."""
    values = dict(given)
    breaker = given["breaker"]
    fail_max, reset_after, half_open = FAILURES, RESET_AFTER, 1
    if breaker is not None:
        own = defaults_of(breaker)
        if own is None:
            found.append(f"breaker={breaker!r}: must be a pybreaker.CircuitBreaker")
        else:
            fail_max, reset_after, half_open = own
    if given["failures"] is None and given["failure_rate"] is None:
        values["failures"] = fail_max
    if given["reset_after"] is None:
        values["reset_after"] = reset_after
    if given["half_open"] is None:
        values["half_open"] = half_open
    return values


def _check_what_opens(values: dict[str, Any], found: list[str]) -> None:
    failures, failure_rate = values["failures"], values["failure_rate"]
    if failures is not None and failure_rate is not None:
        found.append(
            f"failures={failures!r}, failure_rate={failure_rate!r}: give one of them, "
            "failures in a row or a share of the calls in a window"
        )
    if failures is not None:
        _count("failures", failures, found)
    values["failure_rate"] = _ratio("failure_rate", failure_rate, found)
    if values["slow_rate"] is not None and values["slow_call"] is None:
        found.append(f"slow_rate={values['slow_rate']!r}: needs slow_call, the length from which a call is slow")
    values["slow_rate"] = _ratio("slow_rate", values["slow_rate"], found)


def _check_window(given: dict[str, Any], values: dict[str, Any], found: list[str]) -> None:
    window, min_calls = values["window"], values["min_calls"]
    if given["failure_rate"] is None and given["slow_rate"] is None:
        found.extend(
            f"{option}={values[option]!r}: goes with failure_rate or slow_rate, "
            f"not with {values['failures']!r} failures in a row"
            for option in ("window", "min_calls")
            if values[option] is not None
        )
        return
    if window is None:
        window = WINDOW
    elif isinstance(window, float):
        found.append(f"window={window!r}: must be a whole number of calls, or text with a unit such as '60s'")
        window = WINDOW
    elif isinstance(window, int):
        if _count("window", window, found) and window > MAX_CALLS:
            found.append(f"window={window!r}: must be at most {MAX_CALLS} calls")
    else:
        seconds = _duration("window", window, found)
        window = WINDOW if seconds is None else max(timedelta(seconds=seconds), timedelta.resolution)
    values["window"] = window
    if min_calls is None:
        values["min_calls"] = min(MIN_CALLS, window) if isinstance(window, int) else MIN_CALLS
    elif _count("min_calls", min_calls, found) and isinstance(window, int) and min_calls > window:
        found.append(f"min_calls={min_calls!r}: must not be above window={window!r}, which holds no more calls")


def _count(option: str, given: Any, found: list[str]) -> bool:
    good = isinstance(given, int) and not isinstance(given, bool) and given >= 1
    if not good:
        found.append(f"{option}={given!r}: must be a whole number of at least 1")
    return good


def _ratio(option: str, given: Any, found: list[str]) -> float | None:
    if given is None:
        return None
    number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if number and 0 < given <= 1:
        return float(given)
    hint = f"; did you mean {given / 100:g}?" if number and 1 < given <= 100 else ""
    found.append(f"{option}={given!r}: must be a ratio above 0 and up to 1, never percent{hint}")
    return None


def _duration(option: str, given: Any, found: list[str]) -> float | None:
    if given is None:
        return None
    try:
        parse_duration_ns(given, option=option)  # in which the core counts: less than half of one is none
        return parse_duration(given, option=option)
    except ValueError as error:
        found.append(str(error))
        return None
