"""The loguru sink against the real library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from loguru import logger

from guarded.events.bus import bus
from guarded.events.model import EVENTS, LEVELS
from guarded.events.sinks import loguru as sink


@pytest.fixture
def records() -> Iterator[list[dict[str, Any]]]:
    """What reaches a loguru handler of the lowest level."""
    found: list[dict[str, Any]] = []
    handler = logger.add(lambda message: found.append(dict(message.record)), level=0)
    with sink.install("TRACE"):
        yield found
    logger.remove(handler)


@pytest.mark.parametrize("name", EVENTS)
def test_message_is_the_name_and_level_the_levels(name: str, records: list[dict[str, Any]]) -> None:
    """Every event arrives under a fixed message and loguru's own level of that name."""
    bus.emit(name, None, None)
    assert [(record["message"], record["level"].name) for record in records] == [(name, LEVELS[EVENTS[name].level])]


def test_fields_are_bound(records: list[dict[str, Any]]) -> None:
    """What the event says is in the record's extra, for filters and formats."""
    bus.emit("limit.queued", None, None, queued=2, active=5)
    extra = records[0]["extra"]
    assert extra == {"queued": 2, "active": 5}  # without what the record has a place of its own for


@pytest.mark.parametrize("text", ["{}", "{0}", "{missing}", "{", "}", "<red>x</red>", "</red>", "%s %d", "{record}"])
def test_braces_and_tags_do_no_harm(text: str, records: list[dict[str, Any]]) -> None:
    """User text is never formatted."""
    bus.emit("retry.scheduled", None, None, cause=ValueError(text), reason=text)
    assert records[0]["message"] == "retry.scheduled"
    assert records[0]["extra"]["cause"] == f"ValueError: {text}"


def test_no_exception_goes_along(records: list[dict[str, Any]]) -> None:
    """Tracebacks with the values of a user's variables would be printed otherwise."""
    try:
        raise ValueError("x")
    except ValueError as error:
        bus.emit("call.failed", None, None, cause=error)
    assert records[0]["exception"] is None


def test_loguru_can_silence_guarded(records: list[dict[str, Any]]) -> None:
    """The usual switch of loguru for a library works by the package's name."""
    logger.disable("guarded")
    try:
        bus.emit("limit.queued", None, None)
    finally:
        logger.enable("guarded")
    assert records == []


def test_a_handler_that_raises_harms_no_call() -> None:
    """Even one that was added with catch=False."""

    def broken(message: object) -> None:
        raise OSError("disk full")

    handler = logger.add(broken, level=0, catch=False)
    try:
        with sink.install() as subscription, pytest.warns(UserWarning, match="raised OSError: disk full"):
            bus.emit("limit.queued", None, None)
        assert subscription.failures == 1
    finally:
        logger.remove(handler)
