"""Guarded functions in deliveries by a queue: what ends one, what leads to another, and what is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guarded import (
    Done,
    RateExceeded,
    RetryBudget,
    StoreError,
    attempt,
    circuit,
    deadline,
    fallback,
    guard,
    idempotent,
    limit,
    rate,
    registry,
    retry,
    sleep,
)
from guarded._core import clock
from guarded.errors import DeadlineExceeded
from guarded.integrations._queue.task import Progress, Redelivery, Task, is_plain_call
from guarded.stores import open_store
from guarded.testing import capture, virtual_time


def delivered(fn: Callable[..., Any], *parts: Any, most: int = 9, **options: Any) -> tuple[list[Any], Any]:
    """The delays before each further delivery, and what the last one ended with, after `most` of them at most."""
    task, progress, delays = Task(fn, parts, options.pop("max_rejections", None)), Progress(), []
    for _ in range(most):
        try:
            return delays, task.deliver(Progress.read(progress.header()), ("key",), {})
        except Redelivery as again:
            delays.append(round(again.delay, 3))
            progress = again.progress
        except Exception as error:
            return delays, error
    return delays, None


def failing(times: int, error: Exception, runs: list[int], *, asynchronous: bool = False) -> Callable[..., Any]:
    """A function that fails so often, then returns what it was called with."""

    def work(key: str) -> str:
        runs.append(attempt())
        if len(runs) <= times:
            raise error
        return key

    async def work_async(key: str) -> str:
        await asyncio.sleep(0)
        return work(key)

    return work_async if asynchronous else work


@pytest.mark.parametrize("asynchronous", [False, True])
def test_each_delivery_is_one_attempt(asynchronous: bool) -> None:
    """The delays are those of the retry; nothing sleeps; attempts count over deliveries."""
    runs: list[int] = []
    work = failing(2, ConnectionError("x"), runs, asynchronous=asynchronous)
    with virtual_time(), capture() as events:
        before = clock.monotonic()
        assert delivered(work, retry(retries=3, base=10, max_delay=60, jitter="none")) == ([10, 20], "key")
        assert clock.monotonic() == before
    assert runs == [1, 2, 3]
    assert [event.name for event in events if event.layer == "retry"] == [
        "retry.scheduled",
        "retry.scheduled",
        "retry.recovered",
    ]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_last_error_ends_the_task_as_itself(asynchronous: bool) -> None:
    """Exhausted, or not worth a retry."""
    for error, expected in ((ConnectionError("x"), [1, 2]), (ValueError("x"), [1])):
        runs: list[int] = []
        delays, end = delivered(failing(9, error, runs, asynchronous=asynchronous), retry(retries=1, base=1))
        assert end is error
        assert runs == expected
        assert len(delays) == len(expected) - 1
        assert error.__context__ is None


@pytest.mark.parametrize("asynchronous", [False, True])
def test_layers_around_take_a_redelivery_for_nothing(asynchronous: bool) -> None:
    """The slot is free, the key is released, no failure is counted, no fallback used."""
    runs: list[int] = []
    slots, breaker = limit(1, max_wait=0), circuit("gateway", failures=1)
    parts = fallback("instead", on=Exception), idempotent("key"), deadline(5), slots, breaker, retry(retries=5, base=1)
    delays, end = delivered(failing(2, ConnectionError("x"), runs, asynchronous=asynchronous), *parts)
    assert (len(delays), end) == (2, "key")
    assert runs == [1, 2, 3]
    assert slots.snapshot().held == 0
    assert breaker.snapshot().state == "closed"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_rejection_comes_again_when_it_says_and_is_no_attempt(asynchronous: bool) -> None:
    """Outside of the retry or inside it, since nothing was tried."""
    for outside in (True, False):
        runs: list[int] = []
        slow, again = rate("1/m", max_wait=0), retry(retries=1, base=1)
        parts = (slow, again) if outside else (again, slow)
        with virtual_time() as time:
            task = Task(failing(0, ValueError(), runs, asynchronous=asynchronous), parts, None)
            assert task.deliver(Progress(), ("key",), {}) == "key"
            with pytest.raises(Redelivery) as again_later:
                task.deliver(Progress(), ("key",), {})
            assert again_later.value.delay == pytest.approx(60)
            assert again_later.value.progress == Progress(attempts=0, rejections=1)
            assert isinstance(again_later.value.reason, RateExceeded)
            time.advance(again_later.value.delay)
            assert task.deliver(again_later.value.progress, ("key",), {}) == "key"
        assert runs == [1, 1]


def test_rejections_that_know_no_time_wait_longer_and_longer() -> None:
    """From about a second to about a minute; a bound on their number ends the task with the last of them."""
    full = limit(1, max_wait=0)
    with full:
        delays, end = delivered(lambda key: key, full, most=12)
        assert end is None
        assert all(0.5 * min(60, 2**number) <= delay <= min(60, 2**number) for number, delay in enumerate(delays))
        delays, end = delivered(lambda key: key, full, max_rejections=2)
        assert len(delays) == 2
        assert type(end).__name__ == "LimitFull"


def test_a_rejection_inside_the_function_is_an_error_of_it() -> None:
    """The function has begun: only a retry may run it again."""
    inner = rate("1/h", max_wait=0)
    runs: list[int] = []

    def work(key: str) -> None:
        runs.append(attempt())
        inner.acquire()
        inner.acquire()

    delays, end = delivered(work)
    assert delays == []
    assert isinstance(end, RateExceeded)
    assert len(delivered(work, retry(retries=2, max_retry_after="2h"))[0]) == 2
    assert runs == [1, 1, 2, 3]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_refused_result_comes_again_and_the_last_one_stays(asynchronous: bool) -> None:
    """As in a loop."""
    seen = iter([None, None, None])

    def work(key: str) -> None:
        return next(seen)

    async def work_async(key: str) -> None:
        return work(key)

    asks = retry(retries=2, base=1, on_result=lambda result: result is None)
    assert delivered(work_async if asynchronous else work, asks) == (
        [pytest.approx(0.5, abs=0.5), pytest.approx(1, abs=1)],
        None,
    )


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_hook_looks_at_the_world_before_a_further_attempt(asynchronous: bool) -> None:
    """It has no error any more, which stayed in its own delivery; a Done ends the task as a success."""
    asked: list[tuple[Any, int]] = []
    runs: list[int] = []

    def look(error: Any, number: int) -> Any:
        asked.append((error, number))
        return Done("it did get through") if number == 2 else None

    async def look_async(error: Any, number: int) -> Any:
        return look(error, number)

    work = failing(9, ConnectionError("x"), runs, asynchronous=asynchronous)
    again = retry(retries=5, base=1, before_retry=look_async if asynchronous else look)
    assert delivered(work, again)[1] == "it did get through"
    assert asked == [(None, 1), (None, 2)]
    assert runs == [1, 2]


def test_a_budget_is_charged_for_each_redelivery() -> None:
    """And its end ends the task."""
    budget = RetryBudget(ratio=0.1, min_per_second=0.1)
    error = ConnectionError("x")
    delays, end = delivered(failing(99, error, []), retry(retries=50, base=1, budget=budget), most=60)
    assert end is error
    assert len(delays) < 50


def test_a_deadline_counts_for_each_delivery_anew() -> None:
    """A delay may be longer; a delivery that has used its time up is not repeated."""
    runs: list[int] = []
    with virtual_time():
        work = failing(1, ConnectionError("x"), runs)
        assert delivered(work, deadline(5), retry(retries=1, base=60, max_delay=60, jitter="none")) == ([60], "key")

        def slow(key: str) -> None:
            sleep(10)

        delays, end = delivered(slow, deadline(5, mode="cooperative"), retry(retries=3, base=1))
        assert delays == []
        assert isinstance(end, DeadlineExceeded)


def test_policies_are_found_by_name_when_a_task_comes() -> None:
    """They may be defined after it, and changed."""
    runs: list[int] = []
    task = Task(failing(9, ConnectionError("x"), runs), ("outbound",), None)
    guard(retry(retries=1, base=7, max_delay=7, jitter="none"), name="outbound")
    with pytest.raises(Redelivery) as first:
        task.deliver(Progress(), ("key",), {})
    assert first.value.delay == 7
    registry.replace({"outbound": guard(retry(retries=0))})
    with pytest.raises(ConnectionError):
        task.deliver(Progress(), ("key",), {})


def test_a_task_called_from_a_task_is_a_plain_call() -> None:
    """Its own retries sleep in their caller, as ever."""
    runs: list[int] = []
    inner = Task(failing(1, ConnectionError("x"), runs), (retry(retries=1, base=1),), None)
    seen = []

    def outer(key: str) -> Any:
        seen.append(is_plain_call())
        return inner.plain(key)

    with virtual_time():
        assert delivered(outer, retry(retries=1)) == ([], "key")
    assert runs == [1, 2]
    assert seen == [True]
    assert not is_plain_call()


def test_what_cannot_be_a_task_is_refused_at_once() -> None:
    """Generators, and bounds that are none."""

    def stream(key: str) -> Any:
        yield key

    with pytest.raises(TypeError, match="is a generator, which no queue can run"):
        Task(stream, (), None)
    for wrong in (-1, 1.5, True):
        with pytest.raises(ValueError, match="max_rejections"):
            Task(len, (), wrong)  # type: ignore[arg-type]


def test_progress_reads_what_it_has_written_and_nothing_else() -> None:
    """A message without a header is a new one."""
    assert Progress.read(Progress(3, 4).header()) == Progress(3, 4)
    assert Progress.read(None) == Progress.read({}) == Progress(0, 0)


def test_errors_of_policies_end_the_task() -> None:
    """They are no rejections: nobody knows when it would be better."""
    error = StoreError("gone")
    assert delivered(failing(9, error, []))[1] is error


@pytest.mark.real_clock
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_durable_key_is_free_for_the_next_delivery_at_once(asynchronous: bool, tmp_path: Path) -> None:
    """Another worker need not wait for a lease to end."""
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    runs: list[int] = []
    once = idempotent("key", store=store, on_duplicate="reject")
    work = failing(2, ConnectionError("x"), runs, asynchronous=asynchronous)
    assert delivered(work, once, retry(retries=3, base=1))[1] == "key"
    assert runs == [1, 2, 3]
    store.close()
