"""Guarded middleware around plain ASGI and WSGI applications, called as a server would."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from typing import Any, get_type_hints

import pytest
from litestar import Litestar, post
from starlette.applications import Starlette

from guarded import CancelToken, checkpoint
from guarded.integrations import asgi, litestar, starlette, wsgi
from guarded.integrations._server.inbound import Inbound, Options

KEYED = {"HTTP_IDEMPOTENCY_KEY": "k-1"}


def environ(**more: Any) -> dict[str, Any]:
    """What a WSGI server gives."""
    return {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/",
        "REMOTE_ADDR": "192.0.2.1",
        "wsgi.input": io.BytesIO(b""),
        "CONTENT_LENGTH": "0",
        **more,
    }


def scope(*headers: tuple[bytes, bytes], **more: Any) -> dict[str, Any]:
    """What an ASGI server gives."""
    return {"type": "http", "method": "POST", "path": "/", "headers": headers, "client": ("192.0.2.1", 1), **more}


async def exchange(app: Any, scope: Any, received: Any = None) -> list[Any]:
    """The messages that an ASGI application sends."""
    sent: list[Any] = []

    async def receive() -> Any:
        return received or {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


@pytest.mark.parametrize("line", ["218 This is fine", "599 Custom"])
def test_a_keyed_wsgi_response_may_have_any_status(line: str) -> None:
    """A status that no standard knows is the application's business: its effect has happened."""

    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response(line, [])
        return [b"done"]

    started: list[str] = []
    body = wsgi.GuardedMiddleware(app)(environ(**KEYED), lambda line, headers: started.append(line))
    assert (b"".join(body), started[0][:4]) == (b"done", line[:4])


def test_all_headers_of_a_wsgi_request_are_there() -> None:
    """Also the two that the environment has by another name."""
    seen: list[Any] = []

    def principal(request: Any) -> str:
        seen.append([request.header(name) for name in ("content-type", "Content-Length", "X-Own", "Host")])
        return "me"

    given = environ(**KEYED, CONTENT_TYPE="text/plain", CONTENT_LENGTH="", HTTP_X_OWN="1")

    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return []

    tuple(wsgi.GuardedMiddleware(app, principal=principal)(given, lambda line, headers: None))
    assert seen == [["text/plain", None, "1", None]]


def test_a_wsgi_response_is_closed_once() -> None:
    """Also when the server stops before its end."""

    class Body:
        closed = 0

        def __iter__(self) -> Iterator[bytes]:
            return self  # type: ignore[return-value]

        def __next__(self) -> bytes:
            return b"more"

        def close(self) -> None:
            self.closed += 1

    body = Body()

    def app(environ: Any, start_response: Any) -> Body:
        start_response("200 OK", [])
        return body

    response: Any = wsgi.GuardedMiddleware(app)(environ(), lambda line, headers: None)
    assert next(iter(response)) == b"more"
    response.close()
    assert body.closed == 1


