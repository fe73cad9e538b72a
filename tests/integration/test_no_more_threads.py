"""A process that can start no more threads: a call goes on or is refused in so many words; nothing hangs or is lost."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guarded import Rejected, StoreError, circuit, deadline, events, hedge, idempotent, limit, rate
from guarded import testing as kit
from guarded._core.workers import workers
from guarded.stores import _threads, open_store
from guarded.stores.upkeep import Upkeep, upkeep

pytestmark = pytest.mark.real_clock
MESSAGE = "can't start new thread"


class Threads:
    """How many more there are to be had; None for as many as one likes."""

    def __init__(self) -> None:
        self.left: int | None = 0
        self._start = threading.Thread.start

    def start(self, thread: threading.Thread) -> None:
        """Instead of `Thread.start`."""
        if self.left is not None:
            if not self.left:
                raise RuntimeError(MESSAGE)
            self.left -= 1
        self._start(thread)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    """None any more, nor one of guarded's own that has nothing to do."""
    given = Threads()
    upkeep._reset()
    _threads._threads._reset()
    monkeypatch.setattr(workers, "_idle", [])
    monkeypatch.setattr(threading.Thread, "start", lambda thread: given.start(thread))
    return given


def opened(url: str, **options: Any) -> Any:
    """A store with a prefix of its own, that is asked again at once after a failure."""
    return open_store(url, **{"prefix": f"{uuid.uuid4().hex}:", "probe": "1ms", **options})


def callable_under(policy: Any, mode: str, body: Callable[..., Any]) -> Callable[..., Any]:
    """`body` under a policy, called plainly or in a loop of its own."""
    if mode == "sync":
        return policy(body)  # type: ignore[no-any-return]

    async def call(key: str = "") -> Any:
        return body(key) if key else body()

    wrapped = policy(call)
    return lambda *args: asyncio.run(wrapped(*args))


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("when_store_fails", ["local", "open", "closed"])
def test_a_permit_that_nobody_would_renew(valkey: Any, threads: Threads, mode: str, when_store_fails: Any) -> None:
    """It is as if the store had failed; the permit is back at once, and once there are threads the store is asked."""
    policy = limit(1, name="l", max_queue=0, store=opened(valkey.url), when_store_fails=when_store_fails)
    call = callable_under(policy, mode, lambda: 7)
    with kit.capture("ERROR") as told:
        for _ in range(3):
            time.sleep(0.002)
            if when_store_fails == "closed":
                with pytest.raises(StoreError, match="RuntimeError"):
                    call()
            else:
                assert call() == 7
            assert policy.snapshot().held == 0
    assert {event.name for event in told} == {"store.failed"}
    threads.left = None
    time.sleep(0.002)
    with kit.capture("TRACE") as told:
        assert call() == 7
    assert "store.recovered" in [event.name for event in told]
    assert upkeep._heap


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_key_whose_lease_nobody_would_renew(valkey: Any, threads: Threads, mode: str) -> None:
    """Refused before the effect, and free for who comes next; with a store that may fail it runs."""
    ran: list[str] = []

    def body(key: str) -> str:
        ran.append(key)
        return key

    store = opened(valkey.url)
    call = callable_under(idempotent(key="key", name="i", store=store), mode, body)
    for _ in range(2):
        with pytest.raises(StoreError, match=f"no thread can be started to renew the lease of 'i'.*{MESSAGE}"):
            call("a")
    assert ran == []
    lax = callable_under(idempotent(key="key", name="j", store=store, when_store_fails="open"), mode, body)
    assert lax("b") == "b"
    threads.left = None
    assert call("a") == "a"
    assert ran == ["b", "a"]


def test_what_no_call_relies_on_is_done_at_once(valkey: Any, threads: Threads) -> None:
    """A stored rate paused on an event loop, and the outcome of a call that a deadline has cut."""
    store = opened(valkey.url)
    paused = rate("5/s", name="r", store=store, max_wait=0)
    breaker = circuit("c", failures=1, slow_call=0.001, store=store)

    async def main() -> None:
        paused.pause(5)

        @deadline(0.02)
        @breaker
        async def hang() -> None:
            await asyncio.sleep(10)

        with pytest.raises(TimeoutError):
            await hang()

    asyncio.run(main())
    assert not paused.try_acquire()
    assert breaker.state == "open"
    assert not upkeep._heap


def test_a_chore_is_kept_for_a_later_thread(threads: Threads) -> None:
    """What could not be done at once waits; what was refused does not."""
    chores, ran = Upkeep(), []

    def told() -> bool:
        ran.append(threading.current_thread().name)
        return len(ran) < 2

    chores.beside(0.0, told)
    assert ran == ["MainThread"]
    with pytest.raises(RuntimeError, match=MESSAGE):
        chores.every(0.0, lambda: ran.append("never") is not None)
    threads.left = None
    chores.every(0.0, lambda: False)
    give_up = time.monotonic() + 10
    while chores._alive:
        assert time.monotonic() < give_up
    assert ran == ["MainThread", "guarded-upkeep"]


@pytest.mark.parametrize("busy", [False, True])
def test_steps_of_a_file_are_made_in_the_loop_s_thread(tmp_path: Path, threads: Threads, busy: bool) -> None:
    """Each once: no thread makes it again later."""
    pool, leave = _threads._threads.pool, threading.Event()
    if busy:
        threads.left = 1
        pool.submit(leave.wait, 10)
    policy = rate("3/h", name="r", store=f"sqlite:///{tmp_path}/g.db", max_wait=0)

    @policy
    async def call() -> int:
        return 1

    with kit.capture("ERROR") as told:
        assert asyncio.run(call()) == 1
    threads.left = None
    leave.set()
    pool.submit(int).result(10)
    assert (policy.peek().free, told) == (2, [])


def test_a_hedge_does_without(threads: Threads) -> None:
    """In place where no copy has a thread, with fewer copies where some have."""

    @hedge(after=0.01, idempotent=True)
    def body() -> str:
        time.sleep(0.05)
        return threading.current_thread().name

    assert body() == "MainThread"
    threads.left = 1
    assert body() == "guarded-worker"


def test_a_hedge_whose_only_copy_has_failed(threads: Threads) -> None:
    """Its error it is."""
    threads.left = 1

    @hedge(after=10, idempotent=True)
    def body() -> None:
        raise ConnectionError("first")

    with pytest.raises(ConnectionError, match="first"):
        body()


def test_a_deadline_that_needs_a_thread_refuses(threads: Threads) -> None:
    """And says what needs none."""
    with pytest.raises(Rejected, match=f"{MESSAGE}; use mode='cooperative'") as caught:
        deadline(5)(lambda: 1)()
    assert caught.value.layer == "deadline"
    assert deadline(5, mode="cooperative")(lambda: 1)() == 1


def test_a_sink_in_the_background_gets_its_events_later(threads: Threads) -> None:
    """None is lost, and `flush` says that they are not there yet."""
    seen: list[Any] = []
    background = events.in_background(seen.append)
    work = limit(1)(lambda: 1)
    with events.subscribe(background, "TRACE"):
        with pytest.warns(match=MESSAGE):
            work()
        assert not background.flush()
        threads.left = None
        assert background.flush()
    assert [event.name for event in seen] == ["limit.acquired", "call.succeeded"]
