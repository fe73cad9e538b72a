"""A secret that goes through a guarded call shows up nowhere that events go."""

from __future__ import annotations

import asyncio
import io
import logging
from typing import Any

import pytest
from loguru import logger

from guarded import DeadlineExceeded, deadline, events
from guarded.events.model import Event
from guarded.events.sinks import logging as logging_sink
from guarded.events.sinks import loguru as loguru_sink

CANARY = "c4n4ry"


class GatewayError(Exception):
    """What a careless client raises: its own credentials in the message."""

    def __init__(self) -> None:
        super().__init__(
            f"https://svc:{CANARY}@gateway/charge?card={CANARY} answered 500, Authorization: Bearer {CANARY}"
        )
        self.headers = {"Authorization": CANARY}


@deadline("10s")
def charge(card: str, *, pin: str) -> str:
    """A call that fails on demand."""
    if pin.endswith("!"):
        raise GatewayError
    return card


@deadline("10s")
async def acharge(card: str, *, pin: str) -> str:
    """The same, async, out of time on demand."""
    if pin.endswith("?"):
        raise DeadlineExceeded(f"token={CANARY}")
    return charge(card, pin=pin)


def test_no_canary_in_events_or_logs() -> None:
    """Neither arguments nor results are in any field, and messages are scrubbed."""
    seen: list[Event] = []
    plain, lines = io.StringIO(), io.StringIO()
    handler = logger.add(lines, level=0, format="{message} {extra}", serialize=False)
    target = logging.Logger("canary", level=1)
    stream = logging.StreamHandler(plain)
    stream.setFormatter(logging.Formatter("%(message)s %(guarded)s"))
    target.addHandler(stream)
    calls: list[tuple[str, Any]] = [("", None), ("!", GatewayError), ("?", DeadlineExceeded)]
    with (
        events.subscribe(seen.append, "TRACE"),
        loguru_sink.install("TRACE"),
        logging_sink.install("TRACE", logger=target),
    ):
        for ending, error in calls:
            if error is None:
                assert asyncio.run(acharge(CANARY, pin=CANARY + ending)) == CANARY
            else:
                with pytest.raises(error):
                    asyncio.run(acharge(CANARY, pin=CANARY + ending))
    logger.remove(handler)
    assert {"call.succeeded", "call.failed"} <= {event.name for event in seen}
    shown = [*map(repr, seen), *map(str, seen), plain.getvalue(), lines.getvalue()]
    assert all(shown)
    assert [text for text in shown if CANARY in text] == []
