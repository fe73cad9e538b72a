"""Runs of a key that end in unusual ways: while their result is being saved, cut off, or watched from elsewhere."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guarded import DeadlineExceeded, Deadlock, StoreError, asleep, deadline, idempotent
from guarded._core.call import Call
from guarded._core.policy import Site
from guarded.policies._idempotent import inflight
from guarded.policies.idempotent import Idempotent
from guarded.stores import open_store
from guarded.stores.memory import MemoryStore
from guarded.testing import virtual_time

LIMIT = 20  # seconds after which a test that hangs gives up


def until(condition: Callable[[], bool]) -> None:
    """Let other threads run until `condition` holds."""
    for _ in range(200_000):
        if condition():
            return
        threading.Event().wait(0.0001)
    raise AssertionError("never came true")


def sync_twin(policy: Idempotent, guarded_async: Any, body: Callable[[], Any]) -> Callable[[str], Any]:
    """The same function and key, called the plain way: what a function that may return an awaitable is."""
    site = Site(guarded_async._self_chain.function, guarded_async.__wrapped__, "sync", (policy,), 0)
    layer = policy.sync_layer(lambda call, fn, args, kwargs: body(), site)
    return lambda key: layer(Call(), guarded_async.__wrapped__, (key,), {})


class Unwinding:
    """An async run whose only caller has been cancelled, and which takes its time to end."""

    def __init__(self) -> None:
        self.policy = idempotent("key")
        self.cleaning = threading.Event()

        @self.policy
        async def work(key: str) -> str:
            try:
                await asyncio.Event().wait()
            finally:
                self.cleaning.set()
                await self.go.wait()
            return "never"

        self.work = work
        self.plain = sync_twin(self.policy, work, lambda: "anew")

    async def begin(self) -> asyncio.Task[str]:
        """Until it unwinds."""
        self.go = asyncio.Event()
        task = asyncio.ensure_future(self.work("k"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        while not self.cleaning.is_set():
            await asyncio.sleep(0)
        return task


def test_a_plain_call_on_the_loop_of_a_run_that_unwinds() -> None:
    """To wait there would freeze the loop that the run needs to end."""
    run = Unwinding()

    async def main() -> None:
        task = await run.begin()
        with pytest.raises(Deadlock):
            run.plain("k")
        run.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert run.plain("k") == "anew"

    asyncio.run(main())
    assert not run.policy.runs


def test_a_thread_waits_until_a_cancelled_run_has_unwound() -> None:
    """Then it runs the key itself: the two never overlap."""
    run, results = Unwinding(), []

    async def main() -> None:
        task = await run.begin()
        thread = threading.Thread(target=lambda: results.append(run.plain("k")))
        thread.start()
        until(lambda: bool(next(iter(run.policy.runs._runs.values())).watching))
        assert not results
        run.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(thread.join, LIMIT)

    asyncio.run(main())
    assert results == ["anew"]


def test_runs_that_wait_for_one_run_over_two_others_are_no_circle() -> None:
    """A call from inside another run may join the first of them; one from inside the last may not."""
    policy = idempotent("key")
    others = {"a": "bc", "b": "d", "c": "d", "d": "", "x": "a"}
    go: list[asyncio.Event] = []

    @policy
    async def work(key: str) -> str:
        await go[0].wait()
        await asyncio.gather(*map(work, others[key]))
        if key == "d":
            await go[1].wait()
            with pytest.raises(Deadlock):
                await work("a")
        return key

    async def main() -> None:
        go[:] = [asyncio.Event(), asyncio.Event()]
        tasks = [asyncio.ensure_future(work(key)) for key in "abcdx"]
        await asyncio.sleep(0.0)
        go[0].set()
        for _ in range(20):
            await asyncio.sleep(0)
        go[1].set()
        assert await asyncio.gather(*tasks) == list("abcdx")

    asyncio.run(main())


def test_a_run_that_is_watched_for_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its watch in the loop is renewed, and taken off when it ends."""
    monkeypatch.setattr(inflight._Sentinel, "INTERVAL", 0.0)
    policy, results = idempotent("key"), []
    turns = 0

    @policy
    async def work(key: str) -> str:
        nonlocal turns
        while not joined() or turns < 10:
            await asyncio.sleep(0)
            turns += bool(joined())
        return key

    def joined() -> bool:
        return any(len(run.joined) > 1 for run in policy.runs._runs.values())

    async def main() -> None:
        task = asyncio.ensure_future(work("k"))
        await asyncio.sleep(0)
        thread = threading.Thread(target=lambda: results.append(sync_twin(policy, work, list)("k")))
        thread.start()
        results.append(await task)
        await asyncio.to_thread(thread.join, LIMIT)
        await asyncio.sleep(0)
        assert not [timer for timer in asyncio.get_running_loop()._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]

    asyncio.run(main())
    assert results == ["k", "k"]


