"""Guards in front of real applications of every framework, spoken to over HTTP."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import django
import fastapi
import flask
import httpx
import litestar
import pytest
import starlette.applications
import starlette.responses
import starlette.routing
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import JsonResponse
from django.urls import path

from guarded import errors, idempotent, limit, rate, remaining
from guarded.integrations import asgi, wsgi
from guarded.integrations import django as for_django
from guarded.integrations import fastapi as for_fastapi
from guarded.integrations import flask as for_flask
from guarded.integrations import litestar as for_litestar
from guarded.integrations import starlette as for_starlette
from guarded.integrations.asgi import client_key

pytestmark = pytest.mark.real_clock

ERRORS: dict[str, Exception] = {
    "rate": errors.RateExceeded("inside", retry_after=2.1),
    "limit": errors.LimitFull("inside", reason="queue_full"),
    "circuit": errors.Rejected("inside", layer="circuit", retry_after=0.2),
    "deadline": errors.DeadlineExceeded("inside"),
    "progress": errors.InProgress("inside", retry_after=9),
    "mismatch": errors.KeyMismatch("inside"),
    "abandoned": errors.Abandoned("inside"),
    "store": errors.StoreError("inside"),
    "bug": ValueError("inside"),
    "deadlock": errors.Deadlock("inside"),
}


class Service:
    """What the applications do: the same in each."""

    def __init__(self) -> None:
        self.executed = 0
        self.cancelled = 0
        self.lock = threading.Lock()
        self.started = threading.Event()
        self.goes_on = threading.Event()
        self.per_client = rate("2/h", max_wait=0, key=client_key)(lambda: {"client": client_key()})

    def charge(self) -> dict[str, int]:
        """An effect, counted."""
        with self.lock:
            self.executed += 1
            return {"charged": self.executed}

    def fail(self, what: str) -> dict[str, int]:
        """End in an error."""
        raise ERRORS[what].with_traceback(None)

    async def hang(self) -> dict[str, int]:
        """Work that ends when it is cancelled or told to."""
        self.started.set()
        try:
            while not self.goes_on.is_set():
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.charge()

    def block(self) -> dict[str, int]:
        """The same in a thread."""
        self.started.set()
        self.goes_on.wait(10)
        return self.charge()


def make_fastapi(service: Service, **options: Any) -> Any:
    """FastAPI; a plain function runs in its thread pool."""
    app = fastapi.FastAPI()
    app.post("/charge")(service.charge)
    app.get("/fail/{what}")(service.fail)
    app.get("/left")(lambda: {"left": str(remaining())})
    app.get("/client")(lambda: service.per_client())
    app.get("/hang")(service.hang)
    app.post("/hang")(service.hang)
    for_fastapi.install(app, **options)
    return app


def make_starlette(service: Service, **options: Any) -> Any:
    """Starlette."""
    from starlette.responses import JSONResponse

    async def charge(request: Any) -> Any:
        await request.json()
        return JSONResponse(service.charge())

    async def fail(request: Any) -> Any:
        return JSONResponse(service.fail(request.path_params["what"]))

    async def left(request: Any) -> Any:
        return JSONResponse({"left": str(remaining())})

    def client(request: Any) -> Any:
        return JSONResponse(service.per_client())

    async def hang(request: Any) -> Any:
        return JSONResponse(await service.hang())

    route = starlette.routing.Route
    app = starlette.applications.Starlette(
        routes=[
            route("/charge", charge, methods=["POST"]),
            route("/fail/{what}", fail),
            route("/left", left),
            route("/client", client),
            route("/hang", hang, methods=["GET", "POST"]),
        ]
    )
    for_starlette.install(app, **options)
    return app


def make_litestar(service: Service, **options: Any) -> Any:
    """Litestar."""

    @litestar.post("/charge", status_code=200)
    async def charge(request: litestar.Request[Any, Any, Any]) -> dict[str, int]:
        await request.body()
        return service.charge()

    @litestar.get("/fail/{what:str}")
    async def fail(request: litestar.Request[Any, Any, Any]) -> dict[str, int]:
        return service.fail(request.path_params["what"])

    @litestar.get("/left")
    async def left() -> dict[str, str]:
        return {"left": str(remaining())}

    @litestar.get("/client", sync_to_thread=True)
    def client() -> dict[str, str]:
        return service.per_client()

    @litestar.get("/hang")
    async def hang() -> dict[str, int]:
        return await service.hang()

    @litestar.post("/hang", status_code=200)
    async def hang_on() -> dict[str, int]:
        return await service.hang()

    handlers = [charge, fail, left, client, hang, hang_on]
    return litestar.Litestar(handlers, on_app_init=[for_litestar.install(**options)], logging_config=None)


def make_flask(service: Service, **options: Any) -> Any:
    """Flask."""
    app = flask.Flask("shop")
    app.add_url_rule("/charge", "charge", service.charge, methods=["POST"])
    app.add_url_rule("/fail/<what>", "fail", service.fail)
    app.add_url_rule("/left", "left", lambda: {"left": str(remaining())})
    app.add_url_rule("/client", "client", lambda: service.per_client())
    app.add_url_rule("/hang", "hang", service.block, methods=["GET", "POST"])
    for_flask.install(app, **options)
    return app


async def hang_in_django(request: Any) -> Any:
    """An async view, so that a client that leaves can cancel it."""
    return JsonResponse(await Urls.service.hang())


class Urls:
    """Views of Django; the service is that of the running test."""

    service: Service

    urlpatterns = (
        path("charge", lambda request: JsonResponse(Urls.service.charge())),
        path("fail/<what>", lambda request, what: JsonResponse(Urls.service.fail(what))),
        path("left", lambda request: JsonResponse({"left": str(remaining())})),
        path("client", lambda request: JsonResponse(Urls.service.per_client())),
        path("hang", hang_in_django),
    )


def make_django(service: Service, get_application: Callable[[], Any], **options: Any) -> Any:
    """Django."""
    if not settings.configured:
        settings.configure(
            ALLOWED_HOSTS=["*"],
            ROOT_URLCONF=Urls,
            SECRET_KEY="of this test",
            LOGGING_CONFIG=None,
            MIDDLEWARE=["guarded.integrations.django.RejectionMiddleware"],
        )
        django.setup()
    Urls.service = service
    return for_django.install(get_application(), **options)


def make_asgi(service: Service, **options: Any) -> Any:
    """No framework at all."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await receive()
        if scope["path"] == "/charge":
            content: Any = service.charge()
        elif scope["path"] == "/left":
            content = {"left": str(remaining())}
        elif scope["path"] == "/client":
            content = service.per_client()
        elif scope["path"] == "/hang":
            content = await service.hang()
        else:
            content = service.fail(scope["path"].rpartition("/")[2])
        await starlette.responses.JSONResponse(content)(scope, receive, send)

    return asgi.GuardedMiddleware(app, **options)


