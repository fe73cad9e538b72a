"""What servers and networks do: restarts, lost scripts and memory, cut and silent connections, dead servers."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from guarded import (
    DeadlineExceeded,
    GuardedError,
    RateExceeded,
    StoreError,
    circuit,
    deadline,
    idempotent,
    limit,
    rate,
    registry,
)
from guarded import testing as kit
from guarded.events.model import Event
from guarded.stores import open_store

pytestmark = pytest.mark.real_clock
TIMEOUT, PROBE = 0.15, 0.3
MODES = ("sync", "async")
KINDS = ("rate", "limit", "circuit")


def opened(url: str, **options: Any) -> Any:
    """A store with little patience, and a prefix of its own."""
    return open_store(url, **{"timeout": TIMEOUT, "probe": PROBE, "prefix": f"{uuid.uuid4().hex}:", **options})


def made(kind: str, store: Any, **options: Any) -> Any:
    """A policy on `store` that lets two calls through where it counts them."""
    if kind == "rate":
        return rate("2/60s", name=kind, store=store, max_wait=0, **options)
    return limit(2, name=kind, store=store, **options) if kind == "limit" else circuit(kind, store=store, **options)


def callable_under(policy: Any, mode: str) -> Callable[[], str]:
    """A function that answers; the async one in a loop that stays."""
    if mode == "sync":
        return policy(lambda: "answer")  # type: ignore[no-any-return]

    async def call() -> str:
        return "answer"

    wrapped, runner = policy(call), LOOP[0]
    return lambda: runner.run(wrapped())


LOOP: list[asyncio.Runner] = []


@pytest.fixture(autouse=True)
def _loop() -> Iterator[None]:
    with asyncio.Runner() as runner:
        LOOP[:] = [runner]
        yield


def named(events: list[Event], prefix: str) -> list[str]:
    """Names of the events about a layer."""
    return [event.name for event in events if event.name.startswith(prefix)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_dead_server_costs_milliseconds_and_one_event(own_valkey: Any, kind: str, mode: str) -> None:
    """Nobody sees the client's error; one failed and one recovered, whatever the number of calls."""
    store = opened(own_valkey.url)
    call = callable_under(made(kind, store), mode)
    with kit.capture() as events:
        assert call() == "answer"
        own_valkey.kill()
        began = time.monotonic()
        for _ in range(50):
            with suppress(RateExceeded):  # the twin counts, too
                call()
        assert time.monotonic() - began < 0.25 + TIMEOUT
        assert named(events, "store.") == ["store.failed"]
        own_valkey.start()
        time.sleep(PROBE * 1.2)
        assert call() == "answer"
        assert call() == "answer"
    assert named(events, "store.") == ["store.failed", "store.recovered"]
    failed = next(event for event in events if event.name == "store.failed")
    assert (failed.mode, failed.policy, failed.store) == ("local", kind, own_valkey.url)
    store.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_silent_server_costs_its_time_out_once_a_period(own_valkey: Any, kind: str, mode: str) -> None:
    """Connections are taken and nothing is said."""
    store = opened(own_valkey.url)
    call = callable_under(made(kind, store), mode)
    call()
    with own_valkey.stopped():
        began = time.monotonic()
        for _ in range(20):
            with suppress(RateExceeded):
                call()
        assert TIMEOUT * 0.9 < time.monotonic() - began < TIMEOUT * 2
    store.close()


@pytest.mark.parametrize("mode", MODES)
def test_what_becomes_of_calls_meanwhile(own_valkey: Any, mode: str) -> None:
    """local keeps the bound of this process, open has none, closed refuses before the effect."""
    store = opened(own_valkey.url)
    own_valkey.kill()
    outcomes: dict[str, list[str]] = {}
    for choice in ("local", "open", "closed"):
        with registry.isolated():
            call = callable_under(made("rate", store, when_store_fails=choice), mode)
            outcomes[choice] = [outcome(call) for _ in range(4)]
    assert outcomes == {
        "local": ["answer", "answer", "RateExceeded", "RateExceeded"],
        "open": ["answer"] * 4,
        "closed": ["StoreError"] * 4,
    }
    for kind in KINDS:
        with registry.isolated():
            assert outcome(callable_under(made(kind, store, when_store_fails="open"), mode)) == "answer"
        with registry.isolated():
            assert outcome(callable_under(made(kind, store, when_store_fails="closed"), mode)) == "StoreError"
    store.close()


