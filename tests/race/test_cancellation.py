"""Cancelling in the middle of every kind of wait, in every way: prompt, and everything is given back.

Real time, since promptness is the point: the best of a few tries has to be within 50 ms.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import guarded
from guarded import (
    Cancelled,
    CancelToken,
    DeadlineExceeded,
    RateExceeded,
    circuit,
    deadline,
    guard,
    limit,
    rate,
    registry,
    retry,
)
from guarded.testing import capture, virtual_time

pytestmark = pytest.mark.real_clock

WAITS = ["backoff", "queue", "rate", "body", "trial"]
PROMPT = 0.05
TRIES = 4
POINT = 0.08  # seconds of the deadline in use
OUT_OF_TIME = (DeadlineExceeded, ConnectionError, RateExceeded)  # what cannot be done in time is not even waited for


class Stack:
    """All layers on one body, arranged so that a call comes to a stop in one of them."""

    def __init__(self, wait: str) -> None:
        self.wait = wait
        self.outer = limit(2, name="outer")
        self.inner = limit(1, name="inner")
        self.pace = rate("1/h" if wait == "rate" else "1000/s", name="pace")
        self.gate = circuit("gate", failures=1 if wait == "trial" else 100, reset_after=0.001)
        backoff = retry(retries=3, base=60, max_delay=60, jitter="none", on=ConnectionError)
        self.layers = guard(self.outer, backoff, self.gate, self.inner, self.pace)
        self.inside = threading.Event()
        self.events: list[Any] = []
        if wait == "queue":
            self.inner.resize(0)
        if wait == "rate":
            self.pace.try_acquire()
        if wait == "trial":
            self.trip()

    def trip(self) -> None:
        """Open the circuit and wait until it would admit a trial."""

        @self.gate
        def breaks() -> None:
            raise KeyError

        with pytest.raises(KeyError):
            breaks()
        time.sleep(0.01)

    def body(self) -> None:
        """What a thread runs."""
        self.inside.set()
        if self.wait == "backoff":
            raise ConnectionError
        guarded.sleep(60)

    async def abody(self) -> None:
        """What a task runs."""
        self.inside.set()
        if self.wait == "backoff":
            raise ConnectionError
        await asyncio.sleep(60)

    def stopped(self) -> bool:
        """Whether the call has come to its stop."""
        if self.wait == "queue":
            return self.inner.snapshot().queued == 1
        if self.wait == "rate":
            return self.pace.snapshot().queued == 1
        if self.wait == "backoff":
            return any(event.name == "retry.scheduled" for event in self.events)
        return self.inside.is_set()

    def check_given_back(self) -> None:
        """Permits, places in queues and the trial slot are all back."""
        assert self.outer.snapshot().held == 0
        assert (self.inner.snapshot().held, self.inner.snapshot().queued) == (0, 0)
        assert self.pace.snapshot().queued == 0
        if self.wait == "trial":
            time.sleep(0.005)  # a trial that a deadline has cut off counts as failed: the circuit opens for a moment
            ran: list[int] = []
            self.gate(lambda: ran.append(1))()
            assert ran == [1], "the trial slot has not come back"


def in_a_thread(stack: Stack, scope: Any) -> Callable[[], tuple[BaseException | None, float]]:
    """Start the call in a thread inside `scope`; gives how to join it: its error and when it ended."""
    ended: list[Any] = []

    def run() -> None:
        try:
            with scope:
                stack.layers(stack.body)()
            error: BaseException | None = None
        except Exception as caught:
            error = caught
        ended.extend((error, time.monotonic()))

    thread = threading.Thread(target=run)
    thread.start()

    def join() -> tuple[BaseException | None, float]:
        thread.join(10)
        return ended[0], ended[1]

    return join


def wait_for_stop(stack: Stack) -> None:
    """Until the call has come to its stop, and a moment longer."""
    until = time.monotonic() + 5
    while not stack.stopped():
        assert time.monotonic() < until
        time.sleep(0.001)
    time.sleep(0.005)


def threads_by_token(wait: str) -> float:
    token, stack = CancelToken(), Stack(wait)
    with capture() as stack.events:
        join = in_a_thread(stack, token)
        wait_for_stop(stack)
        started = time.monotonic()
        token.cancel("enough")
        error, ended = join()
    assert isinstance(error, Cancelled)
    assert error.reason == "enough"
    stack.check_given_back()
    return ended - started


def threads_by_deadline(wait: str, mode: Any) -> float:
    stack = Stack(wait)
    with capture() as stack.events:
        started = time.monotonic()
        with pytest.raises(OUT_OF_TIME):
            deadline(POINT, mode=mode)(stack.layers(stack.body))()
        ended = time.monotonic()
        while stack.outer.snapshot().held and time.monotonic() < ended + PROMPT:
            time.sleep(0.001)  # in mode "thread" the worker ends a moment after its caller
    stack.check_given_back()
    return ended - started - POINT


def tasks(wait: str, by: str) -> float:
    stack = Stack(wait)
    fn = stack.layers(stack.abody)

    async def main() -> float:
        token = CancelToken()

        async def call() -> None:
            with token:
                await (deadline(POINT)(fn)() if by == "deadline" else fn())

        began = time.monotonic()
        task = asyncio.create_task(call())
        if by == "deadline":
            started = began + POINT
        else:
            while not stack.stopped():
                await asyncio.sleep(0.001)
            started = time.monotonic()
        if by == "task":
            task.cancel()
        elif by == "token":
            threading.Thread(target=token.cancel, args=("enough",)).start()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        ended = time.monotonic()
        expected = {"task": asyncio.CancelledError, "token": Cancelled, "deadline": OUT_OF_TIME}
        assert isinstance(outcome, expected[by])
        assert task.cancelling() == (by == "task")
        stack.check_given_back()
        return ended - started

    with capture() as stack.events:
        return asyncio.run(main())


WAYS: dict[str, Callable[[str], float]] = {
    "thread, token": threads_by_token,
    "thread, deadline": lambda wait: threads_by_deadline(wait, "thread"),
    "thread, cooperative deadline": lambda wait: threads_by_deadline(wait, "cooperative"),
    "task, cancel": lambda wait: tasks(wait, "task"),
    "task, token": lambda wait: tasks(wait, "token"),
    "task, deadline": lambda wait: tasks(wait, "deadline"),
}


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("way", WAYS)
def test_every_wait_ends_promptly_and_gives_everything_back(way: str, wait: str) -> None:
    """Backoff, queue, rate, body and trial; by task cancel, token from another thread, and deadline."""
    taken = []
    for _ in range(TRIES):
        with registry.isolated():
            taken.append(WAYS[way](wait))
        if taken[-1] < PROMPT:
            return
    pytest.fail(f"took {min(taken) * 1000:.0f} ms at best")


@pytest.mark.parametrize("steps", range(30))
@pytest.mark.parametrize("batch", ["map", "stream", "all_of", "any_of"])
def test_cancelled_at_any_step_nothing_of_a_batch_is_left(batch: str, steps: int) -> None:
    """Whatever the moment: no task, no permit, no complaint, and the source is closed once."""
    complaints: list[dict[str, Any]] = []
    closed: list[int] = []
    db = limit(2, name="db")

    @db
    async def body(item: int) -> int:
        await guarded.asleep(item % 3)
        return item

    async def items() -> Any:
        try:
            for item in range(7):
                await asyncio.sleep(0)
                yield item
        finally:
            closed.append(1)

    async def run() -> None:
        if batch == "map":
            await guarded.map_limit(body, items(), concurrency=3)
        elif batch == "stream":
            async for _ in guarded.imap_limit(body, items(), concurrency=3, as_completed=True):
                await asyncio.sleep(0)
        elif batch == "all_of":
            await guarded.all_of(body(1), lambda: body(2), body(3))
        else:
            await guarded.any_of(body(1), body(2), lambda: body(4))

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        task = asyncio.create_task(run())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for _ in range(3):
            await asyncio.sleep(0)  # a stream that was dropped, not closed, is closed by the loop
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert db.snapshot().held == 0
        assert len(closed) <= 1

    with virtual_time():
        asyncio.run(main())
    assert complaints == []