def make_wsgi(service: Service, **options: Any) -> Any:
    """No framework at all; the body is made chunk by chunk."""

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [("Content-Type", "application/json")])
        target = environ["PATH_INFO"]
        if target == "/charge":
            yield str(service.charge()).replace("'", '"').encode()
        elif target == "/left":
            yield b'{"left": '
            yield b'"%s"}' % str(remaining()).encode()
        elif target == "/client":
            yield str(service.per_client()).replace("'", '"').encode()
        elif target == "/hang":
            yield str(service.block()).replace("'", '"').encode()
        else:
            service.fail(target.rpartition("/")[2])

    return wsgi.GuardedMiddleware(app, **options)


ASGI: dict[str, Callable[..., Any]] = {
    "fastapi": make_fastapi,
    "starlette": make_starlette,
    "litestar": make_litestar,
    "django-asgi": lambda service, **options: make_django(service, get_asgi_application, **options),
    "asgi": make_asgi,
}
WSGI: dict[str, Callable[..., Any]] = {
    "flask": make_flask,
    "django-wsgi": lambda service, **options: make_django(service, get_wsgi_application, **options),
    "wsgi": make_wsgi,
}


@pytest.fixture(params=[*ASGI, *WSGI])
def start(request: pytest.FixtureRequest, serve_asgi: Any, serve_wsgi: Any, stack: Any) -> Any:
    """Each framework in turn: ``start(**options)`` gives the service and a client for it."""
    return starter(request.param, serve_asgi, serve_wsgi, stack)


