"""Events as loguru records: the message is the event's name, the other fields are bound as ``extra``.

Nothing is formatted, so no brace or tag in a field can do harm. No handler is added: that is the application's.
"""

from __future__ import annotations

from loguru import logger

from guarded.events.bus import Subscription, subscribe
from guarded.events.model import LEVELS, Event


def write(event: Event) -> None:
    """Log one event."""
    logger.bind(**event.details()).log(LEVELS[event.level], event.name)


def install(level: int | str = "INFO") -> Subscription:
    """Log events of `level` and up, beside the default sink that `guarded.events.set_level` controls."""
    return subscribe(write, level)
