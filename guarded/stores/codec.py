"""Results as bytes, faithful to their types, without pickle.

JSON, in which whatever JSON has no type for is an object with one ``~tag``. Tuples stay tuples and sets sets;
records (dataclasses, named tuples, enum members, models of pydantic) are stored by import path and fields.

Decoding imports nothing and runs no ``__init__``, validator or other code of a class: it finds a class that is
loaded already, checks that it is such a record, and sets its fields.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

_DEEPEST = 200
_LONGEST_INT = 10**300  # the interpreter refuses to read decimal text of more than 4300 digits

Tagged = dict[str, Any]


def encode(value: object, name: str = "result") -> bytes:
    """The bytes of `value`.

    Raises:
        TypeError: something in it cannot be encoded, named by its path from `name`.
    """
    return json.dumps(_pack(value, name, 0), separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def decode(data: bytes) -> Any:
    """The value of bytes made by `encode`.

    Raises:
        ValueError: the bytes are damaged, or name a class that is not loaded or not a record.
    """
    try:
        return _unpack(json.loads(data.decode("utf-8", "surrogatepass")))
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"the stored value is damaged: {type(error).__name__}") from error


def _pack(value: Any, path: str, depth: int) -> Any:
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if depth > _DEEPEST:
        raise TypeError(f"{path[:80]}…: cannot encode what is nested more than {_DEEPEST} deep or contains itself")
    pack = _PACKERS.get(kind)
    if pack is not None:
        return pack(value, path, depth + 1)
    return _pack_record(value, kind, path, depth + 1)


def _pack_record(value: Any, kind: type, path: str, depth: int) -> Tagged:
    if isinstance(value, Enum):
        _require(kind, path)
        name, member = ("~flag", value.value) if isinstance(value, Flag) else ("~enum", value.name)
        return {name: [class_path(kind), member]}
    what = record_kind(kind)
    if what is None:
        if isinstance(value, tzinfo):
            return {"~tz": _pack_zone(value, path)}
        raise TypeError(
            f"{path}: cannot encode {kind.__module__}.{kind.__qualname__}; return plain values, "
            "dataclasses, named tuples, enums or pydantic models"
        )
    _require(kind, path)
    if what == "named":
        items = [_pack(item, f"{path}.{name}", depth) for name, item in zip(kind._fields, value, strict=True)]  # type: ignore[attr-defined]
        return {"~named": [class_path(kind), items]}
    state = _data_state(value, path) if what == "data" else _model_state(value)
    return {f"~{what}": [class_path(kind), _pack_dict(state, path, depth, ".{}")]}


def _require(kind: type, path: str) -> None:
    """Refuse to encode what could not be decoded."""
    try:
        found = find_class(class_path(kind))
    except ValueError as error:
        raise TypeError(f"{path}: cannot encode {kind.__module__}.{kind.__qualname__}: {error}") from None
    if found is not kind:
        raise TypeError(f"{path}: cannot encode {class_path(kind)}: another class has that name now")
    if dataclasses.is_dataclass(kind):
        try:
            object.__new__(kind)
        except TypeError:
            raise TypeError(f"{path}: cannot encode {class_path(kind)}: it is more than its fields") from None


def _unpack(packed: Any) -> Any:
    if type(packed) is list:
        return [_unpack(item) for item in packed]
    if type(packed) is not dict:
        return packed
    if len(packed) == 1:
        [(tag, content)] = packed.items()
        if tag.startswith("~"):
            unpack = _UNPACKERS.get(tag)
            if unpack is None:
                raise ValueError(f"the stored value has the unknown tag {tag!r}")
            return unpack(content)
    return {name: _unpack(item) for name, item in packed.items()}


def encodes(kind: type) -> bool:
    """Whether values of exactly this class are encoded, their contents permitting."""
    return kind in (str, bool, timezone, ZoneInfo) or kind in _PACKERS


def class_path(kind: type) -> str:
    """``module:Outer.Name`` of a class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def find_class(path: str) -> type:
    """The class of a path, if its module is loaded; ValueError says why not."""
    module_name, _, qualname = path.partition(":")
    found: Any = sys.modules.get(module_name)
    if found is None:
        raise ValueError(f"{path}: its module is not loaded here; import it where the function is defined")
    for name in qualname.split("."):
        found = vars(found).get(name) if name.isidentifier() else None
        if found is None:
            raise ValueError(f"{path} cannot be found by that path; define the class at the top of its module")
    if not isinstance(found, type):
        raise ValueError(f"{path} is no class")
    return found


