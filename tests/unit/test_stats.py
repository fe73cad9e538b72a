"""The figures that `guarded.stats` gives."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import pytest

import guarded
from guarded import (
    Cancelled,
    CancelToken,
    DeadlineExceeded,
    LimitFull,
    circuit,
    deadline,
    events,
    limit,
    rate,
    retry,
)
from guarded.events import tally as tally_module
from guarded.events.bus import bus
from guarded.events.model import INFO, Event
from guarded.events.tally import Stats, Tally
from guarded.policies.limit import Limit
from guarded.testing import capture, virtual_time


@pytest.fixture(autouse=True)
def _not_counting() -> Iterator[None]:
    """No test inherits or leaves behind a count."""
    tally_module.stop()
    yield
    tally_module.stop()


class Answer(Exception):
    """An answer of a server, as an exception."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Flaky:
    """Fails with the given statuses, one for each attempt, then works."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)

    def __call__(self) -> str:
        """One attempt."""
        if self.statuses:
            raise Answer(self.statuses.pop(0))
        return "page"


def test_the_seven_figures() -> None:
    """First attempts, retries, exhausted, times, 429s and rejections, over a mixed load."""
    again = retry(retries=2, base=1, factor=1, jitter="none")
    with virtual_time(), events.collecting() as tally:
        for statuses in ((), (), (429,), (503, 429)):
            assert again(Flaky(*statuses))() == "page"
        with pytest.raises(Answer):
            again(Flaky(500, 500, 500))()
        closed = limit(1, name="db")
        closed.close()
        with pytest.raises(LimitFull):
            closed(Flaky())()
        guarded.deadline("5s")(lambda: guarded.sleep(3))()
        stats = tally.stats()
    assert stats == Stats(
        seconds=8.0,
        calls=7,
        succeeded=5,
        failed=2,
        first_attempt=3 / 7,
        retries=5,
        mean_retries=5 / 7,
        max_retries=2,
        exhausted=1,
        queued=0.0,
        backing_off=5.0,
        running=3.0,
        too_many=2,
        rejections={"db": 1},
    )
    assert json.loads(json.dumps(stats.as_dict()))["too_many"] == 2


def test_time_queued_is_apart_from_time_running() -> None:
    """Waits for permits and for due times are queueing, whatever the layer."""

    @rate("1/2s", max_wait="10s")
    @limit(1)
    async def work() -> None:
        await guarded.asleep(3)

    async def main() -> None:
        await asyncio.gather(work(), work())

    with virtual_time(), events.collecting() as tally:
        asyncio.run(main())
    stats = tally.stats()
    # 2 s for the rate, 1 s for the limit
    assert (stats.queued, stats.running) == (pytest.approx(3.0), pytest.approx(6.0))


def _in_a_thread(mode: Literal["thread", "cooperative"]) -> Callable[[Limit], None]:
    def wait(full: Limit) -> None:
        with ThreadPoolExecutor(1) as pool, pytest.raises(DeadlineExceeded):
            pool.submit(deadline("2s", mode=mode)(full(_nothing))).result()

    return wait


def _under_a_token(full: Limit) -> None:
    def wait() -> None:
        with CancelToken.after("2s"):
            full.call(_nothing)

    with ThreadPoolExecutor(1) as pool, pytest.raises(Cancelled):
        pool.submit(wait).result()


def _in_a_task_under_a_deadline(full: Limit) -> None:
    with pytest.raises(DeadlineExceeded):
        asyncio.run(deadline("2s")(full(_nothing_async))())


def _in_a_task_under_a_token(full: Limit) -> None:
    async def wait() -> None:
        with CancelToken.after("2s"):
            await full.call(_nothing_async)

    with pytest.raises(Cancelled):
        asyncio.run(wait())


def _in_a_task_that_is_cancelled(full: Limit) -> None:
    async def main() -> None:
        task = asyncio.create_task(full.call(_nothing_async))
        await guarded.asleep(2)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(main())


def _nothing() -> None: ...


async def _nothing_async() -> None: ...


@pytest.mark.parametrize(
    ("wait", "reason"),
    [
        (_in_a_thread("cooperative"), "deadline"),
        (_in_a_thread("thread"), "deadline"),
        (_under_a_token, "cancelled"),
        (_in_a_task_under_a_deadline, "deadline"),
        (_in_a_task_under_a_token, "cancelled"),
        (_in_a_task_that_is_cancelled, "cancelled"),
    ],
)
def test_a_wait_that_is_cut_off_is_told_and_counted(wait: Callable[[Limit], None], reason: str) -> None:
    """Time in a queue is time queued, also of those that never get in: in threads and in tasks alike.

    Who left the queue was not refused.
    """
    full = limit(1)
    told: list[Event] = []
    with full.acquire(), virtual_time(), events.subscribe(told.append, "TRACE"), events.collecting() as tally:
        wait(full)
        for _ in range(500):  # a worker that a deadline has left says so in its own time
            if any(event.name == "limit.rejected" for event in told):
                break
            time.sleep(0.01)
    found = [(event.reason, event.cancelled, event.wait) for event in told if event.name == "limit.rejected"]
    assert found == [(reason, True if reason == "cancelled" else None, pytest.approx(2.0, abs=0.01))]
    assert (tally.stats().queued, tally.stats().running) == (pytest.approx(2.0, abs=0.01), pytest.approx(0.0, abs=0.01))
    assert tally.stats().rejections.get(full.label, 0) == (1 if reason == "deadline" else 0)


def test_retries_are_seen_through_a_worker_thread() -> None:
    """A total deadline runs the rest of a plain function in a worker; its attempts count all the same."""
    with events.collecting() as tally:
        assert deadline("10s")(retry(retries=3, base=0, jitter="none")(Flaky(503, 503)))() == "page"
    stats = tally.stats()
    assert (stats.first_attempt, stats.max_retries, stats.mean_retries) == (0.0, 2, 2.0)


def test_a_status_is_counted_once() -> None:
    """Not again by each guarded call that the error passes, with and without retries further in or out."""
    inner = circuit("inner")(Flaky(429, 429, 429, 429))
    with events.collecting() as tally:
        with pytest.raises(Answer):
            limit(5)(lambda: inner())()
        assert tally.stats().too_many == 1
        with pytest.raises(Answer):
            retry(retries=0)(lambda: inner())()
        assert tally.stats().too_many == 2
        with pytest.raises(Answer):
            limit(5)(lambda: retry(retries=0)(inner)())()
        assert tally.stats().too_many == 3
    assert tally.stats().too_many == 3


def test_nothing_is_counted_until_somebody_asks() -> None:
    """Until then the success path has no event to make."""
    with events.subscribe(print, "WARNING"):
        before = bus.threshold
        assert before >= INFO
        assert guarded.stats().calls == 0
        assert bus.threshold < INFO
        limit(1)(Flaky())()
        assert guarded.stats().calls == 1
        tally_module.stop()
        assert bus.threshold == before
    assert guarded.stats().calls == 0


def test_no_call_gives_no_share() -> None:
    """A share of nothing is None, not 0 or 1."""
    stats = Tally().stats()
    assert (stats.calls, stats.first_attempt, stats.mean_retries, stats.max_retries) == (0, None, None, 0)


def test_a_cancelled_call_is_neither_success_nor_failure() -> None:
    """It counts as a call."""

    @limit(1)
    async def hang() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(hang())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    with events.collecting() as tally:
        asyncio.run(main())
    stats = tally.stats()
    assert (stats.calls, stats.succeeded, stats.failed, stats.first_attempt) == (1, 0, 0, 0.0)


def test_a_token_cancels_like_a_task() -> None:
    """What a token ends is no failure either, in a thread and in a task."""
    token = CancelToken()
    token.cancel("enough")

    async def main() -> None:
        with token, pytest.raises(Cancelled):
            await limit(1).call(_nothing_async)

    with events.collecting() as tally, capture("DEBUG") as told:
        with token, pytest.raises(Cancelled):
            limit(1).call(guarded.checkpoint)
        asyncio.run(main())
    ends = [(event.outcome, event.cancelled) for event in told if event.name == "call.failed"]
    assert ends == [("neutral", True), ("neutral", True)]
    stats = tally.stats()
    assert (stats.calls, stats.succeeded, stats.failed) == (2, 0, 0)


def test_threads_lose_nothing() -> None:
    """Eight threads at once, and the sum is right."""
    work = limit(8)(Flaky())
    with events.collecting() as tally:
        threads = [threading.Thread(target=lambda: [work() for _ in range(500)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert tally.stats().succeeded == 4000


def test_an_event_in_the_middle_of_adding_up_does_not_hang() -> None:
    """As when a finalizer emits while the lock is held: it is added up later."""
    tally = Tally()
    with events.subscribe(tally, "TRACE"):
        with tally._lock:
            limit(1)(Flaky())()
        assert tally.stats().calls == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_counts_for_itself() -> None:
    """From zero, also when another thread was adding up at that moment."""
    work = limit(1)(Flaky())
    guarded.stats()
    work()
    tally = tally_module._process.tally()
    with tally._lock, tally_module._process._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            work()
            os._exit(0 if guarded.stats().calls == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert guarded.stats().calls == 1
