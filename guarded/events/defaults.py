"""What listens from the start: a ring of the latest events, and a log from INFO up.

The log is loguru, or structlog where the program has configured that by the time of the first event; the library is
imported then, so that importing guarded stays cheap.
"""

from __future__ import annotations

import sys
import threading
from functools import cache
from typing import Final

from guarded.events.bus import Sink, Subscription, bus
from guarded.events.model import LEVELS, Event
from guarded.events.ring import Ring

RING_SIZE: Final = 256

_ring: Final = Ring(RING_SIZE)
_lock: Final = threading.RLock()
_logged: Subscription | None = None
_muted = False


@cache
def _log_sink() -> Sink:
    structlog = sys.modules.get("structlog")
    if structlog is not None and structlog.is_configured():
        from guarded.events.sinks.structlog import writer

        return writer()
    from guarded.events.sinks.loguru import write

    return write


def _log(event: Event) -> None:
    _log_sink()(event)


def recent(n: int | None = None) -> list[Event]:
    """The latest `n` events of INFO and up (None: all that are kept, at most 256), oldest first."""
    return _ring.recent(n)


def set_level(level: int | str) -> str:
    """Let the default sink, the log, have events of `level` and up; ``"OFF"`` silences it.

    Args:
        level: TRACE, DEBUG, INFO (the default), WARNING, ERROR, its number, or OFF; ValueError otherwise.

    Returns:
        The name of the level before.
    """
    global _logged
    off = isinstance(level, str) and level.upper() == "OFF"
    with _lock:
        before = _logged
        try:
            after = None if off or _muted else bus.subscribe(_log, level)
        except ValueError as error:
            raise ValueError(f"{error}, or OFF") from None
        _logged = after
        if before is not None:
            before.close()
    return "OFF" if before is None else LEVELS[before.level]


def mute() -> None:
    """Silence the log of this process for good, whatever level a file asks for: a command's output is its own."""
    global _muted
    _muted = True
    set_level("OFF")


bus.subscribe(_ring, "INFO")
set_level("INFO")
