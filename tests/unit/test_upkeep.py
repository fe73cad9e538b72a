"""Chores beside the calls: when they run, when they end, and that one of them cannot stop the others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from guarded.stores.upkeep import Upkeep
from guarded.testing import virtual_time


def until(condition: Callable[[], bool], time: Any = None) -> None:
    """Let the upkeep thread run, moving virtual time if there is one, until `condition` holds."""
    for _ in range(5000):
        if condition():
            return
        if time is not None:
            time.advance(0.5)
        threading.Event().wait(0.001)
    raise AssertionError("never came true")


def alive(upkeep: Upkeep) -> bool:
    """Whether its thread is there."""
    return upkeep._alive


def test_chores_run_at_their_intervals_until_they_are_done() -> None:
    """First after one interval, then again and again; the thread goes when nothing is left."""
    upkeep = Upkeep()
    ran: list[tuple[str, int]] = []
    with virtual_time(auto=False) as time:

        def chore(name: str, times: int) -> Callable[[], bool]:
            def action() -> bool:
                ran.append((name, time.monotonic_ns()))
                return len([one for one, _ in ran if one == name]) < times

            return action

        upkeep.every(10, chore("slow", 1))
        upkeep.every(3, chore("fast", 3))
        assert ran == []
        until(lambda: not alive(upkeep), time)
    assert [name for name, _ in ran] == ["fast", "fast", "fast", "slow"]
    gaps = [later - earlier for (_, earlier), (_, later) in pairwise(ran[:3])]
    assert all(gap >= 3e9 for gap in gaps)


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_what_a_chore_raises_ends_no_other(error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported like what ends a thread."""
    reported: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(args.exc_type))
    upkeep = Upkeep()
    ran: list[int] = []

    def failing() -> bool:
        raise error

    with virtual_time(auto=False) as time:
        upkeep.every(1, failing)
        upkeep.every(2, lambda: ran.append(1) is not None)
        until(lambda: not alive(upkeep), time)
    assert (reported, ran) == ([error], [1])


def test_a_cancelled_chore_does_not_run() -> None:
    """It is dropped, with what it held, and does not keep the thread."""
    upkeep = Upkeep()
    with virtual_time(auto=False) as time:
        ran: list[int] = []
        chore = upkeep.every(5, lambda: ran.append(1) is None)
        chore.cancel()
        assert chore.action is None
        until(lambda: not alive(upkeep), time)
    assert ran == []


def test_an_earlier_chore_is_not_kept_waiting() -> None:
    """A thread that waits for a late chore wakes for one that is due before."""
    upkeep = Upkeep()
    order: list[str] = []
    with virtual_time(auto=False) as time:
        upkeep.every(1000, lambda: order.append("late") is not None)
        until(lambda: upkeep._gate is not None)
        upkeep.every(1, lambda: order.append("early") is not None)
        time.advance(1.5)
        until(lambda: order == ["early"], None)
        time.advance(1000)
        until(lambda: order == ["early", "late"])