def record_kind(kind: type) -> str | None:
    """``data``, ``named`` or ``model`` for classes whose instances are no more than their fields."""
    if dataclasses.is_dataclass(kind):
        return "data"
    if issubclass(kind, tuple) and isinstance(getattr(kind, "_fields", None), tuple):
        return "named"
    pydantic = sys.modules.get("pydantic")
    return "model" if pydantic is not None and issubclass(kind, pydantic.BaseModel) else None


def _data_state(value: Any, path: str) -> dict[str, Any]:
    try:
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    except AttributeError as error:
        raise TypeError(f"{path}: cannot encode a {type(value).__qualname__} with a field missing: {error}") from None


def _model_state(value: Any) -> dict[str, Any]:
    state: dict[str, Any] = value.__getstate__()  # what pydantic defines for pickling: no code of the user's
    return {name: item for name, item in state.items() if item is not None}


def _pack_dict(value: dict[Any, Any], path: str, depth: int, step: str = "[{!r}]") -> Tagged:
    if all(type(name) is str for name in value) and not (len(value) == 1 and next(iter(value)).startswith("~")):
        return {name: _pack(item, path + step.format(name), depth) for name, item in value.items()}
    return {
        "~dict": [
            [_pack(name, f"{path} key", depth), _pack(item, path + step.format(name), depth)]
            for name, item in value.items()
        ]
    }


def _items(tag: str | None) -> Callable[[Any, str, int], Any]:
    def pack(value: Any, path: str, depth: int) -> Any:
        items = [_pack(item, f"{path}[{index}]", depth) for index, item in enumerate(value)]
        return items if tag is None else {tag: items}

    return pack


def _text(tag: str, shown: Callable[[Any], object]) -> Callable[[Any, str, int], Any]:
    return lambda value, path, depth: {tag: shown(value)}


def _pack_int(value: int, path: str, depth: int) -> Any:
    return value if -_LONGEST_INT < value < _LONGEST_INT else {"~int": f"{value:x}"}


def _pack_float(value: float, path: str, depth: int) -> Any:
    return value if math.isfinite(value) else {"~float": repr(value)}


def _pack_datetime(value: datetime, path: str, depth: int) -> Tagged:
    wall = value.replace(tzinfo=None, fold=0).isoformat()
    return {"~datetime": [wall, value.fold, _pack_zone(value.tzinfo, path)]}


def _pack_time(value: time, path: str, depth: int) -> Tagged:
    return {"~time": [value.replace(tzinfo=None, fold=0).isoformat(), value.fold, _pack_zone(value.tzinfo, path)]}


