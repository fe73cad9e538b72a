"""The dashboard over real servers: what it tells, to whom, and what it lets be done."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from guarded import CircuitOpen, LimitFull, RetryBudget, circuit, events, guard, limit, rate, registry, retry
from guarded.events.bus import bus
from guarded.events.model import INFO
from guarded.integrations import dashboard
from guarded.integrations.dashboard._access import Access, host_name, is_loopback
from guarded.integrations.dashboard._http import Request
from guarded.integrations.dashboard._state import Watch

TOKEN = "correct-horse-battery"
LOCAL = {"host": "localhost:8765"}


class Answer(NamedTuple):
    """One response, read to its end."""

    status: int
    headers: Any
    body: bytes


class Site:
    """A client of one dashboard."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname
        self.host, self.port, self.root = parts.hostname, parts.port, parts.path.rstrip("/")

    @contextmanager
    def opened(self, method: str, path: str, headers: dict[str, str] | None = None, body: Any = None) -> Iterator[Any]:
        """A response that is not read yet."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=10)
        data = None if body is None else json.dumps(body)
        kind = {} if body is None else {"Content-Type": "application/json"}
        connection.request(method, self.root + path, data, {"Connection": "close", **kind, **(headers or {})})
        with closing(connection), connection.getresponse() as response:
            yield response

    def send(self, method: str, path: str, headers: dict[str, str] | None = None, body: Any = None) -> Answer:
        """One request."""
        with self.opened(method, path, headers, body) as response:
            return Answer(response.status, response.headers, response.read())

    def get(self, path: str, headers: dict[str, str] | None = None) -> Any:
        """Status and JSON."""
        answer = self.send("GET", path, headers)
        return answer.status, json.loads(answer.body)

    def act(self, policy: str, act: str, token: str | None = TOKEN, **headers: str) -> Any:
        """Status and JSON of an act."""
        given = {} if token is None else {"Authorization": f"Bearer {token}"}
        answer = self.send("POST", "/api/act", {**given, **headers}, {"policy": policy, "act": act})
        return answer.status, json.loads(answer.body)

    @contextmanager
    def watched(self) -> Iterator[Iterator[tuple[str, Any]]]:
        """Name and document of each server-sent event, as they come."""
        with self.opened("GET", "/api/stream") as response:
            assert response.status == 200
            assert response.getheader("Content-Type").startswith("text/event-stream")
            yield self._pieces(response)

    def _pieces(self, response: Any) -> Iterator[tuple[str, Any]]:
        while True:
            name = response.readline().decode().removeprefix("event: ").strip()
            yield name, json.loads(response.readline().decode().removeprefix("data: "))
            response.readline()


def in_asgi(serve_asgi: Callable[[Any], str], serve_wsgi: Callable[[Any], str]) -> Site:
    """Mounted in Starlette, under uvicorn."""
    from starlette.applications import Starlette
    from starlette.routing import Mount

    return Site(serve_asgi(Starlette(routes=[Mount("/guarded", make("asgi"))])) + "/guarded")


def in_wsgi(serve_asgi: Callable[[Any], str], serve_wsgi: Callable[[Any], str]) -> Site:
    """Mounted in Flask, under werkzeug."""
    from flask import Flask
    from werkzeug.middleware.dispatcher import DispatcherMiddleware

    return Site(serve_wsgi(DispatcherMiddleware(Flask("shop"), {"/guarded": make("wsgi")})) + "/guarded")


def make(kind: str, **options: Any) -> Any:
    """An application that allows acts and is quick."""
    options = {"token": TOKEN, "interval": "100ms", **options}
    return dashboard.asgi_app(**options) if kind == "asgi" else dashboard.wsgi_app(**options)


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dashboards of earlier tests stop to count soon."""
    monkeypatch.setattr("guarded.integrations.dashboard._state.GRACE", 0.05)


def until_unwatched() -> None:
    """Wait until nobody listens to successes: a server notices that a viewer has left when it writes the next piece."""
    give_up = time.monotonic() + 10
    while bus.threshold < INFO:
        assert time.monotonic() < give_up
        time.sleep(0.02)


