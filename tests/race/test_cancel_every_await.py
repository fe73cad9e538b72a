"""Cancelling a call at every step of the event loop, in every layer and in the whole stack, while others want the same.

Time is virtual and moves with the steps, so that each wait of each layer is met before, at and after its end.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import guarded
from guarded import (
    Cancelled,
    CancelToken,
    DeadlineExceeded,
    RateExceeded,
    circuit,
    deadline,
    fallback,
    guard,
    hedge,
    idempotent,
    limit,
    rate,
    retry,
)
from guarded._core import clock
from guarded._core.call import current
from guarded._core.policy import Policy
from guarded._core.workers import workers
from guarded.events import subscribe
from guarded.testing import VirtualTime, inject, no_wait, virtual_time

STEP = 0.05  # virtual seconds for each turn of the loop
TURNS = 1000  # more than any call here takes

LAYERS: dict[str, Callable[[], list[Policy[Any]]]] = {
    "fallback": lambda: [fallback(("fallback",), on=ConnectionError)],
    "idempotent": lambda: [idempotent(key="order"), retry(retries=2, base="100ms")],
    "deadline": lambda: [deadline("10s"), retry(retries=2, base="100ms")],
    "limit": lambda: [retry(retries=2, base="100ms"), limit(1)],
    "retry": lambda: [retry(retries=2, base="100ms")],
    "hedge": lambda: [hedge("100ms", idempotent=True)],
    "circuit": lambda: [retry(retries=2, base="100ms"), _half_open()],
    "rate": lambda: [retry(retries=2, base="100ms"), rate("1/200ms")],
    "limit, then rate": lambda: [retry(retries=2, base="100ms"), limit(1), rate("1/200ms")],
    "whole stack": lambda: [
        fallback(("fallback",), on=ConnectionError),
        idempotent(key="order"),
        deadline("30s"),
        limit(1),
        retry(retries=2, base="100ms"),
        hedge("300ms"),
        circuit("gateway", failures=100),
        rate("1/200ms"),
        deadline("5s"),
    ],
}
ANSWERS: set[Any] = {"value", "fallback", ("fallback",)}
NO_STREAMS = {"idempotent", "hedge"}
STEPS = {"whole stack": 48, "rate": 24, "limit, then rate": 24}
ALL_ALIKE = {"fallback", "deadline", "retry", "hedge", "circuit"}  # callers do not meet there


def _half_open() -> Policy[Any]:
    gateway = circuit("gateway", ignore=ConnectionError, half_open=3)
    gateway.local.move("half-open")
    return gateway


class Scene:
    """Three callers of one guarded coroutine: two of the same order, one of another."""

    ORDERS = ("a", "a", "b")

    def __init__(self, layers: list[Policy[Any]], time: VirtualTime, *, stream: bool = False) -> None:
        self.layers = [layer for layer in layers if not (stream and layer.kind in NO_STREAMS)]
        self.time = time
        self.running = 0
        self.runs: Counter[str] = Counter()
        self.tokens = [CancelToken() for _ in self.ORDERS]
        self.items = guard(*self.layers)(self.stream) if stream else None
        self.call = self.read if stream else guard(*layers)(self.body)

    async def body(self, order: str) -> str:
        """Fails the first time, and takes a while."""
        self.runs[order] += 1
        number = self.runs[order]
        self.running += 1
        try:
            await asyncio.sleep(0)
            await guarded.asleep("200ms")
            if number == 1:
                raise ConnectionError
            return "value"
        finally:
            self.running -= 1

    async def stream(self, order: str) -> AsyncIterator[str]:
        """The same as a stream, which takes a while again after its first item."""
        yield await self.body(order)
        self.running += 1
        try:
            await guarded.asleep("200ms")
            yield "more"
        finally:
            self.running -= 1

    async def read(self, order: str) -> str:
        """A stream, read to its end."""
        items = [item async for item in self.items(order)]
        return items[0]

    async def caller(self, number: int) -> str:
        """How the call of one caller ends."""
        task = asyncio.current_task()
        assert task is not None
        requests = 0
        try:
            with self.tokens[number]:
                ended = await self.call(self.ORDERS[number])
        except asyncio.CancelledError:
            ended, requests = "cut", task.cancelling()
            assert requests > 0
        except Cancelled:
            ended = "cut"
        except ConnectionError:
            ended = "failed"
        assert task.cancelling() == requests
        assert current.get() is None
        return ended

    async def turn(self) -> None:
        """One turn of the loop, and a step of time."""
        await asyncio.sleep(0)
        self.time.advance(STEP)

    async def play(self, victim: int, steps: int, cut: Callable[[asyncio.Task[str], CancelToken, int], bool]) -> None:
        """Let all call, cut one off after so many steps, and see that it is the only one that notices."""
        tasks = [asyncio.ensure_future(self.caller(number)) for number in range(len(self.ORDERS))]
        for turn in range(TURNS):
            if turn >= steps and cut(tasks[victim], self.tokens[victim], turn - steps):
                break
            await self.turn()
        for _ in range(TURNS):
            if all(task.done() for task in tasks):
                break
            await self.turn()
        ended = ["cut" if task.cancelled() else task.result() for task in tasks]  # cancelled before its first line
        allowed = ANSWERS | {"failed"}
        assert all(how in allowed for number, how in enumerate(ended) if number != victim), ended
        assert ended[victim] in allowed | {"cut"}
        self.assert_nothing_leaked()
        again = asyncio.ensure_future(self.call("c"))
        while not again.done():
            await self.turn()
        assert again.exception() is None or isinstance(again.exception(), ConnectionError)
        self.assert_nothing_leaked()

    def assert_nothing_leaked(self) -> None:
        """No body runs on, nothing is held, nobody waits, no task is left."""
        assert self.running == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert_at_rest(self.layers)


def assert_at_rest(layers: list[Policy[Any]]) -> None:
    """Nothing is held of any layer, and nobody waits."""
    for layer in layers:
        state: Any = layer.snapshot() if hasattr(layer, "snapshot") else None
        if layer.kind == "limit":
            assert (state.held, state.queued) == (0, 0)
        elif layer.kind == "rate":
            assert state.queued == 0
        elif layer.kind == "circuit":
            assert state.trials == 0
        elif layer.kind == "idempotent":
            assert state["running"] == 0


def once(task: asyncio.Task[str], token: CancelToken, late: int) -> bool:
    """Cancel the task."""
    task.cancel()
    return True


def twice(task: asyncio.Task[str], token: CancelToken, late: int) -> bool:
    """Cancel the task, and once more while it unwinds."""
    task.cancel()
    return late == 1


def by_token(task: asyncio.Task[str], token: CancelToken, late: int) -> bool:
    """Fire the caller's token."""
    return token.cancel("enough")


