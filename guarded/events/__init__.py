"""Seeing what guarded does: events, and the sinks they go to.

INFO and up go to loguru and into a ring of the latest (`recent`); `set_level` changes or silences the former.
`subscribe` adds a sink of your own, `in_background` keeps a slow one from slowing calls, `collecting` adds up;
``guarded.events.sinks`` has one module each, with `install`, for logging, structlog, Prometheus and OpenTelemetry.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from guarded.events.bus import Sink, Subscription, subscribe
from guarded.events.defaults import recent, set_level
from guarded.events.model import EVENTS, FIELDS, Cause, Event
from guarded.events.redact import show_messages
from guarded.events.ring import Ring

if TYPE_CHECKING:
    from guarded.events.background import Background, in_background
    from guarded.events.tables import events_table_markdown, fields_table_markdown, metrics_table_markdown
    from guarded.events.tally import Stats, Tally, collecting

__all__ = [
    "EVENTS",
    "FIELDS",
    "Background",
    "Cause",
    "Event",
    "Ring",
    "Sink",
    "Stats",
    "Subscription",
    "Tally",
    "collecting",
    "events_table_markdown",
    "fields_table_markdown",
    "in_background",
    "metrics_table_markdown",
    "recent",
    "set_level",
    "show_messages",
    "subscribe",
]

_HOMES = {
    "Background": "background",
    "in_background": "background",
    "events_table_markdown": "tables",
    "fields_table_markdown": "tables",
    "metrics_table_markdown": "tables",
    "Stats": "tally",
    "Tally": "tally",
    "collecting": "tally",
}  # loaded on first use, since every policy imports this package


if not TYPE_CHECKING:  # to a type checker this would make every misspelt name one of ours

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'guarded.events' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"guarded.events.{home}"), name)
        return value
