"""Real servers on loopback for the HTTP tests: a scripted raw one, and any ASGI or WSGI application."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from werkzeug.serving import WSGIRequestHandler, make_server


@dataclass
class Reply:
    """How the raw server answers one request."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"done"
    chunked: bool = False
    delay: float = 0.0


@dataclass
class Seen:
    """One request, as the raw server saw it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Upstream:
    """A raw HTTP/1.1 server; `steps` tells how it answers, one for each request; the last one repeats."""

    Reply = Reply
    CUT = "cut"  # reads the whole request, then drops the connection without an answer
    HANG = "hang"  # reads the request and never answers

    def __init__(self) -> None:
        self.steps: list[Reply | str] = [Reply()]
        self.seen: list[Seen] = []
        self.open = 0
        self.peak = 0
        self.accepted = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.open += 1
        self.accepted += 1
        self.peak = max(self.peak, self.open)
        try:
            while await self.answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            writer.close()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; False to drop the connection."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        body = await read_body(reader, headers)
        method, path, _ = first.split(" ")
        self.seen.append(Seen(method, path, headers, body))
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(step, Reply):
            await asyncio.sleep(step.delay)
            writer.write(encode(step))
            await writer.drain()
            return True
        if step == self.HANG:
            await reader.read()  # until the client hangs up
        return False


async def read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    """The body of a request, chunked or not."""
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", 0)))
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body


def encode(reply: Reply) -> bytes:
    """A response as bytes."""
    headers = {"Content-Length": str(len(reply.body)), **reply.headers}
    body = reply.body
    if reply.chunked:
        del headers["Content-Length"]
        headers["Transfer-Encoding"] = "chunked"
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {reply.status} X\r\n{lines}\r\n".encode() + body


@contextmanager
def on_a_loop(serve: Callable[..., Any]) -> Iterator[str]:
    """Serve connections on a loop in a thread; gives the URL."""
    ready = threading.Event()
    state: dict[str, Any] = {}

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        state.update(port=server.sockets[0].getsockname()[1], stop=asyncio.Event(), loop=asyncio.get_running_loop())
        ready.set()
        await state["stop"].wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    ready.wait()
    try:
        yield f"http://127.0.0.1:{state['port']}"
    finally:
        state["loop"].call_soon_threadsafe(state["stop"].set)
        thread.join()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Whatever a test opens is closed after it, in reverse order."""
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def make_upstream(stack: ExitStack) -> Callable[[], Upstream]:
    """Starts raw servers."""

    def make() -> Upstream:
        upstream = Upstream()
        upstream.url = stack.enter_context(on_a_loop(upstream.serve))
        return upstream

    return make


@pytest.fixture
def upstream(make_upstream: Callable[[], Upstream]) -> Upstream:
    """A raw server."""
    return make_upstream()


@contextmanager
def asgi_server(app: Any) -> Iterator[str]:
    """Serve an ASGI application with uvicorn, in a thread."""
    # uvicorn believes X-Forwarded-For from loopback unless told not to; who is trusted is our business here.
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", proxy_headers=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        thread.join(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def wsgi_server(app: Any) -> Iterator[str]:
    """Serve a WSGI application with werkzeug, a thread for each connection."""
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=QuietHandler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class QuietHandler(WSGIRequestHandler):
    """Logs nothing, and keeps connections."""

    protocol_version = "HTTP/1.1"

    def log(self, type: str, message: str, *args: Any) -> None:
        """Called for each request."""


@pytest.fixture
def serve_asgi(stack: ExitStack) -> Callable[[Any], str]:
    """Serves an ASGI application; gives its URL."""
    return lambda app: stack.enter_context(asgi_server(app))


@pytest.fixture
def serve_wsgi(stack: ExitStack) -> Callable[[Any], str]:
    """Serves a WSGI application; gives its URL."""
    return lambda app: stack.enter_context(wsgi_server(app))


@pytest.fixture
def serve_raw(stack: ExitStack) -> Callable[[Any], str]:
    """Serves connections with ``serve(reader, writer)``; gives its URL."""
    return lambda serve: stack.enter_context(on_a_loop(serve))
