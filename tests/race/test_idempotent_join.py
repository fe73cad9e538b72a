"""One key from everywhere at once: tasks on two loops and threads, cancelled, dying, or all gone."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from guarded import Abandoned, Cancelled, CancelToken, idempotent
from guarded._core.call import Call, current
from guarded._core.policy import Site
from guarded.policies.idempotent import Idempotent
from guarded.testing import capture

LIMIT = 20  # seconds after which a test that hangs gives up


class Loops:
    """Event loops, each running in a thread of its own."""

    def __init__(self, count: int) -> None:
        self.loops = [asyncio.new_event_loop() for _ in range(count)]
        self._threads = [threading.Thread(target=loop.run_forever, daemon=True) for loop in self.loops]
        for thread in self._threads:
            thread.start()

    def submit(self, index: int, coroutine: Any) -> Future[Any]:
        """Run a coroutine as a task of one of the loops; cancelling the future cancels the task."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loops[index])

    def close(self) -> None:
        """Stop all loops."""
        for loop, thread in zip(self.loops, self._threads, strict=True):
            loop.call_soon_threadsafe(loop.stop)
            thread.join(LIMIT)
            loop.close()


def until(condition: Callable[[], bool]) -> None:
    """Let other threads run until `condition` holds."""
    for _ in range(200_000):
        if condition():
            return
        threading.Event().wait(0.0001)
    raise AssertionError("never came true")


def joined(policy: Idempotent) -> int:
    """How many callers wait for the only run in flight, the first of an async run included."""
    runs = list(policy.runs._runs.values())
    return len(runs[0].joined) if runs else 0


def test_sixty_callers_one_execution() -> None:
    """50 tasks on two loops and 10 threads: one execution, 60 equal results, no shared mutable value."""
    policy = idempotent("key")
    executions = []
    go = threading.Event()

    @policy
    def sync_work(key: str) -> dict[str, list[int]]:
        executions.append(key)
        assert go.wait(LIMIT)
        return {"items": [1, 2]}

    loops = Loops(2)
    work_async = _async_twin(policy, sync_work)
    with ThreadPoolExecutor(10) as pool:
        leader = pool.submit(sync_work, "k")
        until(lambda: len(executions) == 1)
        calls = [leader, *[pool.submit(sync_work, "k") for _ in range(9)]]
        calls += [loops.submit(index % 2, work_async("k")) for index in range(50)]
        until(lambda: joined(policy) == 59)
        go.set()
        results = [call.result(LIMIT) for call in calls]
    loops.close()
    assert len(executions) == 1
    assert results == [{"items": [1, 2]}] * 60
    assert len({id(result) for result in results}) == 60
    assert len({id(result["items"]) for result in results}) == 60


def _async_twin(policy: Idempotent, guarded_sync: Any) -> Callable[[str], Any]:
    """The same function and key, awaited: what a sync function that returns awaitables on a loop turns into."""
    site = Site(guarded_sync._self_chain.function, guarded_sync.__wrapped__, "async", (policy,), 0)

    async def body(call: Call, fn: Any, args: Any, kwargs: Any) -> Any:
        raise AssertionError("the run is led by a thread")

    layer = policy.async_layer(body, site)

    async def call_it(key: str) -> Any:
        return await layer(Call(), guarded_sync.__wrapped__, (key,), {})

    return call_it


def _sync_twin(policy: Idempotent, guarded_async: Any) -> Callable[..., Any]:
    """The same function and key from threads."""
    site = Site(guarded_async._self_chain.function, guarded_async.__wrapped__, "sync", (policy,), 0)

    def body(call: Call, fn: Any, args: Any, kwargs: Any) -> Any:
        return ["thread"]

    layer = policy.sync_layer(body, site)
    return lambda key, call=None: layer(call or Call(), guarded_async.__wrapped__, (key,), {})


