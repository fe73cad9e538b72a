"""rate: around callables, by key and cost, and with the cost corrected afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from guarded import RateExceeded, rate
from guarded._core import clock
from guarded.policies.rate import Rate
from guarded.testing import VirtualTime, capture, virtual_time

ALGORITHMS = ("sliding", "gcra", "leaky", "fixed")


@pytest.fixture
def time() -> Iterator[VirtualTime]:
    """Virtual time that jumps when everybody waits."""
    with virtual_time() as time:
        yield time


@pytest.fixture
def still() -> Iterator[VirtualTime]:
    """Virtual time that moves by hand only."""
    with virtual_time(auto=False) as time:
        yield time


def admitted(limited: Rate, at_most: int = 100) -> int:
    """How many calls are let through at this moment."""
    return sum(limited.try_acquire() for _ in range(at_most))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_refund_gives_back(algorithm: Any, still: VirtualTime) -> None:
    """What is refunded at once can be used again; refunding twice gives nothing more."""
    limited = rate("4/s", algorithm=algorithm)
    admission = limited.acquire(3)
    before = limited.peek(3).delay
    admission.refund()
    admission.refund()
    assert before > 0 or limited.peek().free > 1
    assert limited.peek(4).delay == 0.0


def test_refund_outside_of_a_call_takes_the_newest(still: VirtualTime) -> None:
    """By hand, `refund` gives back units of what was admitted last."""
    limited = rate("4/s")
    admitted(limited)
    limited.refund()
    limited.refund(2)
    assert limited.peek().free == 3


def test_settle_corrects_both_ways(still: VirtualTime) -> None:
    """The cost that turns out later counts as if it had been known, even above the quota."""
    limited = rate("10/s")
    admission = limited.acquire(8)
    admission.settle(2)
    assert (admission.cost, limited.peek().free) == (2, 8)
    admission.settle(25)
    assert limited.peek().free == 0
    assert limited.peek().delay == pytest.approx(1)
    with pytest.raises(ValueError, match="actual=-1"):
        admission.settle(-1)


def test_settle_inside_the_call(still: VirtualTime) -> None:
    """The function corrects its own admission, also through nested guarded calls, attempts and keys."""
    tokens = rate("100/m", key="tenant", cost="estimate")
    other = rate("100/s")

    @other
    def parse() -> None:
        tokens.settle(7)

    @tokens
    def ask(tenant: str, estimate: int) -> None:
        parse()

    ask("a", 60)
    assert tokens.peek(1, key="a").free == 93
    with pytest.raises(LookupError, match="does not guard the running call"):
        tokens.settle(1)


def test_refund_inside_an_async_call(still: VirtualTime) -> None:
    """`refund` in the body gives back what this very call was counted for."""
    limited = rate("3/s", cost=2)

    @limited
    async def call(fail: bool) -> None:
        await asyncio.sleep(0)
        if fail:
            limited.refund()

    asyncio.run(call(True))
    assert limited.peek().free == 3
    asyncio.run(call(False))
    assert limited.peek(1).free == 1


def test_refund_wakes_the_one_who_waits(time: VirtualTime) -> None:
    """Whoever waits moves up at once when units come back."""
    limited = rate("1/m")

    async def main() -> float:
        admission = await limited.acquire_async()
        started = clock.monotonic()
        waiter = asyncio.ensure_future(limited.acquire_async())
        await asyncio.sleep(0)
        admission.refund()
        await waiter
        return clock.monotonic() - started

    assert asyncio.run(main()) == 0.0


def test_a_failed_call_stays_counted(still: VirtualTime) -> None:
    """An error of the function, or a refusal further in, gives nothing back: the rate cannot know what was sent."""
    limited, strict = rate("2/s"), rate("1/s", max_wait=0)

    @limited
    @strict
    def call() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        call()
    with pytest.raises(RateExceeded):
        call()
    assert limited.peek().free == 0


def test_settling_a_call_that_was_counted_long_ago(still: VirtualTime) -> None:
    """What no longer counts is neither given back nor charged by the sliding log."""
    limited = rate("3/s")
    admission = limited.acquire(2)
    still.advance(1)
    admission.settle(3)
    assert limited.peek().free == 3
    other = limited.acquire()
    admission.refund()
    assert limited.peek().free == 2
    other.refund()
    assert limited.peek().free == 3


def test_keys_have_their_own_budgets(still: VirtualTime) -> None:
    """What one key has used is not missing to another, and equal keys are one, whatever their spelling."""
    limited = rate("1/s", key="{tenant}", max_wait=0)

    @limited
    def call(tenant: object) -> None: ...

    call("a")
    call("b")
    call(1)
    call("1")
    for tenant in ("a", "b", 1, "1"):
        with pytest.raises(RateExceeded, match="for this key"):
            call(tenant=tenant)
    assert not limited.try_acquire(key="a")
    assert not limited.try_acquire(key=1)


def test_no_key_appears_in_errors_and_events(still: VirtualTime) -> None:
    """A key may be personal: it is in no message and no event."""
    limited = rate("1/s", key="user", max_wait=0)

    @limited
    def call(user: str) -> None: ...

    with capture() as events:
        call("alice@example.org")
        with pytest.raises(RateExceeded) as caught:
            call("alice@example.org")
    assert "alice" not in f"{caught.value!r} {events!r}"


def test_missing_and_needless_keys_are_errors() -> None:
    """By hand, a keyed rate needs a key, one without keys takes none."""
    with pytest.raises(TypeError, match="give a key"):
        rate("1/s", key="tenant").acquire()
    with pytest.raises(TypeError, match="has no keys"):
        rate("1/s").acquire(key="a")
    with pytest.raises(TypeError, match="give a cost"):
        rate("1/s", cost="size").acquire()


def test_one_keys_wait_never_delays_another(time: VirtualTime) -> None:
    """While one key waits for an hour, another is served at once, in sync and async code."""
    limited = rate("1/h", key="key")

    async def main() -> None:
        await limited.acquire_async(key="slow")
        waiting = asyncio.ensure_future(limited.acquire_async(key="slow"))
        await asyncio.sleep(0)
        before = clock.monotonic()
        limited.acquire(key="sync")
        await limited.acquire_async(key="async")
        assert clock.monotonic() == before
        waiting.cancel()

    asyncio.run(main())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_idle_keys_are_forgotten_and_blocked_ones_never(algorithm: Any, still: VirtualTime) -> None:
    """The number of keys follows those in use; a key that would refuse is kept however many others come."""
    limited = rate("1/m", key="key", algorithm=algorithm)
    still.advance(60 - still.wall() % 60 if algorithm == "fixed" else 0)
    assert limited.try_acquire(key="blocked")
    for number in range(500):
        assert limited.try_acquire(key=str(number))
        assert not limited.try_acquire(key="blocked")
    assert limited.snapshot().keys == 501
    still.advance(60)
    for number in range(4200):
        limited.try_acquire(key=f"new {number % 10}")
    assert limited.snapshot().keys == 10


def test_a_key_with_a_waiter_is_kept(still: VirtualTime) -> None:
    """A reservation far in the future holds its key, though nothing is counted for it yet."""
    limited = rate("1/s", key="key")
    limited.reserve(key="a")
    second = limited.reserve(key="a")
    still.advance(0.99)
    for number in range(100):
        limited.try_acquire(key=str(number % 3))
    assert second.delay == pytest.approx(0.01)
    assert not limited.try_acquire(key="a")


def test_cost_and_key_come_from_the_arguments(still: VirtualTime) -> None:
    """A parameter name, a template or a callable over bound arguments, defaults applied."""

    @rate("10/s", key="{self.tenant}", cost=lambda rows: len(rows), max_wait=0)
    def unbound(self: Any, rows: list[int]) -> int:
        return len(rows)

    class Client:
        tenant = "a"
        send = unbound

    assert Client().send([1] * 8) == 8
    with pytest.raises(RateExceeded):
        Client().send([1, 2, 3])
    with pytest.raises(ValueError, match="cost"):
        Client().send([])
    with pytest.raises(ValueError, match="11 is above the capacity"):
        Client().send([1] * 11)


def test_wrong_parameter_names_fail_at_decoration() -> None:
    """A key or cost that names no parameter is told when the function is decorated."""
    with pytest.raises(ValueError, match="tenat"):

        @rate("1/s", key="tenat")
        def call(tenant: str) -> None: ...

    with pytest.raises(ValueError, match="cost"):

        @rate("1/s", cost="size")
        def other() -> None: ...


def test_generators_count_their_start(still: VirtualTime) -> None:
    """A stream is one call, counted at its first item; its body can settle it to the end."""
    limited = rate("10/s")

    @limited
    def rows() -> Iterator[int]:
        yield 1
        yield 2
        limited.settle(5)

    @limited
    async def arows() -> AsyncIterator[int]:
        yield 1
        limited.settle(3)

    async def main() -> list[int]:
        return [row async for row in arows()]

    stream = rows()
    assert limited.peek().free == 10
    assert list(stream) == [1, 2]
    assert limited.peek().free == 5
    assert asyncio.run(main()) == [1]
    assert limited.peek().free == 2


def test_a_function_that_returns_an_awaitable_is_counted_once(still: VirtualTime) -> None:
    """What turns out to be async after the first look is not counted twice."""
    limited = rate("10/s", max_wait=0)

    async def work() -> int:
        return 7

    @limited
    def call() -> Any:
        return work()

    async def main() -> None:
        assert await call() == 7
        assert limited.peek().free == 9
        assert await call() == 7
        assert limited.peek().free == 8

    asyncio.run(main())


def test_call_and_context_managers(still: VirtualTime) -> None:
    """`call`, `with` and `async with` draw on the same budget as decorated functions."""
    limited = rate("10/s")

    async def main() -> None:
        async with limited as admission:
            assert admission.cost == 1

    assert limited.call(lambda a, b: a + b, 1, b=2) == 3
    with limited as admission:
        admission.settle(4)
    asyncio.run(main())
    assert limited.peek().free == 4


@pytest.mark.parametrize("after", ["5/s", "5/s; 9/m", "5/s; 6/m; 9/h"])
@pytest.mark.parametrize("before", ["5/s", "5/s; 8/m", "5/s; 7/m; 8/h"])
@pytest.mark.parametrize("algorithm", ["sliding", "gcra", "fixed"])
def test_a_call_that_is_corrected_when_a_reload_has_changed_the_windows(
    before: str, after: str, algorithm: Any
) -> None:
    """It was counted in windows that are gone: the function does not hear of it, and no unit is made out of it."""
    with virtual_time(auto=False) as still:
        limited = rate(before, algorithm=algorithm)

        @limited
        def call(cost: int) -> None:
            limited.reconfigure(rate(after, algorithm=algorithm).options)
            limited.settle(cost)
            assert limited.peek().free <= 5

        for cost in (3, 0):
            call(cost)
            limited.reconfigure(rate(before, algorithm=algorithm).options)
        still.advance(3600)
        assert limited.peek().free == 5
