"""Threads on one bus and one ring, at a tiny switch interval: nothing is lost, nothing is left over."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from guarded.events.bus import Bus
from guarded.events.model import INFO, TRACE, Event
from guarded.events.ring import Ring


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def test_subscribing_and_emitting_from_many_threads() -> None:
    """Every sink gets every event of its time, and in the end nobody is left over."""
    bus = Bus()
    steady: list[Event] = []
    bus.subscribe(steady.append)
    barrier = threading.Barrier(8)
    counts: list[int] = []

    def emitter() -> None:
        barrier.wait(timeout=10)
        for _ in range(500):
            bus.emit("limit.queued", None, None)

    def subscriber() -> None:
        barrier.wait(timeout=10)
        for _ in range(200):
            mine: list[Event] = []
            with bus.subscribe(mine.append, TRACE):
                bus.emit("limit.acquired", None, None)
            counts.append(sum(event.name == "limit.acquired" for event in mine))

    threads = [threading.Thread(target=work) for work in [emitter] * 4 + [subscriber] * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(steady) == 4 * 500
    assert len(counts) == 4 * 200
    assert min(counts) >= 1
    assert len(bus._subscriptions) == 1
    assert bus.threshold == INFO


def test_reading_while_threads_write() -> None:
    """Readers never fail and see each writer's events in order and at most `size` in all."""
    ring = Ring(64)
    stop = threading.Event()
    problems: list[str] = []

    def write(offset: int) -> None:
        for number in range(3000):
            ring(Event(float(offset + number), "limit.queued", INFO))

    def read() -> None:
        while not stop.is_set():
            times = [e.time for e in ring.recent()]
            if len(times) > 64 or any(
                [t for t in times if t // 10_000 == w] != sorted(t for t in times if t // 10_000 == w) for w in range(3)
            ):
                problems.append(str(times))

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write, args=(10_000 * w,)) for w in range(3)]
    for thread in [reader, *writers]:
        thread.start()
    for thread in writers:
        thread.join(timeout=60)
    stop.set()
    reader.join(timeout=60)
    assert problems == []
    assert len(ring) == 64
