"""circuit: generators and async generators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from guarded import CircuitOpen, Deadlock, circuit, limit
from guarded._core.virtual import VirtualTime
from guarded.policies.circuit import Circuit
from guarded.testing import virtual_time

Fail = Callable[..., Any]


@pytest.fixture
def time() -> Iterator[VirtualTime]:
    """Virtual time that moves only when told to."""
    with virtual_time(auto=False) as moved:
        yield moved


def runner(policy: Circuit) -> Fail:
    """A guarded function that raises what it is given, or returns."""

    @policy
    def run(error: BaseException | None = None) -> str:
        if error is not None:
            raise error
        return "fine"

    return run


def fail(run: Fail, times: int = 1, error: type[Exception] = ConnectionError) -> None:
    """Let `run` fail so often."""
    for _ in range(times):
        with pytest.raises(error):
            run(error("down"))


def test_a_stream_is_counted_at_its_end(time: VirtualTime) -> None:
    """A failure after the first item is a failure; the consumer's time makes no call slow."""
    gateway = circuit("gateway", failures=1, slow_call=5)

    @gateway
    def items(error: Exception | None = None) -> Iterator[int]:
        yield 1
        if error is not None:
            raise error

    for _ in items():
        time.advance(100)
    assert gateway.state == "closed"
    with pytest.raises(ConnectionError):
        list(items(ConnectionError()))
    assert gateway.state == "open"
    with pytest.raises(CircuitOpen):
        next(items())


def test_a_stream_that_fails_before_its_first_item(time: VirtualTime) -> None:
    """There is nothing to wait for: it is counted at once."""
    gateway = circuit("gateway", failures=2)

    @gateway
    def items() -> Iterator[int]:
        raise ConnectionError
        yield 1

    @gateway
    async def items_async() -> AsyncIterator[int]:
        raise ConnectionError
        yield 1

    with pytest.raises(ConnectionError):
        next(items())
    with pytest.raises(ConnectionError):
        asyncio.run(anext(items_async()))  # type: ignore[arg-type]
    assert gateway.state == "open"


@pytest.mark.parametrize("how", ["close", "throw", "drop"])
def test_a_stream_left_by_its_consumer_is_neutral(time: VirtualTime, how: str) -> None:
    """Its trial place is free again."""
    gateway = circuit("gateway", failures=1, reset_after=1)
    run = runner(gateway)
    fail(run)
    time.advance(1)

    @gateway
    def items() -> Iterator[int]:
        yield 1
        yield 2

    stream: Any = items()
    assert next(stream) == 1
    assert gateway.snapshot().trials == 1
    if how == "throw":
        with pytest.raises(ConnectionError):
            stream.throw(ConnectionError())
    elif how == "close":
        stream.close()
    del stream
    assert gateway.snapshot().trials == 0
    assert gateway.state == "half-open"


def test_a_stream_never_begun_takes_no_trial(time: VirtualTime) -> None:
    """Admission is at the first item."""
    gateway = circuit("gateway", failures=1, reset_after=1)
    fail(runner(gateway))
    time.advance(1)

    @gateway
    def items() -> Iterator[int]:
        yield 1

    stream = items()
    assert gateway.state == "open"
    del stream
    assert gateway.snapshot().trials == 0


def test_async_streams_likewise(time: VirtualTime) -> None:
    """First item slow, or failing in the middle."""
    gateway = circuit("gateway", failures=1, slow_call=5)

    @gateway
    async def items(wait: float, error: Exception | None = None) -> AsyncIterator[int]:
        time.advance(wait)
        yield 1
        if error is not None:
            raise error

    async def read(*args: Any) -> list[int]:
        return [item async for item in items(*args)]

    async def main() -> None:
        assert await read(4) == [1]
        assert gateway.state == "closed"
        with pytest.raises(ConnectionError):
            await read(0, ConnectionError())
        assert gateway.state == "open"
        gateway.reset()
        assert await read(5) == [1]
        assert gateway.state == "open"
        with pytest.raises(CircuitOpen):
            await read(0)

    asyncio.run(main())


def test_a_predicate_that_raises_at_the_end_leaves_the_other_layers_alone() -> None:
    """It comes out, chained, and the slot of the limit around is free again."""

    def broken(error: Exception) -> bool:
        raise ZeroDivisionError

    slots = limit(1, max_queue=0)

    @slots
    @circuit("gateway", on=broken)
    def items() -> Iterator[int]:
        yield 1
        raise ConnectionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError) as caught:
            list(items())
        assert isinstance(caught.value.__context__, ConnectionError)
    assert slots.snapshot().held == 0


def test_a_stream_finalized_in_the_middle_of_a_decision(time: VirtualTime) -> None:
    """The garbage collector may close it in a thread that holds the lock: nothing hangs, and its place is free."""
    gateway = circuit("gateway", failures=1, reset_after=1)
    fail(runner(gateway))
    time.advance(1)

    @gateway
    def items() -> Iterator[int]:
        yield 1

    stream: Any = items()
    next(stream)
    with gateway.local, gateway.local._lock:
        stream.close()
        with pytest.raises(Deadlock):
            next(items())
    assert gateway.snapshot().trials == 0
