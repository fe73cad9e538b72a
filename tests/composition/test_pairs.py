"""Every ordered pair of layers: what the caller gets, how often the body runs, what is told, and that nothing leaks.

What is expected comes from `Model`, which knows the layers as sentences of the documentation, one at a time and without
time, threads or tasks. The guarded callable runs in all its shapes: plain, generator, coroutine, async generator.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest

import guarded
from guarded import (
    Cancelled,
    CancelToken,
    DeadlineExceeded,
    GuardWarning,
    Rejected,
    circuit,
    deadline,
    fallback,
    hedge,
    idempotent,
    limit,
    rate,
    retry,
)
from guarded._core import clock
from guarded._core.call import current
from guarded._core.workers import workers
from guarded.testing import capture, virtual_time

KINDS = ("fallback", "idempotent", "deadline", "limit", "retry", "hedge", "circuit", "rate")
SHAPES = ("plain", "generator", "coroutine", "async generator")
NO_STREAMS = {"idempotent", "hedge"}
CAN_REFUSE = {"idempotent", "deadline", "limit", "circuit", "rate"}
RETRIES = 2
PAIRS = list(product(KINDS, KINDS))
CASES = [
    (pair, shape) for pair in PAIRS for shape in SHAPES if not (shape.endswith("generator") and NO_STREAMS & {*pair})
]


class Interrupted(BaseException):
    """Control flow of somebody's own: nobody's business."""


# The model


class Down(Exception):
    """Run number `args[0]` of the body failed."""


class Refused(Exception):
    """The layer `args[0]` did not let the call through, for `args[1]` seconds."""


class Cut(BaseException):
    """The call was cancelled or interrupted."""


@dataclass
class Model:
    """One call through layers, as the documentation has it."""

    kinds: tuple[str, ...]
    behaviour: str
    refusing: int | None = None
    runs: int = 0
    attempts: list[int] = field(default_factory=list)
    events: list[str] = field(default_factory=list)

    def call(self) -> tuple[Any, ...]:
        """The outcome for the caller."""
        try:
            outcome: tuple[Any, ...] = ("value", self.through(0, 1, retried=False))
        except (Down, Refused) as error:
            outcome = ("down" if isinstance(error, Down) else "refused", error.args[0])
        except Cut:
            outcome = ("cut",)
        if self.behaviour == "late" and outcome == ("value", "value"):
            outcome = ("down", 1)  # after the first item nobody tries again
        self.events.append("call.succeeded" if outcome[0] == "value" else "call.failed")
        return outcome

    def through(self, index: int, attempt: int, *, retried: bool) -> str:
        """What the layers from `index` on do."""
        if index == len(self.kinds):
            return self.body(attempt)
        kind = self.kinds[index]
        if index == self.refusing:
            self.events.append("deadline.exceeded" if kind == "deadline" else f"{kind}.rejected")
            raise Refused(kind, 7200 if kind == "rate" else 0)
        if kind == "limit":
            self.events.append("limit.acquired")
        if kind == "fallback":
            return self.fallback(index, attempt, retried)
        if kind == "retry":
            return self.retry(index, retried)
        if kind == "hedge":
            return self.hedge(index, attempt, retried)
        value = self.through(index + 1, attempt, retried=retried)
        if kind == "idempotent":
            self.events.append("idempotent.stored")
        return value

    def body(self, attempt: int) -> str:
        self.runs += 1
        self.attempts.append(attempt)
        if self.behaviour == "down" or (self.behaviour == "flaky" and self.runs == 1):
            raise Down(self.runs)
        if self.behaviour in ("hang", "interrupt"):
            raise Cut
        return "value"

    def fallback(self, index: int, attempt: int, retried: bool) -> str:
        try:
            return self.through(index + 1, attempt, retried=retried)
        except Exception:
            self.events.append("fallback.used")
            return "fallback"

    def retry(self, index: int, retried: bool) -> str:
        for attempt in range(1, RETRIES + 2):
            try:
                value = self.through(index + 1, attempt, retried=True)
            except Exception as error:
                if isinstance(error, Refused) and error.args[1] > 60:
                    self.events.append("retry.gave_up")
                    raise
                if attempt > RETRIES:
                    self.events.append("retry.exhausted")
                    raise
                if retried and attempt == 1:
                    self.events.append("retry.nested")
                self.events.append("retry.scheduled")
            else:
                if attempt > 1:
                    self.events.append("retry.recovered")
                return value
        raise AssertionError

    def hedge(self, index: int, attempt: int, retried: bool) -> str:
        try:
            return self.through(index + 1, attempt, retried=retried)
        except Exception as first:
            self.events.append("hedge.launched")
            try:
                value = self.through(index + 1, attempt, retried=retried)
            except Exception:
                raise first from None
            self.events.append("hedge.won")
            return value


# The real thing


class Bench:
    """A pair of layers around a body of some shape and behaviour."""

    def __init__(self, kinds: tuple[str, ...], shape: str, behaviour: str, refusing: int | None = None) -> None:
        self.behaviour = behaviour
        self.shape = shape
        self.runs = 0
        self.attempts: list[int] = []
        self.made: list[ConnectionError] = []
        self.started = threading.Event()
        self.body = getattr(self, f"_{shape.replace(' ', '_')}")()
        self.policies = [self._policy(kind, index == refusing) for index, kind in enumerate(kinds)]
        self.call = self.body
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GuardWarning)
            for policy in reversed(self.policies):
                self.call = policy(self.call)

    def _policy(self, kind: str, refuses: bool) -> Any:
        thread = self.behaviour != "hang"  # a caller cut off in that mode leaves without waiting for the body
        answer: Any = ["fallback"] if self.shape.endswith("generator") else "fallback"
        made: dict[str, Callable[[], Any]] = {
            "fallback": lambda: fallback(answer, on=Exception),
            "idempotent": lambda: idempotent(key=lambda: "order", on_duplicate="reject", fingerprint=False),
            "deadline": lambda: deadline((lambda: 0) if refuses else "3h", mode="thread" if thread else "cooperative"),
            "limit": lambda: limit(1, max_queue=0),
            "retry": lambda: retry(retries=RETRIES, base="1s", jitter="none"),
            "hedge": lambda: hedge("2h", idempotent=True),
            "circuit": lambda: circuit(f"circuit-{len(guarded.registry)}", failures=100),
            "rate": lambda: rate("100/h", max_wait=0),
        }
        policy = made[kind]()
        if kind == "circuit" and self.behaviour == "hang":
            policy.local.move("half-open")  # so that a call takes the one place there is for a trial
        return policy

    def enter(self) -> None:
        """The body has begun."""
        self.runs += 1
        self.attempts.append(guarded.attempt())
        self.started.set()
        if self.behaviour == "down" or (self.behaviour == "flaky" and self.runs == 1):
            self.made.append(ConnectionError(self.runs))
            raise self.made[-1]
        if self.behaviour == "interrupt":
            raise Interrupted

    def leave(self) -> None:
        """A stream goes on after its first item."""
        if self.behaviour == "late":
            self.made.append(ConnectionError(self.runs))
            raise self.made[-1]

    def _plain(self) -> Callable[[], str]:
        def body() -> str:
            self.enter()
            if self.behaviour == "hang":
                guarded.sleep("1h")
            return "value"

        return body

    def _generator(self) -> Callable[[], Iterator[str]]:
        def body() -> Iterator[str]:
            self.enter()
            if self.behaviour == "hang":
                guarded.sleep("1h")
            yield "value"
            self.leave()

        return body

    def _coroutine(self) -> Callable[[], Any]:
        async def body() -> str:
            self.enter()
            await asyncio.sleep(0)
            if self.behaviour == "hang":
                await guarded.asleep("1h")
            return "value"

        return body

    def _async_generator(self) -> Callable[[], AsyncIterator[str]]:
        async def body() -> AsyncIterator[str]:
            self.enter()
            await asyncio.sleep(0)
            if self.behaviour == "hang":
                await guarded.asleep("1h")
            yield "value"
            self.leave()

        return body

    def run(self, cancel: str | None = None) -> tuple[Any, ...]:
        """Call it once; the outcome as the model gives it. `cancel` says by what: ``"task"`` or ``"token"``."""
        if not self.shape.startswith(("coroutine", "async")):
            token = CancelToken()
            with ExitStack() as stack:
                if cancel is not None:
                    stack.enter_context(token)
                    pool = stack.enter_context(ThreadPoolExecutor(1))
                    pool.submit(lambda: self.started.wait(10) and token.cancel("enough"))
                return self._judge(self._consumed_plain if self.shape == "generator" else self.call)
        complaints: list[Any] = []

        async def main() -> tuple[Any, ...]:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda loop, context: complaints.append(context))
            outcome = await self._run_async(cancel)
            assert asyncio.all_tasks() == {asyncio.current_task()}
            return outcome

        outcome = asyncio.run(main())
        assert complaints == []
        return outcome

    def _consumed_plain(self) -> str:
        """The first item of a stream that is read to its end, or closed after that one."""
        stream = self.call()
        first: str = next(stream)
        stream.close() if self.behaviour == "closed" else [*stream]
        return first

    async def _consumed(self, stream: Any) -> str:
        first: str = await anext(stream)
        await stream.aclose() if self.behaviour == "closed" else [item async for item in stream]
        return first

    async def _run_async(self, cancel: str | None) -> tuple[Any, ...]:
        token = CancelToken()

        async def once() -> tuple[Any, ...]:
            task = asyncio.current_task()
            assert task is not None
            try:
                with ExitStack() as stack:
                    if cancel == "token":
                        stack.enter_context(token)
                    result = self.call()
                    value = await self._consumed(result) if "generator" in self.shape else await result
                outcome = self._judge(lambda: value)
            except BaseException as error:
                outcome = self._judge_error(error)
            assert task.cancelling() == (cancel == "task")
            assert current.get() is None
            return outcome

        task = asyncio.ensure_future(once())
        if cancel is not None:
            while not self.started.is_set():
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            if cancel == "task":
                task.cancel()
            else:
                token.cancel("enough")
        return await task

    def _judge(self, call: Callable[[], Any]) -> tuple[Any, ...]:
        try:
            return "value", call()
        except BaseException as error:
            return self._judge_error(error)

    def _judge_error(self, error: BaseException) -> tuple[Any, ...]:
        if isinstance(error, ConnectionError):
            assert any(error is made for made in self.made)  # the body's own, with a clean chain
            assert error.__context__ is None
            assert error.__cause__ is None
            return "down", error.args[0]
        if isinstance(error, Rejected):
            return "refused", error.layer
        if isinstance(error, DeadlineExceeded):
            return "refused", "deadline"
        if isinstance(error, (Cancelled, asyncio.CancelledError, Interrupted)):
            return ("cut",)
        raise error

    def assert_nothing_leaked(self) -> None:
        """All permits, places and marks are back, and nobody waits."""
        for _ in range(2000):  # a worker that was left behind may be on its way out
            if workers.abandoned == 0:
                break
            clock.pause(0.001)
        assert workers.abandoned == 0
        assert current.get() is None
        for policy in self.policies:
            if policy.kind == "limit":
                assert (policy.snapshot().held, policy.snapshot().queued) == (0, 0)
            elif policy.kind == "rate":
                assert policy.snapshot().queued == 0
            elif policy.kind == "circuit":
                assert policy.snapshot().trials == 0
                assert policy.state == ("half-open" if self.behaviour == "hang" else "closed")
            elif policy.kind == "idempotent":
                assert policy.snapshot()["running"] == len(policy.runs) == 0


def refuse(bench: Bench, index: int, stack: ExitStack) -> None:
    """Make a layer refuse, for the length of the stack."""
    policy = bench.policies[index]
    if policy.kind == "limit":
        stack.callback(policy.acquire().release)
    elif policy.kind == "rate":
        policy.pause("2h")
    elif policy.kind == "circuit":
        policy.isolate()
        stack.callback(policy.reset)
    elif policy.kind == "idempotent":
        busy, go = threading.Event(), threading.Event()

        def holder() -> None:
            busy.set()
            go.wait(10)

        holder.__qualname__, holder.__module__ = bench.body.__qualname__, bench.body.__module__
        pool = stack.enter_context(ThreadPoolExecutor(1))
        stack.callback(go.set)
        pool.submit(policy(holder))
        assert busy.wait(10)


def check(pair: tuple[str, ...], shape: str, behaviour: str, *, refusing: int | None = None) -> None:
    """One call of one pair: as the model says, and nothing leaks, whether anybody listens or not."""
    model = Model(pair, behaviour, refusing)
    expected = model.call()
    cancels = [None]
    if behaviour == "hang":
        cancels = ["token", "task"] if shape in ("coroutine", "async generator") else ["token"]  # type: ignore[list-item]
    for cancel in cancels:
        for listening in (True, False):
            bench = Bench(pair, shape, behaviour, refusing)
            with virtual_time(auto=behaviour != "hang"), ExitStack() as stack:
                if refusing is not None:
                    refuse(bench, refusing, stack)
                seen = stack.enter_context(capture()) if listening else []
                outcome = bench.run(cancel)
                told = [event.name for event in seen if event.name != "deadline.abandoned"]
            bench.assert_nothing_leaked()
            case = f"{' over '.join(pair)}, {shape}, {behaviour}, cancel={cancel}, refusing={refusing}"
            assert (outcome, bench.runs, bench.attempts) == (expected, model.runs, model.attempts), case
            assert told == (model.events if listening else []), case


@pytest.mark.parametrize(("pair", "shape"), CASES, ids=[f"{a}-{b}-{shape}" for (a, b), shape in CASES])
def test_pair(pair: tuple[str, str], shape: str) -> None:
    """Success, failure, one failure, interruption, cancellation, refusal by either layer; of streams, the ends too."""
    for behaviour in ("value", "down", "flaky", "interrupt", "hang"):
        check(pair, shape, behaviour)
    if shape.endswith("generator"):
        check(pair, shape, "late")
        check(pair, shape, "closed")
    for index, kind in enumerate(pair):
        if kind in CAN_REFUSE:
            check(pair, shape, "value", refusing=index)
