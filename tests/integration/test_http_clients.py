"""Guarded clients against real servers: every client goes through every case."""

from __future__ import annotations

import asyncio
import pickle
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from email.utils import formatdate
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import requests

from guarded import (
    CircuitOpen,
    DeadlineExceeded,
    circuit,
    deadline,
    guard,
    hedge,
    idempotent,
    limit,
    registry,
    retry,
)
from guarded.integrations.aiohttp import GuardedMiddleware
from guarded.integrations.httpx import GuardedTransport
from guarded.integrations.httpx2 import GuardedTransport as GuardedTransport2
from guarded.integrations.requests import GuardedAdapter
from guarded.testing import capture

pytestmark = pytest.mark.real_clock

Answer = tuple[int, str]
Fetch = Callable[..., Answer]


def stream() -> Iterator[bytes]:
    """A body that can be sent once."""
    yield b"once"


async def astream() -> Any:
    """The same for asyncio."""
    yield b"once"


def with_httpx(library: Any, transport: Any) -> Callable[..., Fetch]:
    """A blocking client of httpx or httpx2."""

    def make(guards: Any, **options: Any) -> Fetch:
        def fetch(method: str, url: str, body: Any = None, headers: Any = None) -> Answer:
            with library.Client(transport=transport(guards, **options), trust_env=False) as client:
                response = client.request(method, url, content=stream() if body == "stream" else body, headers=headers)
                return response.status_code, response.text

        return fetch

    return make


def with_async_httpx(library: Any, transport: Any) -> Callable[..., Fetch]:
    """An asyncio client of httpx or httpx2."""

    def make(guards: Any, **options: Any) -> Fetch:
        async def main(method: str, url: str, body: Any, headers: Any) -> Answer:
            async with library.AsyncClient(transport=transport(guards, **options), trust_env=False) as client:
                content = astream() if body == "stream" else body
                response = await client.request(method, url, content=content, headers=headers)
                return response.status_code, response.text

        return lambda method, url, body=None, headers=None: asyncio.run(main(method, url, body, headers))

    return make


def with_requests(guards: Any, **options: Any) -> Fetch:
    """A session of requests."""

    def fetch(method: str, url: str, body: Any = None, headers: Any = None) -> Answer:
        with requests.Session() as session:
            session.trust_env = False
            session.mount("http://", GuardedAdapter(guards, **options))
            response = session.request(method, url, data=stream() if body == "stream" else body, headers=headers)
            return response.status_code, response.text

    return fetch


def with_aiohttp(guards: Any, **options: Any) -> Fetch:
    """A session of aiohttp."""

    async def main(method: str, url: str, body: Any, headers: Any) -> Answer:
        content = astream() if body == "stream" else body
        async with (
            aiohttp.ClientSession(middlewares=(GuardedMiddleware(guards, **options),)) as session,
            session.request(method, url, data=content, headers=headers) as response,
        ):
            return response.status, await response.text()

    return lambda method, url, body=None, headers=None: asyncio.run(main(method, url, body, headers))


CLIENTS = {
    "httpx": with_httpx(httpx, GuardedTransport),
    "httpx-async": with_async_httpx(httpx, GuardedTransport),
    "httpx2": with_httpx(httpx2, GuardedTransport2),
    "httpx2-async": with_async_httpx(httpx2, GuardedTransport2),
    "requests": with_requests,
    "aiohttp": with_aiohttp,
}
QUICK = {"base": 0, "jitter": "none"}


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Any:
    """Each client in turn: ``client(guards, **options)`` gives ``fetch(method, url, body, headers)``."""
    return CLIENTS[request.param]


def failing(upstream: Any, *statuses: int) -> list[Any]:
    """Failures, then a success."""
    return [*(upstream.Reply(status, body=b"no") for status in statuses), upstream.Reply()]


def wait_until(condition: Callable[[], bool]) -> None:
    """Give the server's thread time to notice."""
    until = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < until, "it never came to be"
        time.sleep(0.005)


def test_transient_statuses_are_retried(client: Any, upstream: Any) -> None:
    """The caller gets the response that came after the failures."""
    upstream.steps = failing(upstream, 503, 429, 500)
    assert client(retry(retries=3, **QUICK))("GET", upstream.url) == (200, "done")
    assert len(upstream.seen) == 4