@pytest.fixture(params=ASGI)
def start_asgi(request: pytest.FixtureRequest, serve_asgi: Any, serve_wsgi: Any, stack: Any) -> Any:
    """The same for those that hear of a client that leaves."""
    return starter(request.param, serve_asgi, serve_wsgi, stack)


def starter(name: str, serve_asgi: Any, serve_wsgi: Any, stack: Any) -> Any:
    """How to start an application."""

    def start(**options: Any) -> Any:
        service = Service()
        url = serve_asgi(ASGI[name](service, **options)) if name in ASGI else serve_wsgi(WSGI[name](service, **options))
        http = stack.enter_context(httpx.Client(base_url=url, trust_env=False, timeout=10))
        stack.callback(service.goes_on.set)
        return SimpleNamespace(service=service, http=http, url=url)

    return start


def wait_until(condition: Callable[[], bool]) -> None:
    """Give the server's thread time to notice."""
    until = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < until, "it never came to be"
        time.sleep(0.005)


STATUSES = [
    ("rate", 429, "3"),
    ("limit", 429, None),
    ("circuit", 503, "1"),
    ("deadline", 504, None),
    ("progress", 409, "9"),
    ("mismatch", 422, None),
    ("abandoned", 409, None),
    ("store", 503, None),
]


def test_rejections_become_responses(start: Any) -> None:
    """Each its status, as problem+json, with Retry-After rounded up, and nothing of the inside."""
    http = start().http
    for what, status, retry_after in STATUSES:
        response = http.get(f"/fail/{what}")
        assert (response.status_code, response.headers.get("Retry-After")) == (status, retry_after), what
        assert response.headers["Content-Type"] == "application/problem+json"
        assert response.json()["status"] == status
        assert "inside" not in response.text


def test_faults_of_the_program_stay_what_they_are(start: Any) -> None:
    """No problem response hides a bug."""
    http = start().http
    for what in ("bug", "deadlock"):
        response = None
        with suppress(httpx.TransportError):  # the server may hang up on a fault
            response = http.get(f"/fail/{what}")
        assert response is None or response.status_code == 500
        assert response is None or response.headers["Content-Type"] != "application/problem+json"


def test_an_overload_may_be_the_servers_fault(start: Any) -> None:
    """503 in place of 429, wherever the rejection was raised."""
    assert start(overload=503).http.get("/fail/limit").status_code == 503


def test_guards_stand_in_front(start: Any) -> None:
    """A rate for each client, over the request; what it refuses never reaches the application."""
    running = start(guards=rate("2/h", max_wait=0, key="{request.client}"))
    statuses = [running.http.post("/charge", json={}).status_code for _ in range(4)]
    assert statuses == [200, 200, 429, 429]
    assert running.service.executed == 2
    assert 1 <= int(running.http.get("/left").headers["Retry-After"]) <= 3600


def test_a_forged_header_gives_no_new_budget(start: Any) -> None:
    """Nobody is trusted, so the peer is the client, whatever the header says."""
    http = start().http
    statuses = [http.get("/client", headers={"X-Forwarded-For": f"10.0.0.{n}"}).status_code for n in range(4)]
    assert statuses == [200, 200, 429, 429]


def test_a_trusted_proxy_is_believed_and_what_a_client_wrote_is_not(start: Any) -> None:
    """The last address that no proxy of ours has counts; what is before it was written by whoever sent it."""
    http = start(trusted_proxies=["127.0.0.1", "10.0.0.0/8"]).http

    def ask(*forwarded: str) -> Any:
        return http.get("/client", headers=[("X-Forwarded-For", each) for each in forwarded])

    assert ask("192.0.2.1").json() == {"client": "192.0.2.1"}
    assert ask("1.1.1.1, 192.0.2.1, 10.0.0.9").json() == {"client": "192.0.2.1"}
    assert ask("9.9.9.9", "192.0.2.1").status_code == 429
    assert ask("192.0.2.2").json() == {"client": "192.0.2.2"}
    assert ask("2001:db8:0:7::1").json() == ask("2001:db8:0:7:ffff::2").json() == {"client": "2001:db8:0:7::/64"}
    assert ask("2001:db8:0:7:1234::3").status_code == 429


