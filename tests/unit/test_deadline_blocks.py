"""``with deadline(…)`` and ``async with deadline(…)`` where the time of the block matters in unusual ways."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from guarded import DeadlineExceeded, asleep, deadline, remaining
from guarded._core import clock
from guarded._core.interrupt import timers_of
from guarded._core.virtual import VirtualTime
from guarded.testing import capture, virtual_time


@pytest.fixture
def time() -> Iterator[VirtualTime]:
    """Virtual time that moves as soon as everybody waits."""
    with virtual_time() as moved:
        yield moved


def test_an_async_block_that_takes_no_notice_of_its_end(time: VirtualTime) -> None:
    """It goes on, is told to be late, and its task is as if nobody had cancelled it."""

    async def main() -> tuple[int, float]:
        async with deadline(5, name="whole"):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
        task = asyncio.current_task()
        assert task is not None
        await asyncio.sleep(0)
        return task.cancelling(), remaining()

    with capture() as events:
        assert asyncio.run(main()) == (0, float("inf"))
    assert [event.name for event in events if event.name.startswith("deadline.")] == ["deadline.late"]


def test_a_block_with_more_time_than_the_one_around_it(time: VirtualTime) -> None:
    """The outer one ends it, and is the one that is told of."""

    async def main() -> None:
        async with deadline(5, name="outer"), deadline(50, name="inner"):
            assert remaining() == 5
            await asleep(20)

    with capture() as events, pytest.raises(DeadlineExceeded) as caught:
        asyncio.run(main())
    assert clock.monotonic() == 1005
    assert caught.value.policy == "outer"
    assert [event.policy for event in events if event.name == "deadline.exceeded"] == ["outer"]


def test_a_block_around_the_arguments_of_a_function() -> None:
    """There are none."""
    with pytest.raises(TypeError, match="arguments"), deadline(lambda: 5):
        pass


def test_many_blocks_that_end_in_time_leave_nothing_with_the_loop(time: VirtualTime) -> None:
    """What they had armed is swept away, and what is still to come comes in time."""

    async def main() -> None:
        late = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        for _ in range(1000):
            async with deadline(1000):
                pass
        assert len(timers_of(asyncio.get_running_loop())._heap) < 200
        with pytest.raises(DeadlineExceeded):
            await late
        assert clock.monotonic() == 1005

    async def wait() -> None:
        async with deadline(5):
            await asyncio.Event().wait()

    asyncio.run(main())


def test_blocks_that_end_while_a_later_one_runs_are_passed_over(time: VirtualTime) -> None:
    """The one timer of the loop goes on to the next that matters."""
    ends: list[float] = []

    async def wait(seconds: float, stays: float) -> None:
        try:
            async with deadline(seconds):
                await asleep(stays)
        except DeadlineExceeded:
            ends.append(clock.monotonic() - 1000)

    async def main() -> None:
        await asyncio.gather(wait(3, 1), wait(4, 2), wait(6, 20), wait(7, 2), wait(9, 20))

    asyncio.run(main())
    assert ends == [6, 9]