def outcome(call: Callable[[], str]) -> str:
    """The answer, or the name of what guarded raised."""
    try:
        return call()
    except GuardedError as error:
        return type(error).__name__


@pytest.mark.parametrize("mode", MODES)
def test_the_local_limit_holds_while_the_store_is_gone(own_valkey: Any, mode: str) -> None:
    """Two at once in this process."""
    store = opened(own_valkey.url)
    policy = made("limit", store, max_wait=0)
    own_valkey.kill()
    with policy.acquire(), policy.acquire():
        assert outcome(callable_under(policy, mode)) == "LimitFull"
    assert outcome(callable_under(policy, mode)) == "answer"
    store.close()


def test_idempotent_runs_nothing_without_its_store(own_valkey: Any) -> None:
    """By default a StoreError before the effect; `local` runs once in this process."""
    store = opened(own_valkey.url)
    runs: list[str] = []

    @idempotent("order", store=store)
    def charge(order: str) -> str:
        runs.append(order)
        return order

    @idempotent("order", store=store, when_store_fails="local")
    def charge_here(order: str) -> str:
        runs.append(order)
        return order

    own_valkey.kill()
    with kit.capture() as events:
        for _ in range(3):
            with pytest.raises(StoreError):
                charge("a")
        assert [charge_here("b"), charge_here("b")] == ["b", "b"]
    assert runs == ["b"]
    assert named(events, "store.") == ["store.failed"]
    store.close()


def test_a_result_survives_a_store_that_goes_away_while_it_is_made(own_valkey: Any) -> None:
    """The caller gets it; the store is told when it is back; it is replayed, not run again."""
    store = opened(own_valkey.url)
    runs: list[str] = []

    @idempotent("order", store=store, lease=0.6)
    def charge(order: str) -> str:
        runs.append(order)
        own_valkey.kill()
        return order

    assert charge("a") == "a"
    own_valkey.start()
    time.sleep(PROBE + 0.4)
    assert charge("a") == "a"
    assert runs == ["a"]
    store.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_scripts_that_the_server_has_forgotten(valkey: Any, kind: str, mode: str) -> None:
    """SCRIPT FLUSH in the middle: nobody notices."""
    store = opened(valkey.url, timeout=2.0)
    call = callable_under(made(kind, store), mode)
    with kit.capture() as events, valkey.client() as client:
        call()
        client.script_flush()
        assert call() == "answer"
    assert named(events, "store.") == []
    store.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_restart_between_two_calls_is_not_noticed(own_valkey: Any, mode: str) -> None:
    """The old connections are found closed before they are used."""
    store = opened(own_valkey.url, timeout=2.0)
    call = callable_under(made("circuit", store), mode)
    with kit.capture() as events:
        call()
        own_valkey.kill()
        own_valkey.start()
        time.sleep(0.06)
        assert call() == "answer"
    assert named(events, "store.") == []
    store.close()


