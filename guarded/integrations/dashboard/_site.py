"""What the dashboard answers to each request; the servers' sides are in ``_asgi`` and ``_wsgi``.

``/`` the page · ``/api/state`` one document · ``/api/stream`` documents and events as they come ·
``/api/events`` the latest events · ``POST /api/act`` isolate or reset a circuit.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any, Final

from guarded._core.durations import Duration, parse_duration
from guarded._core.registry import registry
from guarded.errors import StoreError
from guarded.events.redact import scrub_cached
from guarded.integrations.dashboard._access import Access, problems_of
from guarded.integrations.dashboard._http import (
    Reply,
    Request,
    as_event,
    event_stream,
    json_reply,
    page,
    refusal,
    reply,
)
from guarded.integrations.dashboard._state import Reader, Watch

MAX_VIEWERS: Final = 32
STREAM: Final = 30.0
"""Seconds after which a stream ends and its viewer asks again: no server's shutdown waits for longer than that."""

_ACTS: Final = ("isolate", "reset")


class Site:
    """The dashboard of this process.

    Args:
        token: who knows it may isolate and reset circuits; at least 16 characters. None: nobody may.
        loopback_only: refuse other machines. False takes a token, and then looking takes it too.
        interval: time between two documents of the stream; 100 ms to 1 minute.
        host: the address at which it listens itself; None where a server of others hands requests over.

    Raises:
        ValueError: naming every wrong option.
    """

    def __init__(
        self,
        *,
        token: str | None = None,
        loopback_only: bool = True,
        interval: Duration = "1s",
        host: str | None = None,
    ) -> None:
        problems = problems_of(token, loopback_only, host)
        try:
            self.interval: float = parse_duration(interval, option="interval")
            if not 0.1 <= self.interval <= 60:
                problems.append(f"interval={interval!r}: must be from 100ms to 1m")
        except ValueError as error:
            problems.append(str(error))
        if problems:
            raise ValueError("dashboard: " + "; ".join(problems))
        self.access: Access = Access(token, loopback_only)
        self.watch: Watch = Watch()

    def answer(self, request: Request) -> Reply:
        """The reply to one request."""
        route = request.method, request.path
        if request.path == "":
            moved = self.access.refuse(request, data=False)
            return moved or reply(308, "text/plain", b"", {"Location": f"{request.root}/"})
        if route == ("GET", "/"):
            return self.access.refuse(request, data=False) or page(_html())
        if route == ("POST", "/api/act"):
            return self.access.refuse(request, data=True, act=True) or _act(request)
        refused = self.access.refuse(request, data=True)
        if refused is not None:
            return refused
        if route == ("GET", "/api/state"):
            return json_reply(self.document())
        if route == ("GET", "/api/events"):
            return json_reply(Reader().news())
        if route == ("GET", "/api/stream"):
            if self.watch.viewers >= MAX_VIEWERS:
                return refusal(503, f"{MAX_VIEWERS} viewers are watching already.")
            return event_stream()
        return refusal(404, "There is no such page.")

    def document(self) -> dict[str, Any]:
        """How things stand."""
        return {**self.watch.state(), "acts": self.access.token is not None, "interval": self.interval}

    def news(self, reader: Reader) -> bytes:
        """The next piece of a stream: events, when there are any, then how things stand after them."""
        found = reader.news()
        return (as_event("events", found) if found else b"") + as_event("state", self.document())


@cache
def _html() -> str:
    return (files("guarded.integrations.dashboard") / "page.html").read_text(encoding="utf-8")


def _act(request: Request) -> Reply:
    """Isolate or reset a circuit."""
    if request.header("content-type").partition(";")[0].strip() != "application/json":
        return refusal(415, "Send application/json.")
    try:
        wish = json.loads(request.body or b"")
        name, act = wish["policy"], wish["act"]
    except (ValueError, TypeError, LookupError):
        return refusal(400, 'Send {"policy": NAME, "act": "isolate" or "reset"}.')
    found: Any = next((policy for known, policy in registry.census().items() if scrub_cached(known) == name), None)
    if found is None:
        return refusal(404, "There is no such policy.")
    if act not in _ACTS or found.kind != "circuit":
        return refusal(409, "Only circuits can be isolated and reset.")
    try:
        getattr(found, act)()
    except StoreError as error:
        return refusal(503, str(error))
    return json_reply({"policy": name, **found.live_state()})
