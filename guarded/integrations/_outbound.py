"""Requests to other hosts, guarded: what every HTTP client integration shares.

An `Exchange` is one logical request; each attempt sends it once. A response whose status counts as a failure is
raised inside the guards, so that retry and circuit judge it, and given to the caller as it is when they are done.
Repeated are only requests that may be: an idempotent method or an ``Idempotency-Key``, and a body that is still
there. Every response but the one the caller gets is closed. Times are seconds.
"""

from __future__ import annotations

import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from math import inf
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from guarded._core import clock
from guarded._core.call import Call, current, idempotency_key, out_of_time
from guarded._core.keys import digest
from guarded._core.policy import Policy
from guarded.cancel import checkpoint
from guarded.errors import Cancelled
from guarded.http import TRANSIENT_STATUSES, FailedResponse
from guarded.integrations._hosts import Hosts, Lane, hosts_of

ResponseT = TypeVar("ResponseT")

IDEMPOTENT_METHODS = frozenset(("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"))
"""RFC 9110, section 9.2.2."""

IDEMPOTENCY_KEY = "Idempotency-Key"
TIMEOUT_HEADER = "X-Request-Timeout"
"""Carries the seconds that are left, with three decimals: relative, since the clocks of two machines differ."""

SMALL_BODY = 65_536
"""Bytes: a failed response up to this size is read at once, so that its connection is free during the backoff."""

_USUAL_PORTS = {"http": 80, "https": 443}


class Exchange(ABC, Generic[ResponseT]):
    """One logical request of a client library.

    Attributes:
        method, url: as sent.
        host: whose guards it goes through.
        overlaps: whether the library can send it again while it is still on its way.
    """

    overlaps = True

    def __init__(self, method: str, url: str) -> None:
        self.method = method.upper()
        self.url = url
        self.host = host_of(url)
        self.extra: dict[str, str] = {}
        self._lock = threading.Lock()
        self._responses: list[ResponseT] = []
        self._failed: list[ResponseT] = []
        self._over = False

    @abstractmethod
    def header(self, name: str) -> str | None:
        """A header of the request."""

    @abstractmethod
    def add_header(self, name: str, value: str) -> None:
        """Put a header on the request for good."""

    @abstractmethod
    def content(self) -> bytes | None:
        """The body, empty where there is none; None for one that is gone once it has been sent."""

    @abstractmethod
    def status_of(self, response: ResponseT) -> int:
        """The status of a response."""

    @abstractmethod
    def size_of(self, response: ResponseT) -> str | None:
        """The Content-Length of a response."""

    def is_timeout(self, error: Exception) -> bool:
        """Whether an error says that a time-out of the client has passed."""
        return isinstance(error, TimeoutError)

    def is_small(self, response: ResponseT) -> bool:
        """Whether reading the body costs little, as far as its header tells."""
        size = self.size_of(response)
        return size is not None and size.isdecimal() and int(size) <= SMALL_BODY

    def prepare(self, timeout_header: str | None) -> float:
        """An attempt starts: seconds that are left for it. Raises DeadlineExceeded, Cancelled."""
        checkpoint()
        left = seconds_left()
        if timeout_header is not None and left < inf:
            self.extra = {timeout_header: format_timeout(timeout_header, left)}
        return left

    def keep(self, response: ResponseT) -> bool:
        """Note a response; False when the caller is gone, so that it has to be closed here."""
        with self._lock:
            if not self._over:
                self._responses.append(response)
            return not self._over

    def fail(self, response: ResponseT) -> FailedResponse:
        """The response counts as a failure."""
        with self._lock:
            self._failed.append(response)
        return FailedResponse(response)

    def take_failed(self) -> list[ResponseT]:
        """Responses of earlier attempts, which nobody will read."""
        with self._lock:
            failed, self._failed = self._failed, []
            self._responses = [each for each in self._responses if not _among(each, failed)]
        return failed

    def finish(self, kept: object) -> list[ResponseT]:
        """The caller gets `kept`; all others, also those that are still to come, are to be closed."""
        with self._lock:
            self._over = True
            left, self._responses = self._responses, []
        return [each for each in left if each is not kept]

    def late(self, error: Exception) -> Exception | None:
        """What a time-out of the client really was: the deadline, by which it had been cut short."""
        call = current.get()
        if call is not None and self.is_timeout(error) and clock.monotonic() >= call.until:
            return out_of_time(call)
        return None