def both(task: asyncio.Task[str], token: CancelToken, late: int) -> bool:
    """Fire the token and cancel the task in one step."""
    token.cancel("enough")
    task.cancel()
    return True


CUTS = (once, twice, by_token, both)


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.__name__)
@pytest.mark.parametrize("name", LAYERS)
def test_cancelled_at_every_step(name: str, cut: Any) -> None:
    """Whoever is cut off, and when: the others get their answers, and nothing is left behind."""
    cut_at_every_step(name, cut, (0,) if name in ALL_ALIKE else (0, 1, 2), stream=False)


@pytest.mark.parametrize("cut", [once, by_token], ids=lambda cut: cut.__name__)
@pytest.mark.parametrize("name", [name for name in LAYERS if name not in NO_STREAMS])
def test_streams_are_cancelled_at_every_step(name: str, cut: Any) -> None:
    """The same before, at and after the first item of an async generator."""
    cut_at_every_step(name, cut, (0,), stream=True)


def cut_at_every_step(name: str, cut: Any, victims: tuple[int, ...], *, stream: bool) -> None:
    """Play the scene once for each victim and step."""
    complaints: list[Any] = []
    for victim in victims:
        for steps in range(0, STEPS.get(name, 20)):

            async def main(victim: int = victim, steps: int = steps) -> None:
                asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
                await Scene(LAYERS[name](), time, stream=stream).play(victim, steps, cut)

            with guarded.registry.isolated(), virtual_time(auto=False) as time:
                try:
                    asyncio.run(main())
                except BaseException as error:
                    error.add_note(f"victim {victim}, step {steps}")
                    raise
    assert complaints == []


