"""The sink for the standard library's logging."""

from __future__ import annotations

import logging

import pytest

from guarded.events.bus import bus
from guarded.events.model import EVENTS
from guarded.events.sinks import logging as sink


@pytest.mark.parametrize("name", EVENTS)
def test_every_event_is_a_record(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The message is the name, the number of the level is the same."""
    with caplog.at_level(1, logger="guarded"), sink.install("TRACE"):
        bus.emit(name, None, None)
    assert [(r.name, r.getMessage(), r.levelno) for r in caplog.records] == [("guarded", name, EVENTS[name].level)]


def test_fields_are_one_attribute(caplog: pytest.LogCaptureFixture) -> None:
    """All fields are in `record.guarded`, so that none collides with one of the record's own."""
    with caplog.at_level(logging.INFO, logger="guarded"), sink.install():
        bus.emit("retry.scheduled", None, None, attempt=1, delay=0.5, cause=ValueError("%s {x}"))
    fields = caplog.records[0].__dict__["guarded"]
    assert (fields["attempt"], fields["delay"], fields["cause"]) == (1, 0.5, "ValueError: %s {x}")
    assert caplog.records[0].exc_info is None


@pytest.mark.parametrize("target", ["shop.guarded", logging.getLogger("shop.guarded")])
def test_the_logger_can_be_chosen(target: str | logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    """By name or itself."""
    with sink.install(logger=target):
        bus.emit("limit.rejected", None, None)
    assert [record.name for record in caplog.records] == ["shop.guarded"]


def test_the_level_of_the_logger_counts(caplog: pytest.LogCaptureFixture) -> None:
    """What logging would drop is dropped, whatever the sink was installed at."""
    with caplog.at_level(logging.WARNING, logger="guarded"), sink.install("TRACE"):
        bus.emit("limit.queued", None, None)
        bus.emit("limit.rejected", None, None)
    assert [record.getMessage() for record in caplog.records] == ["limit.rejected"]


def test_closing_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    """After close nothing arrives."""
    sink.install().close()
    bus.emit("limit.rejected", None, None)
    assert caplog.records == []
