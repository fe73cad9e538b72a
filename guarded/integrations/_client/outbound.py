"""What every HTTP client integration does with a request: send it under the guards of its host.

A response whose status counts as a failure is raised inside the guards, so that retry and circuit judge it, and given
to the caller as it is when they are done. Repeated are only requests that may be: an idempotent method or an
``Idempotency-Key``, and a body that is still there. Times are seconds.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from typing import Any

from guarded._core.call import idempotency_key
from guarded._core.keys import digest
from guarded._core.policy import Policy
from guarded.errors import Cancelled
from guarded.http import TRANSIENT_STATUSES, FailedResponse
from guarded.integrations._client.exchange import AsyncExchange, Exchange, ResponseT, SyncExchange
from guarded.integrations._client.hosts import Hosts, Lane, hosts_of
from guarded.integrations._headers import IDEMPOTENCY_KEY, TIMEOUT_HEADER, timeout_header_problem

IDEMPOTENT_METHODS = frozenset(("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"))
"""RFC 9110, section 9.2.2."""


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
        if (wrong_header := timeout_header_problem(timeout_header)) is not None:
            problems.append(wrong_header)
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
        keyed = bool((exchange.header(IDEMPOTENCY_KEY) or "").strip())  # an empty key is none to the server
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


def new_key(method: str, url: str, content: bytes | None) -> str:
    """An idempotency key: derived inside an idempotent call, else a random one."""
    around = idempotency_key()
    if around is None:
        return str(uuid.uuid4())
    return digest(around, method, url, content)