@pytest.mark.parametrize("seed", range(4))
def test_cancelling_any_harms_no_other(seed: int) -> None:
    """Of tasks on two loops and threads, cancelled tasks end cancelled and all others get the one result."""
    pick = random.Random(seed)
    policy = idempotent("key")
    executions = []
    loops = Loops(2)
    go: list[asyncio.Event] = []

    @policy
    async def work(key: str) -> list[str]:
        executions.append(key)
        go.append(asyncio.Event())
        await go[-1].wait()
        return ["task"]

    work_sync = _sync_twin(policy, work)
    with ThreadPoolExecutor(10) as pool:
        tasks = [loops.submit(0, work("k"))]
        until(lambda: len(go) == 1)
        tasks += [loops.submit(index % 2, work("k")) for index in range(49)]
        threads = [pool.submit(work_sync, "k") for _ in range(10)]
        until(lambda: joined(policy) == 60)
        cancelled = {0, *pick.sample(range(50), 25)}  # always the first one too
        for index in cancelled:
            tasks[index].cancel()
        until(lambda: joined(policy) == 60 - len(cancelled))
        loops.loops[0].call_soon_threadsafe(go[0].set)
        results = [task.result(LIMIT) for index, task in enumerate(tasks) if index not in cancelled]
        results += [thread.result(LIMIT) for thread in threads]
    loops.close()
    assert executions == ["k"]
    assert results == [["task"]] * (60 - len(cancelled))
    assert len({id(result) for result in results}) == len(results)


def test_last_one_gone_cancels_from_another_loop() -> None:
    """The first caller left long ago; when the last one, on another loop, is cancelled, so is the body."""
    policy = idempotent("key")
    loops = Loops(2)
    started, ended = threading.Event(), threading.Event()

    @policy
    async def work(key: str) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    first = loops.submit(0, work("k"))
    assert started.wait(LIMIT)
    second = loops.submit(1, work("k"))
    until(lambda: joined(policy) == 2)
    first.cancel()
    until(lambda: joined(policy) == 1)
    assert not ended.is_set()
    second.cancel()
    assert ended.wait(LIMIT)
    until(lambda: len(policy.runs) == 0)
    loops.close()


def test_a_thread_takes_over_from_a_loop_that_died() -> None:
    """A loop closed without cancelling its tasks: whoever waits elsewhere runs the key, and an event says why."""
    policy = idempotent("key")
    loop = asyncio.new_event_loop()
    started = threading.Event()

    @policy
    async def work(key: str) -> list[str]:
        started.set()
        await asyncio.Event().wait()
        return []

    work_sync = _sync_twin(policy, work)
    loop.set_exception_handler(lambda loop, context: None)
    task = loop.create_task(work("k"))
    loop.call_later(0, lambda: None)
    for _ in range(5):
        loop.run_until_complete(asyncio.sleep(0))
    assert started.is_set()
    with ThreadPoolExecutor(1) as pool, capture() as events:
        waiting = pool.submit(work_sync, "k")
        until(lambda: joined(policy) == 2)
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        assert waiting.result(LIMIT) == ["thread"]
    assert [event.name for event in events if event.name == "idempotent.abandoned"] == ["idempotent.abandoned"]
    assert work_sync("k") == ["thread"]
    del task


def test_a_loop_that_died_is_reported_where_that_was_asked_for() -> None:
    """With on_abandoned="raise" nobody reruns what may have had its effect; the next caller may."""
    policy = idempotent("key", on_abandoned="raise")
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)

    @policy
    async def work(key: str) -> list[str]:
        await asyncio.Event().wait()
        return []

    work_sync = _sync_twin(policy, work)
    task = loop.create_task(work("k"))
    for _ in range(5):
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    with pytest.raises(Abandoned):
        work_sync("k")
    assert work_sync("k") == ["thread"]
    del task


def test_the_last_thread_that_leaves_cancels_the_task() -> None:
    """The task's own caller is gone, and the thread that still waited is cancelled by its token."""
    policy = idempotent("key")
    loops = Loops(1)
    started, ended = threading.Event(), threading.Event()
    token = CancelToken()

    @policy
    async def work(key: str) -> list[str]:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return []

    work_sync = _sync_twin(policy, work)

    def follow() -> Any:
        with token:
            call = Call()
            call.adopt(current.get() or call)
            return work_sync("k", call)

    with ThreadPoolExecutor(1) as pool:
        first = loops.submit(0, work("k"))
        assert started.wait(LIMIT)
        thread = pool.submit(follow)
        until(lambda: joined(policy) == 2)
        first.cancel()
        until(lambda: joined(policy) == 1)
        assert not ended.is_set()
        token.cancel("enough")
        with pytest.raises(Cancelled):
            thread.result(LIMIT)
    assert ended.wait(LIMIT)
    until(lambda: len(policy.runs) == 0)
    loops.close()


