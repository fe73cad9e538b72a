"""What a circuit says when it rejects: a fresh CircuitOpen each time, with the last failure as its cause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from guarded._core.breaker import CircuitOpen
from guarded._core.durations import format_duration
from guarded.http import FailedResponse
from guarded.policies._circuit.terms import HALF_OPEN, ISOLATED, Change, Refusal

_NS: Final = 1_000_000_000


def rejection_of(refusal: Refusal, name: str, cause: BaseException | None) -> CircuitOpen:
    """The error for a call that the circuit called `name` refused."""
    rejection = CircuitOpen(
        _message(name, refusal, cause),
        state=refusal.state,
        policy=name,
        retry_after=None if refusal.retry_ns is None else refusal.retry_ns / _NS,
    )
    rejection.__cause__ = cause
    return rejection


def let_go_of_older(error: BaseException, name: str) -> None:
    """Take the causes off rejections that `error` was raised in handling: they would chain all failures ever since."""
    seen: set[int] = set()
    link: BaseException | None = error.__context__
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if isinstance(link, CircuitOpen) and link.policy == name:
            link.__cause__ = None
        link = link.__context__


def why(refusal: Refusal) -> str:
    """The reason, in a fixed word or two."""
    return "trials out" if refusal.state == HALF_OPEN else refusal.state


def _message(name: str, refusal: Refusal, cause: BaseException | None) -> str:
    age = format_duration(refusal.age / _NS)
    if refusal.state == ISOLATED:
        return f"circuit {name!r} has been isolated by hand for {age}; reset() lets calls through again"
    seen = _seen(refusal.opening)
    last = "" if cause is None else f", the last with {_named(cause)}"
    if refusal.state == HALF_OPEN:
        return (
            f"circuit {name!r} has been half-open for {age} and all its {refusal.trials} trial calls are out, "
            f"after {seen}{last}; try again when they have ended, or do without"
        )
    wait = format_duration((refusal.retry_ns or 0) / _NS)
    return f"circuit {name!r} has been open for {age} after {seen}{last}; try again in {wait}, or do without"


def _named(cause: BaseException) -> str:
    """The type of a failure; its message may hold anything. Of an HTTP response, its status and host."""
    return str(cause) if isinstance(cause, FailedResponse) else type(cause).__qualname__


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
