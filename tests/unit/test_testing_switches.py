"""Switches: layers off, waits that take no time, circuits in a given state; all undone when their block ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import pytest

import guarded
from guarded import (
    CircuitOpen,
    DeadlineExceeded,
    LimitFull,
    PolicyNotFound,
    attempt,
    circuit,
    deadline,
    guard,
    hedge,
    idempotent,
    limit,
    rate,
    registry,
    retry,
)
from guarded._core import clock, waiters
from guarded.testing import capture, disabled, force, inject, no_wait, virtual_time


class Service:
    """Guarded callables of every shape; each fails, so that attempts tell whether a retry was there."""

    def __init__(self) -> None:
        self.attempts: list[int] = []

    def _fail(self) -> None:
        self.attempts.append(attempt())
        raise ConnectionError

    @retry(retries=2, base="1ms")
    def plain(self) -> None:
        self._fail()

    @retry(retries=2, base="1ms")
    async def coroutine(self) -> None:
        self._fail()

    @retry(retries=2, base="1ms")
    def generator(self) -> Iterator[int]:
        self._fail()
        yield 1

    @retry(retries=2, base="1ms")
    async def async_generator(self) -> AsyncIterator[int]:
        self._fail()
        yield 1


async def _first(items: AsyncIterator[int]) -> int:
    return await anext(items)


CALLS: dict[str, Callable[[Service], Any]] = {
    "plain": lambda service: service.plain(),
    "coroutine": lambda service: asyncio.run(service.coroutine()),
    "generator": lambda service: next(service.generator()),
    "async_generator": lambda service: asyncio.run(_first(service.async_generator())),
}


def _attempts(call: Callable[[Service], Any]) -> list[int]:
    service = Service()
    with pytest.raises(ConnectionError):
        call(service)
    return service.attempts


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_disabled_lets_every_shape_run_bare_and_is_undone(call: Callable[[Service], Any]) -> None:
    """Also where the chain was compiled before, in a block inside another one, and after an exception."""
    assert _attempts(call) == [1, 2, 3]
    with pytest.raises(KeyError), disabled():
        assert _attempts(call) == [1]
        with disabled("limit"):
            assert _attempts(call) == [1]
        assert _attempts(call) == [1]
        raise KeyError
    assert _attempts(call) == [1, 2, 3]


@pytest.mark.parametrize("target", ["limit", "db", "stack", "policy", "handle"])
def test_disabled_takes_out_what_is_meant_only(target: str) -> None:
    """By kind, by name, by the name of a stack, or the policy itself; the layers around it stay."""
    policy = limit(1, name="db", max_queue=0)
    stack = guard("db", name="stack")

    @retry(retries=1, base="1ms", on=LimitFull)
    @(stack if target in ("stack", "handle") else policy)
    def body() -> int:
        return attempt()

    meant: Any = {"policy": policy, "handle": stack}.get(target, target)
    with policy:
        with pytest.raises(LimitFull):
            body()
        with disabled(meant):
            assert body() == 1
            assert [layer.kind for layer in body.layers] == ["retry", "limit"]  # type: ignore[attr-defined]
        with disabled("rate", "circuit"), pytest.raises(LimitFull):
            body()


def test_disabled_for_one_callable() -> None:
    """A guarded callable as target runs bare; others under the same policy do not."""
    once = limit(1, max_queue=0)

    @once
    def bare() -> str:
        return "ran"

    @once
    def other() -> str:
        return "ran"

    with once, disabled(bare):
        assert bare() == "ran"
        with pytest.raises(LimitFull):
            other()


def test_disabled_reaches_all_threads_and_loops() -> None:
    """The switch is one for the process."""
    once = limit(1, max_queue=0)

    @once
    def body() -> str:
        return threading.current_thread().name

    @once
    async def coroutine() -> str:
        return "ran"

    with once, disabled(), ThreadPoolExecutor(1) as pool:
        assert pool.submit(body).result() != threading.current_thread().name
        assert pool.submit(lambda: asyncio.run(coroutine())).result() == "ran"


def test_disabled_means_what_is_decorated_later_too() -> None:
    """A chain compiled inside the block for the first time runs bare, and in full afterwards."""
    with disabled("retry"):
        service = Service()
        late = retry(retries=1, base="1ms")(service._fail)
        with pytest.raises(ConnectionError):
            late()
        assert service.attempts == [1]
    with pytest.raises(ConnectionError):
        late()
    assert service.attempts == [1, 1, 2]


def test_a_hedge_does_not_miss_an_idempotent_that_is_off() -> None:
    """What was declared is declared, whatever a test has switched off."""

    @idempotent(key="order")
    @hedge("10s")
    def pay(order: str) -> str:
        return order

    with disabled("idempotent"):
        assert pay("a") == "a"


def test_disabled_knows_no_such_word() -> None:
    """A typing error is an error, with near matches, and nothing is switched off."""
    limit(1, name="partner-api")
    with pytest.raises(PolicyNotFound, match="partner-api"), disabled("partner-apl"):
        pass
    with pytest.raises(TypeError, match="no guarded callable"), disabled(print):
        pass
    assert _attempts(CALLS["plain"]) == [1, 2, 3]


def test_no_wait_ends_backoff_rate_and_sleep_at_once() -> None:
    """Nothing takes time, and no clock moves."""
    paced = rate("1/h")

    @paced
    @retry(retries=2, base="1h", max_delay="1h", jitter="none")
    def plain() -> None:
        guarded.sleep("1h")
        raise ConnectionError

    @paced
    @retry(retries=2, base="1h", max_delay="1h", jitter="none")
    async def coroutine() -> None:
        await guarded.asleep("1h")
        raise ConnectionError

    with virtual_time(auto=False) as time, no_wait():
        before = time.monotonic()
        for _ in range(3):
            with pytest.raises(ConnectionError):
                plain()
            with pytest.raises(ConnectionError):
                asyncio.run(coroutine())
        assert time.monotonic() == before
        assert paced.snapshot().queued == 0


def test_no_wait_lets_other_tasks_run() -> None:
    """A task that sleeps in a loop starves nobody."""

    async def main() -> int:
        done = False

        async def other() -> None:
            nonlocal done
            done = True

        task = asyncio.ensure_future(other())
        sleeps = 0
        while not done:
            await guarded.asleep("1h")
            sleeps += 1
        await task
        return sleeps

    with no_wait():
        assert asyncio.run(main()) < 5


def test_no_wait_leaves_waits_for_somebody_alone() -> None:
    """A permit is waited for until it comes, a deadline's body until it is done."""
    once = limit(1)
    go = threading.Event()
    holding = threading.Event()

    @once
    def holder() -> None:
        holding.set()
        assert go.wait(10)

    @deadline("1h")
    @once
    def waiter() -> str:
        return "served"

    with no_wait(), ThreadPoolExecutor(2) as pool:
        first = pool.submit(holder)
        assert holding.wait(10)
        second = pool.submit(waiter)
        while once.snapshot().queued == 0:
            clock.pause(0.001)
        go.set()
        assert second.result(10) == "served"
        first.result(10)


