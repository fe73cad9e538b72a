"""What guarded clients do with requests, seen from a transport that answers by itself."""

from __future__ import annotations

import threading

import httpx
import pytest

from guarded import CircuitOpen, DeadlineExceeded, circuit, guard
from guarded._core import clock
from guarded._core.call import Call, Deadline, current
from guarded.integrations._client.httpx import SyncRequest
from guarded.integrations.httpx import GuardedTransport


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
