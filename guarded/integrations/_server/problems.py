"""Rejections as HTTP responses, in the form of RFC 9457.

A response says what happened and when to come back, and nothing about the inside: no name of a policy or function.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus

from guarded.errors import (
    Abandoned,
    Cancelled,
    DeadlineExceeded,
    GuardedError,
    InProgress,
    KeyMismatch,
    LimitFull,
    RateExceeded,
    Rejected,
    StoreError,
)
from guarded.http import headers_for, status_for
from guarded.integrations._server.request import handling

MEDIA_TYPE = "application/problem+json"

_DETAILS: tuple[tuple[type[GuardedError], str, str], ...] = (
    (RateExceeded, "rate", "Too many requests in a short time."),
    (LimitFull, "limit", "Too many requests at once."),
    (InProgress, "in_progress", "A request with this Idempotency-Key is still being handled."),
    (Rejected, "unavailable", "The service cannot handle this request at the moment."),
    (DeadlineExceeded, "deadline", "The request could not be handled in the time it had."),
    (KeyMismatch, "key_mismatch", "This Idempotency-Key was used for another request."),
    (Abandoned, "abandoned", "An earlier request with this Idempotency-Key was interrupted; its outcome is unknown."),
    (Cancelled, "cancelled", "The request was cancelled."),
    (StoreError, "unavailable", "The service cannot handle this request at the moment."),
)


@dataclass(frozen=True, slots=True)
class Problem:
    """A response: `body` is JSON, `headers` has all that it needs."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


def problem_for(error: BaseException) -> Problem | None:
    """The response for an error of guarded; None for what is a fault of the program, or no such error."""
    request = handling.get()
    overload = 429 if request is None else request.overload
    for kind, reason, detail in _DETAILS:
        if isinstance(error, kind):
            return make_problem(status_for(error, overload=overload), reason, detail, headers_for(error))
    return None


def make_problem(status: int, reason: str, detail: str, headers: dict[str, str] | None = None) -> Problem:
    """A response with this status; `reason` is for programs, `detail` for people."""
    content = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    body = json.dumps({**content, "reason": reason}).encode()
    fields = {"Content-Type": MEDIA_TYPE, "Content-Length": str(len(body)), "Cache-Control": "no-store"}
    return Problem(status, tuple({**fields, **(headers or {})}.items()), body)