class SyncExchange(Exchange[ResponseT]):
    """A request of a blocking client."""

    @abstractmethod
    def transmit(self, seconds: float) -> ResponseT:
        """Send once, with `extra` among the headers and no time-out longer than `seconds`."""

    @abstractmethod
    def read(self, response: ResponseT) -> None:
        """Read the body into memory, so that the connection is free and the caller can still have it."""

    @abstractmethod
    def close(self, response: ResponseT) -> None:
        """Give the connection back; harmless when it was."""


class AsyncExchange(Exchange[ResponseT]):
    """A request of an asyncio client; see `SyncExchange`."""

    @abstractmethod
    async def transmit(self, seconds: float) -> ResponseT: ...

    @abstractmethod
    async def read(self, response: ResponseT) -> None: ...

    @abstractmethod
    async def close(self, response: ResponseT) -> None: ...


class Outbound:
    """The rules of one client.

    Args:
        guards: the name of a stack or policy, or one itself. Each host gets guards of its own from it; clients that
            give the same name share them.
        statuses: which count as failures. Default 408, 429, 500, 502, 503 and 504.
        idempotency_key: give requests whose method is not idempotent an ``Idempotency-Key``, the same for all
            attempts, so that they may be repeated. Inside an `@idempotent` body it is derived from the key of that
            call, the method, the URL and the body: a rerun sends the same one. Default False.
        timeout_header: which header tells the server how much time is left; None for none. A name that ends in
            ``-ms`` gets whole milliseconds, ``grpc-timeout`` its own format, others seconds.

    Raises:
        ValueError: an option is wrong; all wrong ones are named.
    """

    def __init__(
        self,
        guards: Policy[Any] | str,
        *,
        statuses: Collection[int] = TRANSIENT_STATUSES,
        idempotency_key: bool = False,
        timeout_header: str | None = TIMEOUT_HEADER,
    ) -> None:
        problems = []
        if not isinstance(guards, (Policy, str)) or guards == "":
            problems.append(f"guards={guards!r}: must be a policy, a stack, or the name of one")
        wrong = [each for each in statuses if type(each) is not int or not 100 <= each <= 599]
        if wrong:
            problems.append(f"statuses={wrong[0]!r}: must be HTTP statuses from 100 to 599")
        if not isinstance(idempotency_key, bool):
            problems.append(f"idempotency_key={idempotency_key!r}: must be True or False")
        if timeout_header is not None and not (isinstance(timeout_header, str) and timeout_header):
            problems.append(f"timeout_header={timeout_header!r}: must be the name of a header, or None")
        if problems:
            raise ValueError("guarded client: " + "; ".join(problems))
        self._guards = guards
        self.hosts: Hosts = hosts_of(guards)
        self._statuses = frozenset(statuses)
        self._adds_key = idempotency_key
        self._header = timeout_header

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self._guards, self._statuses, self._adds_key, self._header)  # state never travels

    def send(self, exchange: SyncExchange[ResponseT]) -> ResponseT:
        """The response that the guards end with. Raises what they or the client raise."""
        lane, repeatable = self._enter(exchange)
        kept: Any = None
        try:
            kept = lane.guarded(make_sync, repeatable=repeatable)(_Attempt(exchange, self, lane, repeatable))
        except FailedResponse as failure:
            kept = failure.response
        finally:
            self.hosts.leave(lane)
            _discard(exchange, exchange.finish(kept))
        return kept  # type: ignore[no-any-return]

    async def send_async(self, exchange: AsyncExchange[ResponseT]) -> ResponseT:
        """Like `send`."""
        lane, repeatable = self._enter(exchange)
        kept: Any = None
        try:
            kept = await lane.guarded(make_async, repeatable=repeatable)(_Attempt(exchange, self, lane, repeatable))
        except FailedResponse as failure:
            kept = failure.response
        finally:
            self.hosts.leave(lane)
            await _discard_async(exchange, exchange.finish(kept))
        return kept  # type: ignore[no-any-return]

    def _enter(self, exchange: Exchange[Any]) -> tuple[Lane, bool]:
        content = exchange.content()
        keyed = exchange.header(IDEMPOTENCY_KEY) is not None
        if self._adds_key and not keyed and exchange.method not in IDEMPOTENT_METHODS:
            exchange.add_header(IDEMPOTENCY_KEY, new_key(exchange.method, exchange.url, content))
            keyed = True
        lane = self.hosts.enter(exchange.host)
        if lane.overlaps and not exchange.overlaps:
            self.hosts.leave(lane)
            raise TypeError("hedge cannot guard this client: it cannot send one request twice at the same time")
        return lane, content is not None and (keyed or exchange.method in IDEMPOTENT_METHODS)

    def begin(self, exchange: Exchange[Any]) -> float:
        """An attempt starts: seconds left for it."""
        return exchange.prepare(self._header)

    def is_failure(self, status: int) -> bool:
        """Whether the guards are to see a failure."""
        return status in self._statuses


