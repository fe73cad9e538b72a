"""What a circuit says when it rejects: a fresh CircuitOpen each time, with the last failure as its cause."""

from __future__ import annotations

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
    age = format_duration(round(refusal.age / _NS, 3))
    if refusal.state == ISOLATED:
        return f"circuit {name!r} has been isolated by hand for {age}; reset() lets calls through again"
    seen = _seen(refusal.opening, cause)
    if refusal.state == HALF_OPEN:
        out = "its trial call is" if refusal.trials == 1 else f"its {refusal.trials} trial calls are"
        return (
            f"circuit {name!r} has been half-open for {age} after {seen}, and {out} still out; "
            "try again when that has ended, or do without"
        )
    wait = format_duration((refusal.retry_ns or 0) / _NS)
    return f"circuit {name!r} has been open for {age} after {seen}; try again in {wait}, or do without"


def _named(cause: BaseException) -> str:
    """The type of a failure; its message may hold anything. Of an HTTP response, its status and host."""
    return str(cause) if isinstance(cause, FailedResponse) else type(cause).__qualname__


def _seen(opening: Change, cause: BaseException | None) -> str:
    """What opened the circuit, in words."""
    reason, count = opening.reason, opening.failures
    named = "" if cause is None else f" with {_named(cause)}"
    last = f", the last{named}" if named else ""
    if reason == "failures":
        return f"a failure{named}" if count == 1 else f"{count} failures in a row{last}"
    if reason == "failure_rate":
        return f"{count} failure{'s' if count != 1 else ''}, {opening.failure_rate or 0:.2g} of the calls{last}"
    if reason == "trial failed":
        return f"a failed trial call{named}"
    if reason == "slow_rate":
        return f"{opening.slow_rate or 0:.2g} of the calls were slow"
    return {
        "trial slow": "a slow trial call",
        "last known": "the store, which cannot be asked now, said so",
    }.get(reason, "it was opened by hand")
