"""Lengths of time as people write them: seconds, a timedelta, or text with units (`250ms`, `1h30m`).

One grammar for code, YAML and the command line. Text is numbers with units, largest unit first, each unit
once: ``1h 30m``, ``1.5s``, ``10 minutes``. Text is read in whole nanoseconds, without binary fractions.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import TypeAlias, TypeVar

from guarded._core.nearest import did_you_mean

Duration: TypeAlias = float | int | timedelta | str
"""Seconds, a timedelta, or text with units such as ``"250ms"`` or ``"1h30m"``."""

_Number = TypeVar("_Number", int, float)
_NS = 1_000_000_000
_UNITS: dict[str, int] = {
    name: size
    for size, names in (
        (1, "ns nanosecond nanoseconds"),
        (1_000, "us µs μs microsecond microseconds"),  # both code points that look like a micro sign
        (1_000_000, "ms msec msecs millisecond milliseconds"),
        (_NS, "s sec secs second seconds"),
        (60 * _NS, "m min mins minute minutes"),
        (3_600 * _NS, "h hr hrs hour hours"),
        (86_400 * _NS, "d day days"),
        (604_800 * _NS, "w week weeks"),
    )
    for name in names.split()
}
_SHOWN = ((86_400 * _NS, "d"), (3_600 * _NS, "h"), (60 * _NS, "m"))
_SEGMENT = re.compile(r"\s*([0-9]*)(?:\.([0-9]+))?\s*([^\W\d_]*)\s*")
_LONGEST_TEXT = 64
_MAX_NS = 2**63 - 1  # 292 years: beyond it waits overflow in the operating system and in stores
_MAX_SECONDS = _MAX_NS // _NS


def parse_duration(value: Duration, *, option: str = "duration", allow_zero: bool = False) -> float:
    """Seconds as a float.

    Args:
        value: seconds, a timedelta, or text with units.
        option: how error messages call the value.
        allow_zero: whether 0 is a length; otherwise it is refused.

    Raises:
        ValueError: not a duration, without a unit, negative, NaN, infinite or above 292 years.
    """
    if type(value) is float and 0.0 < value <= _MAX_SECONDS:
        return value
    if type(value) is int and 0 < value <= _MAX_SECONDS:
        return float(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(_checked(value, value, option, allow_zero, _MAX_SECONDS))
    return parse_duration_ns(value, option=option, allow_zero=allow_zero) / _NS


def parse_duration_ns(value: Duration, *, option: str = "duration", allow_zero: bool = False) -> int:
    """Whole nanoseconds, exact for text, timedelta and int, the nearest one for float; else like `parse_duration`."""
    if isinstance(value, str):
        try:
            ns = read_text(value)
        except ValueError as error:
            raise ValueError(f"{option}={value[:_LONGEST_TEXT]!r}: {error}") from None
    elif isinstance(value, timedelta):
        ns = (value.days * 86_400 + value.seconds) * _NS + value.microseconds * 1_000
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        numerator, denominator = _checked(value, value, option, True, _MAX_SECONDS).as_integer_ratio()
        ns = _nearest(numerator * _NS, denominator)
    else:
        raise ValueError(
            f"{option}={value!r}: must be a number of seconds, a timedelta, or text with a unit such as '1.5s', "
            f"not {type(value).__name__}"
        )
    return _checked(ns, value, option, allow_zero, _MAX_NS)


def _checked(amount: _Number, value: object, option: str, allow_zero: bool, largest: int) -> _Number:
    rule = None
    if isinstance(amount, float) and not math.isfinite(amount):
        rule = "must be finite"
    elif amount < 0:
        rule = "must not be negative"
    elif amount == 0 and not allow_zero:
        rule = "must be more than 0"
    elif amount > largest:
        rule = "must be at most 292 years"
    if rule is not None:
        raise ValueError(f"{option}={value!r}: {rule}")
    return amount


def read_text(text: str) -> int:
    """Nanoseconds of a text with units, 0 included; ValueError says only which rule was broken."""
    if len(text) > _LONGEST_TEXT:
        raise ValueError(f"must have at most {_LONGEST_TEXT} characters")
    total, at, smallest = 0, 0, _MAX_NS
    while at < len(text) or not at:
        segment = _SEGMENT.match(text, at)
        if segment is None or not (segment[1] or segment[2]) or (not segment[3] and segment.end() < len(text)):
            raise ValueError(_misread(text))
        unit = _unit(segment[3], segment[0].strip())
        if unit >= smallest:
            raise ValueError(f"units must go from large to small, each at most once, as in '1h30m': {segment[3]!r}")
        fraction = segment[2] or ""
        total += _nearest(int(segment[1] + fraction) * unit, 10 ** len(fraction))
        at, smallest = segment.end(), unit
    return total


def _unit(name: str, segment: str) -> int:
    size = _UNITS.get(name)
    if size is not None:
        return size
    if not name:
        raise ValueError(f"needs a unit: write '{segment}s' for seconds or '{segment}ms' for milliseconds")
    hint = did_you_mean(name, _UNITS) or "use ns, us, ms, s, m, h, d or w"
    raise ValueError(f"{name!r} is no unit: {hint}")


def _misread(text: str) -> str:
    stripped = text.strip().lower()
    if stripped.startswith("-"):
        return "must not be negative"
    if stripped.lstrip("+") in ("inf", "infinity", "nan"):
        return "must be finite"
    return "must be numbers with units such as '250ms', '1.5s' or '1h30m'"


def _nearest(numerator: int, denominator: int) -> int:
    return (2 * numerator + denominator) // (2 * denominator)


def format_duration(seconds: float) -> str:
    """Short text for messages, with three decimals at most: ``250ms``, ``1.5s``, ``1h30m``.

    Whole milliseconds come back unchanged from `parse_duration`. Never raises: ``inf`` and ``nan`` are shown so.
    """
    if not math.isfinite(seconds):
        return str(float(seconds))
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    ns = _nearest(*_scaled(seconds))
    step = 1_000_000 if ns >= _NS else 1_000 if ns >= 1_000_000 else 1
    ns = _nearest(ns, step) * step
    if ns < _NS:
        size, unit = (1_000_000, "ms") if ns >= 1_000_000 else (1_000, "us") if ns >= 1_000 else (1, "ns")
        return f"{_decimal(ns, size)}{unit}" if ns else "0s"
    parts = ""
    for size, unit in _SHOWN:
        whole, ns = divmod(ns, size)
        parts += f"{whole}{unit}" if whole else ""
    return f"{parts}{_decimal(ns, _NS)}s" if ns else parts


def _scaled(seconds: float) -> tuple[int, int]:
    numerator, denominator = seconds.as_integer_ratio()
    return numerator * _NS, denominator


def _decimal(ns: int, size: int) -> str:
    """`ns` in units of `size`, with the at most three decimals it has left after rounding."""
    whole, rest = divmod(ns, size)
    return f"{whole}.{rest * 1_000 // size:03d}".rstrip("0") if rest else str(whole)
