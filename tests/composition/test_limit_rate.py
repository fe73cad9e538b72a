"""limit directly outside rate: neither is held while waiting for the other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from guarded import LimitFull, RateExceeded, deadline, limit, rate, retry
from guarded._core import clock
from guarded.testing import VirtualTime, virtual_time


@pytest.fixture
def time() -> Iterator[VirtualTime]:
    """Virtual time that jumps when everybody waits."""
    with virtual_time() as time:
        yield time


def test_no_permit_is_held_while_waiting_for_the_rate(time: VirtualTime) -> None:
    """A call that waits for its due time leaves its permit to others."""
    slots, slow = limit(1), rate("1/m")
    held: list[int] = []

    @slots
    @slow
    async def rare() -> float:
        return clock.monotonic()

    @slots
    async def other() -> None:
        held.append(slots.snapshot().held)

    async def main() -> None:
        started = await rare()
        waiting = asyncio.ensure_future(rare())
        await asyncio.sleep(0)
        assert slots.snapshot().held == 0
        await other()
        assert await waiting - started == pytest.approx(60)

    asyncio.run(main())
    assert held == [1]
    assert slots.snapshot().held == 0


def test_no_rate_is_held_while_waiting_for_a_permit(time: VirtualTime) -> None:
    """A call that waits for a permit, be it after its due time, leaves the rate to others."""
    slots, limited = limit(1), rate("1/s")

    @slots
    @limited
    async def joint() -> float:
        return clock.monotonic()

    async def main() -> None:
        started = await joint()
        waiting = asyncio.ensure_future(joint())  # waits for the rate, without a permit
        await asyncio.sleep(0)
        permit = await slots.acquire_async()
        admission = await limited.acquire_async()  # behind it, and due a second after it
        assert clock.monotonic() - started == pytest.approx(1)  # the first one had to queue, so its turn went on
        admission.refund()
        permit.release()
        assert await waiting - started == pytest.approx(1)

    asyncio.run(main())


def test_threads_wait_without_permits_too(time: VirtualTime) -> None:
    """The same for plain functions in threads: calls are paced, and the limit is never exceeded."""
    slots, limited = limit(2), rate("5/s")
    starts: list[float] = []
    peak: list[int] = []

    @slots
    @limited
    def joint() -> None:
        starts.append(clock.monotonic())
        peak.append(slots.snapshot().held)

    threads = [threading.Thread(target=joint) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    starts.sort()
    assert len(starts) == 20
    assert max(peak) <= 2
    for earlier, later in zip(starts, starts[5:], strict=False):
        assert later - earlier >= 1.0 - 1e-9
    assert starts[-1] - starts[0] <= 4.0
    assert slots.snapshot().held == 0
    assert limited.peek().queued == 0


def test_many_tasks_keep_both_bounds(time: VirtualTime) -> None:
    """A hundred tasks through both: all served, never above either bound, and no permit or place left over."""
    slots, limited = limit(3), rate("10/s")
    starts: list[float] = []
    running, peak = [0], [0]

    @slots
    @limited
    async def joint() -> None:
        starts.append(clock.monotonic())
        running[0] += 1
        peak[0] = max(peak[0], running[0])
        await asyncio.sleep(0)
        running[0] -= 1

    async def main() -> None:
        await asyncio.gather(*(joint() for _ in range(100)))

    asyncio.run(main())
    assert len(starts) == 100
    assert peak[0] <= 3
    for earlier, later in zip(starts, starts[10:], strict=False):
        assert later - earlier >= 1.0 - 1e-9
    assert slots.snapshot().held == 0
    assert limited.peek().queued == 0


def test_cancelled_while_waiting_without_a_permit(time: VirtualTime) -> None:
    """A cancelled joint wait leaves no permit, no place in the queue, and moves the next one up."""
    slots, limited = limit(1), rate("1/s")

    @slots
    @limited
    async def joint() -> float:
        return clock.monotonic()

    async def main() -> None:
        started = await joint()
        one, two = asyncio.ensure_future(joint()), asyncio.ensure_future(joint())
        await asyncio.sleep(0)
        one.cancel()
        assert await two - started == pytest.approx(1)
        assert one.cancelled()

    asyncio.run(main())
    assert (slots.snapshot().held, limited.peek().queued) == (0, 0)


def test_refused_by_the_limit_after_the_due_time(time: VirtualTime) -> None:
    """When the limit refuses the one whose turn it is, its place in the rate goes to others."""
    slots, limited = limit(1, max_wait=0), rate("1/s")

    @slots
    @limited
    async def joint() -> None: ...

    async def main() -> None:
        await joint()
        waiting = asyncio.ensure_future(joint())
        await asyncio.sleep(0)
        permit = await slots.acquire_async()
        with pytest.raises(LimitFull):
            await waiting
        permit.release()

    asyncio.run(main())
    assert limited.peek().delay == 0.0
    assert limited.lines._single.users == 0


def test_deadline_and_max_wait_hold_for_joint_waits(time: VirtualTime) -> None:
    """A due time past either is refused at once, with the permit given back."""
    slots, limited = limit(1), rate("1/m", max_wait=10)

    @deadline(5)
    @slots
    @limited
    async def joint() -> None: ...

    async def main() -> None:
        await joint()
        before = clock.monotonic()
        with pytest.raises(RateExceeded):
            await joint()
        assert clock.monotonic() == before

    asyncio.run(main())
    assert slots.snapshot().held == 0


def test_two_limits_around_a_rate(time: VirtualTime) -> None:
    """Both limits give their permits back while the rate is waited for."""
    outer, inner, limited = limit(1), limit(1), rate("1/s")

    @outer
    @inner
    @limited
    async def joint() -> None: ...

    async def main() -> None:
        await joint()
        waiting = asyncio.ensure_future(joint())
        await asyncio.sleep(0)
        assert (outer.snapshot().held, inner.snapshot().held) == (0, 0)
        await waiting

    asyncio.run(main())


def test_with_a_layer_between_the_permit_is_held(time: VirtualTime) -> None:
    """A retry between them means the permit is for the whole logical call, waits included."""
    slots, limited = limit(1), rate("1/s")

    @slots
    @retry(retries=1)
    @limited
    async def joint() -> None: ...

    async def main() -> None:
        await joint()
        waiting = asyncio.ensure_future(joint())
        await asyncio.sleep(0)
        assert slots.snapshot().held == 1
        await waiting

    asyncio.run(main())