def _rebuilt(guards: Policy[Any] | str, statuses: Collection[int], key: bool, header: str | None) -> Outbound:
    return Outbound(guards, statuses=statuses, idempotency_key=key, timeout_header=header)


class _Attempt:
    """What the guarded function gets; keys of policies may name its attributes, as in ``"{request.method}"``."""

    def __init__(self, exchange: Any, rules: Outbound, lane: Lane, repeatable: bool) -> None:
        self.exchange = exchange
        self.rules = rules
        self.method: str = exchange.method
        self.url: str = exchange.url
        self.host: str = exchange.host
        self.repeatable = repeatable
        self.alone = not lane.overlaps  # no other attempt runs, whose response could be among the failed ones

    def header(self, name: str) -> str | None:
        """A header of the request."""
        found: str | None = self.exchange.header(name)
        return found


def make_sync(name: str) -> Callable[[_Attempt], Any]:
    """The function that the guards go around."""

    def send(request: _Attempt) -> Any:
        exchange: SyncExchange[Any] = request.exchange
        if request.alone:
            _discard(exchange, exchange.take_failed())
        seconds = request.rules.begin(exchange)
        try:
            response = exchange.transmit(seconds)
        except Exception as error:
            late = exchange.late(error)
            if late is None:
                raise
            raise late from error
        if not exchange.keep(response):
            _discard(exchange, [response])
            raise Cancelled("nobody waits for this response any more")
        if not request.rules.is_failure(exchange.status_of(response)):
            return response
        if request.repeatable and exchange.is_small(response):
            exchange.read(response)
        raise exchange.fail(response)

    return _named(send, name)


def make_async(name: str) -> Callable[[_Attempt], Any]:
    """Like `make_sync`."""

    async def send(request: _Attempt) -> Any:
        exchange: AsyncExchange[Any] = request.exchange
        if request.alone:
            await _discard_async(exchange, exchange.take_failed())
        seconds = request.rules.begin(exchange)
        try:
            response = await exchange.transmit(seconds)
        except Exception as error:
            late = exchange.late(error)
            if late is None:
                raise
            raise late from error
        if not exchange.keep(response):
            await _discard_async(exchange, [response])
            raise Cancelled("nobody waits for this response any more")
        if not request.rules.is_failure(exchange.status_of(response)):
            return response
        if request.repeatable and exchange.is_small(response):
            await exchange.read(response)
        raise exchange.fail(response)

    return _named(send, name)


def _discard(exchange: SyncExchange[ResponseT], responses: list[ResponseT]) -> None:
    for response in responses:
        try:
            exchange.close(response)
        except Exception:
            pass  # its connection is broken, and nobody reads it


async def _discard_async(exchange: AsyncExchange[ResponseT], responses: list[ResponseT]) -> None:
    for response in responses:
        try:
            await exchange.close(response)
        except Exception:
            pass


def _named(function: Callable[[_Attempt], Any], name: str) -> Callable[[_Attempt], Any]:
    """Events call the function by this name."""
    function.__module__ = ""
    function.__name__ = function.__qualname__ = name
    return function


def _among(item: object, items: Collection[object]) -> bool:
    return any(item is each for each in items)


def seconds_left() -> float:
    """Seconds before the deadline of the running call; ``inf`` without one."""
    call: Call | None = current.get()
    return inf if call is None else call.until - clock.monotonic()


def host_of(url: str) -> str:
    """Host of a URL in lower case, with its port where that is not the usual one of the scheme."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = parts.port
    return host if port is None or port == _USUAL_PORTS.get(parts.scheme) else f"{host}:{port}"


def new_key(method: str, url: str, content: bytes | None) -> str:
    """An idempotency key: derived inside an idempotent call, else a random one."""
    around = idempotency_key()
    if around is None:
        return str(uuid.uuid4())
    return digest(around, method, url, content)


def format_timeout(header: str, seconds: float) -> str:
    """Seconds as the value of a time-out header, rounded down: who is told a shorter time answers in time."""
    milliseconds = max(0, int(seconds * 1000))
    name = header.lower()
    if name == "grpc-timeout":
        return f"{min(milliseconds, 99_999_999)}m"  # at most eight digits, by the gRPC protocol over HTTP/2
    if name.endswith("-ms"):
        return str(milliseconds)
    return f"{milliseconds / 1000:.3f}"
