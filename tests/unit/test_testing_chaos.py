"""Chaos: faults and latency under the layers of any callable, and as a layer where they are put."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import guarded
from guarded import DeadlineExceeded, PolicyNotFound, attempt, circuit, deadline, limit, retry
from guarded._core import clock
from guarded.testing import disabled, inject, no_wait, virtual_time


@retry(retries=2, base="1ms")
def plain() -> int:
    """Tells which attempt got through."""
    return attempt()


@retry(retries=2, base="1ms")
async def coroutine() -> int:
    """The same as a coroutine."""
    return attempt()


@retry(retries=2, base="1ms")
def generator() -> Iterator[int]:
    """The same as a generator."""
    yield attempt()


@retry(retries=2, base="1ms")
async def async_generator() -> AsyncIterator[int]:
    """The same as an async generator."""
    yield attempt()


async def _listed(items: AsyncIterator[int]) -> list[int]:
    return [item async for item in items]


SHAPES: dict[str, Any] = {
    "plain": (plain, lambda: plain()),
    "coroutine": (coroutine, lambda: asyncio.run(coroutine())),
    "generator": (generator, lambda: next(generator())),
    "async generator": (async_generator, lambda: asyncio.run(_listed(async_generator()))[0]),
}


@pytest.mark.parametrize(("target", "call"), SHAPES.values(), ids=SHAPES)
def test_a_fault_looks_like_the_functions_own(target: Any, call: Any) -> None:
    """Each attempt of the retry around it is hit; after the block the function is itself again."""
    assert call() == 1
    with inject(target, fault=ConnectionError) as chaos:
        with pytest.raises(ConnectionError):
            call()
        assert (chaos.calls, chaos.hits) == (3, 3)
    assert call() == 1


@pytest.mark.parametrize(("target", "call"), SHAPES.values(), ids=SHAPES)
def test_latency_takes_time_of_the_deadline(target: Any, call: Any) -> None:
    """A delay is a wait: it moves virtual time, and a deadline around it ends it."""
    with virtual_time() as time, inject(target, latency="10s"):
        before = time.monotonic()
        assert call() == 1
        assert time.monotonic() - before == pytest.approx(10)
        with pytest.raises(DeadlineExceeded, match="delayed by inject"), deadline("4s"):
            call()
    with inject(target, latency="1h"), no_wait():
        assert call() == 1


def test_a_seed_makes_the_draws_the_same() -> None:
    """The same calls are hit, and for as long; the share comes out about right."""

    def run() -> tuple[list[bool], float]:
        hit: list[bool] = []
        with virtual_time() as time, inject(body, fault=KeyError, latency=(1, 3), rate=0.25, seed=7):
            before = time.monotonic()
            for _ in range(100):
                try:
                    body()
                    hit.append(False)
                except KeyError:
                    hit.append(True)
            return hit, time.monotonic() - before

    @limit(1)
    def body() -> None:
        pass

    first, seconds = run()
    assert (first, seconds) == run()
    assert 15 <= sum(first) <= 35
    assert seconds == pytest.approx(2 * sum(first), rel=0.2)


@pytest.mark.parametrize("target", ["circuit", "gateway", None])
def test_a_kind_a_name_or_nothing_means_callables(target: str | None) -> None:
    """Those with such a layer are hit, others are not; nothing means all."""

    @circuit("gateway")
    def under_circuit() -> str:
        return "ran"

    with inject(*filter(None, [target]), fault=ConnectionError):
        with pytest.raises(ConnectionError):
            under_circuit()
        if target is None:
            with pytest.raises(ConnectionError):
                plain()
        else:
            assert plain() == 1


def test_a_circuit_opens_under_chaos() -> None:
    """Layers take an injected fault for a real one."""
    gateway = circuit("gateway", failures=2)
    call = gateway(lambda: None)
    with inject(gateway, fault=TimeoutError):
        for _ in range(2):
            with pytest.raises(TimeoutError):
                call()
    assert gateway.state == "open"


def test_as_a_decorator_it_is_a_layer_where_it_stands() -> None:
    """Outside a retry it is seen by nobody but the caller; under it, by the retry; on a bare function, too."""
    outside, under, alone = (inject(fault=ConnectionError) for _ in range(3))

    @outside
    @retry(retries=2, base="1ms")
    def outer() -> None:
        pass

    @retry(retries=2, base="1ms")
    @under
    async def inner() -> None:
        pass

    @alone
    def bare() -> None:
        pass

    for call in (outer, lambda: asyncio.run(inner()), bare):
        with pytest.raises(ConnectionError):
            call()
    assert (outside.calls, under.calls, alone.calls) == (1, 3, 1)
    with disabled("inject"):
        bare()


def test_every_fault_is_a_fresh_one() -> None:
    """An exception given as such is raised as copies, so that no traceback grows; a function makes its own."""
    given = ConnectionError("gone")
    with inject(plain, fault=given), pytest.raises(ConnectionError, match="gone") as raised:
        plain()
    assert raised.value is not given
    assert given.__traceback__ is None
    with inject(plain, fault=lambda: KeyError("made")), pytest.raises(KeyError, match="made"):
        plain()
    with inject(plain, fault=lambda: "no exception"), pytest.raises(TypeError, match="no exception"):
        plain()


class Refused(Exception):
    """Its constructor does not take its own args, as those of HTTP clients do not."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


def test_a_fault_may_be_an_exception_with_a_constructor_of_its_own() -> None:
    """Each call gets an equal one, not an error of the copying."""
    fault = Refused("no", status=503)

    @retry(retries=0)
    def fn() -> None: ...

    with inject(fn, fault=fault), pytest.raises(Refused, match="no") as caught:
        fn()
    assert caught.value is not fault
    assert caught.value.status == 503
    with pytest.raises(ValueError, match=r"fault=.*Refused.*: cannot be made without arguments: give an exception"):
        inject(fault=Refused)


def test_blocks_nest_and_the_same_one_may_be_entered_twice() -> None:
    """The outermost acts first, and each end undoes one."""
    slow, faulty = inject(plain, latency=1), inject(plain, fault=KeyError)
    with virtual_time() as time, slow:
        before = time.monotonic()
        with slow, pytest.raises(KeyError), faulty:
            plain()
        assert time.monotonic() - before == 2
        assert plain() == 1
        assert time.monotonic() - before == 3
    with disabled(), inject(plain, fault=KeyError), pytest.raises(KeyError):
        plain()
    with inject(plain, fault=KeyError), disabled():
        assert plain() == 1
    assert clock.installed() is None


def test_all_wrong_options_are_named_at_once() -> None:
    """One ValueError; targets are looked up when the block begins."""
    with pytest.raises(ValueError, match=r"fault=3.*latency=.*rate=2.*seed='x'"):
        inject(fault=3, latency=(2, 1), rate=2, seed="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="give a fault"):
        inject()
    with pytest.raises(ValueError, match="type of exception"):
        inject(fault=int)  # type: ignore[arg-type]
    with pytest.raises(PolicyNotFound, match="retry"), inject("rety", fault=KeyError):
        pass
    with pytest.raises(TypeError, match="no targets"):
        inject("retry", fault=KeyError)(print)


def test_it_reaches_worker_threads() -> None:
    """The body of a deadline runs in another thread and is hit all the same."""

    @deadline("10s")
    def body() -> float:
        return guarded.remaining()

    with inject(body, fault=ConnectionError), pytest.raises(ConnectionError):
        body()
    assert body() > 0
