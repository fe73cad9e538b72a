"""From a plan to results: all at the end, or one by one; on an event loop or in plain code."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, closing
from typing import Any

from guarded._batch.blocking import ExecutorBatch, ThreadBatch
from guarded._batch.plan import Plan
from guarded._batch.settled import Settled
from guarded._batch.tasks import TaskBatch
from guarded._batch.window import AtTheEnd, Window

Order = type[Window[Any]]


def gather(plan: Plan) -> Any:
    """A list, or an awaitable one, of all results or outcomes in input order."""
    return _gather_in_tasks(plan) if plan.awaits else _gather_in_threads(plan)


def stream(plan: Plan, order: Order) -> Any:
    """A generator, or an async one, of results or outcomes in `order`."""
    return _stream_from_tasks(plan, order) if plan.awaits else _stream_from_threads(plan, order)


def _thread_batch(plan: Plan, order: Order) -> tuple[ThreadBatch[Any], Any]:
    """Threads of our own have some items queued beside those that run; an executor has a queue itself."""
    if plan.executor is None:
        window = order(plan.window, plan.window)
        return ThreadBatch(plan, window), window
    window = order(plan.concurrency, plan.window)
    return ExecutorBatch(plan, window), window


def _gather_in_threads(plan: Plan) -> list[Any]:
    batch, window = _thread_batch(plan, AtTheEnd)
    for _ in batch.read():
        pass  # nothing is read before the end
    return _results(plan, window)


async def _gather_in_tasks(plan: Plan) -> list[Any]:
    window: AtTheEnd[Any] = AtTheEnd(plan.concurrency, plan.window)
    async for _ in TaskBatch(plan, window).read():
        pass
    return _results(plan, window)


def _results(plan: Plan, window: AtTheEnd[Any]) -> list[Any]:
    outcomes = window.outcomes()
    return [settled.value for settled in outcomes] if plan.errors == "raise" else outcomes


def _stream_from_threads(plan: Plan, order: Order) -> Generator[Any, None, None]:
    batch, _ = _thread_batch(plan, order)
    with closing(batch.read()) as outcomes:
        for settled in outcomes:
            yield _shown(plan, settled)


async def _stream_from_tasks(plan: Plan, order: Order) -> AsyncGenerator[Any, None]:
    batch: TaskBatch[Any] = TaskBatch(plan, order(plan.concurrency, plan.window))
    async with aclosing(batch.read()) as outcomes:
        async for settled in outcomes:
            yield _shown(plan, settled)


def _shown(plan: Plan, settled: Settled[Any]) -> Any:
    return settled.value if plan.errors == "raise" else settled