class Failing(MemoryStore):
    """A store of the user's own that answers at once, or not at all."""

    name = "mine"
    broken = True

    def begin(self, *given: Any) -> Any:
        if self.broken:
            raise ConnectionError("no route to the store")
        return super().begin(*given)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_store_that_is_asked_in_passing_and_fails(mode: str) -> None:
    """The call is not made, and the key is free for the next."""
    store = Failing()
    policy = idempotent("key", store=store)

    @policy
    def work(key: str) -> str:
        return key

    @policy
    async def work_async(key: str) -> str:
        return key

    def call() -> str:
        return asyncio.run(work_async("k")) if mode == "async" else work("k")

    with pytest.raises(StoreError):
        call()
    assert not policy.runs
    store.broken = False
    assert call() == "k"


def test_a_first_caller_whose_time_is_up_while_its_body_takes_no_notice() -> None:
    """A deadline around the loop: the caller gets its error, and the body is cancelled and has ended before that."""
    policy, ends = idempotent("key"), []

    @policy
    async def work(key: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append(key)

    async def main() -> None:
        await work("k")

    with virtual_time() as time, pytest.raises(DeadlineExceeded) as caught:
        began = time.monotonic()
        deadline(5, mode="cooperative")(lambda: asyncio.run(main()))()
    assert ends == ["k"]
    assert time.monotonic() - began == 5
    assert caught.value.during == "running"
    assert not policy.runs


@pytest.mark.parametrize("others", [False, True])
def test_a_first_caller_whose_time_is_up_leaves_the_run_to_the_others(others: bool) -> None:
    """Those that joined it get its result."""
    policy = idempotent("key")

    @policy
    async def work(key: str) -> str:
        await asleep(7)
        return key

    @deadline(5)
    async def hurried() -> str:
        return await work("k")

    async def main() -> list[Any]:
        calls = [hurried(), *([work("k")] if others else [])]
        return await asyncio.gather(*calls, return_exceptions=True)

    with virtual_time():
        outcomes = asyncio.run(main())
    assert isinstance(outcomes[0], DeadlineExceeded)
    assert outcomes[1:] == ["k"] * others


@pytest.mark.parametrize("how", ["torn down", "shut down"])
def test_a_run_in_a_durable_store_that_a_loop_leaves_behind(how: str, tmp_path: Path) -> None:
    """One without a result may run again, one whose result was being saved keeps it; the store hears of it at once."""
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    policy, runs = idempotent("key", store=store), []
    saving, go, released = threading.Event(), threading.Event(), threading.Event()
    complete, release = store.idempotent.complete, store.idempotent.release

    def slow(*given: Any) -> bool:
        saving.set()
        assert go.wait(LIMIT)
        return complete(*given)  # type: ignore[no-any-return]

    def heard(*given: Any) -> bool:
        answer = release(*given)
        released.set()
        return answer  # type: ignore[no-any-return]

    @policy
    async def work(key: str) -> int:
        runs.append(key)
        if how == "torn down" and len(runs) == 1:
            raise SystemExit
        return len(runs)

    async def bystander() -> None:
        try:
            await asyncio.Event().wait()
        finally:  # cancelled, as all there is
            go.set()

    async def shut_down() -> None:
        left = [asyncio.ensure_future(work("k")), asyncio.ensure_future(bystander())]
        while not saving.is_set():
            await asyncio.sleep(0)
        assert not any(task.done() for task in left)

    store.idempotent.release = heard
    with virtual_time(auto=False):  # what is not done at once is not done here
        if how == "torn down":
            with pytest.raises(SystemExit):
                asyncio.run(work("k"))
            until(released.is_set)
        else:
            store.idempotent.complete = slow
            asyncio.run(shut_down())
            store.idempotent.complete = complete
            until(lambda: not policy.runs)
        assert asyncio.run(work("k")) == len(runs) == (2 if how == "torn down" else 1)
    store.close()
