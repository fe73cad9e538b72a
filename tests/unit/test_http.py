"""What counts as transient, and the way from rejections to statuses; clients meet a real server here."""

from __future__ import annotations

import asyncio
import errno
import http.server
import json
import math
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import httpx
import pytest
import redis
import requests

from guarded import errors
from guarded.http import (
    FailedResponse,
    headers_for,
    retry_after_of,
    status_for,
    status_of,
    transient,
    transient_response,
    transient_status,
)

TRANSIENT = {408, 429, 500, 502, 503, 504}


class WithStatus(Exception):
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def rejected(**options: Any) -> errors.Rejected:
    return errors.Rejected("no", **options)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError(),
        ConnectionResetError(),
        BrokenPipeError(),
        TimeoutError(),
        OSError(errno.EHOSTUNREACH, "x"),
        OSError(errno.ENETUNREACH, "x"),
        OSError(errno.ETIMEDOUT, "x"),
        socket.gaierror(socket.EAI_AGAIN, "x"),
        asyncio.IncompleteReadError(b"", 1),
        ssl.SSLEOFError("x"),
        urllib.error.URLError(ConnectionRefusedError()),
        urllib.error.URLError(TimeoutError()),
        httpx.ConnectError("x"),
        httpx.PoolTimeout("x"),
        httpx.RemoteProtocolError("x"),
        requests.ConnectionError("x"),
        requests.ReadTimeout("x"),
        aiohttp.ServerDisconnectedError(),
        aiohttp.ClientPayloadError("x"),
        redis.ConnectionError("x"),
        redis.TimeoutError("x"),
        redis.exceptions.BusyLoadingError("x"),
    ],
    ids=repr,
)
def test_passing_errors_are_transient(error: Exception) -> None:
    """Connections, time-outs and drivers' own words for them."""
    assert transient(error) is True


@pytest.mark.parametrize(
    "error",
    [
        Exception(),
        ValueError(),
        TypeError(),
        KeyError(),
        RuntimeError(),
        EOFError(),
        FileNotFoundError(),
        PermissionError(),
        IsADirectoryError(),
        BlockingIOError(),
        OSError(),
        OSError(errno.ENOSPC, "x"),
        OSError("x"),
        socket.gaierror(socket.EAI_NONAME, "x"),
        ssl.SSLCertVerificationError("x"),
        urllib.error.URLError("unknown url type"),
        urllib.error.URLError(socket.gaierror(socket.EAI_NONAME, "x")),
        httpx.UnsupportedProtocol("x"),
        httpx.LocalProtocolError("x"),
        httpx.InvalidURL("x"),
        requests.exceptions.InvalidURL("x"),
        requests.TooManyRedirects("x"),
        requests.HTTPError("without a response"),
        aiohttp.InvalidURL("x"),
        redis.AuthenticationError("x"),
        redis.ResponseError("x"),
        asyncio.QueueFull(),
    ],
    ids=repr,
)
def test_lasting_errors_are_not(error: Exception) -> None:
    """Programming errors, files, wrong addresses, refused certificates and logins."""
    assert transient(error) is False


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(503), GeneratorExit()])
def test_control_flow_never_is(error: BaseException) -> None:
    """Alone, and anywhere in a group."""
    assert transient(error) is False
    assert transient(BaseExceptionGroup("x", [TimeoutError(), error])) is False


@pytest.mark.parametrize(
    "status", [200, 301, 400, 401, 403, 404, 408, 409, 422, 429, 499, 500, 501, 502, 503, 504, 505]
)
def test_statuses_wherever_they_are(status: int) -> None:
    """Six statuses are transient, on any exception or response and under any of the usual names."""
    expected = status in TRANSIENT
    carriers: list[dict[str, Any]] = [
        {"status_code": status},
        {"status": status},
        {"response": SimpleNamespace(status_code=status)},
        {"response": SimpleNamespace(status=status)},
        {"resp": SimpleNamespace(status=status)},
        {"response": {"ResponseMetadata": {"HTTPStatusCode": status}}},
    ]
    for attributes in carriers:
        assert status_of(WithStatus(**attributes)) == status
        assert transient(WithStatus(**attributes)) is expected
        assert transient_response(SimpleNamespace(**attributes)) is expected
    assert transient_status(status) is expected
    assert transient(WithStatus(code=status)) is expected


@pytest.mark.parametrize("value", [None, "503", 0, 42, 1006, 10008, True, 503.0, [503]])
def test_what_is_no_status_is_none(value: Any) -> None:
    """Other numbers under the same names, and text, say nothing."""
    assert status_of(WithStatus(status_code=value, status=value, code=value, response=None)) is None
    assert status_of(WithStatus(code=112)) is None
    assert transient_response(SimpleNamespace(status=value)) is False


