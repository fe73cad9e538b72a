"""Scalars: the YAML 1.2 core schema, and ``${VAR}`` / ``${VAR:-default}`` / ``$${`` inside them.

PyYAML resolves by YAML 1.1, where ``on``, ``NO``, ``012`` and ``1:30`` are not what they look like; here only
``true``/``false`` are booleans, ``012`` is 12 and the rest stays text. As in a shell, ``:-`` also replaces an
empty variable. Source: YAML 1.2.2, section 10.3.2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_INF = re.compile(r"([-+]?)\.(?:inf|Inf|INF)")
_NAN = frozenset((".nan", ".NaN", ".NAN"))
_MAX_DIGITS = 100

_EXPRESSION = re.compile(r"\$\$\{|\$\{([^{}]*)(\}?)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def resolve(text: str) -> str | int | float | bool | None:
    """The value of an unquoted scalar by the core schema of YAML 1.2."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if text[0] not in "+-.0123456789" or len(text) > _MAX_DIGITS:
        return text
    if _INT.fullmatch(text):
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if _FLOAT.fullmatch(text):
        return float(text)
    if infinite := _INF.fullmatch(text):
        return float(infinite[1] + "inf")
    return float("nan") if text in _NAN else text


class Expanded(str):
    """Quoted text that came out of ``${…}``: text, and where a number or a boolean is wanted, what it spells."""

    __slots__ = ()


@dataclass(slots=True)
class Interpolated:
    """Text after interpolation; ``faults`` are (offset, message, hint) of every expression that failed."""

    text: str
    used: bool = False
    faults: list[tuple[int, str, str | None]] = field(default_factory=list)


def interpolate(text: str, variables: Mapping[str, str]) -> Interpolated:
    """Replace ``${VAR}`` and ``${VAR:-default}`` from ``variables``; ``$${`` stands for a literal ``${``."""
    if "${" not in text:
        return Interpolated(text)
    result = Interpolated("", used=True)

    def value(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        name, given, default = match[1].partition(":-")
        if not match[2]:
            hint = "write $${ for a literal ${; a default cannot contain braces"
            result.faults.append((match.start(), "'${' without its '}'", hint))
        elif not _NAME.fullmatch(name):
            result.faults.append(
                (
                    match.start(),
                    f"cannot read {match[0]}",
                    "the forms are ${VAR} and ${VAR:-default}; $${ is a literal ${",
                )
            )
        elif variables.get(name):
            return variables[name]
        elif given:
            return default
        elif name in variables:
            return ""
        else:
            result.faults.append(
                (match.start(), f"environment variable {name} is not set", f"give a default: ${{{name}:-…}}")
            )
        return match[0]

    result.text = _EXPRESSION.sub(value, text)
    return result
