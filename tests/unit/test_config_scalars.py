"""The YAML 1.2 core schema and interpolation."""

from __future__ import annotations

import math

import pytest

from guarded.config.scalars import interpolate, resolve


@pytest.mark.parametrize(
    "text", ["on", "off", "yes", "no", "NO", "y", "1:30", "1_000", "2026-01-01", "=", "0b11", "1e", "tRue"]
)
def test_what_yaml_1_1_would_change_stays_text(text: str) -> None:
    """Words that PyYAML turns into booleans, sexagesimals and dates are strings in YAML 1.2."""
    assert resolve(text) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("012", 12),
        ("0o17", 15),
        ("0x1F", 31),
        ("-3", -3),
        ("+7", 7),
        ("1.5", 1.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("1e3", 1000.0),
        ("-.inf", -math.inf),
        ("true", True),
        ("FALSE", False),
        ("", None),
        ("~", None),
        ("null", None),
    ],
)
def test_core_schema(text: str, value: object) -> None:
    """Numbers, booleans and null are exactly those of the core schema."""
    found = resolve(text)
    assert found == value
    assert type(found) is type(value)


def test_nan_resolves_to_a_float() -> None:
    """``.nan`` is a number, so that a later check can refuse it as one."""
    assert math.isnan(resolve(".nan"))  # type: ignore[arg-type]


def test_absurdly_long_numbers_stay_text() -> None:
    """A number with thousands of digits is not parsed, which would raise or take long."""
    assert resolve("9" * 5000) == "9" * 5000


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("${HOST}", "example.org"),
        ("redis://${HOST}:${PORT:-6379}/0", "redis://example.org:6379/0"),
        ("${EMPTY:-fallback}", "fallback"),
        ("${EMPTY}", ""),
        ("${NOPE:-}", ""),
        ("$${HOST}", "${HOST}"),
        ("$$${HOST}", "$${HOST}"),
        ("costs $5", "costs $5"),
    ],
)
def test_interpolation(text: str, result: str) -> None:
    """Variables, defaults for unset and for empty ones, and the escape."""
    done = interpolate(text, {"HOST": "example.org", "EMPTY": ""})
    assert (done.text, done.faults) == (result, [])


@pytest.mark.parametrize(
    ("text", "offset", "message"),
    [
        ("a ${NOPE}", 2, "environment variable NOPE is not set"),
        ("${A", 0, "'${' without its '}'"),
        ("${}", 0, "cannot read ${}"),
        ("${1X:-a}", 0, "cannot read ${1X:-a}"),
        ("${A:?b}", 0, "cannot read ${A:?b}"),
        ("${A:-${B}}", 0, "'${' without its '}'"),
    ],
)
def test_interpolation_faults(text: str, offset: int, message: str) -> None:
    """Each expression that cannot be replaced is told with its offset."""
    done = interpolate(text, {})
    assert done.faults[0][:2] == (offset, message)
