"""A signal handler that raises at every single step of a call, one step after another.

Python runs handlers where a function begins and where one written in C has returned: there a profiler can raise too.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest

import guarded
from guarded import CircuitOpen, LimitFull, StoreError, circuit, idempotent, limit, rate
from guarded._core import clock
from guarded._core.waiters import ThreadWaiter
from guarded.policies._limit.core import Pool
from guarded.policies._limit.queue import Entry, State
from guarded.policies._rate.core import Algorithm
from guarded.policies._rate.hand import Admission
from guarded.policies.limit import Limit
from guarded.stores.upkeep import upkeep
from guarded.testing import capture

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what hits a generator
HERE = str(Path(guarded.__file__).parent)


class Alarm(BaseException):
    """What the handler raises."""


def interrupted_at(step: int, call: Callable[[], object]) -> bool:
    """Call, and raise at that step of the guarded code; whether there was one."""
    left = step

    def profile(frame: FrameType, event: str, arg: object) -> None:
        nonlocal left
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(HERE):
            left -= 1
            if left == 0:
                raise Alarm

    def run() -> None:
        sys.setprofile(profile)
        call()

    try:
        copy_context().run(run)
    except BaseException:
        pass
    finally:
        sys.setprofile(None)
    return left <= 0


def in_time(call: Callable[[], Any]) -> Any:
    """What a call gives or raises in another thread, which nothing may hold up."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    assert results, "it hangs"
    return results[0]


def at_every_step(call: Callable[[int], object], check: Callable[[int], None]) -> None:
    """Interrupt `call` at its first step, its second, and so on, and look each time what it has left behind."""
    step = 1
    while interrupted_at(step, partial(call, step)):
        check(step)
        step += 1
    assert step > 20


def test_a_circuit_goes_on() -> None:
    """It admits, opens, rejects, tells and closes as ever, in all threads."""
    gateway = circuit("gateway", failures=1)

    @gateway
    def work(error: Exception | None = None) -> str:
        if error is not None:
            raise error
        return "fine"

    def open_and_close(step: int) -> None:
        with suppress(ConnectionError):
            work(ConnectionError())
        gateway.reset()
        work()

    def story() -> list[str]:
        gateway.isolate()  # a change that was made and not told is told with the next one
        gateway.reset()
        with capture() as events:
            with suppress(ConnectionError):
                work(ConnectionError())
            with suppress(CircuitOpen):
                work()
            gateway.reset()
            work()
        return [event.name for event in events if event.layer == "circuit"]

    def check(step: int) -> None:
        assert in_time(story) == ["circuit.opened", "circuit.rejected", "circuit.closed"], step

    at_every_step(open_and_close, check)


def test_an_idempotent_key_can_be_run_again() -> None:
    """No run stays in the table that nobody leads; one whose result was lost says so, and is not run again."""
    runs: list[str] = []

    @idempotent("order")
    def work(order: str) -> str:
        runs.append(order)
        return order

    def check(step: int) -> None:
        order = str(step)
        ran = runs.count(order)
        result = in_time(lambda: work(order))
        if isinstance(result, StoreError):
            assert "an interrupt came before its result was kept" in str(result)
            assert runs.count(order) == ran == 1
        else:
            assert result == order
        assert in_time(lambda: work("new")) == "new"

    at_every_step(lambda step: work(str(step)), check)
    for _, _, chore in list(upkeep._heap):  # what it would tell the store later
        chore.cancel()


def test_a_limit_keeps_its_permits() -> None:
    """What a call had taken is back, also where the handler raises before the call knows that it has it."""
    policies: list[Limit] = []

    def plain() -> None: ...

    async def coroutine() -> None: ...

    def call(step: int) -> None:
        policies[:] = [policy := limit(2)]  # its permits are made when they are taken first
        work, work_async = policy(plain), policy(coroutine)
        for _ in range(2):
            work()
            asyncio.run(work_async())

    def check(step: int) -> None:
        assert all(policy.snapshot().held == 0 for policy in policies), step

    at_every_step(call, check)


def test_a_permit_given_back_reaches_who_waits() -> None:
    """Who waits is woken, at the latest when somebody else comes, though the call that held it was cut short.

    All but at the two steps where the wake-up has been taken from the list, and is not on its way.
    """
    hung: list[int] = []
    waiting: list[Entry] = []
    policy = limit(1)
    pool = cast("Pool", policy.local_pools)

    @policy
    def work() -> None:
        profile = sys.getprofile()
        sys.setprofile(None)  # only the way out
        waiting.append(Entry(1, 0, ThreadWaiter(), 0.0))
        assert pool.join(waiting[0]) is None
        sys.setprofile(profile)

    def call(step: int) -> None:
        waiting.clear()
        work()

    def check(step: int) -> None:
        with suppress(LimitFull):
            policy.acquire(timeout=0).release()
        for entry in waiting:
            if not cast("ThreadWaiter", entry.waiter).park(0):
                hung.append(step)
            if pool.resume(entry) is State.TAKEN:
                pool.give_back(1)
        assert (policy.snapshot().held, policy.snapshot().queued) == (0, 0), step

    call(0)  # the first call compiles its chain
    check(0)
    at_every_step(call, check)
    assert len(hung) <= 2


@pytest.mark.real_clock
@pytest.mark.parametrize(("algorithm", "keyed"), [("sliding", False), ("gcra", False), ("sliding", True)])
def test_a_rate_goes_on(algorithm: Algorithm, keyed: bool) -> None:
    """It lets callers through in order as ever, nobody stays in its queue, and its whole quota comes back."""
    key: Any = "a" if keyed else None
    limited = rate(2, per=0.001, algorithm=algorithm, key=(lambda: "a") if keyed else None)

    def call(step: int) -> None:
        for _ in range(3):
            limited.acquire(key=key)

    def check(step: int) -> None:
        assert isinstance(in_time(lambda: limited.acquire(key=key)), Admission), step
        assert limited.peek(key=key).queued == 0, step

    at_every_step(call, check)
    clock.pause(0.003)
    assert limited.peek(key=key).free == 2
