"""Our client and our server together: lost answers, and an upstream that hangs under many connections."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import aiohttp
import fastapi
import flask
import httpx
import httpx2
import pytest
import requests

from guarded import deadline, guard, limit, retry
from guarded.integrations import fastapi as for_fastapi
from guarded.integrations import flask as for_flask
from guarded.integrations.aiohttp import GuardedMiddleware
from guarded.integrations.httpx import GuardedTransport
from guarded.integrations.httpx2 import GuardedTransport as GuardedTransport2
from guarded.integrations.requests import GuardedAdapter

pytestmark = pytest.mark.real_clock
AGAIN = {"base": 0.05, "jitter": "none"}


class Relay:
    """Stands between client and server; cuts the connection instead of passing on the first `lost` answers."""

    def __init__(self, target: str, lost: int, *, before_answer: bool) -> None:
        self.host, _, self.port = target.removeprefix("http://").partition(":")
        self.lost = lost
        self.before_answer = before_answer
        self.cut = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request for each connection is enough."""
        there, back = await asyncio.open_connection(self.host, int(self.port))
        try:
            await self.relay(reader, writer, there, back)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            back.close()

    async def relay(self, reader: Any, writer: Any, there: Any, back: Any) -> None:
        """Pass a request on, and its answer or not."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0
        )
        back.write(head + await reader.readexactly(length))
        await back.drain()
        if self.lost > 0 and self.before_answer:
            self.lost, self.cut = self.lost - 1, self.cut + 1
            await asyncio.sleep(0.05)  # the server has read the body, and works
            return
        answer = await there.read(65_536)
        if self.lost > 0:
            self.lost, self.cut = self.lost - 1, self.cut + 1
            return
        while answer:
            writer.write(answer)
            await writer.drain()
            answer = await there.read(65_536)


class Shop:
    """Charges, counted by the server."""

    def __init__(self) -> None:
        self.executed = 0
        self.keys: set[str] = set()
        self.work = 0.0

    def fastapi(self) -> Any:
        """Served by FastAPI."""
        app = fastapi.FastAPI()

        @app.post("/charge")
        async def charge(request: fastapi.Request) -> dict[str, int]:
            self.keys.add(request.headers["Idempotency-Key"])
            await asyncio.sleep(self.work)
            self.executed += 1
            return {"receipt": self.executed}

        for_fastapi.install(app)
        return app

    def flask(self) -> Any:
        """Served by Flask."""
        app = flask.Flask("shop")

        @app.post("/charge")
        def charge() -> dict[str, int]:
            self.keys.add(flask.request.headers["Idempotency-Key"])
            time.sleep(self.work)
            self.executed += 1
            return {"receipt": self.executed}

        for_flask.install(app)
        return app


def by_httpx(url: str, library: Any, transport: Any) -> Any:
    """A charge by httpx or httpx2."""
    with library.Client(
        transport=transport(guard(retry(retries=3, **AGAIN)), idempotency_key=True), trust_env=False
    ) as client:
        return client.post(url, json={"amount": 1}).json()


def by_requests(url: str) -> Any:
    """A charge by requests."""
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", GuardedAdapter(guard(retry(retries=3, **AGAIN)), idempotency_key=True))
        return session.post(url, json={"amount": 1}).json()


def by_aiohttp(url: str) -> Any:
    """A charge by aiohttp."""

    async def main() -> Any:
        middleware = GuardedMiddleware(guard(retry(retries=3, **AGAIN)), idempotency_key=True)
        async with (
            aiohttp.ClientSession(middlewares=(middleware,)) as session,
            session.post(url, json={"amount": 1}) as response,
        ):
            return await response.json()

    return asyncio.run(main())


CHARGES: dict[str, Callable[[str], Any]] = {
    "httpx": lambda url: by_httpx(url, httpx, GuardedTransport),
    "httpx2": lambda url: by_httpx(url, httpx2, GuardedTransport2),
    "requests": by_requests,
    "aiohttp": by_aiohttp,
}


@pytest.mark.parametrize("before_answer", [True, False], ids=["cut while it works", "cut after it has answered"])
@pytest.mark.parametrize("framework", ["fastapi", "flask"])
@pytest.mark.parametrize("charge", CHARGES.values(), ids=CHARGES)
def test_a_lost_answer_costs_one_execution(
    charge: Any, framework: str, before_answer: bool, serve_asgi: Any, serve_wsgi: Any, serve_raw: Any
) -> None:
    """Twice the connection is cut once the server has the body; the third answer is that of the one execution."""
    shop = Shop()
    shop.work = 0.2 if before_answer else 0.0
    target = serve_asgi(shop.fastapi()) if framework == "fastapi" else serve_wsgi(shop.flask())
    relay = Relay(target, 2, before_answer=before_answer)
    assert charge(serve_raw(relay.serve) + "/charge") == {"receipt": 1}
    assert (shop.executed, len(shop.keys), relay.cut) == (1, 1, 2)


def sockets() -> int:
    """How many sockets this process has open."""
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
        except OSError:
            pass  # the directory's own
    return count


async def settled(condition: Callable[[], bool]) -> None:
    """Let what is being closed close."""
    until = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < until, "it never came to be"
        await asyncio.sleep(0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="counts sockets by /proc")
def test_200_connections_and_an_upstream_that_hangs(upstream: Any, serve_asgi: Any) -> None:
    """Our service: 10 requests wait for the upstream, 20 for a slot, the others are refused; then all is as before."""
    upstream.steps = [upstream.HANG]
    outbound = guard(deadline(0.4), limit(10, max_queue=20))
    transport = GuardedTransport(outbound, transport=httpx.AsyncHTTPTransport(trust_env=False))
    app = fastapi.FastAPI()

    @app.get("/")
    async def page() -> str:
        async with httpx.AsyncClient(transport=Kept(transport), trust_env=False) as client:
            return (await client.get(upstream.url)).text

    for_fastapi.install(app)
    url = serve_asgi(app)

    async def wave() -> list[int]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(limits=limits, timeout=20, trust_env=False) as client:
            responses = await asyncio.gather(*(client.get(url) for _ in range(200)))
        return sorted(response.status_code for response in responses)

    async def main() -> None:
        await wave()  # what is made once is there after this
        await settled(lambda: upstream.open == 0)
        gc.collect()
        before, open_before = tracemalloc.get_traced_memory()[0], sockets()
        for _ in range(2):
            tracemalloc.reset_peak()
            statuses = await wave()
            assert statuses == [429] * statuses.count(429) + [504] * statuses.count(504)
            assert 10 <= statuses.count(504) <= 60  # those who had a slot, and those who waited for one
            await settled(lambda: upstream.open == 0 and sockets() <= open_before)
            assert tracemalloc.get_traced_memory()[1] - before < 60_000_000
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 1_000_000
        assert upstream.peak <= 10

    tracemalloc.start()
    try:
        asyncio.run(main())
    finally:
        tracemalloc.stop()


class Kept(httpx.AsyncBaseTransport):
    """Leaves the transport open when a client is closed."""

    def __init__(self, transport: Any) -> None:
        self.transport = transport

    async def handle_async_request(self, request: Any) -> Any:
        """Pass on."""
        return await self.transport.handle_async_request(request)
