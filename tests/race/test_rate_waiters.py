"""rate under threads, several loops, cancellation at every moment, and loops that die."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from guarded import CancelToken, RateExceeded, rate
from guarded._core import clock
from guarded.errors import Cancelled
from guarded.policies._rate import lines
from guarded.policies.rate import Rate
from guarded.testing import VirtualTime, virtual_time

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


@pytest.fixture
def tiny_switch_interval() -> Iterator[None]:
    """Let threads interleave as finely as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def until(condition: Callable[[], bool]) -> None:
    """Wait, in real time, for other threads to get there."""
    for _ in range(5_000):
        if condition():
            return
        clock.pause(0.001)
    raise AssertionError("the other threads did not get there")


def queued(limited: Rate) -> int:
    """How many wait."""
    return limited.peek().queued


def start(target: Callable[..., Any], *args: Any) -> threading.Thread:
    """A running daemon thread."""
    thread = threading.Thread(target=target, args=args, daemon=True)
    thread.start()
    return thread


@pytest.mark.usefixtures("tiny_switch_interval")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_threads_never_get_more_than_the_quota(algorithm: Any, still: VirtualTime) -> None:
    """Eight threads hammering at one moment get exactly the quota between them."""
    quota = 1 if algorithm == "leaky" else 500
    limited, granted = rate("500/h", algorithm=algorithm), []

    def hammer() -> None:
        granted.append(sum(limited.try_acquire() for _ in range(400)))

    threads = [start(hammer) for _ in range(8)]
    for thread in threads:
        thread.join()
    assert sum(granted) == quota


def test_threads_and_two_loops_are_served_in_order_of_arrival(still: VirtualTime) -> None:
    """Four threads and two loops in one queue: order of arrival, each at its own due time, none before."""
    limited, served = rate("1/s"), []
    limited.acquire()
    loops = [asyncio.new_event_loop() for _ in range(2)]
    runners = [start(loop.run_forever) for loop in loops]

    def in_thread(number: int) -> None:
        limited.acquire()
        served.append((number, clock.monotonic()))

    async def in_task(number: int) -> None:
        await limited.acquire_async()
        served.append((number, clock.monotonic()))

    began, futures, threads = clock.monotonic(), [], []
    for number in range(12):
        if number % 3 == 0:
            threads.append(start(in_thread, number))
        else:
            futures.append(asyncio.run_coroutine_threadsafe(in_task(number), loops[number % 3 - 1]))
        until(lambda number=number: queued(limited) == number + 1)  # type: ignore[misc]
    for number in range(12):
        still.advance(1.0)
        until(lambda number=number: len(served) == number + 1)  # type: ignore[misc]
    assert served == [(number, pytest.approx(began + number + 1)) for number in range(12)]
    for thread in threads:
        thread.join()
    for loop, runner in zip(loops, runners, strict=True):
        loop.call_soon_threadsafe(loop.stop)
        runner.join()
        loop.close()


def test_a_cancelled_waiter_moves_all_later_ones_up(time: VirtualTime) -> None:
    """Whichever of six waiters is cancelled, those behind it start one second earlier, those before it as before."""
    for gone in range(6):
        limited, starts, begun = rate("1/s"), {}, clock.monotonic()

        async def call(number: int, limited: Rate = limited, starts: Any = starts, begun: float = begun) -> None:
            await limited.acquire_async()
            starts[number] = round(clock.monotonic() - begun, 6)

        async def main(limited: Rate = limited, gone: int = gone) -> None:
            await limited.acquire_async()
            tasks = [asyncio.ensure_future(call(number)) for number in range(6)]
            await asyncio.sleep(0)
            tasks[gone].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run(main())
        assert starts == {number: number + (number < gone) for number in range(6) if number != gone}


