"""The testing kit: virtual time, event capture, switches, chaos.

Everything here takes effect on callables decorated before, sync and async, in all threads and loops; it nests, and is
undone when its block ends, also by an exception. With pytest, the same comes as fixtures.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from guarded._core import clock
from guarded._core.virtual import VirtualTime
from guarded._testing.chaos import Chaos, inject
from guarded._testing.description import describe
from guarded._testing.switches import disabled, force, no_wait
from guarded.events.bus import bus
from guarded.events.model import Event

__all__ = ["Chaos", "VirtualTime", "capture", "describe", "disabled", "force", "inject", "no_wait", "virtual_time"]


@contextmanager
def virtual_time(*, auto: bool = True) -> Iterator[VirtualTime]:
    """Make every guarded wait, sync and async, take no real time.

    Args:
        auto: jump to the earliest wait as soon as nobody does anything; with False time moves only by ``advance``.

    Time begins at the present moment, and goes on from where it has got to when the block ends: for guarded, it never
    goes back in a process, so that what a test leaves in a policy made earlier expires in the next one.

    Waits of other libraries (``time.sleep``, ``asyncio.sleep``, sockets) stay real: use `guarded.sleep` and
    `guarded.asleep` in the functions under test. A task that waits for real I/O looks like one that does nothing, so
    give ``auto=False`` where there is any. Inside a block of freezegun, this time goes first.

    Example:
        >>> import guarded
        >>> from guarded.testing import virtual_time
        >>> with virtual_time() as time:
        ...     before = time.monotonic()
        ...     guarded.sleep("24h")
        ...     print(time.monotonic() - before)
        86400.0
    """
    virtual = VirtualTime(auto=auto)
    previous = clock.install(virtual)
    try:
        yield virtual
    finally:
        clock.install(previous)
        if isinstance(previous, VirtualTime):
            previous.advance(max(0.0, virtual.monotonic() - previous.monotonic()))
        else:
            clock.catch_up(virtual.monotonic_ns())


@contextmanager
def capture(level: str | int = "TRACE") -> Iterator[list[Event]]:
    """The events of the block, of `level` and above, as a list that grows."""
    events: list[Event] = []
    with bus.subscribe(events.append, level=level):
        yield events
