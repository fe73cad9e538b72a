"""Events as records of the standard library: the message is the event's name, its fields are ``record.guarded``.

One attribute holds them all, since names such as ``name`` are the record's own.
"""

from __future__ import annotations

import logging

from guarded.events.bus import Subscription, subscribe
from guarded.events.model import Event


def install(level: int | str = "INFO", *, logger: str | logging.Logger = "guarded") -> Subscription:
    """Log events of `level` and up to `logger`, by name or itself; TRACE has the number 5 there."""
    target = logging.getLogger(logger) if isinstance(logger, str) else logger

    def write(event: Event) -> None:
        if target.isEnabledFor(event.level):
            target.log(event.level, event.name, extra={"guarded": event.fields()})

    return subscribe(write, level)