def test_a_dead_loop_is_noticed_by_who_comes_later() -> None:
    """Nobody waited when the loop died; the next call runs the key."""
    policy = idempotent("key")
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)

    @policy
    async def work(key: str) -> list[str]:
        await asyncio.Event().wait()
        return []

    task = loop.create_task(work("k"))
    for _ in range(5):
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert _sync_twin(policy, work)("k") == ["thread"]
    del task


def test_a_run_ended_by_asyncio_run_is_taken_over() -> None:
    """The loop of the first caller ends and cancels its tasks; a thread that joined runs the key."""
    policy = idempotent("key")
    started = threading.Event()
    leave: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    @policy
    async def work(key: str) -> list[str]:
        started.set()
        await asyncio.Event().wait()
        return []

    async def main() -> None:
        leave.append((asyncio.get_running_loop(), asyncio.Event()))
        call = asyncio.create_task(work("k"))
        await leave[0][1].wait()
        del call

    work_sync = _sync_twin(policy, work)
    with ThreadPoolExecutor(2) as pool:
        loop_thread = pool.submit(asyncio.run, main())
        assert started.wait(LIMIT)
        waiting = pool.submit(work_sync, "k")
        until(lambda: joined(policy) == 2)
        leave[0][0].call_soon_threadsafe(leave[0][1].set)
        assert waiting.result(LIMIT) == ["thread"]
        loop_thread.result(LIMIT)


def test_a_sync_leader_that_is_interrupted_is_taken_over() -> None:
    """KeyboardInterrupt ends the first caller; one of those parked runs the key, the others join it."""
    policy = idempotent("key")
    go = threading.Event()
    runs = []

    @policy
    def work(key: str) -> list[int]:
        runs.append(key)
        if len(runs) == 1:
            assert go.wait(LIMIT)
            raise KeyboardInterrupt
        return [len(runs)]

    def first() -> BaseException | None:
        try:
            work("k")
        except BaseException as error:
            return error
        return None

    with ThreadPoolExecutor(6) as pool:
        leader = pool.submit(first)
        until(lambda: len(runs) == 1)
        others = [pool.submit(work, "k") for _ in range(5)]
        until(lambda: joined(policy) == 5)
        go.set()
        assert isinstance(leader.result(LIMIT), KeyboardInterrupt)
        assert [other.result(LIMIT) for other in others] == [[2]] * 5


@pytest.mark.parametrize("seed", range(20))
def test_cancel_at_every_point(seed: int) -> None:
    """Cancelled after any number of loop turns, a call never takes others with it, and leaves the key free."""

    async def main() -> None:
        policy = idempotent("key")
        active = 0

        @policy
        async def work(key: str) -> list[str]:
            nonlocal active
            active += 1
            assert active == 1
            try:
                for _ in range(3):
                    await asyncio.sleep(0)
                return ["done"]
            finally:
                active -= 1

        pick = random.Random(seed)
        tasks = []
        for _ in range(6):
            tasks.append(asyncio.create_task(work("k")))
            for _ in range(pick.randrange(4)):
                await asyncio.sleep(0)
            if pick.random() < 0.6:
                pick.choice(tasks).cancel()
        got = await asyncio.gather(*tasks, return_exceptions=True)
        for task, result in zip(tasks, got, strict=True):
            assert result == ["done"] if task.cancelling() == 0 else isinstance(result, (list, asyncio.CancelledError))
        assert policy.snapshot()["running"] == 0
        assert await work("k") == ["done"]

    asyncio.run(main())


def test_many_keys_many_threads_tiny_switch_interval() -> None:
    """16 threads over 5 keys: no key runs twice at once, each runs once in all, every caller gets its result."""
    policy = idempotent("key")
    active: dict[int, int] = {}
    executions: list[int] = []

    @policy
    def work(key: int) -> list[int]:
        active[key] = active.get(key, 0) + 1
        assert active[key] == 1
        executions.append(key)
        active[key] -= 1
        return [key]

    def loop(seed: int) -> None:
        pick = random.Random(seed)
        for _ in range(100):
            key = pick.randrange(5)
            assert work(key) == [key]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(16) as pool:
            for done in [pool.submit(loop, seed) for seed in range(16)]:
                done.result(LIMIT)
    finally:
        sys.setswitchinterval(interval)
    assert sorted(executions) == [0, 1, 2, 3, 4]
    assert len(policy.runs) == 0
