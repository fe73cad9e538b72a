"""Rows of the tables in the pages, read off the code; no Sphinx here, so that tests need none."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

from guarded.cli.commands import app
from guarded.config import json_schema
from guarded.events.model import EVENTS, HEAD, LEVELS

_WORDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
}
_EVERYWHERE = frozenset((*HEAD, "policy", "layer", "function", "call_id", "attempt", "remaining"))


def documented(factory: Any) -> dict[str, str]:
    """What the docstring says under ``Args:``, by option."""
    found: dict[str, str] = {}
    name, inside = "", False
    for line in inspect.getdoc(factory).splitlines():
        if not line.startswith(" "):
            inside = line == "Args:" if line else inside
        elif inside and (match := re.match(r"    (\w+): (.*)", line)):
            name = match[1]
            found[name] = match[2]
        elif inside and line.strip():
            found[name] += " " + line.strip()
    return found


def factory_of(path: str) -> Any:
    """The object at a dotted path."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def option_rows(path: str) -> Iterator[tuple[str, str, str]]:
    """Option, default and meaning of each parameter of a public factory."""
    factory = factory_of(path)
    help = documented(factory)
    for parameter in inspect.signature(factory).parameters.values():
        if parameter.default is parameter.empty:
            default = "" if parameter.kind is parameter.VAR_POSITIONAL else "required"
        else:
            default = f"`{getattr(parameter.default, '__qualname__', None) or repr(parameter.default)}`"
        yield f"`{parameter.name}`", default, help[parameter.name]


def event_rows(layers: Iterable[str]) -> Iterator[tuple[str, str, str, str]]:
    """Name, level, meaning and own fields of the events of some layers; of all without any."""
    wanted = set(layers)
    for spec in EVENTS.values():
        if not wanted or spec.name.partition(".")[0] in wanted:
            own = " ".join(f"`{field}`" for field in spec.fields if field not in _EVERYWHERE)
            yield f"`{spec.name}`", LEVELS[spec.level], spec.meaning, own


def schema_rows(definition: str) -> Iterator[tuple[str, str, str]]:
    """Option, what may stand there, and meaning, of one definition of the config schema."""
    for name, shape in json_schema()["$defs"][definition]["properties"].items():
        yield f"`{name}`", ", ".join(_kinds(shape)), shape.get("description", "")


def _kinds(shape: dict[str, Any]) -> list[str]:
    """What a value may be, in words; variables and null may stand anywhere, so they are left out."""
    found: list[str] = []
    for part in shape.get("anyOf", [shape]):
        found.extend(kind for kind in [_kind(part)] if kind and kind not in found)
    return found


def _kind(part: dict[str, Any]) -> str:
    if "$ref" in part:
        return f"options of `{part['$ref'].rpartition('/')[2].lower()}`"
    if "enum" in part:
        return " or ".join(f"`{choice}`" for choice in part["enum"])
    if "const" in part:
        return f"`{part['const']}`"
    kind, pattern = part.get("type"), part.get("pattern", "")
    if kind == "string" and pattern:
        return _text_kind(pattern)
    if kind == "array":
        return f"list of {_kind(part.get('items', {})) or 'values'}"
    if kind == "number" and part.get("maximum") == 1:
        return "ratio 0..1"
    return _WORDS.get(kind or "", "anything" if not part else "")


def _text_kind(pattern: str) -> str:
    if "msecs" in pattern:
        return "duration"
    if pattern == r"\$\{":
        return ""
    return "`module:Name`" if ":" in pattern else "name"


def command_rows() -> Iterator[tuple[str, str]]:
    """Each command of the command line, and the first line of its help."""
    for command in app.registered_commands:
        assert command.callback is not None
        yield f"`guarded {command.name}`", inspect.getdoc(command.callback).partition("\n")[0]


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """A Markdown table; double backticks of docstrings become single ones."""
    lines = [head, tuple("---" for _ in head), *rows]
    return [f"| {' | '.join(_cell(text) for text in line)} |" for line in lines]


def _cell(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|").replace("\n", " ")
