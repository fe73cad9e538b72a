"""Guards for requests: an adapter to mount on a session."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf
from typing import Any

from guarded._core.extras import missing

try:
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3 import Timeout
except ModuleNotFoundError as error:
    raise missing(error, __name__, "guarded[requests]") from error

from guarded._core.policy import Policy
from guarded.http import TRANSIENT_STATUSES
from guarded.integrations._client.exchange import SyncExchange
from guarded.integrations._client.outbound import Outbound
from guarded.integrations._headers import TIMEOUT_HEADER

__all__ = ["GuardedAdapter"]


class _Exchange(SyncExchange[requests.Response]):
    def __init__(self, adapter: HTTPAdapter, request: requests.PreparedRequest, options: dict[str, Any]) -> None:
        super().__init__(request.method or "GET", request.url or "")
        self._adapter = adapter
        self._request = request
        self._options = options

    def header(self, name: str) -> str | None:
        found = self._request.headers.get(name)
        return found.decode("latin-1") if isinstance(found, bytes) else found

    def add_header(self, name: str, value: str) -> None:
        self._request.headers[name] = value

    def content(self) -> bytes | None:
        body = self._request.body
        if body is None:
            return b""
        if isinstance(body, (bytes, str)):
            return body.encode() if isinstance(body, str) else body
        return None

    def status_of(self, response: requests.Response) -> int:
        return response.status_code

    def size_of(self, response: requests.Response) -> str | None:
        return response.headers.get("Content-Length")

    def is_timeout(self, error: Exception) -> bool:
        return isinstance(error, requests.Timeout)

    def transmit(self, seconds: float) -> requests.Response:
        request = self._request.copy()  # two attempts may be on their way at once
        request.headers.update(self.extra)
        options = self._options
        if seconds < inf:
            options = {**options, "timeout": _bounded(options.get("timeout"), seconds)}
        return HTTPAdapter.send(self._adapter, request, **options)

    def read(self, response: requests.Response) -> None:
        response.content  # noqa: B018 - reads the body and keeps it

    def close(self, response: requests.Response) -> None:
        response.close()


def _bounded(timeout: Any, seconds: float) -> Timeout:
    """The time-out that was given, and not above `seconds` for connecting and the first answer together."""
    if isinstance(timeout, Timeout):
        bounded = timeout.clone()
        bounded.total = min(timeout.total, seconds) if isinstance(timeout.total, (int, float)) else seconds
        return bounded
    connect, read = timeout if isinstance(timeout, tuple) else (timeout, timeout)
    return Timeout(total=seconds, connect=connect, read=read)


class GuardedAdapter(HTTPAdapter):
    """Sends each request of a session under the guards of its host.

    The guards last until the headers of the response are there. The session gets the last response itself, whatever
    its status, when retries do not help.

    Args:
        guards: the name of a stack or policy, or one itself; each host gets guards of its own from it.
        statuses: which count as failures. Default 408, 429, 500, 502, 503 and 504.
        idempotency_key: add an ``Idempotency-Key`` to requests that could not be repeated without. Default False.
        timeout_header: which header tells the server the seconds that are left. Default ``X-Request-Timeout``.
        options: those of ``requests.adapters.HTTPAdapter``.

    Example:
        >>> from guarded import guard, retry
        >>> session = requests.Session()
        >>> session.mount("https://", GuardedAdapter(guard(retry(retries=3))))
        >>> session.close()
    """

    __attrs__: list[str] = [*HTTPAdapter.__attrs__, "outbound"]  # noqa: RUF012 - declared so by requests

    def __init__(
        self,
        guards: Policy[Any] | str,
        *,
        statuses: Collection[int] = TRANSIENT_STATUSES,
        idempotency_key: bool = False,
        timeout_header: str | None = TIMEOUT_HEADER,
        **options: Any,
    ) -> None:
        self.outbound: Outbound = Outbound(
            guards, statuses=statuses, idempotency_key=idempotency_key, timeout_header=timeout_header
        )
        super().__init__(**options)

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: Mapping[str, str] | None = None,
    ) -> requests.Response:
        """Called by the session."""
        options = {"stream": stream, "timeout": timeout, "verify": verify, "cert": cert, "proxies": proxies}
        return self.outbound.send(_Exchange(self, request, options))
