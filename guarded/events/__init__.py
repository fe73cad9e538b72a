"""Seeing what guarded does: events, and the sinks they go to.

INFO and up go to loguru and into a ring of the latest (`recent`); `set_level` changes or silences the former.
`subscribe` adds a sink of your own; ``guarded.events.sinks`` has one module each, with `install`, for logging,
structlog, Prometheus and OpenTelemetry.
"""

from __future__ import annotations

from guarded.events.bus import Sink, Subscription, subscribe
from guarded.events.defaults import recent, set_level
from guarded.events.model import EVENTS, FIELDS, Cause, Event
from guarded.events.ring import Ring

__all__ = [
    "EVENTS",
    "FIELDS",
    "Cause",
    "Event",
    "Ring",
    "Sink",
    "Subscription",
    "recent",
    "set_level",
    "subscribe",
]
