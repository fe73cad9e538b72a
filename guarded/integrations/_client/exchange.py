"""One logical request of an HTTP client, which its integration knows how to send, read and close.

Each attempt sends it once. Every response but the one that the caller gets has to be closed, also one that comes when
the caller has gone: an exchange keeps the list. Times are seconds.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Collection
from math import inf
from typing import Generic, TypeVar
from urllib.parse import urlsplit

from guarded._core import clock
from guarded._core.call import current, out_of_time, remaining
from guarded.cancel import checkpoint
from guarded.http import FailedResponse
from guarded.integrations._headers import format_timeout

ResponseT = TypeVar("ResponseT")

SMALL_BODY = 65_536
"""Bytes: a failed response up to this size is read at once, so that its connection is free during the backoff."""

_USUAL_PORTS = {"http": 80, "https": 443}


class Exchange(ABC, Generic[ResponseT]):
    """One logical request of a client library.

    Attributes:
        method, url: as sent.
        host: whose guards it goes through.
        extra: headers that an attempt sends beside those of the request.
        overlaps: whether the library can send it again while it is still on its way.
    """

    overlaps = True

    def __init__(self, method: str, url: str) -> None:
        self.method: str = method.upper()
        self.url = url
        self.host: str = host_of(url)
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
        left = remaining()
        checkpoint()  # only now: it raises if there is none, and libraries refuse a time-out of nothing
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
        return FailedResponse(response, self.host)

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


def host_of(url: str) -> str:
    """Host of a URL in lower case, with its port where that is not the usual one of the scheme."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = parts.port
    return host if port is None or port == _USUAL_PORTS.get(parts.scheme) else f"{host}:{port}"


def _among(item: object, items: Collection[object]) -> bool:
    return any(item is each for each in items)
