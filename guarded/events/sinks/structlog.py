"""Events as structlog entries: the event is the event's name, the other fields are keys.

Time and level are left to structlog's own processors; TRACE, which structlog lacks, becomes debug.
"""

from __future__ import annotations

from typing import Any, Final

from guarded._core.extras import missing
from guarded.events.bus import Sink, Subscription, subscribe
from guarded.events.model import DEBUG, ERROR, INFO, TRACE, WARNING, Event

try:
    import structlog
except ModuleNotFoundError as error:
    raise missing(error, __name__, "guarded[structlog]") from error

_METHODS: Final = {TRACE: "debug", DEBUG: "debug", INFO: "info", WARNING: "warning", ERROR: "error"}


def install(level: int | str = "INFO", *, logger: Any = None) -> Subscription:
    """Log events of `level` and up to `logger`: any structlog logger, or ``structlog.get_logger("guarded")``."""
    return subscribe(writer(logger), level)


def writer(logger: Any = None) -> Sink:
    """The sink that writes to `logger`, or to ``structlog.get_logger("guarded")``."""
    target = structlog.get_logger("guarded") if logger is None else logger

    def write(event: Event) -> None:
        getattr(target, _METHODS[event.level])(event.name, **event.details())

    return write
