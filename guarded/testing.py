"""The testing kit: virtual time, event capture.

Everything here takes effect on callables decorated before, nests, and is undone when its block ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from guarded._core import clock
from guarded._core.virtual import VirtualTime
from guarded.events.bus import bus
from guarded.events.model import Event

__all__ = ["VirtualTime", "capture", "virtual_time"]


@contextmanager
def virtual_time(*, auto: bool = True) -> Iterator[VirtualTime]:
    """Make every guarded wait, sync and async, take no real time.

    Args:
        auto: jump to the earliest wait as soon as nobody does anything; with False time moves only by ``advance``.

    Waits of other libraries (``time.sleep``, ``asyncio.sleep``) stay real; use `guarded.sleep` and
    `guarded.asleep` in the functions under test.
    """
    time = VirtualTime(auto=auto)
    previous = clock.install(time)
    try:
        yield time
    finally:
        clock.install(previous)


@contextmanager
def capture(level: str | int = "TRACE") -> Iterator[list[Event]]:
    """The events of the block, of `level` and above, as a list that grows."""
    events: list[Event] = []
    with bus.subscribe(events.append, level=level):
        yield events