def test_a_lasting_status_is_an_answer(client: Any, upstream: Any) -> None:
    """404 is not worth a second request."""
    upstream.steps = failing(upstream, 404)
    assert client(retry(retries=3, **QUICK))("GET", upstream.url) == (404, "no")
    assert len(upstream.seen) == 1


@pytest.mark.parametrize("size", [2, 200_000])
@pytest.mark.parametrize("chunked", [False, True])
def test_after_the_last_attempt_the_response_itself(client: Any, upstream: Any, size: int, chunked: bool) -> None:
    """No exception takes its place, and its body can be read, whether it had been read inside or not."""
    upstream.steps = [upstream.Reply(503, body=b"x" * size, chunked=chunked)]
    assert client(retry(retries=2, **QUICK))("GET", upstream.url) == (503, "x" * size)
    assert len(upstream.seen) == 3


@pytest.mark.parametrize("size", [2, 200_000])
def test_discarded_responses_are_closed(client: Any, upstream: Any, size: int) -> None:
    """No connection outlives the client that was closed."""
    upstream.steps = [*[upstream.Reply(503, body=b"x" * size, chunked=size > 2)] * 3, upstream.Reply()]
    assert client(retry(retries=3, **QUICK))("GET", upstream.url)[0] == 200
    wait_until(lambda: upstream.open == 0)


def test_small_failures_keep_the_connection(client: Any, upstream: Any) -> None:
    """A small body is read, so that the connection serves the next attempt."""
    upstream.steps = failing(upstream, 503, 503, 503)
    client(retry(retries=3, **QUICK))("GET", upstream.url)
    assert upstream.accepted == 1


@pytest.mark.parametrize(("method", "count"), [("GET", 3), ("PUT", 3), ("DELETE", 3), ("POST", 1), ("PATCH", 1)])
def test_only_idempotent_methods_are_repeated(client: Any, upstream: Any, method: str, count: int) -> None:
    """RFC 9110, section 9.2.2."""
    upstream.steps = failing(upstream, 503, 503)
    status, _ = client(retry(retries=2, **QUICK))(method, upstream.url, b"body")
    assert (status, len(upstream.seen)) == (200 if count == 3 else 503, count)


def test_a_key_of_the_caller_allows_to_repeat(client: Any, upstream: Any) -> None:
    """It goes out with every attempt."""
    upstream.steps = failing(upstream, 503, 503)
    fetch = client(retry(retries=2, **QUICK))
    assert fetch("POST", upstream.url, b"body", {"Idempotency-Key": "order-1"}) == (200, "done")
    assert [each.headers["idempotency-key"] for each in upstream.seen] == ["order-1"] * 3
    assert [each.body for each in upstream.seen] == [b"body"] * 3


def test_an_empty_key_is_none(client: Any, upstream: Any) -> None:
    """It allows nothing to be repeated, and gives way to a key that is added on request."""
    empty = {"Idempotency-Key": ""}
    upstream.steps = failing(upstream, 503, 503)
    assert client(retry(retries=2, **QUICK))("POST", upstream.url, b"body", empty)[0] == 503
    assert len(upstream.seen) == 1
    assert client(retry(retries=2, **QUICK), idempotency_key=True)("POST", upstream.url, b"body", empty)[0] == 200
    first, again = (each.headers["idempotency-key"] for each in upstream.seen[1:])
    assert first == again != ""


def test_a_key_is_added_on_request(client: Any, upstream: Any) -> None:
    """The same for all attempts, another for the next request, none for a method that needs none."""
    upstream.steps = failing(upstream, 503, 503)
    fetch = client(retry(retries=2, **QUICK), idempotency_key=True)
    assert fetch("POST", upstream.url, b"body")[0] == 200
    fetch("POST", upstream.url, b"body")
    fetch("GET", upstream.url)
    keys = [each.headers.get("idempotency-key") for each in upstream.seen]
    assert keys[0] == keys[1] == keys[2] != keys[3] != None is keys[4]  # noqa: E711


def test_inside_an_idempotent_call_the_key_is_derived(upstream: Any) -> None:
    """A rerun of the call sends the same key; another request of it sends another one."""
    fetch = CLIENTS["httpx"](retry(retries=0), idempotency_key=True)

    @idempotent(key="order_id")
    @retry(retries=1, on=ValueError, **QUICK)
    def order(order_id: str) -> None:
        fetch("POST", upstream.url, b"charge")
        fetch("POST", upstream.url, b"mail")
        if len(upstream.seen) == 2:
            raise ValueError("run me again")

    order("1")
    order("2")
    keys = [each.headers["idempotency-key"] for each in upstream.seen]
    assert keys[:2] == keys[2:4]
    assert len(set(keys)) == 4


