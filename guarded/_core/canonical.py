"""Bytes that stand for a value: equal for equal values of one type, different for all others, in every process.

``1``, ``1.0``, ``True`` and ``"1"`` all differ. Plain values, containers and records (dataclasses, models of
pydantic, attrs and msgspec, named tuples) have such a form; an object that is only itself has none.
Stores keep digests of it, so that changing the encoding forgets every stored key.

Each value is a tag, the length of its payload, and the payload: no two values run into each other.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from enum import Enum, Flag
from typing import Any

_DEEPEST = 100
_EPOCH = datetime(1970, 1, 1)


def canonical(value: object) -> bytes:
    """The canonical form of a value.

    Containers are taken by content, sets and dicts without order; records and enum members by the name of
    their type and their fields (of a dataclass or attrs class, those that count for equality); aware
    datetimes by the instant; decimals by value.

    Raises:
        TypeError: something in it has no value of its own (a connection, a stream, a function …), or it
            contains itself.
    """
    return _encode(value, 0)


def digest(*parts: object) -> str:
    """SHA-256 of the canonical form of `parts`, as 64 hex digits: what logs and stores see instead of a key."""
    return hashlib.sha256(canonical(parts)).hexdigest()


def _frame(tag: bytes, payload: bytes) -> bytes:
    return b"%b%d:%b" % (tag, len(payload), payload)


def _encode(value: Any, depth: int) -> bytes:
    plain = _PLAIN.get(type(value))
    if plain is not None:
        return plain(value)
    if depth > _DEEPEST:
        raise TypeError(f"it is nested more than {_DEEPEST} deep, or contains itself")
    container = _CONTAINERS.get(type(value))
    if container is not None:
        return container(value, depth + 1)
    return _encode_other(value, depth + 1)


def _int(value: int) -> bytes:
    return _frame(b"i", b"%x" % value)  # hex, since decimal text of a long int is refused by the interpreter


def _float(value: float) -> bytes:
    return _frame(b"f", b"nan" if math.isnan(value) else float.hex(value + 0.0).encode())  # -0.0 is 0.0


def _str(value: str) -> bytes:
    return _frame(b"s", str.encode(value, "utf-8", "surrogatepass"))


def _datetime(value: datetime) -> bytes:
    offset = value.utcoffset()
    if offset is None:
        return _frame(b"Tn", _micros(value - _EPOCH))
    return _frame(b"Ta", _micros(value.replace(tzinfo=None) - _EPOCH - offset))


def _micros(value: timedelta) -> bytes:
    return b"%d" % ((value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds)


def _decimal(value: Any) -> bytes:
    # By hand: Decimal.normalize() rounds to the precision of the caller's context.
    sign, digits, exponent = value.as_tuple()
    if isinstance(exponent, str):
        return _frame(b"D", str(value).encode())
    text = "".join(map(str, digits)).lstrip("0")
    kept = text.rstrip("0")
    exponent = exponent + len(text) - len(kept) if kept else 0
    return _frame(b"D", f"{'-' if sign and kept else ''}{kept or '0'}e{exponent}".encode())


def _sequence(tag: bytes) -> Callable[[Any, int], bytes]:
    def encode(value: Iterable[Any], depth: int) -> bytes:
        return _frame(tag, b"".join([_encode(item, depth) for item in value]))

    return encode


def _unordered(tag: bytes) -> Callable[[Any, int], bytes]:
    def encode(value: Iterable[Any], depth: int) -> bytes:
        return _frame(tag, b"".join(sorted([_encode(item, depth) for item in value])))

    return encode


def _mapping(value: Mapping[Any, Any], depth: int) -> bytes:
    pairs = sorted([(_encode(name, depth), _encode(item, depth)) for name, item in value.items()])
    return _frame(b"d", b"".join([part for pair in pairs for part in pair]))


_PLAIN: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda value: b"n0:",
    bool: lambda value: b"b1:1" if value else b"b1:0",
    int: _int,
    float: _float,
    str: _str,
    bytes: lambda value: _frame(b"y", value),
    bytearray: lambda value: _frame(b"Y", bytes(value)),
}
_CONTAINERS: dict[type, Callable[[Any, int], bytes]] = {
    tuple: _sequence(b"t"),
    list: _sequence(b"l"),
    dict: _mapping,
    set: _unordered(b"e"),
    frozenset: _unordered(b"z"),
}


def _encode_other(value: Any, depth: int) -> bytes:
    """Values whose exact type is not in a table: classes, enum members, records, subclasses, standard library types."""
    kind = type(value)
    if isinstance(value, type):
        return _frame(b"c", _type_name(value))
    if isinstance(value, Enum):
        member = value.value if isinstance(value, Flag) else value.name  # a combination of flags has no name
        return _frame(b"E", _frame(b"c", _type_name(kind)) + _encode(member, depth))
    fields = _fields(value, kind)
    if fields is not None:
        return _frame(b"r", _frame(b"c", _type_name(kind)) + _mapping(fields, depth))
    for base, plain in _PLAIN.items():
        if isinstance(value, base):
            return plain(value)
    for base, container in _CONTAINERS.items():
        if isinstance(value, base):
            return container(value, depth)
    return _encode_standard(value, kind)


def _encode_standard(value: Any, kind: type) -> bytes:
    if isinstance(value, datetime):
        return _datetime(value)
    if isinstance(value, date):
        return _frame(b"A", value.isoformat().encode())
    if isinstance(value, time):
        return _frame(b"H", value.isoformat().encode())
    if isinstance(value, timedelta):
        return _frame(b"P", _micros(value))
    if _is_a(value, "decimal", "Decimal"):
        return _decimal(value)
    if _is_a(value, "uuid", "UUID"):
        return _frame(b"u", value.bytes)
    if isinstance(value, os.PathLike):
        return _frame(b"p", _encode(os.fspath(value), 0))
    raise TypeError(
        f"{kind.__module__}.{kind.__qualname__} has no value that is the same in every process: "
        "use a plain value of it, such as its id, or leave it out"
    )


def _is_a(value: object, module: str, name: str) -> bool:
    # A module nobody has imported has no instances, and importing it here would cost every user of guarded.
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, getattr(loaded, name))


def _type_name(kind: type) -> bytes:
    return f"{kind.__module__}.{kind.__qualname__}".encode()


def _fields(value: Any, kind: type) -> dict[str, Any] | None:
    """The fields of a record by name; None for anything else."""
    names: Iterable[str]
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind) if field.compare]
    elif isinstance(models := _model_fields(kind), Mapping):
        extra = getattr(value, "__pydantic_extra__", None) or {}
        return {**{name: getattr(value, name) for name in models}, **extra}
    elif (attributes := getattr(kind, "__attrs_attrs__", None)) is not None:
        names = [attribute.name for attribute in attributes if attribute.eq]
    elif (struct := getattr(kind, "__struct_fields__", None)) is not None:
        names = struct
    elif isinstance(value, tuple) and hasattr(kind, "_fields"):
        names = kind._fields
    else:
        return None
    return {name: getattr(value, name) for name in names}


def _model_fields(kind: Any) -> object:
    # pydantic 2, else 1: there __fields__ is the only name, in 2 it warns.
    return kind.model_fields if hasattr(kind, "model_fields") else getattr(kind, "__fields__", None)
