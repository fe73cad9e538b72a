"""The connections to a real server: what is refused, what waits for one, and what loops and deadlines leave."""

from __future__ import annotations

import asyncio
import gc
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from guarded import DeadlineExceeded, LimitFull, deadline, limit, rate
from guarded import testing as kit
from guarded.stores import open_store
from guarded.stores._redis import link as links
from guarded.stores._redis import memory
from guarded.testing import virtual_time

pytestmark = pytest.mark.real_clock
MODES = ("sync", "async")


@pytest.fixture
def prefix() -> str:
    """Of the keys of one test."""
    return f"{uuid.uuid4().hex}:"


@pytest.fixture
def store(valkey: Any, prefix: str) -> Iterator[Any]:
    """A store with keys of its own."""
    made = open_store(valkey.url, timeout=2.0, prefix=prefix, probe=0.01)
    yield made
    made.close()


def under(policy: Any, mode: str) -> Callable[[], Any]:
    """Something guarded; async in a loop of its own."""
    if mode == "sync":
        return policy(lambda: "answer")  # type: ignore[no-any-return]

    @policy
    async def call() -> str:
        return "answer"

    return lambda: asyncio.run(call())


@pytest.mark.parametrize("mode", MODES)
def test_a_key_that_somebody_else_has_written(store: Any, valkey: Any, prefix: str, mode: str) -> None:
    """The server refuses the step: the store counts as failed until it is put right, over the same connection."""
    policy = rate("5/minute", name="api", store=store)
    call = under(policy, mode)
    call()
    with valkey.client() as client:
        keys = client.keys(f"{prefix}*")
        for key in keys:
            client.set(key, "mine")
        with kit.capture() as events:
            assert call() == "answer"
            connections = len(client.client_list())
            client.delete(*keys)
            time.sleep(0.02)
            assert call() == "answer"
        if mode == "sync":
            assert len(client.client_list()) == connections
        assert [event.name for event in events if event.name.startswith("store.")] == [
            "store.failed",
            "store.recovered",
        ]
    assert policy.peek().free == 4


def test_more_tasks_than_connections_on_a_silent_server(proxy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that wait for a connection have no time-out of their own on top of that; nobody gets lost."""
    monkeypatch.setattr(links, "_ASYNC_CONNECTIONS", 4)
    store = open_store(proxy.url, timeout=0.2, prefix=f"{uuid.uuid4().hex}:")
    policy = rate("1000/minute", name="api", store=store)

    @policy
    async def call() -> str:
        return "answer"

    async def main() -> list[str]:
        await call()
        proxy.mode = "hang"
        return await asyncio.gather(*[call() for _ in range(20)])

    began = time.monotonic()
    with kit.capture() as events:
        assert asyncio.run(main()) == ["answer"] * 20
    assert time.monotonic() - began < 1.0
    assert [event.name for event in events].count("store.failed") == 1
    store.close()


def test_more_tasks_than_connections_on_a_server_that_answers(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take turns."""
    monkeypatch.setattr(links, "_ASYNC_CONNECTIONS", 2)
    policy = limit(50, name="db", store=store)

    @policy
    async def call() -> str:
        return "answer"

    async def main() -> list[str]:
        return await asyncio.gather(*[call() for _ in range(20)])

    with kit.capture() as events:
        assert asyncio.run(main()) == ["answer"] * 20
    assert "store.failed" not in {event.name for event in events}


def test_a_deadline_around_the_loop_bounds_the_store(proxy: Any) -> None:
    """Nobody cancels the task then: the step itself ends, which says nothing about the store."""
    store = open_store(proxy.url, timeout=5.0, prefix=f"{uuid.uuid4().hex}:")
    policy = rate("5/minute", name="api", store=store)

    @policy
    async def call() -> str:
        return "answer"

    async def main() -> None:
        await call()
        proxy.mode = "hang"
        await call()

    began = time.monotonic()
    with pytest.raises(DeadlineExceeded) as caught:
        deadline("200ms", mode="cooperative")(lambda: asyncio.run(main()))()
    assert time.monotonic() - began < 1.0
    assert "waiting for store" in str(caught.value.during)
    assert store.health.since is None
    store.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_loops_that_are_closed_without_a_word(store: Any) -> None:
    """What was kept for them is gone when the next one comes."""
    policy = limit(1, name="db", store=store, max_wait=0)

    @policy
    async def call() -> str:
        return "answer"

    for _ in range(3):
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(call()) == "answer"
        loop.close()
    assert len(store.link._loops) == 1
    assert asyncio.run(call()) == "answer"
    assert not store.link._loops
    gc.collect()  # here, where their complaints are no news
    with policy, pytest.raises(LimitFull):
        policy.acquire()


def test_what_owners_were_told_is_forgotten_in_time() -> None:
    """Owners that come and go are not kept for ever; those of the present are."""
    with virtual_time(auto=False) as moved:
        told = memory.Memories()
        for number in range(20 * memory._FEW):
            told.note("pool", f"owner-{number}", b"x", 10.0, holds=True)
            moved.advance(0.01)
        assert len(told._known) < 4 * memory._FEW
        assert told.known(f"owner-{20 * memory._FEW - 1}") == b"x"
        assert told.known("owner-0") == b""