def _pack_zone(zone: tzinfo | None, path: str) -> Any:
    """None, seconds and microseconds east of UTC with the name if it has its own, or the key of a ZoneInfo."""
    if zone is None:
        return None
    if isinstance(zone, ZoneInfo) and zone.key:
        return zone.key
    if type(zone) is timezone:
        offset = zone.utcoffset(None)
        name = zone.tzname(None)
        return [offset // timedelta(microseconds=1), None if name == timezone(offset).tzname(None) else name]
    raise TypeError(f"{path}: cannot encode the time zone {type(zone).__qualname__}; use timezone or ZoneInfo")


def _unpack_zone(packed: Any) -> tzinfo | None:
    if packed is None:
        return None
    if isinstance(packed, str):
        return ZoneInfo(packed)
    micros, name = packed
    offset = timedelta(microseconds=micros)
    if name is not None:
        return timezone(offset, name)
    return UTC if not offset else timezone(offset)


def _unpack_datetime(content: Any) -> datetime:
    wall, fold, zone = content
    return datetime.fromisoformat(wall).replace(fold=fold, tzinfo=_unpack_zone(zone))


def _unpack_time(content: Any) -> time:
    wall, fold, zone = content
    return time.fromisoformat(wall).replace(fold=fold, tzinfo=_unpack_zone(zone))


def _unpack_dict(content: Any) -> dict[Any, Any]:
    return {_unpack(name): _unpack(item) for name, item in content}


def _unpack_enum(content: Any) -> Enum:
    kind = find_class(content[0])
    if not issubclass(kind, Enum) or content[1] not in kind.__members__:
        raise ValueError(f"{content[0]} has no member of the stored name")
    return kind.__members__[content[1]]


def _unpack_flag(content: Any) -> Flag:
    kind = find_class(content[0])
    if not issubclass(kind, Flag):
        raise ValueError(f"{content[0]} is no Flag")
    return kind(content[1])


def _record_class(path: str, what: str) -> Any:
    kind = find_class(path)
    if record_kind(kind) != what:
        raise ValueError(f"{path} is not the kind of class it was when it was stored")
    return kind


def _unpack_data(content: Any) -> Any:
    kind = _record_class(content[0], "data")
    state = _unpack(content[1])
    if state.keys() != {field.name for field in dataclasses.fields(kind)}:
        raise ValueError(f"{content[0]} has other fields than when it was stored")
    value = object.__new__(kind)
    for name, item in state.items():
        object.__setattr__(value, name, item)
    return value


def _unpack_named(content: Any) -> Any:
    kind = _record_class(content[0], "named")
    if len(content[1]) != len(kind._fields):
        raise ValueError(f"{content[0]} has other fields than when it was stored")
    return tuple.__new__(kind, _unpack(content[1]))


def _unpack_model(content: Any) -> Any:
    kind = _record_class(content[0], "model")
    state = _unpack(content[1])
    value = object.__new__(kind)
    for name in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__"):
        object.__setattr__(value, name, state.get(name))
    return value


_PACKERS: dict[type, Callable[[Any, str, int], Any]] = {
    int: _pack_int,
    float: _pack_float,
    list: _items(None),
    tuple: _items("~tuple"),
    set: _items("~set"),
    frozenset: _items("~frozenset"),
    dict: _pack_dict,
    bytes: _text("~bytes", lambda value: base64.b64encode(value).decode()),
    bytearray: _text("~bytearray", lambda value: base64.b64encode(value).decode()),
    complex: _text("~complex", lambda value: [repr(value.real), repr(value.imag)]),
    Decimal: _text("~decimal", str),
    UUID: _text("~uuid", lambda value: value.hex),
    date: _text("~date", date.isoformat),
    timedelta: _text("~timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
    datetime: _pack_datetime,
    time: _pack_time,
}

_UNPACKERS: dict[str, Callable[[Any], Any]] = {
    "~int": lambda content: int(content, 16),
    "~float": lambda content: float(content),
    "~tuple": lambda content: tuple(_unpack(content)),
    "~set": lambda content: set(_unpack(content)),
    "~frozenset": lambda content: frozenset(_unpack(content)),
    "~dict": _unpack_dict,
    "~bytes": lambda content: base64.b64decode(content, validate=True),
    "~bytearray": lambda content: bytearray(base64.b64decode(content, validate=True)),
    "~complex": lambda content: complex(float(content[0]), float(content[1])),
    "~decimal": lambda content: Decimal(content),
    "~uuid": lambda content: UUID(hex=content),
    "~date": lambda content: date.fromisoformat(content),
    "~timedelta": lambda content: timedelta(*content),
    "~datetime": _unpack_datetime,
    "~time": _unpack_time,
    "~tz": lambda content: _unpack_zone(content),
    "~enum": _unpack_enum,
    "~flag": _unpack_flag,
    "~named": _unpack_named,
    "~data": _unpack_data,
    "~model": _unpack_model,
}