def test_a_streaming_body_is_not_replayed(client: Any, upstream: Any) -> None:
    """Not even with a key: it is used up."""
    upstream.steps = failing(upstream, 503)
    fetch = client(retry(retries=2, **QUICK), idempotency_key=True)
    assert fetch("POST", upstream.url, "stream") == (503, "no")
    assert [each.body for each in upstream.seen] == [b"once"]


def test_a_lost_answer_is_asked_for_again_with_the_same_key(client: Any, upstream: Any) -> None:
    """The server has read the request when the connection breaks."""
    upstream.steps = [upstream.CUT, upstream.CUT, upstream.Reply()]
    fetch = client(retry(retries=2, **QUICK), idempotency_key=True)
    assert fetch("POST", upstream.url, b"charge") == (200, "done")
    assert len({each.headers["idempotency-key"] for each in upstream.seen}) == 1
    assert [each.body for each in upstream.seen] == [b"charge"] * 3


def test_without_a_key_a_lost_answer_stays_lost(client: Any, upstream: Any) -> None:
    """Whether the server has executed it cannot be known, so it is not sent again."""
    upstream.steps = [upstream.CUT]
    with pytest.raises(Exception, match=r".") as caught:
        client(retry(retries=2, **QUICK))("POST", upstream.url, b"charge")
    assert type(caught.value).__module__.partition(".")[0] in ("httpx", "httpx2", "requests", "aiohttp")
    assert len(upstream.seen) == 1


@pytest.mark.parametrize("mode", ["thread", "cooperative"])
def test_the_deadline_goes_out_and_bounds_the_clients_time_outs(client: Any, upstream: Any, mode: Any) -> None:
    """A server that hangs costs the deadline and no more, and was told how much time it had."""
    upstream.steps = [upstream.HANG]
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        client(guard(deadline(0.3, mode=mode), retry(retries=3, **QUICK)))("GET", upstream.url)
    assert 0.25 <= time.monotonic() - started < 1.5
    assert [0.1 < float(each.headers["x-request-timeout"]) <= 0.3 for each in upstream.seen] == [True]
    wait_until(lambda: upstream.open == 0)


def test_the_deadline_around_the_caller_counts(client: Any, upstream: Any) -> None:
    """The header says what is left of it, whatever of it has been used up before."""
    fetch = client(retry(retries=0))

    @deadline(60, mode="cooperative")
    def work() -> Answer:
        return fetch("GET", upstream.url)

    assert work() == (200, "done")
    assert 50 < float(upstream.seen[0].headers["x-request-timeout"]) <= 60


@pytest.mark.parametrize(
    ("header", "pattern"),
    [
        ("X-Envoy-Expected-Rq-Timeout-Ms", r"\d{5}"),
        ("grpc-timeout", r"\d{5}m"),
        ("X-Deadline", r"\d\d\.\d{3}"),
    ],
)
def test_the_header_may_go_by_another_name(upstream: Any, header: str, pattern: str) -> None:
    """Its name tells its format."""
    fetch = CLIENTS["requests"](deadline(60), timeout_header=header)
    fetch("GET", upstream.url)
    assert re.fullmatch(pattern, upstream.seen[0].headers[header.lower()])


def test_one_host_that_is_down_leaves_the_others_alone(client: Any, make_upstream: Any) -> None:
    """Each host has a circuit of its own, made from one policy."""
    down, up = make_upstream(), make_upstream()
    down.steps = [down.Reply(503)]
    fetch = client(circuit("api", failures=2))
    for _ in range(2):
        assert fetch("GET", down.url)[0] == 503
    with pytest.raises(CircuitOpen, match=r"api\[127"):
        fetch("GET", down.url)
    assert fetch("GET", up.url)[0] == 200
    assert len(down.seen) == 2


def test_clients_that_give_one_name_share_the_guards(upstream: Any) -> None:
    """A circuit that one client has opened is open for the others, blocking and asyncio alike."""
    guard(circuit("api", failures=1), name="outbound")
    upstream.steps = [upstream.Reply(503)]
    one, other = CLIENTS["requests"]("outbound"), CLIENTS["aiohttp"]("outbound")
    assert one("GET", upstream.url)[0] == 503
    transport = GuardedTransport("outbound")
    with pytest.raises(CircuitOpen):
        other("GET", upstream.url)
    assert list(transport.outbound.hosts.snapshot()) == [upstream.url.removeprefix("http://")]


