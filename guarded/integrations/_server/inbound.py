"""The rules of a guarded server middleware, whatever the framework, and the guards that it puts around a request.

A request with an ``Idempotency-Key`` is handled once and its response kept (see `replay`); one with a time-out header
gets that deadline, bounded; both go through the guards, whose layers see an `Incoming`. What the guards refuse becomes
a problem response. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Generator, Iterable
from typing import Any, Literal, TypedDict

from guarded._core.durations import Duration, parse_duration
from guarded._core.policy import Policy
from guarded._core.wrapper import Guarded
from guarded.integrations._headers import TIMEOUT_HEADER, parse_timeout, timeout_header_problem
from guarded.integrations._server.clients import FORWARDED_FOR, Clients
from guarded.integrations._server.replay import Principal, Replays, credentials
from guarded.integrations._server.request import Handling, Headers, Incoming
from guarded.policies.deadline import DeadlineOptions, DeadlinePolicy
from guarded.policies.idempotent import Idempotent
from guarded.stack import Guard, GuardOptions

_UNFIT = ("idempotent", "retry", "hedge", "fallback")


class Options(TypedDict, total=False):
    """The options of `Inbound`, for the middleware and installers that hand them on."""

    guards: Policy[Any] | str | None
    trusted_proxies: Collection[str]
    timeout_header: str | None
    max_timeout: Duration
    idempotency: Idempotent | str | bool
    principal: Principal
    overload: Literal[429, 503]


class Inbound:
    """The rules of one middleware.

    Args:
        guards: a policy or stack around the whole application, or the name of one: `limit`, `rate`, `circuit` and
            `deadline`. Their keys may be over ``request``: ``rate("10/s", key="{request.client}")``.
        trusted_proxies: addresses and networks of our own proxies, whose ``X-Forwarded-For`` is believed; ``"local"``
            for one on a Unix socket. Default none: the peer is the client.
        timeout_header: which header of a request opens a deadline; None for none. Default ``X-Request-Timeout``, in
            seconds; a name that ends in ``-ms`` is read as milliseconds, ``grpc-timeout`` in its own format.
        max_timeout: the longest deadline that a request may ask for. Default one minute.
        idempotency: whether ``Idempotency-Key`` makes the response of the first request the response of all; or an
            `idempotent` policy, or the name of one, whose ttl, store, lease and so on to use. Default True: 24 hours,
            in the memory of this process.
        principal: whose keys are whose: a function of the `Incoming`. Default the ``Authorization`` header, else
            ``Cookie``, so that nobody gets a response made for somebody else.
        overload: status for a full limit or a used-up rate: 429 (default) or 503.

    Raises:
        ValueError: an option is wrong; all wrong ones are named.
    """

    def __init__(
        self,
        *,
        guards: Policy[Any] | str | None = None,
        trusted_proxies: Collection[str] = (),
        timeout_header: str | None = TIMEOUT_HEADER,
        max_timeout: Duration = 60,
        idempotency: Idempotent | str | bool = True,
        principal: Principal = credentials,
        overload: Literal[429, 503] = 429,
    ) -> None:
        problems = []
        if guards is not None and (not isinstance(guards, (Policy, str)) or guards == ""):
            problems.append(f"guards={guards!r}: must be a policy, a stack, or the name of one")
        try:
            self._clients = Clients(trusted_proxies)
        except ValueError as error:
            problems.append(str(error))
        if (wrong_header := timeout_header_problem(timeout_header)) is not None:
            problems.append(wrong_header)
        try:
            self._max_timeout = parse_duration(max_timeout, option="max_timeout")
        except ValueError as error:
            problems.append(str(error))
        if not isinstance(idempotency, (Idempotent, str, bool)) or idempotency == "":
            problems.append(f"idempotency={idempotency!r}: must be True, False, an idempotent policy or its name")
        if not callable(principal):
            problems.append(f"principal={principal!r}: must be a function of the request")
        if overload not in (429, 503):
            problems.append(f"overload={overload!r}: must be 429 or 503")
        if problems:
            raise ValueError("guarded middleware: " + "; ".join(problems))
        self._timeout_header = timeout_header
        self._overload: Literal[429, 503] = overload
        self.replays: Replays | None = None if idempotency is False else Replays(idempotency, principal)
        layers = () if guards is None else (_Front(GuardOptions((guards,))),)
        # The same layers twice: they share their state.
        self._async = tuple(Guarded(_serve_async, each) for each in ((*_TIMED, *layers), layers))
        self._sync = tuple(Guarded(_serve, each) for each in ((*_TIMED, *layers), layers))

    def incoming(self, method: str, target: str, peer: str | None, headers: Iterable[tuple[str, str]]) -> Incoming:
        """A request, read by these rules."""
        known = Headers(headers)
        client = self._clients.identify(peer, known.all(FORWARDED_FOR))
        return Incoming(method, target, known, client, self._timeout(known))

    def _timeout(self, headers: Headers) -> float | None:
        """Seconds that a request asks for, bounded; None when it does not, or not in a way that can be read."""
        name = self._timeout_header
        value = None if name is None else headers.get(name)
        if name is None or value is None:
            return None
        seconds = parse_timeout(name, value)
        return None if seconds is None else min(seconds, self._max_timeout)

    def serve_async(self, request: Incoming) -> Awaitable[None]:
        """Run the application under deadline and guards."""
        return self._async[request.timeout is None](request)  # type: ignore[no-any-return]

    def serve(self, request: Incoming) -> Generator[bytes, None, None]:
        """The same for a WSGI application: gives its chunks, and holds slots until the last one."""
        return self._sync[request.timeout is None](request)  # type: ignore[no-any-return]

    def handling(self, request: Incoming) -> Handling:
        """What is published while a request is being handled."""
        return Handling(request.client, self._overload)


class _Front(Guard):
    """The guards in front of an application."""

    def expand(self) -> tuple[Policy[Any], ...]:
        layers = super().expand()
        for layer in layers:
            if layer.kind in _UNFIT:
                raise TypeError(f"{layer!r} cannot stand in front of an application: put it on the functions below")
        return layers


def _asked(request: Any) -> float:
    return float(request.timeout)


_TIMED = (DeadlinePolicy(DeadlineOptions(_asked, mode="cooperative"), name="asked by the client"),)


async def _serve_async(request: Incoming) -> None:
    await request.run()


def _serve(request: Incoming) -> Generator[bytes, None, None]:
    chunks = request.run()
    try:
        for chunk in chunks:  # noqa: UP028 - `yield from` would close an iterator as well, and so twice
            yield chunk
    finally:
        close = getattr(chunks, "close", None)
        if close is not None:
            close()


for _function in (_serve_async, _serve):
    _function.__module__, _function.__qualname__ = "", "request"  # what events call it