def test_no_wait_does_not_outlast_a_deadline() -> None:
    """A wait longer than what the deadline leaves ends with it, at once."""

    @deadline("10s", mode="cooperative")
    def plain() -> None:
        guarded.sleep("1m")

    @deadline("10s")
    async def coroutine() -> None:
        await guarded.asleep("1m")

    with no_wait():
        with pytest.raises(DeadlineExceeded, match="sleeping"):
            plain()
        with pytest.raises(DeadlineExceeded, match="sleeping"):
            asyncio.run(coroutine())


def test_no_wait_nests_and_is_undone() -> None:
    """Waits wait again after the outermost block, also when it raises."""
    with pytest.raises(KeyError), no_wait():
        with no_wait():
            pass
        assert waiters._skipping == 1
        raise KeyError
    assert waiters._skipping == 0
    with virtual_time() as time:
        before = time.monotonic()
        guarded.sleep("1h")
        assert time.monotonic() - before == 3600


def _probe(state: str) -> list[str]:
    """What three calls through a circuit in `state` meet."""
    gateway = circuit("gateway", failures=3, half_open=2)
    with force("gateway", state) as forced:  # type: ignore[arg-type]
        assert forced is gateway
        assert gateway.state == state
        seen = []
        for _ in range(3):
            try:
                seen.append(gateway.call(lambda: "ran"))
            except CircuitOpen:
                seen.append("rejected")
    assert gateway.state == "closed"
    return seen


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("closed", ["ran", "ran", "ran"]),
        ("open", ["rejected", "rejected", "rejected"]),
        ("isolated", ["rejected", "rejected", "rejected"]),
        ("half-open", ["ran", "ran", "ran"]),
    ],
)
def test_force_puts_a_circuit_into_a_state(state: str, expected: list[str]) -> None:
    """Calls in the block meet that state, those after it what was before."""
    assert _probe(state) == expected