@pytest.fixture(params=[in_asgi, in_wsgi, None], ids=["asgi", "wsgi", "serve"])
def site(
    request: pytest.FixtureRequest, serve_asgi: Callable[[Any], str], serve_wsgi: Callable[[Any], str], stack: Any
) -> Site:
    """The same dashboard, three ways."""
    if request.param is None:
        return Site(stack.enter_context(dashboard.serve(0, token=TOKEN, interval="100ms")).url)
    return request.param(serve_asgi, serve_wsgi)  # type: ignore[no-any-return]


@pytest.mark.real_clock
def test_the_stream_shows_what_happens(site: Site) -> None:
    """How the policies stand, what the calls came to while somebody looks, and the events as they come."""
    db, gateway = limit(3, name="db"), circuit("gateway", failures=2)
    rate("5/s", name="api")
    RetryBudget(0.1, name="budget")

    @db
    @retry(retries=1, base=0, jitter="none", on=ConnectionError, name="again")
    @gateway
    def charge(fails: bool) -> None:
        if fails:
            raise ConnectionError("password=canary")

    charge(False)  # nobody looks: not counted
    with site.watched() as pieces, db:
        name, first = next(piece for piece in pieces if piece[0] == "state")
        assert (name, first["totals"]["calls"], first["viewers"], first["acts"]) == ("state", 0, 1, True)
        charge(False)
        with pytest.raises(ConnectionError):
            charge(True)
        with pytest.raises(CircuitOpen):
            charge(True)
        seen: list[dict[str, Any]] = []
        for name, found in pieces:
            if name == "events":
                seen += found
            elif found["totals"]["calls"] == 3 and any(event["name"] == "circuit.rejected" for event in seen):
                state = found
                break
    assert {"retry.scheduled", "retry.exhausted", "circuit.opened"} <= {event["name"] for event in seen}
    totals, policies = state["totals"], {policy["name"]: policy for policy in state["policies"]}
    assert (totals["succeeded"], totals["failed"], totals["max_retries"], totals["exhausted"]) == (1, 2, 1, 1)
    assert totals["first_attempt"] == pytest.approx(1 / 3)
    assert (policies["db"]["held"], policies["db"]["limit"]) == (1, 3)
    assert (policies["gateway"]["state"], policies["gateway"]["trips_at"]) == ("open", 2)
    assert policies["gateway"]["rejected"] == 1
    assert (policies["again"]["retries"], policies["api"]["free"], policies["budget"]["balance"]) == (1, 5, 10.0)
    [function] = state["functions"]
    assert (function["calls"], function["failed"], function["retries"]) == (3, 2, 1)
    assert "canary" not in json.dumps([state, seen])


@pytest.mark.real_clock
def test_it_costs_nothing_when_nobody_looks(site: Site) -> None:
    """The success path has events to make only as long as a stream is open, and a moment longer."""
    until_unwatched()
    with site.watched() as pieces:
        next(pieces)
        assert bus.threshold < INFO
    until_unwatched()


def test_state_and_events_can_be_asked_for(site: Site) -> None:
    """One document each, for scripts."""
    limit(7, name="db")
    bus.emit("limit.rejected", None, None, reason="queue_full")
    status, state = site.get("/api/state")
    assert (status, [policy["limit"] for policy in state["policies"]]) == (200, [7])
    status, found = site.get("/api/events")
    assert (status, found[-1]["name"], found[-1]["level"]) == (200, "limit.rejected", "WARNING")
    assert len(found) <= len(events.recent())


def test_the_page_is_one_file_without_outside_addresses(site: Site) -> None:
    """Its script runs by a nonce of this very answer, and it may connect to nowhere else."""
    status, headers, body = site.send("GET", "/")
    html = body.decode()
    assert status == 200
    policy = headers["Content-Security-Policy"]
    nonce = policy.partition("'nonce-")[2].partition("'")[0]
    assert html.count(f'nonce="{nonce}"') == 2
    assert "{{" not in html
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    addresses = [piece.partition('"')[0].partition("'")[0] for piece in html.split("http")[1:]]
    assert {address for address in addresses if "://" in address} == {"://www.w3.org/2000/svg"}
    assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")
    assert site.send("GET", "/").headers["Content-Security-Policy"] != policy


def test_isolate_and_reset(site: Site) -> None:
    """With the token, a circuit opens at once and closes again."""
    gateway = circuit("gateway")
    status, state = site.act("gateway", "isolate")
    assert (status, state["policy"], state["state"]) == (200, "gateway", "isolated")
    assert gateway.state == "isolated"
    assert site.act("gateway", "reset")[0] == 200
    assert gateway.state == "closed"