def test_a_flushed_server_grants_nothing_until_it_knows_the_holders_again(own_valkey: Any) -> None:
    """FLUSHALL while two of two permits are held: no third holder, before and after the holders have renewed."""
    store = opened(own_valkey.url, timeout=2.0, lease=0.6)
    policy = made("limit", store)
    active, peak, lock = 0, 0, threading.Lock()

    @policy
    def work(seconds: float) -> None:
        nonlocal active, peak
        with lock:
            active += 1
            peak = max(peak, active)
        time.sleep(seconds)
        with lock:
            active -= 1

    with kit.capture() as events:
        threads = [threading.Thread(target=work, args=(2.0,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        with own_valkey.client() as client:
            client.flushall()
        more = [threading.Thread(target=work, args=(0.01,)) for _ in range(4)]
        for thread in more:
            thread.start()
        time.sleep(1.0)
        assert store.limits.look(("limit", "")) == (2, 1)
        for thread in threads + more:
            thread.join()
    assert peak == 2
    assert named(events, "limit.lost") == []
    store.close()


def test_a_flushed_server_starts_no_key_that_may_be_running(own_valkey: Any) -> None:
    """FLUSHALL while a key runs: another process that asks for it waits, and gets the one result."""
    store = opened(own_valkey.url, timeout=2.0)
    runs: list[str] = []

    def charging(name: str) -> Any:
        def charge(order: str) -> str:
            runs.append(name)
            time.sleep(1.5)
            return name

        charge.__qualname__ = "charge"
        return idempotent("order", store=store, lease=0.6)(charge)

    got: list[str] = []
    threads = [threading.Thread(target=lambda: got.append(charging("one")("a")))]
    threads[0].start()
    time.sleep(0.1)
    with own_valkey.client() as client:
        client.flushall()
    threads.append(threading.Thread(target=lambda: got.append(charging("two")("a"))))
    threads[1].start()
    for thread in threads:
        thread.join()
    assert runs == ["one"]
    assert got == ["one", "one"]
    store.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fault", ["cut", "lose", "half-close"])
@pytest.mark.parametrize("kind", KINDS)
def test_connections_that_break(proxy: Any, kind: str, fault: str, mode: str) -> None:
    """At once, after the request was delivered, or half: the call goes on, one failed and one recovered."""
    store = opened(proxy.url, timeout=1.0)
    call = callable_under(made(kind, store), mode)
    with kit.capture() as events:
        call()
        proxy.mode = fault
        for _ in range(3):
            with suppress(RateExceeded):
                assert call() == "answer"
        assert named(events, "store.") == ["store.failed"]
        proxy.mode = "pass"
        time.sleep(PROBE * 1.2)
        with suppress(RateExceeded):
            assert call() == "answer"
    assert named(events, "store.") == ["store.failed", "store.recovered"]
    store.close()


@pytest.mark.parametrize("mode", MODES)
def test_slow_answers_within_the_time_out_are_answers(proxy: Any, mode: str) -> None:
    """Late, but in time."""
    store = opened(proxy.url, timeout=1.0)
    proxy.delay = 0.05
    with kit.capture() as events:
        assert callable_under(made("circuit", store), mode)() == "answer"
    assert named(events, "store.") == []
    store.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_deadline_bounds_the_store(proxy: Any, mode: str) -> None:
    """A server that hangs, a patient store, a call with 200 ms: it ends with its deadline."""
    store = opened(proxy.url, timeout=5.0)
    policy = made("rate", store)
    callable_under(policy, mode)()
    proxy.mode = "hang"
    call = bounded(policy, mode)
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        call()
    assert 0.15 < time.monotonic() - began < 0.4
    store.close()


def bounded(policy: Any, mode: str) -> Callable[[], str]:
    """The policy under a deadline of 200 ms."""
    if mode == "sync":
        return deadline("200ms", mode="cooperative")(policy(lambda: "answer"))

    async def call() -> str:
        return "answer"

    wrapped = deadline("200ms")(policy(call))
    return lambda: LOOP[0].run(wrapped())


def test_no_error_shows_a_password(own_valkey: Any) -> None:
    """Not in events, messages or reprs."""
    store = opened(own_valkey.url.replace("redis://", "redis://user:hunter2@"))
    policy = made("rate", store, when_store_fails="closed")
    with kit.capture() as events, pytest.raises(StoreError) as caught:
        policy.call(lambda: None)
    shown = " ".join([str(caught.value), repr(caught.value), repr(policy), repr(store), *map(str, events)])
    assert "hunter2" not in shown
    assert "store.failed" in shown
    store.close()


def test_many_threads_meet_a_dead_server_at_once(own_valkey: Any) -> None:
    """One event, and every thread has its answer in time."""
    store = opened(own_valkey.url)
    call = callable_under(made("circuit", store), "sync")
    call()
    own_valkey.kill()
    answers: list[str] = []
    with kit.capture() as events:
        threads = [threading.Thread(target=lambda: answers.append(call())) for _ in range(30)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == ["answer"] * 30
    assert time.monotonic() - began < 1.0
    assert named(events, "store.") == ["store.failed"]
    store.close()
