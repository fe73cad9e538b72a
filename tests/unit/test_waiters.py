"""Parking and waking, and what ends a wait besides a wake-up."""

from __future__ import annotations

import asyncio
import gc
import threading
from math import inf
from typing import Any

import pytest

from guarded import Cancelled, CancelToken, DeadlineExceeded, Deadlock
from guarded._core import clock, waiters
from guarded._core.call import Call, Deadline, attempt, current, holds, idempotency_key, remaining
from guarded._core.waiters import TaskWaiter, ThreadWaiter
from guarded.testing import virtual_time


def call_with(**fields: Any) -> Call:
    """A call with these attributes."""
    call = Call()
    for name, value in fields.items():
        setattr(call, name, value)
    return call


def test_a_wake_before_the_park_is_not_lost() -> None:
    """Who is woken before parking does not park."""
    waiter = ThreadWaiter()
    assert waiter.wake()
    assert waiters.wait(Call(), waiter, inf, "testing")

    async def main() -> bool:
        waiter = TaskWaiter()
        assert waiter.wake()
        return await waiters.wait_async(Call(), waiter, inf, "testing")

    assert asyncio.run(main())


def test_waking_twice_is_harmless() -> None:
    """A grant and a token may wake the same waiter."""
    waiter = ThreadWaiter()
    waiter.wake()
    waiter.wake()
    assert waiter.park(inf)


def test_the_end_of_a_wait_without_a_wake() -> None:
    """At `until` the answer is False."""
    with virtual_time() as time:
        until = time.monotonic() + 3
        assert waiters.wait(Call(), ThreadWaiter(), until, "testing") is False
        assert time.monotonic() == until

        async def main() -> bool:
            return await waiters.wait_async(Call(), TaskWaiter(), until + 3, "testing")

        assert asyncio.run(main()) is False
        assert time.monotonic() == until + 3


def test_the_deadline_ends_a_wait() -> None:
    """When the deadline comes first it is the error, and it names what was waited for."""
    with virtual_time() as time:
        for until in (inf, time.monotonic() + 9):
            call = call_with(deadline=Deadline(time.monotonic() + 2, "total"), function="f")
            with pytest.raises(DeadlineExceeded, match="f: deadline 'total' passed while testing") as error:
                waiters.wait(call, ThreadWaiter(), until, "testing")
            assert (error.value.policy, error.value.during, error.value.until) == ("total", "testing", call.until)

            async def main(until: float = until) -> None:
                call = call_with(deadline=Deadline(time.monotonic() + 2))
                await waiters.wait_async(call, TaskWaiter(), until, "testing")

            with pytest.raises(DeadlineExceeded, match="the deadline passed while testing"):
                asyncio.run(main())


def test_no_wait_begins_when_time_is_up() -> None:
    """With the deadline passed, or the token fired, nothing parks."""
    with virtual_time() as time:
        spent = call_with(deadline=Deadline(time.monotonic()))
        with pytest.raises(DeadlineExceeded):
            waiters.wait(spent, ThreadWaiter(), inf, "testing")
        token = CancelToken()
        token.cancel("enough")
        with pytest.raises(Cancelled, match="cancelled while testing: enough"):
            waiters.wait(call_with(token=token), ThreadWaiter(), inf, "testing")


def test_a_token_ends_waits_of_threads_and_tasks() -> None:
    """Firing from another thread ends both, and leaves no callback behind."""
    token = CancelToken()
    parked = threading.Barrier(3)
    errors: list[BaseException] = []

    def thread() -> None:
        parked.wait()
        with pytest.raises(Cancelled) as error:
            waiters.wait(call_with(token=token), ThreadWaiter(), inf, "testing")
        errors.append(error.value)

    async def task() -> None:
        parked.wait()
        with pytest.raises(Cancelled) as error:
            await waiters.wait_async(call_with(token=token), TaskWaiter(), inf, "testing")
        errors.append(error.value)

    threads = [threading.Thread(target=thread), threading.Thread(target=lambda: asyncio.run(task()))]
    for each in threads:
        each.start()
    parked.wait()
    token.cancel("enough")
    for each in threads:
        each.join(5)
    assert len(errors) == 2
    assert errors[0] is not errors[1]
    assert not token._registrations


def test_a_token_with_a_time_ends_waits_by_itself() -> None:
    """`CancelToken.after` needs nobody to fire it."""
    with virtual_time() as time:
        token = CancelToken.after(3)
        started = time.monotonic()
        with pytest.raises(Cancelled):
            waiters.wait(call_with(token=token), ThreadWaiter(), inf, "testing")
        assert time.monotonic() - started == 3


def test_waking_a_task_of_a_closed_loop_fails() -> None:
    """A waiter whose loop is closed says that it will never go on."""

    async def make() -> TaskWaiter:
        return TaskWaiter()

    assert asyncio.run(make()).wake() is False


def test_a_wake_that_the_loop_never_delivers_is_reported_lost() -> None:
    """A loop that closes with the wake-up still on its way calls `on_lost`."""
    lost: list[bool] = []
    loop = asyncio.new_event_loop()
    made: list[TaskWaiter] = []

    async def park() -> None:
        made.append(TaskWaiter())
        await made[0].park(inf)

    task = loop.create_task(park())
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.run_until_complete(asyncio.sleep(0))
    assert made[0].wake(lambda: lost.append(True)) is True
    loop.close()
    del task
    gc.collect()
    assert lost == [True]


def test_a_delivered_wake_is_not_reported_lost() -> None:
    """A task that went on has nothing to give back."""
    lost: list[bool] = []

    async def main() -> None:
        waiter = TaskWaiter()
        thread = threading.Thread(target=lambda: waiter.wake(lambda: lost.append(True)))
        thread.start()
        assert await waiter.park(inf)
        thread.join()
        await asyncio.sleep(0)

    asyncio.run(main())
    gc.collect()
    assert lost == []


def test_sync_waits_on_a_loops_own_thread_are_refused() -> None:
    """Blocking the thread of a running loop raises instead of freezing it."""
    waiters.refuse_on_loop_thread("waiting")

    async def main() -> None:
        waiters.refuse_on_loop_thread("waiting for limit 'db'", "db")

    with pytest.raises(Deadlock, match="waiting for limit 'db' would block the thread of a running event loop"):
        asyncio.run(main())


def test_sleep_of_nothing_returns_at_once() -> None:
    """Zero and negative sleeps do not wait, nor look at the clock of a loop."""
    waiters.sleep(Call(), 0, "testing")
    waiters.sleep(Call(), -1, "testing")
    asyncio.run(waiters.sleep_async(Call(), 0, "testing"))


def test_what_a_call_knows_is_found_through_its_parents() -> None:
    """attempt, idempotency key and what is held are looked for outwards."""
    assert (attempt(), idempotency_key(), remaining()) == (1, None, inf)
    owner = object()
    outer = call_with(attempt=3, key="k", held=(owner, None), deadline=Deadline(clock.monotonic() + 100))
    inner = Call()
    inner.adopt(outer)
    token = current.set(inner)
    try:
        assert attempt() == 3
        assert idempotency_key() == "k"
        assert 99 < remaining() <= 100
        assert holds(inner, owner)
        assert not holds(inner, object())
    finally:
        current.reset(token)
    assert not holds(None, owner)


def test_a_fork_shares_the_id_and_nothing_that_changes_later() -> None:
    """A concurrent run of the rest of a call tells under the same id."""
    call = Call()
    twin = call.fork()
    assert twin.id == call.id
    twin.attempt = 5
    assert call.attempt is None
    assert Call().id != call.id
