"""Virtual time: waits cost nothing, end in order, and time never runs ahead of somebody who works."""

from __future__ import annotations

import asyncio
import gc
import threading
import time as real
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta

import pytest

import guarded
from guarded import CircuitOpen, DeadlineExceeded, circuit, deadline, rate
from guarded._core import clock
from guarded._core.virtual import VirtualTime
from guarded.testing import virtual_time


def test_sync_sleeps_move_time_and_take_none() -> None:
    """A day passes at once."""
    started = real.perf_counter()
    with virtual_time() as time:
        before = time.monotonic()
        guarded.sleep("24h")
        assert time.monotonic() - before == 86400
    assert real.perf_counter() - started < 1


def test_async_sleeps_end_in_their_order() -> None:
    """Tasks wake at their own times, whatever order they were started in."""
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await guarded.asleep(seconds)
        woken.append((name, clock.monotonic() - started))

    async def main() -> None:
        await asyncio.gather(sleeper("c", 3), sleeper("a", 1), sleeper("b", 2))

    with virtual_time() as time:
        started = time.monotonic()
        asyncio.run(main())
    assert woken == [("a", 1.0), ("b", 2.0), ("c", 3.0)]


def test_threads_and_loops_share_one_time() -> None:
    """Waits of threads and of two loops end in one common order."""
    order: list[float] = []

    def thread(seconds: float) -> None:
        guarded.sleep(seconds)
        order.append(seconds)

    async def tasks(first: float) -> None:
        async def one(seconds: float) -> None:
            await guarded.asleep(seconds)
            order.append(seconds)

        await asyncio.gather(*(one(first + step) for step in (0, 10, 20)))

    with virtual_time(), ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(thread, seconds) for seconds in (5.0, 15.0)]
        jobs += [pool.submit(asyncio.run, tasks(first)) for first in (1.0, 8.0)]
        for job in jobs:
            job.result()
    assert sorted(order) == [1.0, 5.0, 8.0, 11.0, 15.0, 18.0, 21.0, 28.0]


def test_time_waits_for_a_thread_that_works() -> None:
    """A deadline does not fire while its worker thread computes, however long that takes."""

    @deadline(5)
    def computes() -> float:
        until = real.perf_counter() + 0.05
        while real.perf_counter() < until:
            pass
        return guarded.remaining()

    with virtual_time():
        assert computes() == 5.0


def test_manual_time_moves_only_by_advance() -> None:
    """With auto=False nothing ends until told; what is due ends in order, at its own time."""
    seen: list[tuple[str, float]] = []

    def sleeper(name: str, seconds: float) -> None:
        guarded.sleep(seconds)
        seen.append((name, time.monotonic()))

    with virtual_time(auto=False) as time:
        start = time.monotonic()
        threads = [threading.Thread(target=sleeper, args=item) for item in (("b", 2.0), ("a", 1.0))]
        for thread in threads:
            thread.start()
        while len(time._timers) < 2:
            real.sleep(0.001)
        assert time.monotonic() == start
        time.advance(0.5)
        assert seen == []
        time.advance(2)
        for thread in threads:
            thread.join()
        assert time.monotonic() == start + 2.5
    assert sorted(name for name, _ in seen) == ["a", "b"]


def test_time_is_moved_by_any_duration() -> None:
    """Written as everywhere; time never goes back."""
    with virtual_time(auto=False) as time:
        start = time.monotonic_ns()
        for step in ("1m", timedelta(seconds=30), 10, 0.5, 0):
            time.advance(step)
        assert time.monotonic_ns() - start == 100_500_000_000
        for wrong in (-1, "60", "-1s", float("nan"), float("inf")):
            with pytest.raises(ValueError, match="seconds="):
                time.advance(wrong)
        assert time.monotonic_ns() - start == 100_500_000_000


def test_a_near_timer_of_the_loop_itself_is_waited_for() -> None:
    """A body that sleeps for real, briefly, is not overtaken by its deadline."""

    @deadline(1)
    async def body() -> str:
        await asyncio.sleep(0.02)
        return "in time"

    with virtual_time():
        assert asyncio.run(body()) == "in time"


