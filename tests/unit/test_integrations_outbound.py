"""What guarded clients do with requests, seen from a transport that answers by itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import httpx
import pytest

from guarded import CircuitOpen, DeadlineExceeded, RateExceeded, circuit, deadline, guard, hedge, rate, retry
from guarded._core import clock
from guarded._core.call import Call, Deadline, current
from guarded.integrations._client import hosts
from guarded.integrations._client.httpx import SyncRequest
from guarded.integrations.httpx import GuardedTransport
from guarded.testing import virtual_time


def answering(status: int) -> httpx.MockTransport:
    """Every request gets this status."""
    return httpx.MockTransport(lambda request: httpx.Response(status))


def test_an_open_circuit_says_which_status_came_from_which_host() -> None:
    """In words of HTTP, and not by the type that carries the response through the layers."""
    transport = GuardedTransport(guard(circuit("api", failures=1)), transport=answering(503))
    with httpx.Client(transport=transport) as client:
        assert client.get("http://shop.example/").status_code == 503
        with pytest.raises(CircuitOpen) as caught:
            client.get("http://shop.example/")
    assert "with HTTP status 503 from shop.example; try again in" in str(caught.value)
    assert str(caught.value.__cause__) == "HTTP status 503 from shop.example"


def test_no_attempt_starts_with_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the deadline passes between two looks at the clock: urllib3 refuses a time-out of 0 its own way."""
    exchange = SyncRequest(httpx, None, httpx.Request("GET", "http://shop.example/"))
    call = Call()
    call.deadline = Deadline(100.0)
    ticks = iter([99.5, 100.5, 101.5])
    monkeypatch.setattr(clock, "monotonic", lambda: next(ticks))
    token = current.set(call)
    try:
        with pytest.raises(DeadlineExceeded):
            exchange.prepare("X-Request-Timeout")
    finally:
        current.reset(token)


@pytest.mark.real_clock
def test_two_threads_at_once_share_one_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request makes it; a second one made beside it would keep its connections open."""
    made: list[httpx.MockTransport] = []
    transport = GuardedTransport(guard(circuit("api")))

    def send() -> None:
        transport.handle_request(httpx.Request("GET", "http://shop.example/"))

    other = threading.Thread(target=send)

    def make() -> httpx.MockTransport:
        made.append(answering(200))
        if len(made) == 1:
            other.start()
            other.join(0.1)  # time to make another one
        return made[-1]

    monkeypatch.setattr(httpx, "HTTPTransport", make)
    send()
    other.join()
    assert len(made) == 1


class Breaking(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body whose connection is broken: it can be neither read nor closed."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1
        raise OSError("connection reset")

    async def aclose(self) -> None:
        self.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_response_that_cannot_be_closed_is_discarded_all_the_same(mode: str) -> None:
    """The retry goes on to the next attempt, and its response is the caller's."""
    broken = Breaking()
    replies = [httpx.Response(503, stream=broken), httpx.Response(200, content=b"fine")]
    below = httpx.MockTransport(lambda request: replies.pop(0))
    guards = guard(retry(retries=1, base=0, jitter="none"))

    async def fetch() -> httpx.Response:
        async with httpx.AsyncClient(transport=GuardedTransport(guards, transport=below)) as client:
            return await client.get("http://shop.example/")

    if mode == "async":
        response = asyncio.run(fetch())
    else:
        with httpx.Client(transport=GuardedTransport(guards, transport=below)) as client:
            response = client.get("http://shop.example/")
    assert response.content == b"fine"
    assert broken.closed == 1


def test_a_key_may_come_from_a_header_of_the_request() -> None:
    """A budget for each tenant, on top of that for each host."""
    guards = guard(rate("1/hour", key=lambda request: request.header("X-Tenant") or "nobody", max_wait=0))
    with httpx.Client(transport=GuardedTransport(guards, transport=answering(200))) as client:
        for tenant in ("a", "b"):
            assert client.get("http://shop.example/", headers={"x-tenant": tenant}).status_code == 200
        assert client.get("http://shop.example/").status_code == 200
        with pytest.raises(RateExceeded):
            client.get("http://shop.example/", headers={"x-tenant": "a"})


def test_a_response_that_comes_when_its_race_is_over() -> None:
    """A hedged attempt that was called off, and whose transport took no notice, leaves no open response."""
    late = Closing(b"late")
    calls: list[httpx.Request] = []

    class Stubborn(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            calls.append(request)
            if len(calls) > 1:
                return httpx.Response(200, content=b"fine")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
            return httpx.Response(200, stream=late)

    guards = guard(hedge("10ms", idempotent=True))

    async def main() -> httpx.Response:
        async with httpx.AsyncClient(transport=GuardedTransport(guards, transport=Stubborn())) as client:
            return await client.get("http://shop.example/")

    with virtual_time():
        response = asyncio.run(main())
    assert response.content == b"fine"
    assert len(calls) == 2
    assert late.closed == 1


class Closing(httpx.AsyncByteStream):
    """A body that counts how often it is closed."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.closed = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._content

    async def aclose(self) -> None:
        self.closed += 1


def test_more_hosts_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all of them busy, further ones share one lane, which is there for the next ones too."""
    monkeypatch.setattr(hosts, "MAX_HOSTS", 2)
    transport = GuardedTransport(guard(circuit("api", failures=2)), transport=answering(503))
    lanes = transport.outbound.hosts
    busy = [lanes.enter(host) for host in ("a.example", "b.example")]
    with httpx.Client(transport=transport) as client:
        client.get("http://c.example/")
        client.get("http://d.example/")
        with pytest.raises(CircuitOpen):
            client.get("http://e.example/")
        assert client.get("http://a.example/").status_code == 503
    for lane in busy:
        lanes.leave(lane)
    assert len(lanes) == 2


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("seconds", [3, 30])
def test_a_time_out_that_the_deadline_has_shortened_is_the_deadline(mode: str, seconds: float) -> None:
    """With more time it is the client's own, as ever."""
    given: list[float] = []

    def below(request: httpx.Request) -> httpx.Response:
        given.append(request.extensions["timeout"]["read"])
        moved.advance(given[-1])
        raise httpx.ReadTimeout("no answer", request=request)

    transport = GuardedTransport(guard(circuit("api")), transport=httpx.MockTransport(below))

    async def fetch() -> None:
        async with httpx.AsyncClient(transport=transport) as client:
            await client.get("http://shop.example/", timeout=10)

    def call() -> None:
        if mode == "async":
            asyncio.run(fetch())
        else:
            with httpx.Client(transport=transport) as client:
                client.get("http://shop.example/", timeout=10)

    with virtual_time(auto=False) as moved, pytest.raises(DeadlineExceeded if seconds < 10 else httpx.ReadTimeout):
        deadline(seconds, mode="cooperative")(call)()
    assert given == [min(seconds, 10)]
