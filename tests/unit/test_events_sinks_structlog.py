"""The structlog sink against the real library."""

from __future__ import annotations

import pytest

structlog = pytest.importorskip("structlog")

from guarded.events.bus import bus  # noqa: E402
from guarded.events.model import DEBUG, EVENTS, LEVELS  # noqa: E402
from guarded.events.sinks import structlog as sink  # noqa: E402


@pytest.mark.parametrize("name", EVENTS)
def test_every_event_is_an_entry(name: str) -> None:
    """The event is the name; TRACE, which structlog does not know, is debug."""
    with structlog.testing.capture_logs() as entries, sink.install("TRACE"):
        bus.emit(name, None, None)
    level = LEVELS[max(DEBUG, EVENTS[name].level)].lower()
    assert entries == [{"event": name, "log_level": level}]


def test_fields_are_keys() -> None:
    """What the event says is in the entry, but for what structlog's processors add themselves."""
    with structlog.testing.capture_logs() as entries, sink.install():
        bus.emit("retry.scheduled", None, None, attempt=1, delay=0.5, cause=ValueError("{x} %s"))
    assert entries == [
        {
            "event": "retry.scheduled",
            "log_level": "info",
            "attempt": 1,
            "delay": 0.5,
            "cause": "ValueError: {x} %s",
        }
    ]


def test_the_logger_can_be_chosen() -> None:
    """A bound logger keeps what is bound."""
    with structlog.testing.capture_logs() as entries, sink.install(logger=structlog.get_logger().bind(app="shop")):
        bus.emit("limit.rejected", None, None)
    assert entries[0]["app"] == "shop"