def test_a_status_goes_before_the_class() -> None:
    """A connection error that carries 404 is a 404."""

    class Odd(ConnectionError):
        status_code = 404

    assert transient(Odd()) is False


def test_a_code_goes_before_the_status() -> None:
    """AWS answers 400 when it throttles, and says so in a code of its own."""
    response = {"Error": {"Code": "ThrottlingException"}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    client_error = type("ClientError", (Exception,), {"__module__": "botocore.exceptions", "response": response})
    assert status_of(client_error()) == 400
    assert transient(client_error()) is True


def test_attributes_that_raise_are_not_there() -> None:
    """Like `httpx.RequestError.request` before a request is set."""

    class Shy(Exception):
        @property
        def response(self) -> Any:
            raise RuntimeError("not set")

    assert status_of(Shy()) is None
    assert retry_after_of(Shy()) is None
    assert transient(Shy()) is False


def test_groups_are_transient_when_every_leaf_is() -> None:
    """Also through groups inside groups."""
    passing, lasting = TimeoutError(), ValueError()
    assert transient(ExceptionGroup("x", [passing, ExceptionGroup("y", [ConnectionError(), passing])])) is True
    assert transient(ExceptionGroup("x", [passing, ExceptionGroup("y", [passing, lasting])])) is False
    assert transient(ExceptionGroup("x", [lasting])) is False


def test_causes_do_not_count_and_may_be_cyclic() -> None:
    """A user's own error is not transient for what it was raised from."""
    error = RuntimeError("mine")
    error.__cause__ = TimeoutError()
    error.__cause__.__cause__ = error
    assert transient(error) is False
    odd = urllib.error.URLError("x")
    odd.reason = odd  # type: ignore[assignment]
    assert transient(odd) is False


def test_own_rejections_are_transient() -> None:
    """All layers' rejections and deadlines, but not a limit that is closed for good."""
    assert transient(errors.LimitFull("no", reason="queue_full")) is True
    assert transient(errors.LimitFull("no", reason="timeout")) is True
    assert transient(errors.LimitFull("no", reason="closed")) is False
    assert transient(errors.RateExceeded("no")) is True
    assert transient(errors.InProgress("no")) is True
    assert transient(errors.CircuitOpen("no")) is True
    assert transient(rejected(layer="mine")) is True
    assert transient(errors.DeadlineExceeded("no")) is True


@pytest.mark.parametrize(
    "error",
    [
        errors.Cancelled("no"),
        errors.KeyMismatch("no"),
        errors.Abandoned("no"),
        errors.Deadlock("no"),
        errors.ConfigError(["no"]),
        errors.PolicyConflict("no"),
        errors.PolicyNotFound("no"),
        errors.GuardedError("no"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_own_verdicts_are_not(error: Exception) -> None:
    """Repeating changes nothing about them."""
    assert transient(error) is False


def test_a_store_error_is_what_caused_it() -> None:
    """A server out of reach comes back; a value that cannot be stored does not."""
    error = errors.StoreError("no")
    assert transient(error) is False
    error.__cause__ = redis.ConnectionError("x")
    assert transient(error) is True
    error.__cause__ = TypeError("cannot encode")
    assert transient(error) is False
    error.__cause__ = error
    assert transient(error) is False


def test_retry_after_is_found_on_errors_and_responses() -> None:
    """Own attribute first, then headers, of it or of its response; of a group the longest."""
    headers = {"Retry-After": "3"}
    assert retry_after_of(rejected(retry_after=0.25)) == 0.25
    assert retry_after_of(rejected()) is None
    assert retry_after_of(WithStatus(retry_after="7", headers=headers)) == 7.0
    assert retry_after_of(WithStatus(retry_after=lambda: 7, headers=headers)) == 3.0
    assert retry_after_of(SimpleNamespace(headers=headers)) == 3.0
    assert retry_after_of(WithStatus(response=SimpleNamespace(headers=headers))) == 3.0
    boto = {"ResponseMetadata": {"HTTPHeaders": {"x-amz-retry-after": "1500"}}}
    assert retry_after_of(WithStatus(response=boto)) == 1.5
    assert retry_after_of(ExceptionGroup("x", [rejected(retry_after=1.0), rejected(retry_after=2.0)])) == 2.0
    assert retry_after_of(ExceptionGroup("x", [ValueError()])) is None
    assert retry_after_of(ValueError()) is None


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.LimitFull("no", reason="timeout"), 429),
        (errors.RateExceeded("no"), 429),
        (errors.CircuitOpen("no"), 503),
        (rejected(layer="circuit"), 503),
        (errors.InProgress("no"), 409),
        (errors.Abandoned("no"), 409),
        (errors.KeyMismatch("no"), 422),
        (errors.DeadlineExceeded("no"), 504),
        (errors.StoreError("no"), 503),
        (errors.Cancelled("no"), 503),
        (errors.PolicyNotFound("no"), 500),
        (ValueError("no"), 500),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_become_statuses(error: Exception, status: int) -> None:
    """The table, with 429 for overload unless 503 is asked for."""
    assert status_for(error) == status
    assert status_for(error, overload=503) == (503 if status == 429 else status)


def test_overload_is_one_of_two() -> None:
    """Any other status is refused with the rule."""
    with pytest.raises(ValueError, match="overload=418: must be 429 or 503"):
        status_for(ValueError(), overload=418)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wait", "shown"), [(0.0, "0"), (0.001, "1"), (1.0, "1"), (1.0001, "2"), (59.5, "60"), (3600, "3600")]
)
def test_waits_are_rounded_up(wait: float, shown: str) -> None:
    """Rounded down, a client would come back too early."""
    assert headers_for(rejected(retry_after=wait)) == {"Retry-After": shown}


@pytest.mark.parametrize("wait", [None, math.nan, -1.0, math.inf, 1e300])
def test_without_a_wait_there_is_no_header(wait: Any) -> None:
    """Nothing is promised that nobody knows."""
    assert headers_for(rejected(retry_after=wait)) == {}
    assert headers_for(errors.DeadlineExceeded("no")) == {}


@pytest.mark.parametrize("response", [SimpleNamespace(status_code=503), SimpleNamespace(status=425)])
def test_a_failed_response_is_transient(response: Any) -> None:
    """Whatever its status: it is raised only for those that the client was told to take for passing."""
    error = FailedResponse(response)
    assert transient(error)
    assert status_of(error) in (503, 425)


def test_imports_nothing_heavy() -> None:
    """No client, driver or breaker is loaded for judging their errors."""
    code = "import sys, json, guarded.http; print(json.dumps(sorted(sys.modules)))"
    environment = {"PYTHONPATH": ":".join(sys.path)}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    loaded = set(json.loads(shown.stdout))
    assert not loaded & {
        "httpx",
        "requests",
        "aiohttp",
        "redis",
        "urllib3",
        "pybreaker",
        "http.client",
        "yaml",
        "pydantic",
    }


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers ``/STATUS`` with that status and a Retry-After, and cuts the connection on ``/cut``."""

    def do_GET(self) -> None:
        if self.path == "/cut":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(int(self.path.strip("/")))
        self.send_header("Retry-After", "7")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Address of a real server."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def get_httpx(url: str) -> Any:
    with httpx.Client(trust_env=False) as client:
        return client.get(url).raise_for_status()


def get_requests(url: str) -> Any:
    with requests.Session() as session:
        session.trust_env = False
        session.get(url).raise_for_status()


def get_urllib(url: str) -> Any:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(url).close()


def get_aiohttp(url: str) -> Any:
    async def get() -> None:
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            response.raise_for_status()

    asyncio.run(get())


CLIENTS = [get_httpx, get_requests, get_urllib, get_aiohttp]


def failure(get: Callable[[str], Any], url: str) -> Exception:
    with pytest.raises(Exception) as caught:
        get(url)
    if isinstance(caught.value, urllib.error.HTTPError):
        caught.value.close()
    return caught.value


@pytest.mark.real_clock
@pytest.mark.parametrize("get", CLIENTS)
@pytest.mark.parametrize("status", [404, 422, 429, 503])
def test_real_clients_carry_status_and_wait(server: str, get: Callable[[str], Any], status: int) -> None:
    """Each client's own error shows the status and the Retry-After that the server sent."""
    error = failure(get, f"{server}/{status}")
    assert status_of(error) == status
    assert retry_after_of(error) == 7.0
    assert transient(error) is (status in TRANSIENT)


@pytest.mark.real_clock
@pytest.mark.parametrize("get", CLIENTS)
def test_real_connections_cut_and_refused_are_transient(server: str, get: Callable[[str], Any]) -> None:
    """A server that hangs up in the middle, and a port where nobody listens."""
    assert transient(failure(get, f"{server}/cut")) is True
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert transient(failure(get, f"http://127.0.0.1:{bound.getsockname()[1]}/")) is True


@pytest.mark.real_clock
def test_real_responses_are_judged_without_raising(server: str) -> None:
    """Responses of requests are false when they say an error, and are judged all the same."""
    with httpx.Client(trust_env=False) as client, requests.Session() as session:
        session.trust_env = False
        for response in (client.get(f"{server}/503"), session.get(f"{server}/503")):
            assert transient_response(response) is True
            assert retry_after_of(response) == 7.0
        assert transient_response(session.get(f"{server}/404")) is False


@pytest.mark.real_clock
def test_a_real_redis_that_is_not_there_is_transient() -> None:
    """The driver's own connection error."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        client = redis.Redis(port=bound.getsockname()[1], retry=None)
        with pytest.raises(redis.ConnectionError) as caught:
            client.ping()
        client.close()
    assert transient(caught.value) is True
