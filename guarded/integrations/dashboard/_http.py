"""A request and a reply as the dashboard sees them, whatever the server."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

MAX_BODY = 4096  # bytes

_ALWAYS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        method: in capitals.
        path: below the place where the dashboard is mounted; ``/`` is its page, empty what lacks that slash.
        root: the path of that place, without a slash at its end.
        client: address of the other end; None where the server does not know.
        headers: by name in lower case.
        body: the whole of it, or None when it has more than `MAX_BODY` bytes.
    """

    method: str
    path: str
    root: str = ""
    client: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = b""

    def header(self, name: str) -> str:
        """Its value, empty where there is none."""
        return self.headers.get(name, "")


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply; `stream` says that the event stream follows instead of `body`."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""
    stream: bool = False

    @property
    def line(self) -> str:
        """Status and phrase, as WSGI wants it."""
        return f"{self.status} {HTTPStatus(self.status).phrase}"


def reply(status: int, kind: str, body: bytes, more: Mapping[str, str] | None = None) -> Reply:
    """A reply with a body of the media type `kind`."""
    headers = {"Content-Type": kind, "Content-Length": str(len(body)), **_ALWAYS, **(more or {})}
    return Reply(status, tuple(headers.items()), body)


def page(html: str) -> Reply:
    """The page; its own script and style run, and nothing else, from nowhere else."""
    nonce = secrets.token_urlsafe(18)
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    body = html.replace("{{nonce}}", nonce).encode()
    return reply(200, "text/html; charset=utf-8", body, {"Content-Security-Policy": policy})


def as_json(value: Any) -> bytes:
    """A document of plain values; raises ValueError for infinities."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def json_reply(value: Any) -> Reply:
    """A reply with a JSON body."""
    return reply(200, "application/json", as_json(value))


def refusal(status: int, detail: str, more: Mapping[str, str] | None = None) -> Reply:
    """A reply that says why not, as RFC 9457 has it."""
    body = {"status": status, "title": HTTPStatus(status).phrase, "detail": detail}
    return reply(status, "application/problem+json", as_json(body), more)


def event_stream() -> Reply:
    """The head of a stream of server-sent events."""
    headers = {"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no", **_ALWAYS}
    return Reply(200, tuple(headers.items()), stream=True)


def as_event(name: str, value: Any) -> bytes:
    """One server-sent event; JSON has no line breaks of its own."""
    return b"event: " + name.encode() + b"\ndata: " + as_json(value) + b"\n\n"