def test_it_nests_and_restores() -> None:
    """The clock from before is back after the block, also when it raises."""
    with virtual_time() as outer:
        with pytest.raises(KeyError), virtual_time() as inner:
            assert clock.installed() is inner
            raise KeyError
        assert clock.installed() is outer
    assert clock.installed() is None


def test_wall_clock_moves_along() -> None:
    """Wall time starts at the real one and moves with virtual time."""
    with virtual_time() as time:
        before = clock.wall()
        assert abs(before - real.time()) < 5
        time.advance(3600)
        assert clock.wall() - before == pytest.approx(3600)


def test_a_cancelled_timer_never_fires_late() -> None:
    """A wait that was woken in the same instant as its timer fired is not woken twice."""

    async def main() -> None:
        with pytest.raises(DeadlineExceeded):
            async with deadline(1):
                await guarded.asleep(2)
        await guarded.asleep(5)

    with virtual_time() as time:
        started = time.monotonic()
        asyncio.run(main())
        assert time.monotonic() - started == 6.0


def test_a_wait_never_ends_before_its_point() -> None:
    """Nanoseconds and floats round apart; whoever compares seconds after a wait sees its point reached."""
    with virtual_time() as time:
        for step in range(1, 100):
            until = time.monotonic() + step / 997
            guarded.sleep(step / 997)
            assert until <= time.monotonic() < until + 2e-9


def test_time_begins_at_the_present(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was counted in real time before is not ahead of it."""
    monkeypatch.setitem(VirtualTime.__init__.__kwdefaults__, "start", None)
    quota = rate("1/s", max_wait=0)
    call = quota(lambda: "through")
    assert call() == "through"
    with virtual_time() as time:
        time.advance(2)
        assert call() == "through"


@pytest.mark.parametrize("nested", [False, True])
def test_time_never_goes_back_when_it_ends(nested: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A circuit that opened hours ahead in one test recovers in the next one, in virtual and in real time."""
    monkeypatch.setitem(VirtualTime.__init__.__kwdefaults__, "start", None)
    gateway = circuit("gateway", failures=1, reset_after=60)

    @gateway
    def call(fails: bool) -> None:
        if fails:
            raise ConnectionError

    with virtual_time() if nested else nullcontext():
        with virtual_time() as time:
            time.advance(7200)
            with pytest.raises(ConnectionError):
                call(True)
            ended, wall = time.monotonic_ns(), time.wall()
        assert clock.monotonic_ns() >= ended
        assert clock.monotonic() >= ended / 1e9
        assert clock.wall() >= wall
        with virtual_time() as time:
            time.advance(58)  # and up to a second to the next full one
            with pytest.raises(CircuitOpen):
                call(False)
            time.advance(2)
            call(False)


@pytest.mark.real_clock
def test_real_waits_take_what_they_take_after_virtual_time() -> None:
    """Being ahead of the real clock makes no wait shorter or longer."""
    with virtual_time() as time:
        time.advance(clock.monotonic() + 1e6)
    begun = real.monotonic()
    guarded.sleep(0.02)
    asyncio.run(guarded.asleep(0.02))
    assert 0.04 <= real.monotonic() - begun < 5


@pytest.mark.parametrize("is_async", [False, True])
def test_a_wait_keeps_nothing_alive(is_async: bool) -> None:
    """What a caller holds in its frames goes when it returns, not with the next garbage collection."""

    class Held: ...

    def hold() -> weakref.ref[Held]:
        held = Held()
        guarded.sleep("1s")
        return weakref.ref(held)

    async def hold_async() -> weakref.ref[Held]:
        held = Held()
        await guarded.asleep("1s")
        return weakref.ref(held)

    gc.disable()
    try:
        with virtual_time():
            held = asyncio.run(hold_async()) if is_async else hold()
        assert held() is None
    finally:
        gc.enable()