def test_an_act_that_the_store_does_not_hear_of(site: Site) -> None:
    """Whoever has pressed the button is told that it holds for one process only."""
    circuit("gateway", store="redis://127.0.0.1:1")
    status, problem = site.act("gateway", "isolate")
    assert status == 503
    assert "isolated in this process only" in problem["detail"]


def test_no_act_without_the_token(site: Site) -> None:
    """The answer says so, and nothing changes."""
    gateway = circuit("gateway")
    for token in (None, "", "wrong", TOKEN[:-1], TOKEN + "x"):
        status, problem = site.act("gateway", "isolate", token)
        assert (status, problem["detail"]) == (401, "The token is missing or wrong.")
    assert gateway.state == "closed"


def test_wrong_acts(site: Site) -> None:
    """Each is answered with what is wrong."""
    limit(1, name="db")
    circuit("gateway")
    assert site.act("gatewax", "isolate")[0] == 404
    assert site.act("gateway", "disable")[0] == 409
    assert site.act("db", "reset")[0] == 409
    auth = {"Authorization": f"Bearer {TOKEN}"}
    assert site.send("POST", "/api/act", auth, ["nonsense"]).status == 400
    assert site.send("POST", "/api/act", auth, {"policy": "x" * 5000, "act": "reset"}).status == 400
    assert site.send("POST", "/api/act", {**auth, "Content-Type": "text/plain"}).status == 415
    assert site.send("GET", "/api/act", auth).status == 404
    assert site.send("PUT", "/", auth).status == 404
    assert registry["gateway"].live_state()["state"] == "closed"


FOREIGN = (
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Host": "evil.example"},
    {"X-Forwarded-For": "203.0.113.9"},
    {"Forwarded": "for=203.0.113.9"},
)


def test_other_sites_and_machines_are_refused(site: Site) -> None:
    """Forged requests, foreign names for this address, and what comes through a proxy, even with the token."""
    gateway = circuit("gateway")
    for headers in FOREIGN:
        assert site.get("/api/state", headers)[0] == 403, headers
        assert site.act("gateway", "isolate", **headers)[0] == 403, headers
    assert gateway.state == "closed"


def test_circuits_of_hosts_are_shown_and_can_be_isolated(site: Site) -> None:
    """Each host that a client talks to has one of its own."""
    httpx = pytest.importorskip("httpx")
    from guarded.integrations.httpx import GuardedTransport

    guard(circuit("outbound.circuit"), name="outbound")
    answers = httpx.MockTransport(lambda request: httpx.Response(200))
    with httpx.Client(transport=GuardedTransport("outbound", transport=answers)) as client:
        assert client.get("http://api.example/").status_code == 200
        name = "outbound.circuit[api.example]"
        _, state = site.get("/api/state")
        [row] = [policy for policy in state["policies"] if policy["name"] == name]
        assert (row["state"], row["live"], row["trips_at"]) == ("closed", True, 5)
        assert site.act(name, "isolate")[0] == 200
        with pytest.raises(CircuitOpen):
            client.get("http://api.example/")
    assert registry["outbound.circuit"].live_state()["state"] == "closed"


def test_a_policy_without_a_name_is_shown_by_what_happened(site: Site) -> None:
    """It has no live state to show, but it refuses, waits and retries like any other."""
    nameless = limit(1)
    with site.watched() as pieces:
        next(piece for piece in pieces if piece[0] == "state")
        nameless.close()
        with pytest.raises(LimitFull):
            nameless(print)()
        rows = [row for name, found in (next(pieces) for _ in range(6)) if name == "state" for row in found["policies"]]
    assert rows[-1] == {
        "name": "limit(1)",
        "kind": "limit",
        "live": False,
        "rejected": 1,
        "retries": 0,
        "waits": 0,
        "waited": 0.0,
    }


def test_the_place_without_its_slash_leads_to_the_page(serve_wsgi: Callable[[Any], str]) -> None:
    """The page's own requests are relative to it."""
    from werkzeug.middleware.dispatcher import DispatcherMiddleware

    app = DispatcherMiddleware(make("wsgi"), {"/guarded": make("wsgi")})
    status, headers, _ = Site(serve_wsgi(app)).send("GET", "/guarded")
    assert (status, headers["Location"]) == (308, "/guarded/")


