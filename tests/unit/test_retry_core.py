"""What follows a failed attempt, at the exact moment of the deadline."""

from __future__ import annotations

from guarded.policies._retry.backoff import Backoff
from guarded.policies._retry.core import Again, Rules, Stop


def decide(now: float, until: float, matches: bool = True) -> Stop | Again:
    """After a first failure, with delays of one second."""
    rules = Rules(3, lambda _: matches, lambda _: False, Backoff(1.0, jitter="none"), 60.0, "OSError")
    return rules.decide(OSError(), attempt=1, now=now, until=until, asked=None, previous=None, rand=lambda: 0.0)


def test_an_error_at_the_deadline_is_the_deadline_s() -> None:
    """Whatever it is; a moment before, it is judged by itself."""
    assert decide(10.0, 10.0, matches=False) == Stop("deadline")
    assert isinstance(before := decide(9.0, 10.0, matches=False), Stop)
    assert before.reason == "not matched"


def test_an_attempt_must_start_before_the_deadline() -> None:
    """At it is too late."""
    assert isinstance(at := decide(9.0, 10.0), Stop)
    assert at.reason == "no time left"
    assert decide(9.0, 10.5) == Again(1.0, 1.0)
