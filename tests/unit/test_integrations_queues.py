"""Tasks of each queue without its worker: called directly, and run in this process where the queue can do that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from guarded import attempt, limit, retry
from guarded.testing import virtual_time


def celery_task(*parts: Any) -> Callable[..., Any]:
    """On an app without a broker."""
    celery = pytest.importorskip("celery")
    from guarded.integrations.celery import task

    return task(celery.Celery("tasks", broker="memory://"), *parts)


def rq_task(*parts: Any) -> Callable[..., Any]:
    """On a queue that nobody connects to."""
    rq = pytest.importorskip("rq")
    import redis

    from guarded.integrations.rq import task

    return task(rq.Queue(connection=redis.Redis(port=1)), *parts)


def dramatiq_task(*parts: Any) -> Callable[..., Any]:
    """On a broker that only keeps messages."""
    pytest.importorskip("dramatiq")
    from dramatiq.brokers.stub import StubBroker

    from guarded.integrations.dramatiq import task

    return task(StubBroker(), *parts)


def taskiq_task(*parts: Any) -> Callable[..., Any]:
    """On a broker that runs tasks itself."""
    taskiq = pytest.importorskip("taskiq")
    from guarded.integrations.taskiq import task

    return task(taskiq.InMemoryBroker(), *parts)


QUEUES = [celery_task, rq_task, dramatiq_task, taskiq_task]


@pytest.mark.parametrize("task", QUEUES)
def test_called_directly_it_is_the_guarded_function(task: Callable[..., Any]) -> None:
    """All attempts in one call, which waits between them."""
    runs: list[int] = []

    @task(limit(1), retry(retries=2, base=1))
    def work(key: str, *, extra: int = 0) -> tuple[str, int]:
        runs.append(attempt())
        if len(runs) < 3:
            raise ConnectionError("x")
        return key, extra

    with virtual_time():
        assert work("key", extra=1) == ("key", 1)
    assert runs == [1, 2, 3]


@pytest.mark.parametrize("task", QUEUES)
def test_an_async_function_called_directly_is_awaited(task: Callable[..., Any]) -> None:
    """By its caller, on the caller's loop."""

    @task(retry(retries=1))
    async def work(key: str) -> str:
        await asyncio.sleep(0)
        return key

    async def main() -> Any:
        return await work("key")

    assert asyncio.run(main()) == "key"


@pytest.mark.parametrize("task", QUEUES)
def test_a_generator_is_no_task(task: Callable[..., Any]) -> None:
    """Nobody would read it."""

    def stream() -> Any:
        yield 1

    with pytest.raises(TypeError, match="no queue can run"):
        task()(stream)


def test_celery_runs_deliveries_eagerly() -> None:
    """The headers carry the number of the attempt from one to the next."""
    runs: list[int] = []

    @celery_task(retry(retries=2, base=1))
    def work(key: str) -> str:
        runs.append(attempt())
        if len(runs) < 3:
            raise ConnectionError("x")
        return key

    assert work.apply(args=("key",)).get() == "key"
    assert runs == [1, 2, 3]


@pytest.mark.real_clock
def test_taskiq_sends_again_by_label_where_there_is_no_schedule_source() -> None:
    """The broker in memory does not obey the delay, and delivers at once, under the same id."""
    taskiq = pytest.importorskip("taskiq")
    from guarded.integrations.taskiq import task

    broker = taskiq.InMemoryBroker()
    runs: list[tuple[str, int]] = []

    def work(key: str) -> str:
        runs.append((key, attempt()))
        if len(runs) % 3:
            raise ConnectionError("x")
        return key

    async def work_async(key: str) -> str:
        return work(key)

    async def main() -> None:
        await broker.startup()
        for number, fn in enumerate((work, work_async)):
            made = task(broker, retry(retries=3), task_name=f"task {number}")(fn)
            sent = await made.kiq("key")
            result = await sent.wait_result(timeout=20)
            assert result.return_value == "key"
        await broker.shutdown()

    asyncio.run(main())
    assert runs == [("key", 1), ("key", 2), ("key", 3)] * 2
