"""rate: waiting for the due time, reservations, pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import freezegun
import pytest

from guarded import CancelToken, RateExceeded, deadline, rate
from guarded._core import clock
from guarded.errors import Cancelled, DeadlineExceeded, Deadlock
from guarded.http import parse_retry_after
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


def run_sync(limited: Rate, times: int) -> list[float]:
    """Start times of plain calls, one after the other."""
    starts: list[float] = []

    @limited
    def call() -> None:
        starts.append(clock.monotonic())

    for _ in range(times):
        call()
    return starts


def run_async(limited: Rate, times: int) -> list[float]:
    """Start times of coroutine calls, all at once."""
    starts: list[float] = []

    @limited
    async def call() -> None:
        starts.append(clock.monotonic())

    async def main() -> None:
        await asyncio.gather(*(call() for _ in range(times)))

    asyncio.run(main())
    return starts


@pytest.mark.parametrize("run", [run_sync, run_async])
@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("sliding", [0, 0, 1, 1, 2]),
        ("gcra", [0, 0, 0.5, 1, 1.5]),
        ("leaky", [0, 0.5, 1, 1.5, 2]),
    ],
)
def test_waiting_is_exact(
    run: Callable[[Rate, int], list[float]], algorithm: Any, expected: list[float], time: VirtualTime
) -> None:
    """Callers sleep to their own due time, in threads and tasks alike."""
    start = clock.monotonic()
    assert run(rate("2/s", algorithm=algorithm), 5) == pytest.approx([start + each for each in expected])


@pytest.mark.parametrize("run", [run_sync, run_async])
def test_fixed_waits_for_the_boundary(run: Callable[[Rate, int], list[float]], time: VirtualTime) -> None:
    """Who waits for an aligned window starts when it opens, never sooner."""
    starts = [int((each + time.wall() - time.monotonic()) // 10) for each in run(rate("2/10s", algorithm="fixed"), 6)]
    assert [starts.count(window) for window in sorted(set(starts))] == [2, 2, 2]


def test_five_thousand_tasks_are_served_in_order(time: VirtualTime) -> None:
    """A long queue is served in order of arrival, each at the time it was promised."""
    limited, order = rate("1000/s"), []

    async def call(number: int) -> None:
        async with limited:
            order.append((number, round(clock.monotonic() - start)))

    async def main() -> None:
        await asyncio.gather(*(call(number) for number in range(5_000)))

    start = clock.monotonic()
    asyncio.run(main())
    assert order == [(number, number // 1000) for number in range(5_000)]


def test_a_sync_wait_on_a_loop_thread_raises(time: VirtualTime) -> None:
    """Waiting there would freeze the loop: Deadlock, nothing is counted, and what needs no wait goes on."""
    limited = rate("1/s")

    @limited
    def call() -> int:
        return 1

    async def main() -> None:
        assert call() == 1
        with pytest.raises(Deadlock, match="event loop"):
            call()

    asyncio.run(main())
    assert limited.peek().queued == 0
    assert limited.peek().delay == pytest.approx(1.0)


def test_a_cancelled_task_gives_its_place_back(time: VirtualTime) -> None:
    """The one behind a cancelled waiter takes its due time; the cancellation stays a CancelledError."""
    limited, start = rate("1/s"), clock.monotonic()
    starts: list[tuple[str, float]] = []

    async def call(name: str) -> None:
        async with limited:
            starts.append((name, clock.monotonic() - start))

    async def main() -> None:
        tasks = [asyncio.ensure_future(call(name)) for name in "abcd"]
        await asyncio.sleep(0)
        tasks[1].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[1], asyncio.CancelledError)

    asyncio.run(main())
    assert starts == [("a", 0), ("c", pytest.approx(1)), ("d", pytest.approx(2))]


def test_a_token_ends_the_wait(time: VirtualTime) -> None:
    """A fired token ends the wait with Cancelled and frees the place."""
    limited = rate("1/m")
    limited.acquire()
    with CancelToken.after("10s"), pytest.raises(Cancelled, match="waiting for rate"):
        limited.acquire()
    assert limited.peek().queued == 0
    assert limited.peek().delay == pytest.approx(50)


def test_deadline_during_a_wait_that_grew(time: VirtualTime) -> None:
    """When a pause moves the due time past the deadline, the wait ends in a refusal, not after the deadline."""
    limited = rate("1/s")

    async def main() -> None:
        await limited.acquire_async()

        @deadline(5)
        @limited
        async def call() -> None: ...

        task = asyncio.ensure_future(call())
        await asyncio.sleep(0)
        limited.pause(60)
        with pytest.raises((RateExceeded, DeadlineExceeded)) as caught:
            await task
        assert isinstance(caught.value, RateExceeded)
        assert caught.value.retry_after == pytest.approx(59)

    asyncio.run(main())


def test_freezegun_moves_it() -> None:
    """Under `freeze_time` a tick of exactly `retry_after` is enough, for every algorithm."""
    for algorithm in ALGORITHMS:
        with freezegun.freeze_time("2026-05-01 12:00:00.123456") as frozen:
            limited = rate("3/s; 100/m", algorithm=algorithm, max_wait=0)  # type: ignore[arg-type]
            admitted(limited)
            for _ in range(5):
                with pytest.raises(RateExceeded) as caught:
                    limited.acquire()
                frozen.tick(timedelta(seconds=caught.value.retry_after or 0))
                assert admitted(limited) >= 1


def test_module_level_rate_survives_frozen_time() -> None:
    """State from before, inside and after frozen time never blocks for longer than its window."""
    limited = rate("1/s", max_wait=0)
    assert limited.try_acquire()
    with freezegun.freeze_time(datetime(2030, 1, 1, tzinfo=UTC)):
        assert limited.try_acquire()
        assert not limited.try_acquire()
    assert limited.peek().delay <= 1.0


@pytest.mark.real_clock
def test_real_waits_keep_every_window() -> None:
    """With a real clock and late wake-ups, calls as they really start stay within the quota of every window."""
    limited, starts = rate("5/50ms"), []

    async def call() -> None:
        async with limited:
            starts.append(clock.monotonic_ns())

    async def main() -> None:
        await asyncio.gather(*(call() for _ in range(25)))

    asyncio.run(main())
    for earlier, later in zip(starts, starts[5:], strict=False):
        assert later - earlier >= 40_000_000  # it may be held up between its admission and its own look at the clock


def test_many_loops_one_after_the_other(time: VirtualTime) -> None:
    """A module-level rate goes through several `asyncio.run` calls and counts across them."""
    limited, start = rate("2/s"), clock.monotonic()
    assert run_async(limited, 3) + run_async(limited, 2) == pytest.approx(
        [start, start, start + 1, start + 1, start + 2]
    )


def test_reservations_queue_and_move_up(still: VirtualTime) -> None:
    """A reservation tells its delay and due time, and moves up when one before it is cancelled."""
    limited = rate("1/s")
    first, second, third = limited.reserve(), limited.reserve(), limited.reserve()
    assert (first.delay, second.delay, third.delay) == (0.0, pytest.approx(1), pytest.approx(2))
    assert third.due == pytest.approx(clock.monotonic() + 2)
    second.cancel()
    second.cancel()
    assert third.delay == pytest.approx(1)
    still.advance(1)
    assert third.delay == 0.0
    assert not limited.try_acquire()


def test_a_reservation_that_is_due_counts_as_used(still: VirtualTime) -> None:
    """Nobody has to come back for it: from its due time on it is an admission like any other."""
    limited = rate("1/s")
    limited.acquire()
    limited.reserve()
    still.advance(1.5)
    assert limited.peek().delay == pytest.approx(0.5)


def test_reserving_too_late_is_refused(still: VirtualTime) -> None:
    """`timeout` bounds the delay of a reservation."""
    limited = rate("1/s")
    limited.acquire()
    with pytest.raises(RateExceeded):
        limited.reserve(timeout=0.5)
    assert limited.reserve(timeout=1).delay == pytest.approx(1)


def test_pause_stops_everybody(time: VirtualTime) -> None:
    """Newcomers, waiters and every key wait for the end of a pause; a shorter one does not end it."""
    limited, start = rate("2/s", key="key"), clock.monotonic()
    starts: dict[str, float] = {}

    async def call(key: str) -> None:
        await limited.acquire_async(key=key)
        starts[key] = clock.monotonic() - start

    async def main() -> None:
        for key in ("a", "a"):
            await limited.acquire_async(key=key)
        waiting = asyncio.ensure_future(call("a"))
        await asyncio.sleep(0)
        limited.pause("10s")
        limited.pause(3)
        assert not limited.try_acquire(key="b")
        await asyncio.gather(waiting, call("b"))

    asyncio.run(main())
    assert starts == {"a": pytest.approx(10), "b": pytest.approx(10)}
    with pytest.raises(ValueError, match="seconds=-1"):
        limited.pause(-1)


@pytest.mark.parametrize("answer", ["0", 0, "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_a_server_that_asks_for_no_pause_gets_none(answer: object) -> None:
    """`Retry-After: 0`, and a date that has passed, are answers that servers give: nothing happens or raises."""
    limited = rate("1/h", max_wait=0)
    with capture("TRACE") as events:
        limited.pause(parse_retry_after(answer) or 0)
    assert limited.snapshot().paused == 0
    assert limited.try_acquire()
    assert not events


def test_a_refusal_in_a_pause_says_so(time: VirtualTime) -> None:
    """The quota is not what refuses, as long as the pause lasts."""
    limited = rate("1/h", max_wait=0, name="partner")
    limited.pause(5)
    with pytest.raises(RateExceeded, match=r"rate 'partner' of 1/1h \(sliding\) is paused: admitted again in 5s"):
        limited.acquire()
    time.advance(5)
    limited.acquire()
    with pytest.raises(RateExceeded, match="is used up: admitted again in 1h"):
        limited.acquire()


def test_pause_refuses_those_who_cannot_wait_so_long(time: VirtualTime) -> None:
    """A pause beyond `max_wait` refuses newcomers at once, with the time that is left of it."""
    limited = rate("2/s", max_wait=5)
    limited.pause(30)
    with pytest.raises(RateExceeded) as caught:
        limited.acquire()
    assert caught.value.retry_after == pytest.approx(30)


@pytest.mark.parametrize("algorithm", ["sliding", "gcra"])
def test_a_waiter_that_is_thrown_away_in_the_middle_of_a_decision(
    algorithm: Any, still: VirtualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a finalizer, in the thread that decides: it leaves the queue when the decision is made."""
    limited = rate("1/s", algorithm=algorithm)
    assert limited.try_acquire()
    waiting = [limited.acquire_async()]

    async def begin() -> None:
        waiting[0].send(None)

    asyncio.run(begin())
    assert limited.peek().queued == 1
    now = clock.monotonic_ns

    def interrupted() -> int:
        if waiting:
            waiting.pop().close()
        return now()

    monkeypatch.setattr(clock, "monotonic_ns", interrupted)
    assert not limited.try_acquire()
    assert not limited.lines._single.queue


def test_a_refund_passes_over_a_loop_that_has_been_closed(still: VirtualTime) -> None:
    """Its task cannot be woken; the next one is, and has the unit."""
    limited, served = rate("1/m"), []
    admission = limited.acquire()
    waiting = limited.acquire_async()

    async def begin() -> None:
        waiting.send(None)

    async def main() -> None:
        async def call() -> None:
            async with limited:
                served.append(clock.monotonic())

        task = asyncio.ensure_future(call())
        await asyncio.sleep(0)
        admission.refund()
        await task

    asyncio.run(begin())
    began = clock.monotonic()
    asyncio.run(main())
    assert served == [began]
    waiting.close()
    assert limited.peek().queued == 0
