"""What the transports for httpx and httpx2 share: the two libraries differ in their name only."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Collection
from math import inf
from typing import Any

from guarded._core.policy import Policy
from guarded.http import TRANSIENT_STATUSES
from guarded.integrations._client.exchange import AsyncExchange, Exchange, SyncExchange
from guarded.integrations._client.outbound import Outbound
from guarded.integrations._headers import TIMEOUT_HEADER


class _Request(Exchange[Any]):
    """One request of either library; each attempt sends a copy of it, since two may be on their way at once."""

    def __init__(self, library: Any, transport: Any, request: Any) -> None:
        super().__init__(request.method, str(request.url))
        self._library = library
        self._transport = transport
        self._request = request

    def header(self, name: str) -> str | None:
        found: str | None = self._request.headers.get(name)
        return found

    def add_header(self, name: str, value: str) -> None:
        self._request.headers[name] = value

    def content(self) -> bytes | None:
        stream = self._request.stream
        return b"".join(stream) if isinstance(stream, self._library.ByteStream) else None

    def status_of(self, response: Any) -> int:
        return int(response.status_code)

    def size_of(self, response: Any) -> str | None:
        found: str | None = response.headers.get("Content-Length")
        return found

    def is_timeout(self, error: Exception) -> bool:
        return isinstance(error, self._library.TimeoutException)

    def copy(self, seconds: float) -> Any:
        """The request of one attempt."""
        request = self._request
        extensions = dict(request.extensions)
        if seconds < inf:
            given = extensions.get("timeout") or {}
            extensions["timeout"] = {
                name: seconds if given.get(name) is None else min(seconds, given[name])
                for name in ("connect", "read", "write", "pool")
            }
        headers = request.headers.copy()
        headers.update(self.extra)
        return self._library.Request(
            request.method, request.url, headers=headers, stream=request.stream, extensions=extensions
        )


class _Opening:
    """Follows a connection by the trace extension of httpcore: between its opening and its use nobody owns it."""

    def __init__(self, given: Any) -> None:
        self._given = given
        self.is_idle = False

    async def __call__(self, name: str, info: dict[str, Any]) -> None:
        if name.endswith(".started"):
            self.is_idle = False
        elif name.startswith("connection.") and name.endswith(".complete"):
            self.is_idle = True
        if self._given is not None:
            await self._given(name, info)


_STEPS = 100  # of the event loop; a few are enough, since nothing outside is waited for


async def _whatever(step: Awaitable[Any]) -> None:
    """Await a step that is part of obeying a cancellation; another one changes nothing."""
    try:
        await step
    except asyncio.CancelledError:
        pass


class SyncRequest(_Request, SyncExchange[Any]):
    """A request of a ``Client``."""

    def transmit(self, seconds: float) -> Any:
        return self._transport.handle_request(self.copy(seconds))

    def read(self, response: Any) -> None:
        raw = b"".join(response.stream)  # as sent: the client decodes
        response.stream.close()
        response.stream = self._library.ByteStream(raw)

    def close(self, response: Any) -> None:
        response.stream.close()


class AsyncRequest(_Request, AsyncExchange[Any]):
    """A request of an ``AsyncClient``."""

    async def transmit(self, seconds: float) -> Any:
        request = self.copy(seconds)
        opening = request.extensions["trace"] = _Opening(request.extensions.get("trace"))
        sending = asyncio.ensure_future(self._transport.handle_async_request(request))
        try:
            return await asyncio.shield(sending)
        except asyncio.CancelledError:
            await self._call_off(sending, opening)
            raise

    async def _call_off(self, sending: asyncio.Future[Any], opening: _Opening) -> None:
        """Cancel, but not while a connection is open and still unused: its pool would keep it for ever."""
        for _ in range(_STEPS):
            if sending.done() or not opening.is_idle:
                break
            await _whatever(asyncio.sleep(0))
        sending.cancel()
        while not sending.done():
            await _whatever(asyncio.wait({sending}))
        if not sending.cancelled() and sending.exception() is None:
            await self.close(sending.result())

    async def read(self, response: Any) -> None:
        raw = b"".join([chunk async for chunk in response.stream])
        await response.stream.aclose()
        response.stream = self._library.ByteStream(raw)

    async def close(self, response: Any) -> None:
        await response.stream.aclose()


class Transport:
    """A transport around another one; see the classes made of it for the options."""

    library: Any

    def __init__(
        self,
        guards: Policy[Any] | str,
        *,
        transport: Any = None,
        statuses: Collection[int] = TRANSIENT_STATUSES,
        idempotency_key: bool = False,
        timeout_header: str | None = TIMEOUT_HEADER,
    ) -> None:
        self.outbound: Outbound = Outbound(
            guards, statuses=statuses, idempotency_key=idempotency_key, timeout_header=timeout_header
        )
        self._sync = transport if hasattr(transport, "handle_request") else None
        self._async = transport if hasattr(transport, "handle_async_request") else None
        self._given = transport is not None
        self._making = threading.Lock()

    def handle_request(self, request: Any) -> Any:
        """Send a request of a ``Client`` under the guards of its host."""
        if self._sync is None:
            self._refuse_other("handle_request")
            with self._making:  # of two, one would keep its connections open
                self._sync = self._sync or self.library.HTTPTransport()
        return self.outbound.send(SyncRequest(self.library, self._sync, request))

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request of an ``AsyncClient`` under the guards of its host."""
        if self._async is None:
            self._refuse_other("handle_async_request")
            self._async = self.library.AsyncHTTPTransport()
        return await self.outbound.send_async(AsyncRequest(self.library, self._async, request))

    def _refuse_other(self, needed: str) -> None:
        if self._given:
            raise TypeError(f"transport: the one given to {type(self).__name__} has no {needed}")

    def close(self) -> None:
        """Close the transport below."""
        if self._sync is not None:
            self._sync.close()

    async def aclose(self) -> None:
        """Close the transport below."""
        if self._async is not None:
            await self._async.aclose()