def test_only_those_who_move_are_woken(time: VirtualTime, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue of 500 with a tenth of it cancelled: nobody is woken more than twice, and all in all about once each."""
    resumed: list[object] = []
    resume = lines.Lines.resume

    def counting(self: Any, ticket: Any, woken: bool) -> Any:
        resumed.append(ticket)
        return resume(self, ticket, woken)

    monkeypatch.setattr(lines.Lines, "resume", counting)
    limited = rate("10/s")

    async def main() -> None:
        tasks = [asyncio.ensure_future(limited.acquire_async()) for _ in range(510)]
        await asyncio.sleep(0)
        for task in tasks[15:510:10]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    assert max(resumed.count(ticket) for ticket in set(resumed)) <= 2
    assert len(resumed) <= 500


@pytest.mark.real_clock
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_rate_faster_than_the_clock_wakes_nobody_in_vain(algorithm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows far below what a timer can do: up for its own time, when it comes first, and when it is due."""
    resumed: list[object] = []
    resume = lines.Lines.resume

    def counting(self: Any, ticket: Any, woken: bool) -> Any:
        resumed.append(ticket)
        return resume(self, ticket, woken)

    monkeypatch.setattr(lines.Lines, "resume", counting)
    limited, order = rate(1, per=20e-6, algorithm=algorithm), []

    async def call(number: int) -> None:
        await limited.acquire_async()
        order.append(number)

    async def main() -> None:
        await asyncio.gather(*(call(number) for number in range(150)))

    asyncio.run(main())
    assert order == list(range(150))
    assert len(resumed) <= 5 * 150


def test_ten_thousand_cancellations_at_once_are_cheap(still: VirtualTime) -> None:
    """A loop that shuts down with a long queue does not recompute it for every waiter."""
    limited = rate("1/s")
    planned: list[int] = []
    line = limited.lines._single

    async def main() -> None:
        await limited.acquire_async()
        tasks = [asyncio.ensure_future(limited.acquire_async()) for _ in range(10_000)]
        await asyncio.sleep(0)
        earliest = type(line.meter).earliest
        try:
            type(line.meter).earliest = lambda self, now, cost: planned.append(1) or earliest(self, now, cost)  # type: ignore[method-assign,func-returns-value]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            type(line.meter).earliest = earliest  # type: ignore[method-assign]

    asyncio.run(main())
    assert queued(limited) == 0
    assert len(planned) <= 60_000


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("seed", range(8))
def test_random_cancellations_lose_nothing(algorithm: Any, seed: int, time: VirtualTime) -> None:
    """Seeded tasks with costs, cancelled at random moments: all others are served in order, and nobody stays queued."""
    chance = random.Random(f"{algorithm} {seed}")
    limited, starts = rate("7/s; 60/m", algorithm=algorithm), {}

    async def call(number: int) -> None:
        await limited.acquire_async(chance.randint(1, 3))
        starts[number] = clock.monotonic()

    async def main() -> None:
        tasks = []
        for number in range(60):
            tasks.append(asyncio.ensure_future(call(number)))
            if chance.random() < 0.3:
                await asyncio.sleep(0)
            if chance.random() < 0.3:
                tasks[chance.randrange(len(tasks))].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        cancelled = {number for number, result in enumerate(results) if result is not None}
        assert all(isinstance(result, asyncio.CancelledError) for result in results if result is not None)
        assert set(starts) == set(range(60)) - cancelled

    asyncio.run(main())
    assert [starts[number] for number in sorted(starts)] == sorted(starts.values())
    assert queued(limited) == 0
    assert limited.lines._single.users == 0


def test_the_aligned_windows_of_one_rate_end_together(time: VirtualTime) -> None:
    """A second's window ends exactly where the minute's does, however coarse the wall clock reads.

    Else a waiter could be booked into the nanosecond between them, resume in the next window, and find it taken.
    """
    limited = rate("7/s; 60/m", algorithm="fixed")
    for _ in range(500):
        assert limited.try_acquire()
        lines = limited.lines
        ends = [end for end, _ in lines._single.meter.state(lines._now())]
        assert (ends[1] - ends[0]) % 1_000_000_000 == 0
        time.advance(33.000000007)


@pytest.mark.parametrize("steps", range(1, 8))
def test_cancel_at_every_await(steps: int, time: VirtualTime) -> None:
    """However many loop rounds after its start a task is cancelled, the budget comes out even."""
    limited = rate("1/s")

    async def main() -> None:
        first = asyncio.ensure_future(limited.acquire_async())
        victim = asyncio.ensure_future(limited.acquire_async())
        last = asyncio.ensure_future(limited.acquire_async())
        for _ in range(steps):
            await asyncio.sleep(0)
        victim.cancel()
        results = await asyncio.gather(first, victim, last, return_exceptions=True)
        assert not isinstance(results[0], BaseException)
        assert not isinstance(results[2], BaseException)

    begun = clock.monotonic()
    asyncio.run(main())
    assert queued(limited) == 0
    assert clock.monotonic() - begun <= 2.001


def test_due_and_cancelled_in_the_same_moment(still: VirtualTime) -> None:
    """A waiter cancelled after its due time has come, before it resumes, hands its place on; both orders."""
    for cancel_first in (True, False):
        limited, served = rate("1/s"), []

        async def call(name: str, limited: Rate = limited, served: list[str] = served) -> None:
            await limited.acquire_async()
            served.append(name)

        async def main(limited: Rate = limited, served: list[str] = served, cancel_first: bool = cancel_first) -> None:
            await limited.acquire_async()
            one, two = (asyncio.ensure_future(call(name)) for name in ("one", "two"))
            await asyncio.sleep(0)
            if cancel_first:
                one.cancel()
                still.advance(1.0)
            else:
                still.advance(1.0)
                limited.peek()  # books the place of `one`
                one.cancel()
            await asyncio.gather(one, return_exceptions=True)
            while not two.done():
                await asyncio.sleep(0)
            assert served == ["two"]

        asyncio.run(main())


def test_a_blocked_loop_does_not_burst(time: VirtualTime) -> None:
    """Tasks whose loop was blocked past many due times still start within the quota, in order."""
    limited, starts = rate("2/s"), []

    async def call() -> None:
        await limited.acquire_async()
        starts.append(clock.monotonic())

    async def main() -> None:
        tasks = [asyncio.ensure_future(call()) for _ in range(10)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        time.advance(10.0)
        await asyncio.gather(*tasks)

    asyncio.run(main())
    for earlier, later in zip(starts, starts[2:], strict=False):
        assert later - earlier >= 1.0 - 1e-9
    assert starts[-1] - starts[0] <= 14.0


def test_a_dead_loop_does_not_hold_up_the_others(still: VirtualTime) -> None:
    """A waiter on a loop that was closed without cancelling it is passed over, in both orders of noticing."""
    limited = rate("1/s")
    limited.acquire()
    loop = asyncio.new_event_loop()

    async def stranded() -> None:
        await limited.acquire_async()

    tasks = [loop.create_task(stranded()) for _ in range(3)]
    loop.run_until_complete(_round())
    assert queued(limited) == 3
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    served: list[float] = []
    thread = start(lambda: (limited.acquire(), served.append(clock.monotonic())))
    until(lambda: queued(limited) == 4)
    begun = clock.monotonic()
    for _ in range(4):
        still.advance(1.0)
        clock.pause(0.01)
    thread.join(5)
    assert served[0] - begun <= 4.0
    assert queued(limited) == 0
    assert limited.lines._single.users == 0


async def _round() -> None:
    await asyncio.sleep(0)


def test_a_token_fired_by_another_thread_moves_the_rest_up(still: VirtualTime) -> None:
    """A thread that gives up by its token leaves at once; the thread behind it takes its due time."""
    limited, token, ends = rate("1/s"), CancelToken(), []
    limited.acquire()

    def impatient() -> None:
        with token, pytest.raises(Cancelled):
            limited.acquire()
        ends.append("gone")

    first = start(impatient)
    until(lambda: queued(limited) == 1)
    second = start(lambda: (limited.acquire(), ends.append("served")))
    until(lambda: queued(limited) == 2)
    token.cancel("enough")
    first.join(5)
    until(lambda: queued(limited) == 1)
    still.advance(1.0)
    second.join(5)
    assert ends == ["gone", "served"]


@pytest.mark.usefixtures("tiny_switch_interval")
def test_threads_with_refunds_and_reservations_come_out_even(time: VirtualTime) -> None:
    """Threads that acquire, refund, reserve and cancel leave a rate that is as good as new afterwards."""
    limited = rate("20/s; 300/m", key="key")

    def work(number: int) -> None:
        chance = random.Random(number)
        for _ in range(40):
            key = str(chance.randrange(2))
            try:
                match chance.randrange(4):
                    case 0:
                        limited.acquire(chance.randint(1, 3), key=key, timeout=2).refund()
                    case 1:
                        limited.reserve(key=key).cancel()
                    case 2:
                        limited.try_acquire(key=key)
                    case _:
                        limited.acquire(key=key, timeout=1).settle(chance.randint(0, 2))
            except RateExceeded:
                pass

    threads = [start(work, number) for number in range(6)]
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for key in "01":
        assert limited.peek(key=key).queued == 0
        assert limited.lines._lines[key].users == 0
    time.advance(60)
    assert limited.peek(key="0").free == 20


@pytest.mark.real_clock
@pytest.mark.usefixtures("tiny_switch_interval")
def test_real_threads_keep_every_window() -> None:
    """With real threads and a real clock, what starts when it really starts stays within every window."""
    limited, starts = rate("10/100ms"), []

    def work() -> None:
        for _ in range(5):
            limited.acquire()
            starts.append(clock.monotonic_ns())

    threads = [start(work) for _ in range(8)]
    for thread in threads:
        thread.join(30)
    starts.sort()
    assert len(starts) == 40
    short = [later - earlier for earlier, later in zip(starts, starts[10:], strict=False)]
    assert min(short) >= 80_000_000  # a thread may be held up between its admission and its own look at the clock
