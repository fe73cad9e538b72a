"""Tables made from the code when the pages are built, so that none of them can be out of date.

Directives: ``guarded-options`` (a public factory), ``guarded-events`` (a layer, or all), ``guarded-fields``,
``guarded-metrics``, ``guarded-config`` (a definition of the schema). Each makes a Markdown table and has it parsed.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from guarded.config import json_schema
from guarded.events import fields_table_markdown, metrics_table_markdown
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


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """A Markdown table; double backticks of docstrings become single ones."""
    lines = [head, tuple("---" for _ in head), *rows]
    return [f"| {' | '.join(_cell(text) for text in line)} |" for line in lines]


def _cell(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|").replace("\n", " ")


class _Table(SphinxDirective):
    """A directive whose lines are parsed as if they stood in the page."""

    optional_arguments = 9
    head: ClassVar[tuple[str, ...]]

    def rows(self) -> Iterable[tuple[str, ...]]:
        raise NotImplementedError

    def lines(self) -> list[str]:
        return table(self.head, self.rows())

    def run(self) -> list[nodes.Node]:
        lines = self.lines()
        if len(lines) == 2:
            raise self.error(f"{self.name} {' '.join(self.arguments)}: nothing to show")
        node = nodes.container()
        self.state.nested_parse(StringList(lines, source=self.env.docname), self.content_offset, node)
        return node.children


class Options(_Table):
    """``guarded-options``: the path of a public factory."""

    head = ("option", "default", "meaning")

    def rows(self) -> Iterable[tuple[str, ...]]:
        return option_rows(self.arguments[0])


class Events(_Table):
    """``guarded-events``: layers, or nothing for all."""

    head = ("event", "level", "when", "own fields")

    def rows(self) -> Iterable[tuple[str, ...]]:
        return event_rows(self.arguments)


class Fields(_Table):
    """``guarded-fields``."""

    def lines(self) -> list[str]:
        return fields_table_markdown().splitlines()


class Metrics(_Table):
    """``guarded-metrics``."""

    def lines(self) -> list[str]:
        return metrics_table_markdown().splitlines()


class Config(_Table):
    """``guarded-config``: a definition of the schema."""

    head = ("option", "value", "meaning")

    def rows(self) -> Iterable[tuple[str, ...]]:
        return schema_rows(self.arguments[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Make the directives known."""
    for name, directive in (
        ("options", Options),
        ("events", Events),
        ("fields", Fields),
        ("metrics", Metrics),
        ("config", Config),
    ):
        app.add_directive(f"guarded-{name}", directive)
    return {"parallel_read_safe": True}
