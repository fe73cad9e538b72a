"""What HTTP says about failures: which pass by themselves, how long to wait, and which status a rejection becomes.

`transient` is the default retry predicate, for errors of any client library: statuses are found by their
usual attributes, drivers by the names of their classes, so that no library is imported.
"""

from __future__ import annotations

import errno
import math
import socket
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeGuard

from guarded._core import drivers
from guarded._core.drivers import attribute
from guarded._core.retry_after import parse_retry_after, read_headers
from guarded.errors import (
    Abandoned,
    Cancelled,
    DeadlineExceeded,
    GuardedError,
    InProgress,
    KeyMismatch,
    LimitFull,
    Rejected,
    StoreError,
)

__all__ = [
    "TRANSIENT_STATUSES",
    "FailedResponse",
    "headers_for",
    "parse_retry_after",
    "retry_after_of",
    "status_for",
    "status_of",
    "transient",
    "transient_response",
    "transient_status",
]

TRANSIENT_STATUSES = frozenset((408, 429, 500, 502, 503, 504))
"""Statuses after which the same request may succeed."""

_DEEPEST = 10
_LONGEST_WAIT = 366 * 86_400
_ERRNO_NAMES = (
    "ECONNREFUSED",
    "ECONNRESET",
    "ECONNABORTED",
    "EPIPE",
    "ETIMEDOUT",
    "EHOSTUNREACH",
    "EHOSTDOWN",
    "ENETUNREACH",
    "ENETDOWN",
    "ENETRESET",
)
_ERRNOS = frozenset(getattr(errno, name) for name in _ERRNO_NAMES if hasattr(errno, name))  # not on every platform


class FailedResponse(Exception):
    """A response whose status counts as a failure, while the layers around a guarded HTTP client judge it.

    Callers of the client never see it: they get the response itself.

    Args:
        response: of whatever client library; its status and Retry-After are found by their usual attributes.
        host: which the request went to, for the message; None where it is not known.
    """

    def __init__(self, response: Any, host: str | None = None) -> None:
        super().__init__(f"HTTP status {status_of(response)}" + (f" from {host}" if host else ""))
        self.response = response


def transient(error: BaseException) -> bool:
    """Whether a failed call is worth repeating: the default of ``retry(on=…)``.

    True for connection errors and time-outs, for the statuses 408, 429, 500, 502, 503 and 504 on any
    exception that carries one, for the passing errors of well-known drivers, and for rejections by guarded
    (but a closed limit) and its deadlines. An exception group is transient when all of its leaves are. Never
    true for programming errors, other statuses, missing files, refused certificates or logins, and for
    anything that is not an `Exception`, such as a cancellation.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(transient(leaf) for leaf in _leaves(error))
    current: object = error
    for _ in range(_DEEPEST):
        if not isinstance(current, Exception):
            return False
        if isinstance(current, FailedResponse):
            return True  # the client was told which statuses pass
        verdict = _own(current) if isinstance(current, GuardedError) else _foreign(current)
        if verdict is not None:
            return verdict
        current = current.__cause__ if isinstance(current, StoreError) else drivers.inner(current)
    return False


def _leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _own(error: GuardedError) -> bool | None:
    if isinstance(error, StoreError):
        return None  # as its cause: a store out of reach comes back, a value it cannot keep does not
    if isinstance(error, LimitFull):
        return error.reason != "closed"
    return isinstance(error, (Rejected, DeadlineExceeded))


def _foreign(error: Exception) -> bool | None:
    verdict = drivers.by_code(error)
    if verdict is not None:
        return verdict
    status = status_of(error)
    if status is not None:
        return transient_status(status)
    verdict = drivers.by_name(error)
    if verdict is not None:
        return verdict
    if isinstance(error, (ConnectionError, TimeoutError)):
        return True
    if isinstance(error, socket.gaierror):
        return error.errno == socket.EAI_AGAIN
    if isinstance(error, OSError) and error.errno in _ERRNOS:
        return True
    return None


def transient_status(status: int) -> bool:
    """Whether a response with this status is worth asking for again."""
    return status in TRANSIENT_STATUSES


def transient_response(response: object) -> bool:
    """Whether a response of any client library has a transient status; False when it has none."""
    status = status_of(response)
    return status is not None and transient_status(status)


def status_of(source: object) -> int | None:
    """The HTTP status that an exception or response of any library carries, else None.

    Looked for in ``status_code``, ``status``, the same two of ``response`` or ``resp``, then ``code``.
    """
    for carrier in (source, attribute(source, "response"), attribute(source, "resp")):
        # A response may well be false: those of requests are, when the status is an error.
        if carrier is None:
            continue
        if isinstance(carrier, Mapping):
            metadata = carrier.get("ResponseMetadata")  # botocore
            found = metadata.get("HTTPStatusCode") if isinstance(metadata, Mapping) else None
            candidates = (found, attribute(carrier, "status"))
        else:
            candidates = (attribute(carrier, "status_code"), attribute(carrier, "status"))
        for candidate in candidates:
            if _is_status(candidate, 100):
                return int(candidate)
    code = attribute(source, "code")
    # Many errors number themselves by other rules: only what can be the status of an error is one.
    return int(code) if _is_status(code, 400) else None


def _is_status(value: Any, lowest: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= 599


def retry_after_of(source: object) -> float | None:
    """Seconds that an exception or response asks to wait, else None.

    Its own ``retry_after`` goes first, then the headers ``Retry-After-Ms``, ``x-ms-retry-after-ms``,
    ``x-amz-retry-after`` and ``Retry-After`` of it or of its response. Of an exception group the longest.
    """
    if isinstance(source, BaseExceptionGroup):
        waits = [wait for wait in map(retry_after_of, _leaves(source)) if wait is not None]
        return max(waits, default=None)
    own = parse_retry_after(attribute(source, "retry_after"))
    if own is not None:
        return own
    response = attribute(source, "response")
    metadata = response.get("ResponseMetadata") if isinstance(response, Mapping) else None
    in_botocore = metadata.get("HTTPHeaders") if isinstance(metadata, Mapping) else None
    for headers in (attribute(source, "headers"), attribute(response, "headers"), in_botocore):
        found = read_headers(headers)
        if found is not None:
            return found
    return None


def status_for(error: BaseException, *, overload: Literal[429, 503] = 429) -> int:
    """The HTTP status to answer with when a call ended in this error.

    Args:
        error: what was raised; a rejection is told by its layer.
        overload: for a full limit or a used-up rate: 429 blames the client, 503 the server.

    Returns:
        409 for a key in progress or abandoned, 422 for a key reused with other arguments, 503 for an open
        circuit, a lost store and a cancelled call, 504 for a deadline, 500 for any other error.
    """
    if overload not in (429, 503):
        raise ValueError(f"overload={overload!r}: must be 429 or 503")
    if isinstance(error, (InProgress, Abandoned)):
        return 409
    if isinstance(error, Rejected):
        return overload if error.layer in ("limit", "rate") else 503
    if isinstance(error, KeyMismatch):
        return 422
    if isinstance(error, DeadlineExceeded):
        return 504
    return 503 if isinstance(error, (StoreError, Cancelled)) else 500


def headers_for(error: BaseException) -> dict[str, str]:
    """Response headers for this error: ``Retry-After`` in whole seconds, rounded up, where a wait is known.

    Without it for a wait of more than a year, which says nothing but "not by itself".
    """
    wait = parse_retry_after(attribute(error, "retry_after"))
    return {} if wait is None or wait > _LONGEST_WAIT else {"Retry-After": str(math.ceil(wait))}
