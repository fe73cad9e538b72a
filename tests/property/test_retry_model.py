"""retry against a reference written another way: when attempts start, and what the caller gets.

The reference knows one loop over integer milliseconds and nothing of the code under test.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guarded import attempt, deadline, retry
from guarded.policies._retry.backoff import Backoff
from guarded.policies._retry.budget import WINDOW, Ledger
from guarded.testing import virtual_time


@dataclass(frozen=True)
class Step:
    """What one attempt does: takes `takes` ms, then ends as `outcome`, asking to be left alone for `asks` ms."""

    outcome: str
    takes: int
    asks: int | None


class Passing(Exception):
    """Worth a retry."""

    def __init__(self, retry_after: float | None) -> None:
        super().__init__()
        self.retry_after = retry_after


class Fatal(Exception):
    """Not worth one."""


STEPS = st.lists(
    st.builds(
        Step,
        outcome=st.sampled_from(["passing", "passing", "passing", "refused", "fatal", "good"]),
        takes=st.sampled_from([0, 1, 250, 1000]),
        asks=st.sampled_from([None, None, 0, 400, 2500, 9000]),
    ),
    min_size=8,
    max_size=8,
)


def reference(
    steps: list[Step], retries: int, delays: list[int], longest_ask: int, allowed: int | None
) -> tuple[list[int], int]:
    """Start times of the attempts in ms, and the index of the step whose outcome the caller gets."""
    now, starts = 0, []
    for index, step in enumerate(steps):
        starts.append(now)
        now += step.takes
        final = step.outcome in ("fatal", "good") or index == retries
        asks = step.asks or 0
        if step.outcome == "refused":
            asks = 0  # a plain result asks for nothing
        wait = max(delays[min(index, len(delays) - 1)], asks)
        if final or asks > longest_ask or (allowed is not None and now + wait >= allowed):
            return starts, index
        now += wait
    raise AssertionError("more attempts than steps")


@pytest.mark.parametrize("mode", ["sync", "async"])
@settings(max_examples=150, deadline=None)
@given(
    steps=STEPS,
    retries=st.integers(0, 6),
    delays=st.lists(st.sampled_from([0, 1, 300, 1000]), min_size=1, max_size=4),
    longest_ask=st.sampled_from([0, 1000, 5000]),
    allowed=st.sampled_from([None, None, 1, 1300, 4000]),
)
def test_retry_does_what_the_reference_does(
    mode: str, steps: list[Step], retries: int, delays: list[int], longest_ask: int, allowed: int | None
) -> None:
    """Same starts, same outcome, the same object, sync and async."""
    outcomes: list[Any] = []
    starts: list[int] = []
    numbers: list[int] = []
    policy = retry(
        retries=retries,
        on=Passing,
        on_result=lambda result: result[0] == "refused",
        backoff=[delay / 1000 for delay in delays],
        max_retry_after=longest_ask / 1000,
    )
    with virtual_time() as time:
        begin = time.monotonic_ns()

        def body() -> Any:
            starts.append((time.monotonic_ns() - begin) // 1_000_000)
            numbers.append(attempt())
            step = steps[len(outcomes)]
            time.advance(step.takes / 1000)
            if step.outcome in ("refused", "good"):
                outcomes.append((step.outcome, len(outcomes)))
                return outcomes[-1]
            error = Fatal() if step.outcome == "fatal" else Passing(None if step.asks is None else step.asks / 1000)
            outcomes.append(error)
            raise error

        async def body_async() -> Any:
            return body()

        function: Any = policy(body if mode == "sync" else body_async)
        ending = None
        try:
            if allowed is None:
                ending = function() if mode == "sync" else asyncio.run(function())
            elif mode == "sync":
                ending = deadline(allowed / 1000, mode="cooperative")(function)()
            else:
                ending = asyncio.run(under_deadline(function, allowed / 1000))
        except Exception as error:
            ending = error
    expected_starts, index = reference(steps, retries, delays, longest_ask, allowed)
    assert starts == expected_starts
    assert numbers == list(range(1, index + 2))
    assert ending is outcomes[index]
    if isinstance(ending, Exception):
        assert ending.__context__ is None


async def under_deadline(function: Any, seconds: float) -> Any:
    """An async deadline would cancel a body that overruns it; here only the retry shall look at it."""
    with deadline(seconds, mode="cooperative"):
        return await function()


@settings(max_examples=200, deadline=None)
@given(
    moves=st.lists(st.tuples(st.sampled_from(["call", "retry"]), st.floats(0, 4)), max_size=60),
    ratio=st.sampled_from([0.0, 0.1, 0.2, 0.5, 1.0]),
    trickle=st.sampled_from([0, 1, 3]),
)
def test_the_budget_never_allows_more_than_its_share(
    moves: list[tuple[str, float]], ratio: float, trickle: int
) -> None:
    """At any time the retries of the window are within ratio * calls + trickle; and none is refused for nothing."""
    ledger = Ledger()
    now = 1000.0
    calls: list[int] = []
    retries: list[int] = []
    for kind, passed in moves:
        now += passed
        oldest = int(now) - WINDOW + 1
        calls = [second for second in calls if second >= oldest]
        retries = [second for second in retries if second >= oldest]
        if kind == "call":
            ledger.deposit(now)
            calls.append(int(now))
        else:
            room = round(ratio * 10) * len(calls) + trickle * WINDOW * 10 - 10 * len(retries)  # in tenths, exact
            granted = ledger.withdraw(now, ratio, trickle)
            assert granted == (room >= 10)
            if granted:
                retries.append(int(now))
        assert (ledger.calls, ledger.retries) == (len(calls), len(retries))


@settings(max_examples=300, deadline=None)
@given(
    base=st.floats(0, 10),
    factor=st.floats(1, 10),
    max_delay=st.floats(0, 100),
    jitter=st.one_of(st.sampled_from(["full", "equal", "decorrelated", "none"]), st.floats(0, 1)),
    draws=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20),
)
def test_delays_stay_between_zero_and_the_cap(
    base: float, factor: float, max_delay: float, jitter: Any, draws: list[float]
) -> None:
    """Whatever the options and the draws, and never above what `longest` says."""
    law = Backoff(min(base, max_delay), factor, max_delay, jitter)
    previous = None
    for failed, draw in enumerate(draws, 1):
        previous = law.delay(failed, previous, lambda draw=draw: draw)  # type: ignore[misc]
        assert 0 <= previous <= max_delay
        longest = law.longest(failed)
        assert longest is not None
        assert previous <= longest * (1 + 1e-9)
