"""Tables made from the code when the pages are built, so that none of them can be out of date.

Directives: ``guarded-options`` (a public factory), ``guarded-events`` (a layer, or all), ``guarded-fields``,
``guarded-metrics``, ``guarded-config`` (a definition of the schema), ``guarded-commands``. Each makes a Markdown table
and has it parsed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from docutils import nodes
from docutils.statemachine import StringList
from rows import command_rows, event_rows, option_rows, schema_rows, table
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from guarded.events import fields_table_markdown, metrics_table_markdown


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


class Commands(_Table):
    """``guarded-commands``."""

    head = ("command", "does")

    def rows(self) -> Iterable[tuple[str, ...]]:
        return command_rows()


def setup(app: Sphinx) -> dict[str, bool]:
    """Make the directives known."""
    for name, directive in (
        ("options", Options),
        ("events", Events),
        ("fields", Fields),
        ("metrics", Metrics),
        ("config", Config),
        ("commands", Commands),
    ):
        app.add_directive(f"guarded-{name}", directive)
    return {"parallel_read_safe": True}
