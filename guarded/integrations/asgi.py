"""Guards in front of an ASGI application: FastAPI, Starlette, Quart, Litestar, Django and others.

A client that goes away cancels the work for its request, unless that has an ``Idempotency-Key``: then the work goes
on to its end, and the client finds the response when it asks again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any, Self, TypeAlias, Unpack

from guarded.cancel import CancelToken
from guarded.errors import Cancelled, GuardedError
from guarded.integrations._server.inbound import Inbound, Options
from guarded.integrations._server.problems import Problem, make_problem, problem_for
from guarded.integrations._server.replay import MAX_BODY, Replays, Response
from guarded.integrations._server.request import Incoming, client_key, handling

__all__ = ["GuardedMiddleware", "client_key"]

_GONE = {"type": "http.disconnect"}
_BODIES = ("http.response.body", "http.response.pathsend", "http.response.zerocopysend")
READ_AHEAD = 65_536
"""Bytes of a body that are read before the application asks; while more is there, a client's leaving goes unnoticed."""

Message: TypeAlias = MutableMapping[str, Any]
# Loose, since every framework has types of its own for these.
Receive: TypeAlias = Callable[..., Awaitable[Any]]
Send: TypeAlias = Callable[..., Awaitable[None]]
App: TypeAlias = Callable[..., Awaitable[None]]


class GuardedMiddleware:
    """Puts guards in front of an ASGI application; other things than HTTP requests pass.

    Args:
        app: the application.
        options: guards, trusted_proxies, timeout_header, max_timeout, idempotency, principal, overload; the page "HTTP,
            both ways" has what each means and its default.

    Raises:
        ValueError: an option is wrong; all wrong ones are named.
    """

    def __init__(self, app: App, **options: Unpack[Options]) -> None:
        self.app = app
        self.rules: Inbound = Inbound(**options)

    @classmethod
    def ruled(cls, rules: Inbound, app: App) -> Self:
        """For frameworks that make their middleware late, or more than once: all share the state of `rules`."""
        made = cls.__new__(cls)
        made.app, made.rules = app, rules
        return made

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Called by the server."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = _read(self.rules, scope)
        answer = _Answer(send)
        before = handling.set(self.rules.handling(request))
        try:
            await self._handle(request, scope, receive, answer)
        except GuardedError as error:
            problem = problem_for(error)
            if problem is None or answer.started:
                raise
            await _send_problem(problem, send)
        finally:
            handling.reset(before)

    async def run(self, scope: Any, client: _Client | _Given, send: Send) -> None:
        """Hand a request to the application; cancelled when nobody waits for the response any more."""
        await self.app(scope, client.receive, send)

    async def _handle(self, request: Incoming, scope: Any, receive: Receive, answer: _Answer) -> None:
        replays = self.rules.replays
        key = None if replays is None else replays.key_of(request)
        if isinstance(key, Problem):
            await _send_problem(key, answer.forward)
        elif replays is None or key is None:
            await self._serve(request, scope, receive, answer)
        else:
            await self._replay(replays, key, request, scope, receive, answer)

    async def _serve(self, request: Incoming, scope: Any, receive: Receive, answer: _Answer) -> None:
        token = CancelToken()
        client = _Client(receive, token, answer)
        request.run = partial(self.run, scope, client, answer.send)
        if request.header("Expect") is None:  # who waits for "100 Continue" gets it when the application wants the body
            client.watch()
        try:
            with token:
                await self.rules.serve_async(request)
        except Cancelled:
            if not client.gone:
                raise
        finally:
            await client.close()

    async def _replay(
        self, replays: Replays, key: str, request: Incoming, scope: Any, receive: Receive, answer: _Answer
    ) -> None:
        body = await _read_body(receive)
        if body is None:
            return
        if isinstance(body, Problem):
            await _send_problem(body, answer.forward)
            return
        own = False

        async def run() -> Response:
            nonlocal own
            own = True
            capture = _Capture()
            request.run = partial(self.run, _without_short_cuts(scope), _Given(body), capture.send)
            await self.rules.serve_async(request)
            return capture.response()

        response = await replays.execute_async(replays.bind(request, key, body, run))
        await _send_response(response.status, response.to_send(replayed=not own), response.body, answer.forward)