def test_a_timeout_header_opens_a_deadline(start: Any) -> None:
    """Bounded by what the server allows; nonsense opens none."""
    http = start(max_timeout="5s").http

    def left(value: str) -> float:
        return float(http.get("/left", headers={"X-Request-Timeout": value}).json()["left"])

    assert 1 < left("2.5") <= 2.5
    assert 4 < left("3600") <= 5
    assert {left(each) for each in ("-1", "soon", "", "1e3", "nan", "inf")} == {float("inf")}
    assert float(http.get("/left").json()["left"]) == float("inf")


def test_no_time_left_is_a_timeout(start: Any) -> None:
    """The application is not asked."""
    running = start()
    response = running.http.post("/charge", json={}, headers={"X-Request-Timeout": "0"})
    assert (response.status_code, running.service.executed) == (504, 0)


def test_the_deadline_cuts_the_work(start_asgi: Any) -> None:
    """504, and the work is cancelled."""
    running = start_asgi()
    response = running.http.get("/hang", headers={"X-Request-Timeout": "0.2"})
    assert (response.status_code, running.service.cancelled) == (504, 1)


def test_a_key_makes_one_execution(start: Any) -> None:
    """The response of the first request is that of the second one, and says so."""
    running = start()
    headers = {"Idempotency-Key": "order-1"}
    first, second = (running.http.post("/charge", json={"order": 1}, headers=headers) for _ in range(2))
    assert first.json() == second.json() == {"charged": 1}
    assert (first.headers.get("Idempotent-Replayed"), second.headers["Idempotent-Replayed"]) == (None, "true")
    assert first.headers["Content-Type"] == second.headers["Content-Type"]
    assert running.http.post("/charge", json={"order": 1}).json() == {"charged": 2}


def test_a_key_belongs_to_one_request(start: Any) -> None:
    """Another body or path under the same key is refused, and executes nothing."""
    running = start()
    headers = {"Idempotency-Key": '"order-1"'}  # quoted, as the draft of the IETF has it: the same key
    running.http.post("/charge", json={"order": 1}, headers={"Idempotency-Key": "order-1"})
    assert running.http.post("/charge", json={"order": 2}, headers=headers).status_code == 422
    assert running.http.post("/charge?x=1", json={"order": 1}, headers=headers).status_code == 422
    assert running.http.post("/charge", json={"order": 1}, headers=headers).json() == {"charged": 1}


def test_a_key_belongs_to_its_sender(start: Any) -> None:
    """Nobody gets a response that was made for somebody else."""
    running = start()
    for number, user in enumerate(("Bearer alice", "Bearer bob", None), 1):
        headers = {"Idempotency-Key": "1"} | ({"Authorization": user} if user else {})
        for _ in range(2):
            assert running.http.post("/charge", json={}, headers=headers).json() == {"charged": number}


def test_a_bad_key_or_too_long_a_body_is_refused(start: Any) -> None:
    """Before anything is executed."""
    running = start()
    assert running.http.post("/charge", json={}, headers={"Idempotency-Key": "k" * 256}).status_code == 400
    assert running.http.post("/charge", json={}, headers={"Idempotency-Key": '""'}).status_code == 400
    large = running.http.post("/charge", content=b"x" * 1_048_577, headers={"Idempotency-Key": "k"})
    assert (large.status_code, running.service.executed) == (413, 0)


def test_requests_at_once_with_one_key_execute_once(start: Any) -> None:
    """All get the one response."""
    running = start()
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(running.http.post, "/hang", json={}, headers={"Idempotency-Key": "k"}) for _ in range(8)]
        assert running.service.started.wait(5)
        time.sleep(0.1)
        running.service.goes_on.set()
        assert [answer.result().json() for answer in answers] == [{"charged": 1}] * 8


