"""A stack as plain data, for asserting what a callable is guarded with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from guarded._core.order import expand_known
from guarded._testing.selection import chain_of


def describe(fn: Any) -> list[dict[str, Any]]:
    """The layers of a guarded callable as decorated, outermost first: ``kind``, ``name`` and ``options`` of each.

    All options are there, defaults included; durations are seconds; types and functions go by their qualified names.
    Raises TypeError for a callable that is not guarded.

    Example:
        >>> from guarded import limit, retry
        >>> from guarded.testing import describe
        >>> @limit(20)
        ... @retry(retries=5, base="100ms")
        ... def fetch() -> None: ...
        >>> slots, again = describe(fetch)
        >>> slots["kind"], slots["options"]["max_concurrent"]
        ('limit', 20)
        >>> again["kind"], again["options"]["base"]
        ('retry', 0.1)
    """
    layers = expand_known(chain_of(fn).layers)
    return [{"kind": layer.kind, "name": layer.name, "options": _fields(layer.options)} for layer in layers]


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    name = getattr(value, "__qualname__", None)
    if name is not None:
        return name if value.__module__ == "builtins" else f"{value.__module__}.{name}"
    if dataclasses.is_dataclass(value):
        return _fields(value)
    return repr(value)
