"""The dashboard as an ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from guarded._core import clock
from guarded._core.durations import Duration
from guarded.integrations.dashboard._http import MAX_BODY, Reply, Request
from guarded.integrations.dashboard._site import STREAM, Site
from guarded.integrations.dashboard._state import Reader

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


def asgi_app(*, token: str | None = None, loopback_only: bool = True, interval: Duration = "1s") -> AsgiDashboard:
    """The dashboard of this process, to mount in FastAPI, Starlette, Litestar, Quart …

    Args:
        token: who knows it may isolate and reset circuits; at least 16 characters. None (default): nobody may.
        loopback_only: refuse other machines, and what comes through a proxy. Default True; False takes a token, which
            looking then takes too.
        interval: time between two updates; a duration from 100 ms to 1 minute, default 1 s.

    Raises:
        ValueError: naming every wrong option.

    Example:
        >>> from guarded.integrations.dashboard import asgi_app
        >>> dashboard = asgi_app(token="not-this-one-please")  # app.mount("/guarded", dashboard)
    """
    return AsgiDashboard(Site(token=token, loopback_only=loopback_only, interval=interval))


class AsgiDashboard:
    """What `asgi_app` makes."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Called by the server."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            reply = self._site.answer(await _read(scope, receive))
            await self._send(reply, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def _send(self, reply: Reply, receive: Receive, send: Send) -> None:
        headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        if reply.stream:
            await self._stream(receive, send)
        else:
            await send({"type": "http.response.body", "body": reply.body})

    async def _stream(self, receive: Receive, send: Send) -> None:
        reader = Reader()
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            with self._site.watch.viewing():
                until = clock.monotonic() + STREAM
                while not gone.done() and clock.monotonic() < until:
                    await send({"type": "http.response.body", "body": self._site.news(reader), "more_body": True})
                    await asyncio.wait({gone}, timeout=self._site.interval)
            await send({"type": "http.response.body", "body": b""})
        except OSError:
            pass  # how some servers say that the viewer has left
        finally:
            gone.cancel()
            await asyncio.wait({gone})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _live(receive: Receive, send: Send) -> None:
    """There is nothing to start or stop."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _read(scope: Any, receive: Receive) -> Request:
    path, root = scope["path"], scope.get("root_path", "").rstrip("/")
    if root and path.startswith(root):  # servers differ in whether the path has the root in it
        path = path[len(root) :]
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    client = scope.get("client")
    body = await _read_body(receive) if scope["method"] == "POST" else b""
    return Request(scope["method"], path, root, client[0] if client else None, headers, body)


async def _read_body(receive: Receive) -> bytes | None:
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if len(body) > MAX_BODY:
            return None
        if not message.get("more_body", False):
            return body