def test_a_duplicate_may_be_refused(start: Any) -> None:
    """409 while the first one is being handled."""
    running = start(idempotency=idempotent(on_duplicate="reject"))
    headers = {"Idempotency-Key": "k"}
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(running.http.post, "/hang", json={}, headers=headers)
        assert running.service.started.wait(5)
        assert running.http.post("/hang", json={}, headers=headers).status_code == 409
        running.service.goes_on.set()
        assert first.result().status_code == 200


def test_a_response_that_says_try_again_is_not_kept(start: Any) -> None:
    """The next request with the key is executed."""
    one = limit(1, max_queue=0)
    running = start(guards=one)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(running.http.get, "/hang")
        assert running.service.started.wait(5)
        headers = {"Idempotency-Key": "k"}
        assert running.http.post("/charge", json={}, headers=headers).status_code == 429
        running.service.goes_on.set()
        assert first.result().status_code == 200
        wait_until(lambda: one.snapshot().held == 0)
        assert running.http.post("/charge", json={}, headers=headers).json() == {"charged": 2}


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_an_answer_of_5xx_is_given_and_not_kept(kind: str, serve_asgi: Any, serve_wsgi: Any) -> None:
    """Whoever asks again gets another chance; an answer that is final is kept, also a refusal."""
    statuses = [503, 500, 404, 200]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            response = starlette.responses.PlainTextResponse("answer", statuses.pop(0))
            await response(scope, receive, send)

    def wsgi_app(environ: Any, start_response: Any) -> Any:
        write = start_response(f"{statuses.pop(0)} X", [("Connection", "close")])
        write(b"ans")
        return [b"wer"]

    url = serve_asgi(asgi.GuardedMiddleware(app)) if kind == "asgi" else serve_wsgi(wsgi.GuardedMiddleware(wsgi_app))
    with httpx.Client(trust_env=False) as client:
        answers = [client.post(url, headers={"Idempotency-Key": "k"}) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [503, 500, 404, 404]
    assert {answer.text for answer in answers} == {"answer"}
    assert statuses == [200]


def test_options_of_keys_come_from_a_policy(start: Any) -> None:
    """By its name, looked up at the first request; what is no such policy is a fault."""
    idempotent(ttl="50ms", name="for http")
    running = start(idempotency="for http")
    headers = {"Idempotency-Key": "k"}
    assert running.http.post("/charge", json={}, headers=headers).json() == {"charged": 1}
    time.sleep(0.1)
    assert running.http.post("/charge", json={}, headers=headers).json() == {"charged": 2}


def test_a_large_body_is_read_as_the_application_asks(start: Any) -> None:
    """More than is read ahead of it."""
    assert start().http.post("/charge", json={"large": "x" * 500_000}).json() == {"charged": 1}


def test_a_client_that_waits_to_be_asked_for_its_body(serve_asgi: Any) -> None:
    """``100 Continue`` goes out when the application wants the body, and not before."""
    url = serve_asgi(make_starlette(Service())).removeprefix("http://")
    host, _, port = url.partition(":")
    for target, first in (("/charge", b"HTTP/1.1 100"), ("/nowhere", b"HTTP/1.1 404")):
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            head = f"POST {target} HTTP/1.1\r\nHost: {url}\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
            connection.sendall(head.encode())
            assert connection.recv(1000).startswith(first)
            connection.sendall(b"{}")


def test_keys_may_be_switched_off(start: Any) -> None:
    """The header is then the application's own business."""
    running = start(idempotency=False)
    for number in (1, 2):
        assert running.http.post("/charge", json={}, headers={"Idempotency-Key": "k"}).json() == {"charged": number}


def leave(running: Any, method: str, **options: Any) -> None:
    """A client that does not wait for its answer."""
    with pytest.raises(httpx.ReadTimeout), httpx.Client(base_url=running.url, trust_env=False, timeout=0.2) as client:
        client.request(method, "/hang", **options)


def test_a_client_that_leaves_cancels_the_work(start_asgi: Any) -> None:
    """Nobody waits for it any more; the slot is free for the next one."""
    one = limit(1, max_queue=0)
    running = start_asgi(guards=one)
    leave(running, "GET")
    wait_until(lambda: one.snapshot().held == 0)
    leave(running, "POST", json={"large": "x" * 10_000})
    wait_until(lambda: running.service.cancelled == 2 and one.snapshot().held == 0)
    running.service.goes_on.set()
    assert running.http.get("/hang").json() == {"charged": 1}


def test_a_client_that_leaves_a_request_with_a_key_finds_its_response(start_asgi: Any) -> None:
    """Its work goes on: cut in the middle, nobody could tell what it has done."""
    running = start_asgi()
    headers = {"Idempotency-Key": "k"}
    leave(running, "POST", json={}, headers=headers)
    running.service.goes_on.set()
    assert running.http.post("/hang", json={}, headers=headers).json() == {"charged": 1}
    assert running.service.cancelled == 0
    assert running.service.executed == 1


def test_a_client_that_leaves_ends_the_waits_of_threads(serve_asgi: Any) -> None:
    """A plain function in the thread pool cannot be cancelled; its wait for a slot can."""
    one = limit(1)
    app = fastapi.FastAPI()
    app.get("/")(one(lambda: "done"))
    for_fastapi.install(app)
    url = serve_asgi(app)
    with one:
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(url, timeout=0.2, trust_env=False)
        wait_until(lambda: one.snapshot().queued == 0)
    assert httpx.get(url, trust_env=False).json() == "done"


@pytest.mark.parametrize("module", [for_fastapi, for_starlette], ids=["fastapi", "starlette"])
def test_an_error_caught_by_hand_becomes_the_same_response(module: Any, serve_asgi: Any) -> None:
    """For applications that want a word in it; a fault of the program has none."""
    app = fastapi.FastAPI()

    @app.get("/{what}")
    def answer(what: str) -> Any:
        error = ERRORS[what]
        return module.problem_response(error) or {"bug": True}

    module.install(app, overload=503)
    url = serve_asgi(app)
    response = httpx.get(f"{url}/rate", trust_env=False)
    assert (response.status_code, response.headers["Retry-After"]) == (503, "3")
    assert httpx.get(f"{url}/deadlock", trust_env=False).json() == {"bug": True}


def test_slots_are_held_until_the_last_chunk(serve_wsgi: Any, serve_asgi: Any) -> None:
    """A response that is still being sent is still being handled."""
    goes_on = threading.Event()

    def stream(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [("Content-Type", "text/plain")])
        yield b"first"
        goes_on.wait(5)
        yield b"last"

    async def astream(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        while not goes_on.is_set():
            await asyncio.sleep(0.01)
        await send({"type": "http.response.body", "body": b"last"})

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await astream(scope, receive, send)

    one = limit(1, max_queue=0)
    for url in (
        serve_wsgi(wsgi.GuardedMiddleware(stream, guards=one)),
        serve_asgi(asgi.GuardedMiddleware(app, guards=one)),
    ):
        goes_on.clear()
        with httpx.stream("GET", url, trust_env=False) as response:
            chunks = response.iter_raw()
            assert next(chunks) == b"first"
            assert httpx.get(url, trust_env=False).status_code == 429
            goes_on.set()
            assert b"".join(chunks) == b"last"
        wait_until(lambda: one.snapshot().held == 0)


def test_what_repeats_a_request_cannot_stand_in_front(serve_asgi: Any) -> None:
    """Its body is read once; found at the latest when the name is looked up."""
    from guarded import retry

    retry(retries=1, name="again")
    app = make_asgi(Service(), guards="again")

    async def main() -> None:
        scope = {"type": "http", "method": "GET", "path": "/left", "headers": [], "client": ("127.0.0.1", 1)}
        await app(scope, asyncio.Event().wait, None)

    with pytest.raises(TypeError, match="in front of an application"):
        asyncio.run(main())


def test_wrong_options_are_all_named() -> None:
    """At construction."""
    wrong = {"guards": 3, "trusted_proxies": ["10.0.0.1/8"], "max_timeout": "soon", "overload": 500, "principal": 1}
    with pytest.raises(ValueError, match=r"guards=3.*trusted_proxies.*max_timeout.*principal=1.*overload=500"):
        wsgi.GuardedMiddleware(lambda environ, start_response: (), **wrong)
