"""The dashboard as a WSGI application; each viewer keeps one of the server's threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from typing import Any

from guarded._core import clock
from guarded._core.durations import Duration
from guarded.integrations.dashboard._http import MAX_BODY, Request
from guarded.integrations.dashboard._site import STREAM, Site
from guarded.integrations.dashboard._state import Reader

Environ = dict[str, Any]


def wsgi_app(*, token: str | None = None, loopback_only: bool = True, interval: Duration = "1s") -> WsgiDashboard:
    """The dashboard of this process, to mount in Flask, Django …; the server must have threads to spare.

    Args:
        token: who knows it may isolate and reset circuits; at least 16 characters. None (default): nobody may.
        loopback_only: refuse other machines, and what comes through a proxy. Default True; False takes a token, which
            looking then takes too.
        interval: time between two updates; a duration from 100 ms to 1 minute, default 1 s.

    Raises:
        ValueError: naming every wrong option.
    """
    return WsgiDashboard(Site(token=token, loopback_only=loopback_only, interval=interval))


class WsgiDashboard:
    """What `wsgi_app` makes."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._stopped = threading.Event()

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Called by the server."""
        reply = self._site.answer(_read(environ))
        start_response(reply.line, list(reply.headers))
        return self._stream() if reply.stream else (reply.body,)

    def stop(self) -> None:
        """End the streams that are open, and those to come."""
        self._stopped.set()
        self._site.watch.stop()

    def _stream(self) -> Generator[bytes, None, None]:
        """Pieces, until the server closes this, since the viewer has left, or `stop`, or time is up."""
        reader = Reader()
        with self._site.watch.viewing():
            until = clock.monotonic() + STREAM
            yield self._site.news(reader)
            while clock.monotonic() < until and not self._stopped.wait(self._site.interval):
                yield self._site.news(reader)


def _read(environ: Environ) -> Request:
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): value
        for name, value in environ.items()
        if name.startswith("HTTP_")
    }
    headers["content-type"] = environ.get("CONTENT_TYPE") or ""
    method = environ["REQUEST_METHOD"]
    body = _read_body(environ) if method == "POST" else b""
    path, root = environ.get("PATH_INFO") or "", (environ.get("SCRIPT_NAME") or "").rstrip("/")
    return Request(method, path, root, environ.get("REMOTE_ADDR"), headers, body)


def _read_body(environ: Environ) -> bytes | None:
    try:
        length = int(environ.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return None
    if not 0 <= length <= MAX_BODY:
        return None
    body: bytes = environ["wsgi.input"].read(length)
    return body