def _fails() -> None:
    raise ConnectionError


def test_force_gives_counts_back() -> None:
    """Two failures before the block and one after it are three; those inside count for nothing."""
    gateway = circuit("gateway", failures=3)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            gateway.call(_fails)
    with pytest.raises(KeyError), force(gateway, "closed"):
        assert gateway.snapshot().failures == 0
        with pytest.raises(ConnectionError):
            gateway.call(_fails)
        raise KeyError
    assert gateway.snapshot().failures == 2
    with pytest.raises(ConnectionError):
        gateway.call(_fails)
    assert gateway.state == "open"


def test_force_gives_the_open_time_back() -> None:
    """An open circuit that was forced shut goes on with what its open time has left."""
    gateway = circuit("gateway", failures=1, reset_after=30)
    with virtual_time() as time:
        with pytest.raises(ConnectionError):
            gateway.call(_fails)
        time.advance(10)
        with force(gateway, "closed"):
            assert gateway.call(lambda: "ran") == "ran"
        assert gateway.state == "open"
        assert gateway.snapshot().retry_after == pytest.approx(20)
        with force(gateway, "open"):
            assert gateway.snapshot().retry_after == pytest.approx(30)
            time.advance(30)
            assert gateway.call(lambda: "ran") == "ran"
            assert gateway.state == "closed"
        assert gateway.state == "open"


def test_force_counts_no_call_that_crosses_its_ends() -> None:
    """A call in flight at either end is reported late, and holds no trial place afterwards."""
    gateway = circuit("gateway", failures=1, half_open=1)

    async def main() -> None:
        ends = [asyncio.Event() for _ in range(2)]

        @gateway
        async def body(number: int) -> None:
            await ends[number].wait()
            raise ConnectionError

        outer = asyncio.ensure_future(body(0))
        await asyncio.sleep(0)
        with force(gateway, "half-open"):
            inner = asyncio.ensure_future(body(1))
            await asyncio.sleep(0)
            assert gateway.snapshot().trials == 1
            ends[0].set()
            with pytest.raises(ConnectionError):
                await outer
            assert gateway.state == "half-open"
        assert gateway.snapshot().trials == 0
        ends[1].set()
        with pytest.raises(ConnectionError):
            await inner
        assert gateway.state == "closed"

    with capture() as seen:
        asyncio.run(main())
    assert [event.name for event in seen if event.name == "circuit.late"] == ["circuit.late"] * 2


def test_force_tells_events_and_listeners_both_changes() -> None:
    """Whoever watches the circuit sees it open and close."""
    gateway = circuit("gateway")
    with capture() as seen, force(gateway, "open"):
        assert gateway.breaker.current_state == "open"
    assert gateway.breaker.current_state == "closed"
    assert [event.name for event in seen] == ["circuit.opened", "circuit.closed"]


def test_force_refuses_what_is_no_state_or_no_circuit() -> None:
    """Errors name the choices, and nothing is changed."""
    limit(1, name="db")
    with pytest.raises(ValueError, match="'half-open'"), force(circuit("gateway"), "ajar"):  # type: ignore[arg-type]
        pass
    with pytest.raises(TypeError, match="no circuit"), force("db", "open"):
        pass
    with pytest.raises(PolicyNotFound, match="gateway"), force("gatewy", "open"):
        pass


def test_switches_leave_nothing_behind() -> None:
    """After leaving in another order than entered, everything is as before."""
    blocks: list[AbstractContextManager[Any]] = [disabled("retry"), disabled(), no_wait(), inject(fault=KeyError)]
    for block in blocks:
        block.__enter__()
    for block in blocks:
        block.__exit__(None, None, None)
    assert _attempts(CALLS["plain"]) == [1, 2, 3]
    assert registry is guarded.registry
