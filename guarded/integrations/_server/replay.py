"""One execution per ``Idempotency-Key``: the response of the first request is the response of all.

The key belongs to whoever sent it (`credentials`) and to one request: method, target and body are compared. Kept are
responses that are final; one that says "try again" (5xx, 408, 409, 425, 429) is given to those who wait for it, and
the next request runs. Bodies and responses are held in memory whole.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from guarded._core.registry import registry
from guarded._core.wrapper import Guarded
from guarded.integrations._headers import IDEMPOTENCY_KEY
from guarded.integrations._server.problems import Problem, make_problem
from guarded.integrations._server.request import Incoming
from guarded.policies.idempotent import Idempotent, idempotent

Principal: TypeAlias = Callable[[Incoming], object]

MAX_BODY = 1_048_576
"""Bytes of a request with a key; a longer one is refused with 413."""

REPLAYED = ("Idempotent-Replayed", "true")
"""Header of a response that was made for an earlier request."""

_SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS", "TRACE"))
_LONGEST_KEY = 255
_NOT_FINAL = frozenset((408, 409, 425, 429))
_OF_THE_CONNECTION = frozenset(("connection", "keep-alive", "transfer-encoding", "trailer", "upgrade"))


@dataclass(frozen=True, slots=True)
class Response:
    """A whole response; header names and values are latin-1 text."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def to_send(self, *, replayed: bool) -> tuple[tuple[str, str], ...]:
        """The headers to send it with."""
        kept = [(name, value) for name, value in self.headers if name.lower() not in _OF_THE_CONNECTION]
        if not any(name.lower() == "content-length" for name, _ in kept):
            kept.append(("Content-Length", str(len(self.body))))
        return (*kept, REPLAYED) if replayed else tuple(kept)


class NotFinal(Exception):
    """Carries a response that is not kept past the policy, to all who wait for it."""

    def __init__(self, response: Response) -> None:
        super().__init__(response)
        self.response = response


@dataclass(frozen=True, slots=True)
class Keyed:
    """What a request with a key is told apart by: `key`, and as fingerprint `target` and `content`."""

    key: tuple[object, ...] = field(compare=False)
    target: str
    content: str
    run: Callable[[], Any] = field(compare=False)


class Replays:
    """Executes requests with a key once.

    Args:
        template: whose options to use; True for the defaults.
        principal: whose a key is.
    """

    def __init__(self, template: Idempotent | str | bool, principal: Principal) -> None:
        self._template = template
        self._principal = principal
        self._made: tuple[Any, Any] | None = None
        self._lock = threading.Lock()

    def key_of(self, request: Incoming) -> str | Problem | None:
        """The key of a request, None where it has none to obey, or what is wrong with it."""
        key = request.header(IDEMPOTENCY_KEY)
        if key is None or request.method in _SAFE_METHODS:
            return None
        key = key.strip()
        if len(key) > 1 and key[0] == key[-1] == '"':  # draft-ietf-httpapi-idempotency-key-header sends it as a string
            key = key[1:-1]
        if 0 < len(key) <= _LONGEST_KEY:
            return key
        return make_problem(400, "bad_key", f"The Idempotency-Key must have from 1 to {_LONGEST_KEY} characters.")

    def bind(self, request: Incoming, key: str, body: bytes, run: Callable[[], Any]) -> Keyed:
        """A request ready to be executed; `run` gives a `Response`, or an awaitable of one."""
        owner = (self._principal(request), request.header("Host"), key)
        return Keyed(owner, f"{request.method} {request.target}", hashlib.sha256(body).hexdigest(), run)

    def execute(self, keyed: Keyed) -> Response:
        """The response of the first request with this key. Raises InProgress, KeyMismatch, Abandoned, StoreError."""
        try:
            return self._functions()[0](keyed)  # type: ignore[no-any-return]
        except NotFinal as carrier:
            return carrier.response

    async def execute_async(self, keyed: Keyed) -> Response:
        """Like `execute`; the work goes on when its first requester is gone."""
        try:
            return await self._functions()[1](keyed)  # type: ignore[no-any-return]
        except NotFinal as carrier:
            return carrier.response

    def _functions(self) -> tuple[Any, Any]:
        with self._lock:  # two tables of runs would be two executions
            if self._made is None:
                policy = _policy_of(self._template)
                mine = Idempotent(replace(policy.options, key="{request.key}", fingerprint=True), name=policy.name)
                self._made = Guarded(execute, (mine,)), Guarded(execute_async, (mine,))
            return self._made


def _policy_of(template: Idempotent | str | bool) -> Idempotent:
    policy = registry[template] if isinstance(template, str) else idempotent() if template is True else template
    if not isinstance(policy, Idempotent):
        raise TypeError(f"idempotency={template!r}: {policy!r} is no idempotent policy")
    return policy


def execute(request: Keyed) -> Response:
    """What the policy guards."""
    return _kept(request.run())


async def execute_async(request: Keyed) -> Response:
    """What the policy guards."""
    answer: Awaitable[Response] = request.run()
    return _kept(await answer)


def _kept(response: Response) -> Response:
    if response.status >= 500 or response.status in _NOT_FINAL:
        raise NotFinal(response)
    return response


for _function in (execute, execute_async):  # one name: a key is one key, whichever way its request came in
    _function.__module__, _function.__qualname__ = "guarded.http", "request"


def credentials(request: Incoming) -> object:
    """Who sends a request, as far as its headers tell: ``Authorization``, else ``Cookie``."""
    return request.header("Authorization") or request.header("Cookie")
