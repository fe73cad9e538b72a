"""Guards in front of a WSGI application: Flask, Django and others.

A WSGI server does not tell when a client goes away, so nothing is cancelled then. Deadlines are cooperative: waits
and `guarded.checkpoint` obey them, a blocked thread does not.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Generator, Iterable
from http import HTTPStatus
from typing import Any, TypeAlias, Unpack

from guarded.errors import GuardedError
from guarded.integrations._server.inbound import Inbound, Options
from guarded.integrations._server.problems import Problem, make_problem, problem_for
from guarded.integrations._server.replay import MAX_BODY, Replays, Response
from guarded.integrations._server.request import Incoming, client_key, handling

__all__ = ["GuardedMiddleware", "client_key"]

Environ: TypeAlias = dict[str, Any]
StartResponse: TypeAlias = Callable[..., Any]
App: TypeAlias = Callable[[Environ, StartResponse], Iterable[bytes]]
_BARE = ("CONTENT_TYPE", "CONTENT_LENGTH")  # headers that stand in the environment by this name


class GuardedMiddleware:
    """Puts guards in front of a WSGI application; slots are held until the last chunk of the response.

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

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Called by the server."""
        request = _read(self.rules, environ)
        before = handling.set(self.rules.handling(request))
        try:
            return self._handle(request, environ, start_response)
        except GuardedError as error:
            problem = problem_for(error)
            if problem is None:
                raise
            # With exc_info, since the application may have begun its response, of which nothing is out yet.
            return _problem(problem, start_response, sys.exc_info())
        finally:
            handling.reset(before)

    def _handle(self, request: Incoming, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        replays = self.rules.replays
        key = None if replays is None else replays.key_of(request)
        if isinstance(key, Problem):
            return _problem(key, start_response)
        if replays is None or key is None:
            request.run = lambda: self.app(environ, start_response)
            return _begun(self.rules.serve(request))
        return self._replay(replays, key, request, environ, start_response)

    def _replay(
        self, replays: Replays, key: str, request: Incoming, environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:
        body = _read_body(environ)
        if isinstance(body, Problem):
            return _problem(body, start_response)
        own = False

        def run() -> Response:
            nonlocal own
            own = True
            capture = _Capture()
            given = {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
            request.run = lambda: self.app(given, capture.start_response)
            for chunk in self.rules.serve(request):
                capture.chunks.append(chunk)
            return capture.response()

        response = replays.execute(replays.bind(request, key, body, run))
        start_response(_line(response.status), list(response.to_send(replayed=not own)))
        return (response.body,)


class _Begun:
    """A response whose first chunk is there: from here on the application's own errors are its own."""

    def __init__(self, first: bytes, rest: Generator[bytes, None, None]) -> None:
        self._first: bytes | None = first
        self._rest = rest
        self._handling = handling.get()

    def __iter__(self) -> _Begun:
        return self

    def __next__(self) -> bytes:
        first, self._first = self._first, None
        if first is not None:
            return first
        before = handling.set(self._handling)
        try:
            return next(self._rest)
        finally:
            handling.reset(before)

    def close(self) -> None:
        """Called by the server at the end."""
        self._rest.close()


def _begun(chunks: Generator[bytes, None, None]) -> Iterable[bytes]:
    try:
        return _Begun(next(chunks), chunks)
    except StopIteration:
        return ()


class _Capture:
    """Collects a response instead of sending it."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self._line = ""
        self._headers: tuple[tuple[str, str], ...] = ()

    def start_response(
        self, line: str, headers: list[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], None]:
        """Given to the application."""
        self._line, self._headers = line, tuple(headers)
        return self.chunks.append

    def response(self) -> Response:
        """What the application has answered."""
        if not self._line:
            raise RuntimeError("the application has returned without a response")
        return Response(int(self._line.split(" ", 1)[0]), self._headers, b"".join(self.chunks))


def _read(rules: Inbound, environ: Environ) -> Incoming:
    path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    query = environ.get("QUERY_STRING", "")
    headers = [(name[5:].replace("_", "-"), value) for name, value in environ.items() if name.startswith("HTTP_")]
    headers += [(name.replace("_", "-"), environ[name]) for name in _BARE if environ.get(name)]
    peer = environ.get("REMOTE_ADDR") or None
    return rules.incoming(environ["REQUEST_METHOD"], f"{path}?{query}" if query else path, peer, headers)


def _read_body(environ: Environ) -> bytes | Problem:
    """The whole body, or a refusal when it is too long."""
    length = environ.get("CONTENT_LENGTH") or ""
    stream = environ["wsgi.input"]
    if length.isdecimal():
        body: bytes = stream.read(min(int(length), MAX_BODY + 1))
    else:  # chunked, where the server says that it ends the stream itself
        body = stream.read(MAX_BODY + 1) if environ.get("wsgi.input_terminated") else b""
    if len(body) > MAX_BODY:
        return make_problem(413, "too_large", f"A request with an Idempotency-Key may have up to {MAX_BODY} bytes.")
    return body


def _problem(problem: Problem, start_response: StartResponse, exc_info: Any = None) -> Iterable[bytes]:
    start_response(_line(problem.status), list(problem.headers), *(() if exc_info is None else (exc_info,)))
    return (problem.body,)


def _line(status: int) -> str:
    """Status and its phrase; an application may use statuses that no standard knows."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"{status} Unknown"
