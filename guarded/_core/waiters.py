"""Parking a caller, thread or task, until another thread or loop wakes it.

A waiter is made by the caller that will park on it, is woken at most once, and may be woken from any
thread. `wait` and `wait_async` are the only places where a guarded call stops: both obey the deadline and
the cancel token of the call. Times are monotonic seconds.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from math import inf

from guarded._core import clock
from guarded._core.call import Call, out_of_time
from guarded.errors import Deadlock


class ThreadWaiter:
    """Parks the thread that made it."""

    __slots__ = ("_gate",)

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()

    def wake(self) -> bool:
        """Let the parked thread go on; always possible, so always True."""
        try:
            self._gate.release()
        except RuntimeError:
            pass  # woken before: by its grant and by a cancel token at once
        return True

    def park(self, until: float) -> bool:
        """Block until woken (True) or `until` (False)."""
        return clock.park(self._gate, None if until == inf else until)


class _Delivery:
    """A wake-up on its way to a task; if the loop dies before the task has resumed, says so.

    A loop that closes drops its pending handles, and with them the last reference to this object.
    """

    __slots__ = ("_on_lost", "_waiter")

    def __init__(self, waiter: TaskWaiter, on_lost: Callable[[], object] | None) -> None:
        self._waiter = waiter
        self._on_lost = on_lost

    def __call__(self) -> None:
        self._waiter.settle(True)
        self._waiter.loop.call_soon(self._arrive)  # runs after the step of the task that was just scheduled

    def _arrive(self) -> None:
        self._on_lost = None

    def __del__(self) -> None:
        if self._on_lost is not None:
            self._on_lost()


class TaskWaiter:
    """Parks the task that made it, on the loop that runs it."""

    __slots__ = ("_future", "loop")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._future: asyncio.Future[bool] = self.loop.create_future()

    def wake(self, on_lost: Callable[[], object] | None = None) -> bool:
        """Let the parked task go on; False when its loop is closed, so that it never will.

        `on_lost` is called, from whatever thread closes the loop, when the loop dies before the task has resumed.
        It may come from a finalizer, so it must not block.
        """
        delivery = _Delivery(self, on_lost)
        if asyncio._get_running_loop() is self.loop:
            delivery()
            return True
        try:
            self.loop.call_soon_threadsafe(delivery)
        except RuntimeError:
            return False
        return True

    def settle(self, woken: bool) -> None:
        """Finish the park, in the loop's own thread."""
        if not self._future.done():
            self._future.set_result(woken)

    async def pass_by(self) -> bool:
        """Let others run once, and say whether one of them woke this waiter."""
        await asyncio.sleep(0)
        return self._future.done()

    async def park(self, until: float) -> bool:
        """Suspend until woken (True) or `until` (False)."""
        if until == inf:
            return await self._future
        timer = clock.call_at(self.loop, until, self.settle, False)
        try:
            return await self._future
        finally:
            timer.cancel()


def wait(call: Call, waiter: ThreadWaiter, until: float, during: str) -> bool:
    """Park this thread: True when woken, False at `until`.

    Raises DeadlineExceeded when the call's deadline comes first, Cancelled when its token fires.
    """
    token = call.token
    enter(call, during)
    if token is None:
        woken = waiter.park(min(until, call.until))
    else:
        with token.on_cancel(waiter.wake):
            woken = waiter.park(min(until, call.until, token.until))
    return leave(call, woken, until, during)


async def wait_async(call: Call, waiter: TaskWaiter, until: float, during: str) -> bool:
    """Like `wait`, for the running task."""
    token = call.token
    enter(call, during)
    if token is None:
        woken = await waiter.park(min(until, call.until))
    else:
        with token.on_cancel(waiter.wake):
            woken = await waiter.park(min(until, call.until, token.until))
    return leave(call, woken, until, during)


def enter(call: Call, during: str) -> None:
    """Refuse to wait in vain, and note on the deadline what is waited for."""
    refuse_in_vain(call, during)
    if call.deadline is not None:
        call.deadline.during = during


def refuse_in_vain(call: Call, during: str) -> None:
    """Raise when the call's deadline has passed or its token has fired: what it would wait for is of no use to it."""
    if call.token is not None:
        call.token.raise_if_cancelled(during)
    if call.deadline is not None and clock.monotonic() >= call.deadline.until:
        raise out_of_time(call, during)


def leave(call: Call, woken: bool, until: float, during: str) -> bool:
    """What the end of a park means."""
    if call.token is not None:
        call.token.raise_if_cancelled(during)
    if not woken and call.until <= until and call.until != inf:
        raise out_of_time(call, during)
    if call.deadline is not None:
        call.deadline.during = "running"
    return woken


_skipping = 0  # how many blocks want `wait_out` to take no time; for tests
_skipping_lock = threading.Lock()


def skip(blocks: int) -> None:
    """One block more (1), or less (-1), in which what only waits for time to pass does not wait."""
    global _skipping
    with _skipping_lock:
        _skipping += blocks


def wait_out(call: Call, waiter: ThreadWaiter, until: float, during: str) -> bool:
    """Like `wait`, where nothing but time is waited for: at once at its end while a test skips such waits."""
    if not _skipping:
        return wait(call, waiter, until, during)
    enter(call, during)
    return leave(call, waiter.park(clock.monotonic()), until, during)


async def wait_out_async(call: Call, waiter: TaskWaiter, until: float, during: str) -> bool:
    """Like `wait_out`, for the running task."""
    if not _skipping:
        return await wait_async(call, waiter, until, during)
    enter(call, during)
    return leave(call, await waiter.pass_by(), until, during)


def sleep(call: Call, seconds: float, during: str) -> None:
    """Block this thread for `seconds`, obeying the call's deadline and token."""
    if seconds > 0:
        wait_out(call, ThreadWaiter(), clock.monotonic() + seconds, during)


async def sleep_async(call: Call, seconds: float, during: str) -> None:
    """Suspend this task for `seconds`, obeying the call's deadline and token."""
    if seconds > 0:
        await wait_out_async(call, TaskWaiter(), clock.monotonic() + seconds, during)


def refuse_on_loop_thread(what: str, policy: str | None = None) -> None:
    """Raise Deadlock when this thread runs an event loop, which a blocking wait would freeze."""
    if asyncio._get_running_loop() is not None:
        raise Deadlock(
            f"{what} would block the thread of a running event loop; "
            "call it from async code (`async with`, `await`) or from a worker thread; "
            "a plain function that returns an awaitable has to say so (`-> Awaitable[…]`) to wait like an async one",
            policy=policy,
        )