def test_a_named_limit_is_one_for_all_hosts(make_upstream: Any) -> None:
    """A part of its own name is shared; an own part of the stack is not."""
    first, second = make_upstream(), make_upstream()
    shared, own = limit(5, name="shared"), limit(3)
    transport = GuardedTransport(guard(shared, own, retry(retries=1)))
    with httpx.Client(transport=transport) as client:
        client.get(first.url)
        client.get(second.url)
    hosts = transport.outbound.hosts
    lanes = [hosts.enter(each.url.removeprefix("http://")) for each in (first, second)]
    assert lanes[0].layers[0] is lanes[1].layers[0] is shared
    assert len({id(lane.layers[1]) for lane in lanes} | {id(own)}) == 3


def test_a_name_may_be_defined_later(upstream: Any) -> None:
    """A transport may be made before the policies are loaded."""
    transport = GuardedTransport("later")
    with httpx.Client(transport=transport) as client:
        with pytest.raises(LookupError, match="later"):
            client.get(upstream.url)
        guard(retry(retries=1, **QUICK), name="later")
        upstream.steps = failing(upstream, 503)
        assert client.get(upstream.url).status_code == 200


def test_a_hedged_request_closes_the_loser(upstream: Any) -> None:
    """The first request hangs, the second one answers; nothing of the first is left."""
    upstream.steps = [upstream.HANG, upstream.Reply()]

    async def main() -> int:
        guards = hedge(after=0.05, idempotent=True)
        async with httpx.AsyncClient(transport=GuardedTransport(guards)) as client:
            return (await client.get(upstream.url)).status_code

    assert asyncio.run(main()) == 200
    wait_until(lambda: upstream.open == 0)


def test_a_loser_that_answers_late_is_closed_as_well(upstream: Any) -> None:
    """A blocking client cannot cut it short; its response is closed when it comes, and not before."""
    upstream.steps = [upstream.Reply(delay=0.4, body=b"x" * 200_000), upstream.Reply()]
    with httpx.Client(transport=GuardedTransport(hedge(after=0.05, idempotent=True)), trust_env=False) as client:
        assert client.get(upstream.url).text == "done"
        assert upstream.open == 2
        wait_until(lambda: upstream.open == 1)  # the one that is kept alive


@pytest.mark.parametrize(("library", "transport"), [(httpx, GuardedTransport), (httpx2, GuardedTransport2)])
def test_a_cancellation_between_opening_and_use_leaves_no_connection(
    upstream: Any, library: Any, transport: Any
) -> None:
    """Cancelled right there, httpcore would keep the connection, and its place in the pool, for ever."""
    upstream.steps = [upstream.HANG]
    inner = library.AsyncHTTPTransport(trust_env=False)

    async def main() -> None:
        async with library.AsyncClient(transport=transport(retry(retries=1), transport=inner)) as client:

            async def trace(name: str, info: Any) -> None:
                if name == "connection.connect_tcp.complete":
                    task.cancel()

            task = asyncio.ensure_future(client.get(upstream.url, extensions={"trace": trace}))
            with pytest.raises(asyncio.CancelledError):
                await task
            assert inner._pool.connections == []
            await asyncio.to_thread(wait_until, lambda: upstream.accepted == 1 and upstream.open == 0)

    asyncio.run(main())


def test_a_session_of_requests_survives_pickling(upstream: Any) -> None:
    """As those without guards do."""
    guard(retry(retries=1, **QUICK), name="outbound")
    session = requests.Session()
    session.mount("http://", GuardedAdapter("outbound", statuses={503}, idempotency_key=True))
    upstream.steps = failing(upstream, 503)
    with pickle.loads(pickle.dumps(session)) as copy:
        assert copy.post(upstream.url).status_code == 200


def test_aiohttp_refuses_to_hedge(upstream: Any) -> None:
    """One of its requests cannot be on its way twice."""
    with pytest.raises(TypeError, match="hedge"):
        CLIENTS["aiohttp"](hedge(after=0.05, idempotent=True))("GET", upstream.url)