def request(**more: Any) -> Request:
    """A request from this machine."""
    return Request(**{"method": "GET", "path": "/", "client": "127.0.0.1", "headers": LOCAL, **more})


def test_loopback_only_is_about_client_and_name() -> None:
    """Both have to be this machine's; no client (a socket file) is nobody's."""
    access = Access()
    assert access.refuse(request(), data=True) is None
    assert access.refuse(request(client="::1", headers={"host": "[::1]:80"}), data=True) is None
    for wrong in ({"client": "10.0.0.7"}, {"client": None}, {"headers": {"host": "shop.example"}}, {"headers": {}}):
        refused = access.refuse(request(**wrong), data=False)
        assert refused is not None
        assert refused.status == 403


def test_other_machines_need_the_token_to_look() -> None:
    """The bare page is for everyone, what it shows is not."""
    access = Access(TOKEN, loopback_only=False)
    far = {"client": "203.0.113.9", "headers": {"host": "shop.example"}}
    assert access.refuse(request(**far), data=False) is None
    refused = access.refuse(request(**far), data=True)
    assert refused is not None
    assert (refused.status, dict(refused.headers)["WWW-Authenticate"]) == (401, "Bearer")
    far["headers"] = {"host": "shop.example", "authorization": f"Bearer {TOKEN}"}
    assert access.refuse(request(**far), data=True, act=True) is None


def test_without_a_token_nobody_acts() -> None:
    """Not even by an empty one."""
    for given in ({}, {"authorization": "Bearer "}, {"authorization": "Bearer None"}):
        refused = Access().refuse(request(headers={**LOCAL, **given}), data=True, act=True)
        assert refused is not None
        assert refused.status == 403


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"token": "short"}, "token: must be at least 16 visible ASCII characters"),
        ({"token": "fifteen or more\n"}, "token: must be"),
        ({"loopback_only": False}, "loopback_only=False: give a token too"),
        ({"loopback_only": 0, "token": "x"}, "token: must be .*; loopback_only=0: must be True or False"),
        ({"interval": "50ms"}, "interval='50ms': must be from 100ms to 1m"),
        ({"token": "short", "interval": "soon"}, "token: must be .*; interval='soon': "),
    ],
)
@pytest.mark.parametrize("make_one", [dashboard.asgi_app, dashboard.wsgi_app, dashboard.serve])
def test_wrong_options(make_one: Callable[..., object], options: dict[str, Any], problem: str) -> None:
    """Refused when it is made; the token itself is in no message."""
    with pytest.raises(ValueError, match=problem):
        make_one(**options)


def test_serving_to_the_world_takes_two_words() -> None:
    """A wide address alone is a mistake."""
    with pytest.raises(ValueError, match=r"host='0\.0\.0\.0'.*loopback_only=False; interval=0: "):
        dashboard.serve(0, host="0.0.0.0", token=TOKEN, interval=0)


@pytest.mark.parametrize(
    ("host", "local"),
    [("localhost:80", True), ("127.0.0.1", True), ("127.9.9.9:1", True), ("[::1]:80", True), ("::1", True)]
    + [("localhost.evil.example", False), ("127.0.0.1.nip.io", False), ("0.0.0.0", False), ("", False)],
)
def test_names_of_this_machine(host: str, local: bool) -> None:
    """And names that only look like one."""
    assert is_loopback(host_name(host)) is local


def test_an_ipv4_client_of_an_ipv6_server() -> None:
    """Such an address is still this machine's."""
    assert is_loopback("::ffff:127.0.0.1")
    assert not is_loopback("::ffff:10.0.0.1")


def test_nothing_is_missed_between_two_streams_of_a_viewer() -> None:
    """A stream ends now and then, and its viewer asks for the next one at once."""
    watch, work = Watch(), limit(1)(lambda: None)
    until_unwatched()
    with watch.viewing():
        work()
    work()
    with watch.viewing():
        work()
        assert watch.state()["totals"]["calls"] == 3
    until_unwatched()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_viewers_stay_with_the_parent() -> None:
    """A forked worker that nobody looks at does not pay for its parent's viewers."""
    watch = Watch()
    until_unwatched()
    with watch.viewing():
        child = os.fork()
        if child == 0:
            os._exit(0 if watch.viewers == 0 and bus.threshold >= INFO else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert bus.threshold < INFO
    assert watch.viewers == 0
    watch._stop_unless_viewed()
