"""Guards for the client of aiohttp: a middleware for a session or a single request."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from guarded._core.extras import missing

try:
    import aiohttp
    from aiohttp.payload import BytesPayload
except ModuleNotFoundError as error:
    raise missing(error, __name__, "guarded[aiohttp]") from error

from guarded._core.policy import Policy
from guarded.http import TRANSIENT_STATUSES
from guarded.integrations._client.exchange import AsyncExchange
from guarded.integrations._client.outbound import Outbound
from guarded.integrations._headers import TIMEOUT_HEADER

__all__ = ["GuardedMiddleware"]


class _Exchange(AsyncExchange[aiohttp.ClientResponse]):
    overlaps = False  # a ClientRequest holds the state of being sent

    def __init__(self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> None:
        super().__init__(request.method, str(request.url))
        self._request = request
        self._handler = handler

    def header(self, name: str) -> str | None:
        return self._request.headers.get(name)

    def add_header(self, name: str, value: str) -> None:
        self._request.headers[name] = value

    def content(self) -> bytes | None:
        body: Any = self._request.body
        if isinstance(body, (bytes, bytearray)):
            return bytes(body)
        return bytes(body._value) if isinstance(body, BytesPayload) else None

    def status_of(self, response: aiohttp.ClientResponse) -> int:
        return response.status

    def size_of(self, response: aiohttp.ClientResponse) -> str | None:
        return response.headers.get("Content-Length")

    async def transmit(self, seconds: float) -> aiohttp.ClientResponse:
        self._request.headers.update(self.extra)
        return await self._handler(self._request)

    async def read(self, response: aiohttp.ClientResponse) -> None:
        await response.read()

    async def close(self, response: aiohttp.ClientResponse) -> None:
        response.close()


class GuardedMiddleware:
    """Sends each request of a session under the guards of its host.

    The guards last until the headers of the response are there. The caller gets the last response itself, whatever
    its status, when retries do not help (``raise_for_status`` of the session comes after). A deadline of guarded
    cancels the request at its point; the session's own time-outs go on beside it and cover all attempts together.

    Args:
        guards: the name of a stack or policy, or one itself; each host gets guards of its own from it. No `hedge`:
            aiohttp cannot send one request twice at a time.
        statuses: which count as failures. Default 408, 429, 500, 502, 503 and 504.
        idempotency_key: add an ``Idempotency-Key`` to requests that could not be repeated without. Default False.
        timeout_header: which header tells the server the seconds that are left. Default ``X-Request-Timeout``.

    Example:
        >>> from guarded import guard, retry
        >>> middleware = GuardedMiddleware(guard(retry(retries=3)))
        >>> # aiohttp.ClientSession(middlewares=(middleware,))
    """

    def __init__(
        self,
        guards: Policy[Any] | str,
        *,
        statuses: Collection[int] = TRANSIENT_STATUSES,
        idempotency_key: bool = False,
        timeout_header: str | None = TIMEOUT_HEADER,
    ) -> None:
        self.outbound: Outbound = Outbound(
            guards, statuses=statuses, idempotency_key=idempotency_key, timeout_header=timeout_header
        )

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Called by the session."""
        return await self.outbound.send_async(_Exchange(request, handler))