@pytest.mark.parametrize("name", LAYERS)
def test_a_deadline_that_comes_at_any_step(name: str) -> None:
    """The same for time running out, one tick of the scene at a time."""

    async def main() -> None:
        scene = Scene(LAYERS[name](), time)

        async def hurried() -> str:
            try:
                async with deadline(0.001 + steps * STEP):
                    return await scene.call("a")
            except (DeadlineExceeded, ConnectionError, RateExceeded) as error:  # a rate does not wait in vain
                return type(error).__name__
            finally:
                task = asyncio.current_task()
                assert task is not None
                assert task.cancelling() == 0

        tasks = [asyncio.ensure_future(hurried()), asyncio.ensure_future(scene.caller(2))]
        while not all(task.done() for task in tasks):
            await scene.turn()
        assert tasks[0].result() in ANSWERS | {"DeadlineExceeded", "ConnectionError", "RateExceeded"}
        assert tasks[1].result() in ANSWERS | {"failed"}
        scene.assert_nothing_leaked()

    for steps in range(30):  # noqa: B007 - main looks at it
        with guarded.registry.isolated(), virtual_time(auto=False) as time:
            asyncio.run(main())


@pytest.mark.parametrize("name", LAYERS)
def test_a_plain_call_is_cut_off_at_every_event(name: str) -> None:
    """The token of a thread fires at each thing that is told of its call, from inside the sink, and nothing is left."""
    for moment in range(20):
        token = CancelToken()
        told = itertools.count()
        ended = ""
        runs: list[int] = []

        def body(order: str, runs: list[int] = runs) -> str:
            runs.append(1)
            guarded.sleep("200ms")
            if len(runs) == 1:
                raise ConnectionError
            return "value"

        def sink(event: object, told: Iterator[int] = told, token: CancelToken = token, moment: int = moment) -> None:
            if next(told) == moment:
                token.cancel("enough")

        with guarded.registry.isolated(), virtual_time():
            layers = LAYERS[name]()
            call = guard(*layers)(body)
            with subscribe(sink, level="TRACE"), token:
                try:
                    ended = call("a")
                except (Cancelled, ConnectionError) as error:
                    ended = type(error).__name__
            assert_workers_come_back()
            assert_at_rest(layers)
            assert current.get() is None
            assert call("b") in ANSWERS
        assert ended in ANSWERS | {"Cancelled", "ConnectionError"}
        if not token.cancelled:
            break
    assert_workers_come_back()


def assert_workers_come_back() -> None:
    """Bodies that their callers left behind come to their ends soon."""
    for _ in range(5000):
        if workers.abandoned == 0:
            return
        clock.pause(0.001)
    raise AssertionError(f"{workers.abandoned} bodies still run")


@contextmanager
def switching_all_the_time() -> Iterator[None]:
    """Threads change places after every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("seed", range(3))
def test_sixteen_threads_through_the_whole_stack(seed: int) -> None:
    """Twelve threads and four loops share all policies under chaos: bounds hold, one success a key, nothing leaks."""
    layers = LAYERS["whole stack"]()
    layers[0] = fallback("fallback", on=Exception)
    layers[3] = limit(3)
    layers[5] = hedge("1h")
    lock = threading.Lock()
    running = peak = 0
    succeeded: Counter[str] = Counter()

    def work(order: str) -> str:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        try:
            clock.pause(0)
            with lock:
                succeeded[order] += 1
            return order
        finally:
            with lock:
                running -= 1

    async def work_async(order: str) -> str:
        await asyncio.sleep(0)
        return work(order)

    work_async.__qualname__ = work.__qualname__  # so that both share their keys
    call, call_async = guard(*layers)(work), guard(*layers)(work_async)

    def orders(number: int, count: int) -> list[str]:
        return random.Random(seed * 100 + number).choices([f"order-{n}" for n in range(40)], k=count)

    def thread(number: int) -> list[str]:
        return [call(order) for order in orders(number, 12)]

    def loop(number: int) -> list[str]:
        async def main() -> list[str]:
            answers: list[Awaitable[str]] = [call_async(order) for order in orders(number, 12)]
            return await asyncio.gather(*answers)

        return asyncio.run(main())

    with ExitStack() as stack:
        stack.enter_context(switching_all_the_time())
        stack.enter_context(no_wait())
        stack.enter_context(inject(call, call_async, fault=ConnectionError, rate=0.3, seed=seed))
        pool = stack.enter_context(ThreadPoolExecutor(16))
        jobs = [pool.submit(thread if number < 12 else loop, number) for number in range(16)]
        for number, job in enumerate(jobs):
            for order, answer in zip(orders(number, 12), job.result(60), strict=True):
                assert answer in (order, "fallback")
    assert peak <= 3
    assert set(succeeded.values()) == {1}
    assert workers.abandoned == 0
    assert_at_rest(layers)