def test_idempotent_has_no_place_around_a_client(upstream: Any) -> None:
    """A response is no value that could be replayed."""
    with pytest.raises(TypeError, match="function that sends"):
        CLIENTS["httpx"](idempotent(key="request"))("GET", upstream.url)


def test_statuses_may_be_told(upstream: Any) -> None:
    """A status on the list is retried, one that is not is an answer."""
    upstream.steps = failing(upstream, 425, 503)
    assert CLIENTS["httpx"](retry(retries=2, **QUICK), statuses={425})("GET", upstream.url)[0] == 503


def test_wrong_options_are_all_named() -> None:
    """At construction."""
    with pytest.raises(ValueError, match=r"guards=3.*statuses=99.*idempotency_key='yes'.*timeout_header=''"):
        GuardedTransport(3, statuses=[99], idempotency_key="yes", timeout_header="")  # type: ignore[arg-type]


RETRY_AFTER = [
    ("1", 1.0, True),
    ("0", 0.0, True),
    ("-5", 0.0, True),
    ("soon", 0.0, True),
    ("1e9", 0.0, True),
    ("86400", 0.0, False),
    ("9" * 400, 0.0, False),
    (formatdate(time.time() - 3600, usegmt=True), 0.0, True),
    (formatdate(time.time() + 86_400, usegmt=True), 0.0, False),
    ("Mon, 99 Foo 2026 99:99:99 GMT", 0.0, True),
]


@pytest.mark.parametrize(("value", "wait", "again"), RETRY_AFTER, ids=[each[0][:12] for each in RETRY_AFTER])
def test_retry_after_is_obeyed_and_bounded(upstream: Any, value: str, wait: float, again: bool) -> None:
    """Waited for where it is short, ignored where it says nothing, and the end of the call where it is too long."""
    upstream.steps = [upstream.Reply(429, {"Retry-After": value}), upstream.Reply()]
    started = time.monotonic()
    status, _ = CLIENTS["httpx"](retry(retries=1, max_retry_after=5, **QUICK))("GET", upstream.url)
    taken = time.monotonic() - started
    assert status == (200 if again else 429)
    assert wait <= taken < wait + 1


def test_retry_after_as_a_date_is_waited_for(upstream: Any) -> None:
    """Two seconds from now, in whole seconds."""
    upstream.steps = [upstream.Reply(503, {"Retry-After": formatdate(time.time() + 2, usegmt=True)}), upstream.Reply()]
    started = time.monotonic()
    assert CLIENTS["httpx"](retry(retries=1, **QUICK))("GET", upstream.url)[0] == 200
    assert 0.9 <= time.monotonic() - started < 3


def test_retry_after_beyond_the_deadline_ends_the_call(client: Any, upstream: Any) -> None:
    """No sleep in vain: the response is there at once."""
    upstream.steps = [upstream.Reply(429, {"Retry-After": "3"}), upstream.Reply()]
    started = time.monotonic()
    assert client(guard(deadline(1), retry(retries=3, **QUICK)))("GET", upstream.url)[0] == 429
    assert time.monotonic() - started < 0.9


def test_events_name_the_host_and_no_key(upstream: Any) -> None:
    """What happened, to whom, and nothing that was sent."""
    upstream.steps = failing(upstream, 503)
    with capture() as events:
        fetch = CLIENTS["httpx"](guard(retry(retries=1, **QUICK), name="outbound"), idempotency_key=True)
        fetch("POST", upstream.url + "/secret?token=abc", b"body")
    told = [event for event in events if event.name == "retry.scheduled"]
    assert [event.function for event in told] == [f"outbound[{upstream.url.removeprefix('http://')}]"]
    assert "abc" not in repr(told)
    assert registry["outbound"] is not None


def test_200_requests_to_a_host_that_hangs_are_bounded(upstream: Any) -> None:
    """As many connections as the limit says, all of them gone once the deadline has passed."""
    upstream.steps = [upstream.HANG]
    transport = GuardedTransport(guard(deadline(0.5), limit(10)))

    async def main() -> list[Any]:
        async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
            return await asyncio.gather(*(client.get(upstream.url) for _ in range(200)), return_exceptions=True)

    outcomes = asyncio.run(main())
    assert {type(each) for each in outcomes} == {DeadlineExceeded}
    assert upstream.peak <= 10
    with suppress(AssertionError):
        wait_until(lambda: upstream.open == 0)
    assert upstream.open == 0
    assert [host["active"] for host in transport.outbound.hosts.snapshot().values()] == [0]