def test_a_keyed_response_takes_no_short_cut_past_us() -> None:
    """Servers offer to send a file by its path: what is kept has to come as bytes. Other extensions stay."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["extensions"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"file"})

    extensions = {"http.response.pathsend": {}, "http.response.trailers": {}, "tls": {"tls_version": 772}}
    keyed = scope((b"idempotency-key", b"k-2"), extensions=extensions)
    sent = asyncio.run(exchange(asgi.GuardedMiddleware(app), keyed))
    assert sent[-1]["body"] == b"file"
    assert seen == [{"tls": {"tls_version": 772}}]
    asyncio.run(exchange(asgi.GuardedMiddleware(app), scope(extensions=extensions)))
    assert seen[-1] == extensions


@pytest.mark.parametrize(
    "last",
    [
        {"type": "http.response.body", "body": b""},
        {"type": "http.response.pathsend", "path": "/etc/hostname"},
        {"type": "http.response.zerocopysend", "file": 0},
    ],
    ids=lambda last: last["type"],
)
def test_a_client_that_has_the_response_may_go(last: Any) -> None:
    """What the application still does after it, such as background tasks, goes on."""
    done = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send(last)
        for _ in range(10):
            await asyncio.sleep(0)
        done.append(True)

    asyncio.run(exchange(asgi.GuardedMiddleware(app), scope(), {"type": "http.disconnect"}))
    assert done


def test_wrong_options_are_refused_when_installed() -> None:
    """And not by the first request, for which Starlette builds its middleware."""
    wrong: Any = 500
    with pytest.raises(ValueError, match="overload=500"):
        starlette.install(Starlette(), overload=wrong)
    with pytest.raises(ValueError, match="overload=500"):
        Litestar(on_app_init=[litestar.install(overload=wrong)])


def test_types_of_options_name_each_option() -> None:
    """Installers hand on what the rules take."""
    expected = get_type_hints(Inbound.__init__)
    del expected["return"]
    assert get_type_hints(Options) == expected


def test_a_key_is_one_key_for_all_routes_of_litestar() -> None:
    """Which builds its middleware for each of them: the same key for another request is a mistake there too."""

    @post("/one")
    async def one() -> str:
        return "one"

    @post("/other")
    async def other() -> str:
        return "other"

    app = Litestar([one, other], on_app_init=[litestar.install()])
    statuses = []
    for path in ("/one", "/other"):
        keyed = scope((b"idempotency-key", b"k-3"), path=path, query_string=b"", root_path="")
        statuses.append(asyncio.run(exchange(app, keyed))[0]["status"])
    assert statuses == [201, 422]


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """An application that says what it was sent."""
    message = await receive()
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": message.get("body", b"")})


def test_a_client_that_goes_while_its_keyed_request_is_read() -> None:
    """The application is not asked, and the key is as new."""
    asked: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope)
        await answer(scope, receive, send)

    guarded = asgi.GuardedMiddleware(app)
    keyed = scope((b"idempotency-key", b"k-1"))
    assert asyncio.run(exchange(guarded, keyed, {"type": "http.disconnect"})) == []
    assert not asked
    sent = asyncio.run(exchange(guarded, keyed, {"type": "http.request", "body": b"order", "more_body": False}))
    assert [sent[0]["status"], sent[1]["body"]] == [201, b"order"]


def test_an_application_that_listens_for_the_end_of_a_keyed_request() -> None:
    """As streaming responses do beside their work: its client is taken to stay, since the response is to be kept."""
    ends: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()

        async def listen() -> None:
            try:
                await receive()
                ends.append("gone")
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

        listening = asyncio.ensure_future(listen())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.push", "path": "/style.css", "headers": []})
        for chunk in (b"a", b"b"):
            await asyncio.sleep(0)
            await send({"type": "http.response.body", "body": chunk, "more_body": chunk == b"a"})
        listening.cancel()
        await asyncio.wait({listening})

    sent = asyncio.run(exchange(asgi.GuardedMiddleware(app), scope((b"idempotency-key", b"k-1"))))
    assert ends == ["cancelled"]
    assert [sent[0]["status"], sent[1]["body"]] == [200, b"ab"]


def test_a_keyed_request_that_gets_no_response() -> None:
    """That is the application's mistake, which the server hears of; the key may be used again."""
    calls: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        calls.append(scope)
        if len(calls) > 1:
            await answer(scope, receive, send)

    guarded, keyed = asgi.GuardedMiddleware(app), scope((b"idempotency-key", b"k-1"))
    with pytest.raises(RuntimeError, match="without a response"):
        asyncio.run(exchange(guarded, keyed))
    assert asyncio.run(exchange(guarded, keyed))[0]["status"] == 201


def test_an_application_that_cancels_itself() -> None:
    """Its client is there, and is told so."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        token = CancelToken()
        token.cancel("shutting down")
        with token:
            checkpoint()

    sent = asyncio.run(exchange(asgi.GuardedMiddleware(app), scope()))
    assert sent[0]["status"] == 503


@pytest.mark.parametrize("more", [True, False])
def test_a_keyed_request_that_is_too_long(more: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused as soon as that is known, and not kept."""
    monkeypatch.setattr(asgi, "MAX_BODY", 3)
    part = {"type": "http.request", "body": b"long", "more_body": more}
    sent = asyncio.run(exchange(asgi.GuardedMiddleware(answer), scope((b"idempotency-key", b"k-1")), part))
    assert sent[0]["status"] == 413
