"""The kinds of values that options take: how each is checked, and what editors are told about it.

A check returns the value as the policy wants it and raises `Wrong` with one message and, where the slip is
recognisable, a hint. Whatever is text in the file may also be ``${VAR}``, so every schema allows that.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, TypeAlias

from pydantic import PlainValidator, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from guarded._core.durations import parse_duration
from guarded._core.nearest import choices, did_you_mean
from guarded.config.document import brief
from guarded.config.references import BadReference, resolve_reference
from guarded.config.scalars import Expanded, resolve
from guarded.http import transient
from guarded.policies.retry import RetryBudget

Schema: TypeAlias = dict[str, Any]
Check: TypeAlias = "Callable[[Any, Sequence[str] | None], Any]"

VARIABLE: Schema = {"type": "string", "pattern": r"\$\{"}
REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_DURATION_TEXT = (
    r"^\s*((\d+\.?\d*|\.\d+)\s*(ns|us|µs|ms|msecs?|s|secs?|m|mins?|h|hrs?|d|w|"
    r"(nano|micro|milli)?seconds?|minutes?|hours?|days?|weeks?)\s*)+$"
)


class Wrong(ValueError):
    """A value breaks a rule; `hint` says what was probably meant, `items` which entries of it are wrong."""

    def __init__(self, message: str, hint: str | None = None, items: Mapping[int | str, Wrong] | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        self.items: Mapping[int | str, Wrong] = items or {}


@dataclass(frozen=True, slots=True)
class FieldType:
    """One kind of value.

    Args:
        check: value and allow-list to the checked value; raises Wrong.
        schemas: alternatives of a JSON Schema ``anyOf``.
    """

    check: Check
    schemas: tuple[Schema, ...]

    def annotation(self, *, nullable: bool = False) -> Any:
        """The type for a pydantic field; the allow-list is taken from the validation context."""

        def validate(value: Any, info: ValidationInfo) -> Any:
            if value is None and nullable:
                return None
            if isinstance(value, Expanded) and {"type": "string"} not in self.schemas:
                value = resolve(value)
            try:
                return self.check(value, (info.context or {}).get("allow"))
            except Wrong as wrong:
                raise PydanticCustomError("wrong", "{wrong}", {"wrong": wrong}) from None

        plain_text = any(schema == {"type": "string"} for schema in self.schemas)
        schemas = [*self.schemas, *([] if plain_text else [VARIABLE]), *([{"type": "null"}] if nullable else [])]
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        return Annotated[Any, PlainValidator(validate), WithJsonSchema(schema)]


def either(*types: FieldType) -> FieldType:
    """The first type that takes the value; when none does, the complaint that fits what was probably meant."""

    def check(value: Any, allow: Sequence[str] | None) -> Any:
        complaints: list[Wrong] = []
        for kind in types:
            try:
                return kind.check(value, allow)
            except Wrong as wrong:
                complaints.append(wrong)
        if isinstance(value, str) and ":" in value:
            raise complaints[-1]  # references come last
        raise next((wrong for wrong in complaints[:-1] if wrong.hint), complaints[0])

    return FieldType(check, tuple(schema for kind in types for schema in kind.schemas))


def _integer(value: Any, allow: Sequence[str] | None) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    quoted = isinstance(value, str) and re.fullmatch(r"[-+]?\d+", value)
    raise Wrong(f"must be a whole number, not {brief(value)}", "write it without quotes" if quoted else None)


def _number(value: Any, allow: Sequence[str] | None) -> float | int:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if math.isnan(value):
            raise Wrong("must be a number, not NaN")
        return value
    raise Wrong(f"must be a number, not {brief(value)}")


def _ratio(value: Any, allow: Sequence[str] | None) -> float | int:
    percent = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", value) if isinstance(value, str) else None
    if percent:
        raise Wrong(f"{value!r} is a percentage", f"ratios are 0..1, did you mean {float(percent[1]) / 100:g}?")
    number = _number(value, allow)
    if 1 < number <= 100:
        raise Wrong(f"{number:g} is no ratio", f"ratios are 0..1, did you mean {number / 100:g}?")
    if not 0 <= number <= 1:
        raise Wrong(f"{number:g} is no ratio", "ratios are 0..1")
    return number


def _boolean(value: Any, allow: Sequence[str] | None) -> bool:
    if isinstance(value, bool):
        return value
    word = value.casefold() if isinstance(value, str) else ""
    meant = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}.get(word)
    raise Wrong(f"must be true or false, not {brief(value)}", f"write {meant}" if meant else None)


def _text(value: Any, allow: Sequence[str] | None) -> str:
    if isinstance(value, str) and value:
        return value
    raise Wrong(f"must be text, not {brief(value)}")


def _duration(value: Any, allow: Sequence[str] | None) -> Any:
    if isinstance(value, (str, int, float, timedelta)) and not isinstance(value, bool):
        try:
            parse_duration(value, allow_zero=True)
        except ValueError as error:
            raise Wrong(str(error).removeprefix("duration=")) from None
        return value
    raise Wrong(f"must be a duration such as 250ms, 1.5s or 1h30m, not {brief(value)}")


def _delays(value: Any, allow: Sequence[str] | None) -> Any:
    if not isinstance(value, list):
        raise Wrong(f"must be a list of delays such as [100ms, 1s], or a function as module:name, not {brief(value)}")
    if not value:
        raise Wrong("must hold at least one delay")
    found: list[Any] = []
    wrong: dict[int | str, Wrong] = {}
    for index, given in enumerate(value):
        try:
            found.append(_duration(resolve(given) if isinstance(given, Expanded) else given, allow))
        except Wrong as error:
            wrong[index] = error
    if wrong:
        raise Wrong("names what is no delay", items=wrong)
    return found


def _exceptions(value: Any, allow: Sequence[str] | None) -> Any:
    names = value if isinstance(value, list) else [value]
    found: list[Any] = []
    wrong: dict[int | str, Wrong] = {}
    for index, name in enumerate(names):
        try:
            found.append(_exception(name, allow))
        except Wrong as error:
            wrong[index] = error
    if wrong:
        raise Wrong("names what cannot be used", items=wrong) if isinstance(value, list) else wrong[0]
    if not found:
        raise Wrong("must name at least one exception")
    return tuple(found) if isinstance(value, list) else found[0]


def _exception(name: Any, allow: Sequence[str] | None) -> Any:
    if name == "transient":
        return transient
    if isinstance(name, str):
        found = _resolved(name, allow)
    elif callable(name):
        found = name
    else:
        raise Wrong(
            f"must be transient, or an exception such as ConnectionError or httpx:ReadTimeout, not {brief(name)}"
        )
    if isinstance(found, type) and not issubclass(found, BaseException):
        raise Wrong(f"{name!r} is a class, but no exception")
    return found


def _function(value: Any, allow: Sequence[str] | None) -> Any:
    if callable(value):
        return value
    if not isinstance(value, str) or ":" not in value:
        raise Wrong(f"must be a function as module:name, not {brief(value)}")
    return _resolved(value, allow)


def _resolved(value: str, allow: Sequence[str] | None) -> Any:
    try:
        found = resolve_reference(value, allow)
    except BadReference as error:
        raise Wrong(str(error), error.hint) from None
    if not callable(found):
        raise Wrong(f"{value!r} is a {type(found).__name__}, neither a function nor an exception")
    return found


def _key(value: Any, allow: Sequence[str] | None) -> Any:
    if isinstance(value, str) and not REFERENCE.fullmatch(value):
        return _text(value, allow)
    return _function(value, allow)


def _budget(value: Any, allow: Sequence[str] | None) -> Any:
    if isinstance(value, str) and value:
        return value
    if not isinstance(value, dict):
        raise Wrong(f"must be the name of a budget, or a mapping of ratio and min_per_second, not {brief(value)}")
    found: dict[str, Any] = {}
    wrong: dict[int | str, Wrong] = {}
    for name, given in value.items():
        try:
            found[name] = _BUDGET[name](resolve(given) if isinstance(given, Expanded) else given, allow)
        except KeyError:
            wrong[name] = Wrong(f"a budget has no {name!r}", choices(name, _BUDGET))
        except Wrong as error:
            wrong[name] = error
    if wrong:
        raise Wrong("is no budget", items=wrong)
    try:
        return RetryBudget(**found)
    except ValueError as error:
        raise Wrong(str(error)) from None


_BUDGET: Mapping[str, Check] = {"ratio": _ratio, "min_per_second": _number}


def _choice(words: Sequence[str]) -> Check:
    def check(value: Any, allow: Sequence[str] | None) -> Any:
        if value in words:
            return value
        hint = did_you_mean(value, words) if isinstance(value, str) else None
        raise Wrong(f"must be {' or '.join(words)}, not {brief(value)}", hint)

    return check


def _anything(value: Any, allow: Sequence[str] | None) -> Any:
    return value


INTEGER = FieldType(_integer, ({"type": "integer"},))
NUMBER = FieldType(_number, ({"type": "number"},))
RATIO = FieldType(_ratio, ({"type": "number", "minimum": 0, "maximum": 1},))
BOOLEAN = FieldType(_boolean, ({"type": "boolean"},))
TEXT = FieldType(_text, ({"type": "string"},))
DURATION = FieldType(_duration, ({"type": "number", "minimum": 0}, {"type": "string", "pattern": _DURATION_TEXT}))
DELAYS = FieldType(_delays, ({"type": "array", "minItems": 1, "items": {"anyOf": [*DURATION.schemas, VARIABLE]}},))
EXCEPTIONS = FieldType(
    _exceptions,
    (
        {"type": "string", "pattern": r"^[A-Za-z_][\w.]*(:[A-Za-z_][\w.]*)?$"},
        {"type": "array", "minItems": 1, "items": {"type": "string"}},
    ),
)
FUNCTION = FieldType(_function, ({"type": "string", "pattern": f"^{REFERENCE.pattern}$"},))
KEY = FieldType(_key, ({"type": "string"},))
BUDGET = FieldType(
    _budget,
    (
        {"type": "string"},
        {
            "type": "object",
            "properties": {
                "ratio": {"type": "number", "minimum": 0, "maximum": 1},
                "min_per_second": {"type": "number", "minimum": 0},
            },
            "additionalProperties": False,
        },
    ),
)
ANYTHING = FieldType(_anything, ({},))


def choice(*words: str) -> FieldType:
    """One of `words`."""
    return FieldType(_choice(words), ({"enum": list(words)},))
