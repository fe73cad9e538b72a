"""The request that is being handled, as the guards see it, and what functions below them may know of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple


class Headers:
    """The headers of one request, by name in any case."""

    __slots__ = ("_values",)

    def __init__(self, fields: Iterable[tuple[str, str]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in fields:
            self._values.setdefault(name.lower(), []).append(value)

    def all(self, name: str) -> Sequence[str]:
        """The values of all headers of this name, in their order."""
        return self._values.get(name.lower(), ())

    def get(self, name: str) -> str | None:
        """The value; several are joined by commas, None stands for none."""
        found = self._values.get(name.lower())
        return None if found is None else ", ".join(found)


class Incoming:
    """One request; keys of policies may name its attributes, as in ``"{request.client}"``.

    Attributes:
        method: in capitals.
        target: path and query, as sent.
        client: who sends it; see `Clients`.
        timeout: seconds that it asks for, bounded; None without a (well-formed) time-out header.
        run: hands it to the application; set by the integration.
    """

    def __init__(self, method: str, target: str, headers: Headers, client: str, timeout: float | None) -> None:
        self.method: str = method.upper()
        self.target = target
        self.client = client
        self.timeout = timeout
        self.run: Callable[[], Any]
        self._headers = headers

    def header(self, name: str) -> str | None:
        """A header of the request; several of one name are joined by commas."""
        return self._headers.get(name)


class Handling(NamedTuple):
    """What is known everywhere below a guarded middleware: who asks, and the status for an overload."""

    client: str
    overload: Literal[429, 503]


handling: ContextVar[Handling | None] = ContextVar("guarded_handling", default=None)


def client_key() -> str:
    """The client of the request that is being handled: for ``rate("10/s", key=client_key)`` on any function below.

    Raises:
        LookupError: no guarded middleware is around.
    """
    found = handling.get()
    if found is None:
        raise LookupError("client_key: no request is being handled here: install a guarded middleware around the app")
    return found.client
