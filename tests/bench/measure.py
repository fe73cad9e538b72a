"""Timing that survives a noisy machine: CPU time, all cases of a group in turn, many rounds, the best of each.

Figures are nanoseconds per call; only ratios within one group of one run mean anything.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable

Sync = Callable[[], object]
Async = Callable[[], Awaitable[object]]


def measure(cases: dict[str, Sync], *, rounds: int = 15, seconds: float = 0.02) -> dict[str, float]:
    """Best nanoseconds per call of each case; a round runs every case once, for about `seconds`."""
    best = dict.fromkeys(cases, float("inf"))
    gc.collect()
    gc.disable()  # while the numbers of calls are found, too: one pass is longer than a thousand calls
    try:
        numbers = {name: _calibrate(case, seconds) for name, case in cases.items()}
        for _ in range(rounds):
            for name, case in cases.items():
                best[name] = min(best[name], _run(case, numbers[name]) / numbers[name])
    finally:
        gc.enable()
    return best


def _run(case: Sync, number: int) -> float:
    started = time.thread_time_ns()
    for _ in range(number):
        case()
    return time.thread_time_ns() - started


def _calibrate(case: Sync, seconds: float) -> int:
    number = 1
    while (elapsed := _run(case, number)) < seconds * 1e8:
        number *= 4
    return max(1, int(number * seconds * 1e9 / elapsed))


def measure_async(cases: dict[str, Async], *, rounds: int = 15, seconds: float = 0.02) -> dict[str, float]:
    """The same for cases that give awaitables, all on one loop."""
    return asyncio.run(measure_in_loop(cases, rounds=rounds, seconds=seconds))


async def measure_in_loop(cases: dict[str, Async], *, rounds: int = 15, seconds: float = 0.02) -> dict[str, float]:
    """The same on the running loop."""
    numbers = {}
    best = dict.fromkeys(cases, float("inf"))
    gc.collect()
    gc.disable()
    try:
        for name, case in cases.items():
            number = 1
            while (elapsed := await _run_async(case, number)) < seconds * 1e8:
                number *= 4
            numbers[name] = max(1, int(number * seconds * 1e9 / elapsed))
        for _ in range(rounds):
            for name, case in cases.items():
                best[name] = min(best[name], await _run_async(case, numbers[name]) / numbers[name])
    finally:
        gc.enable()
    return best


async def _run_async(case: Async, number: int) -> float:
    started = time.thread_time_ns()
    for _ in range(number):
        await case()
    return time.thread_time_ns() - started


def measure_whole(cases: dict[str, Callable[[], int]], *, rounds: int = 5) -> dict[str, float]:
    """Best nanoseconds, of all threads together, per operation of scenarios that say how many they did."""
    best = dict.fromkeys(cases, float("inf"))
    gc.disable()  # its passes over all that is alive would be part of the cost of whatever allocates
    try:
        for _ in range(rounds):
            for name, case in cases.items():
                gc.collect()
                started = time.process_time_ns()
                done = case()
                best[name] = min(best[name], (time.process_time_ns() - started) / done)
    finally:
        gc.enable()
    return best