class _Answer:
    """What goes out, and whether it has begun."""

    def __init__(self, send: Send) -> None:
        self.forward = send
        self.started = False
        self.complete = False

    async def send(self, message: Message) -> None:
        """Given to the application."""
        if message["type"] == "http.response.start":
            self.started = True
        elif message["type"] in _BODIES and not message.get("more_body", False):
            self.complete = True
        await self.forward(message)


class _Client:
    """The other end: reads ahead of the application, so that the client's leaving is noticed while the work goes on."""

    def __init__(self, receive: Receive, token: CancelToken, answer: _Answer) -> None:
        self._receive = receive
        self._token = token
        self._answer = answer
        self._messages: deque[Message] = deque()
        self._ahead = 0
        self._moved = asyncio.Event()
        self._reading: asyncio.Task[Message] | None = None
        self.gone = False

    def watch(self) -> None:
        """Start to read."""
        self._reading = self._reading or asyncio.ensure_future(self._read())

    async def receive(self) -> Message:
        """Given to the application."""
        self.watch()
        while not self._messages:
            if self._reading is not None and self._reading.done():
                return self._reading.result()  # the client has gone, for good
            self._moved.clear()
            await self._moved.wait()
        message = self._messages.popleft()
        self._ahead -= len(message.get("body", b""))
        self._moved.set()
        return message

    async def _read(self) -> Message:
        try:
            while True:
                while self._ahead > READ_AHEAD:
                    self._moved.clear()
                    await self._moved.wait()
                message: Message = await self._receive()
                if message["type"] == "http.disconnect":
                    return self._left(message)
                self._messages.append(message)
                self._ahead += len(message.get("body", b""))
                self._moved.set()
        finally:
            self._moved.set()

    def _left(self, message: Message) -> Message:
        if not self._answer.complete:  # servers say the same when the response is out
            self.gone = True
            self._token.cancel("the client has gone away")
        return message

    def hang_up(self) -> None:
        """Tell the application that the client has gone, whether it has or not."""
        self._messages.append(_GONE)
        self._moved.set()

    async def close(self) -> None:
        """The response is out: stop reading."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})


class _Given:
    """A body that has been read; its client is taken to stay."""

    def __init__(self, body: bytes) -> None:
        self._body: Message | None = {"type": "http.request", "body": body, "more_body": False}
        self._gone = asyncio.Event()

    async def receive(self) -> Message:
        """Given to the application."""
        body, self._body = self._body, None
        if body is not None:
            return body
        await self._gone.wait()
        return _GONE

    def hang_up(self) -> None:
        """Tell the application that the client has gone."""
        self._gone.set()


class _Capture:
    """Collects a response instead of sending it."""

    def __init__(self) -> None:
        self._start: Message | None = None
        self._chunks: list[bytes] = []

    async def send(self, message: Message) -> None:
        """Given to the application."""
        if message["type"] == "http.response.start":
            self._start = message
        elif message["type"] == "http.response.body":
            self._chunks.append(bytes(message.get("body", b"")))

    def response(self) -> Response:
        """What the application has answered."""
        if self._start is None:
            raise RuntimeError("the application has returned without a response")
        headers = self._start.get("headers", ())
        return Response(
            self._start["status"],
            tuple((bytes(name).decode("latin-1"), bytes(value).decode("latin-1")) for name, value in headers),
            b"".join(self._chunks),
        )


def _read(rules: Inbound, scope: Any) -> Incoming:
    path = scope.get("raw_path") or scope["path"].encode()
    query = scope.get("query_string", b"")
    target = (path + b"?" + query if query else path).decode("latin-1")
    headers = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])
    client = scope.get("client")
    return rules.incoming(scope["method"], target, client[0] if client else None, headers)


def _without_short_cuts(scope: Any) -> Any:
    """For a response that is kept as bytes: nothing that only a server could send, such as a file by its path."""
    offered = scope.get("extensions") or {}
    return {**scope, "extensions": {name: offered[name] for name in offered if not name.startswith("http.response.")}}


async def _read_body(receive: Receive) -> bytes | Problem | None:
    """The whole body, a refusal when it is too long, or None when the client is gone."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > MAX_BODY:
            return make_problem(413, "too_large", f"A request with an Idempotency-Key may have up to {MAX_BODY} bytes.")
        if not message.get("more_body", False):
            return b"".join(chunks)


async def _send_problem(problem: Problem, send: Send) -> None:
    await _send_response(problem.status, problem.headers, problem.body, send)


async def _send_response(status: int, headers: tuple[tuple[str, str], ...], body: bytes, send: Send) -> None:
    raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
