"""Where the state of policies lives: this process, one machine, or a fleet.

`open_store` turns an address into a store. A store has a face for each kind of policy it can keep: ``rates``,
``limits``, ``circuits`` and ``idempotent`` (see the contract modules). One address is one store in a process.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from guarded._core.extras import missing
from guarded.events.redact import scrub
from guarded.stores.health import Health

_KINDS = {
    "redis": ("redis", "RedisStore"),
    "rediss": ("redis", "RedisStore"),
    "valkey": ("redis", "RedisStore"),
    "valkeys": ("redis", "RedisStore"),
    "unix": ("redis", "RedisStore"),
    "sqlite": ("sqlite", "SQLiteStore"),
    "postgres": ("postgres", "PostgresStore"),
    "postgresql": ("postgres", "PostgresStore"),
}
FACES = {"rate": "rates", "limit": "limits", "circuit": "circuits", "idempotent": "idempotent"}


class StoreProblem(ValueError):
    """What is wrong with an option that means a store."""


_open: dict[tuple[str, tuple[tuple[str, Any], ...]], Any] = {}


@runtime_checkable
class Store(Protocol):
    """What every store has beside its faces.

    Attributes:
        name: what events and errors call it; holds no credential.
        health: whether it can be used, shared by all policies on it.
    """

    @property
    def name(self) -> str: ...

    @property
    def health(self) -> Health: ...


def open_store(address: Any, **options: Any) -> Any:
    """The store of an address, the same object each time; None for ``memory://``, the state of this process.

    Args:
        address: ``redis://host:6379/0``, ``rediss://``, ``valkey://``, ``unix:///path``, ``sqlite:///path``,
            ``postgresql://…``, ``memory://``; a store, or None, is given back as it is.
        options: of the kind of store, such as ``timeout="50ms"``.

    Raises:
        StoreProblem: a ValueError: no such kind of store, its driver is not installed, or an option is wrong.
    """
    if not isinstance(address, str):
        return address
    scheme, colon, _ = address.partition(":")
    if scheme == "memory" and colon:
        return None
    kind = _KINDS.get(scheme.lower()) if colon else None
    if kind is None:
        raise StoreProblem(
            f"store: {scrub(address)!r} is no address of a store, such as redis://host:6379/0: "
            f"it must begin with one of {', '.join(f'{known}:' for known in (*_KINDS, 'memory'))}"
        )
    key = address, tuple(sorted(options.items()))
    found = _open.get(key)
    return _open.setdefault(key, _load(scheme, *kind)(address, **options)) if found is None else found


def _load(scheme: str, module: str, name: str) -> Any:
    try:
        return getattr(import_module(f"guarded.stores.{module}"), name)
    except ModuleNotFoundError as error:
        raise StoreProblem(f"store: {missing(error, scheme, f'guarded[{module}]')}") from error


def face_of(store: Any, kind: str) -> Any:
    """The face of a store for a kind of policy; StoreProblem when it has none."""
    face = getattr(store, FACES[kind], None)
    if face is None or not isinstance(store, Store):
        raise StoreProblem(f"store={store!r}: keeps no state of {kind} layers, as one at redis:// does")
    return face
