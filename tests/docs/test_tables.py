"""The tables of the pages are made from the code: nothing is missing there to make them from."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from guarded.config import json_schema
from guarded.events.model import EVENTS

DOCS = Path(__file__).parents[2] / "docs"


def arguments(directive: str) -> list[str]:
    """What all pages give to a directive."""
    pages = "\n".join(page.read_text("utf-8") for page in sorted(DOCS.rglob("*.md")))
    return [word for line in re.findall(rf"\{{{directive}\}} (.+)", pages) for word in line.split()]


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    """What reads the rows of tables off the code."""
    spec = importlib.util.spec_from_file_location("guarded_docs_rows", DOCS / "_ext" / "rows.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules.setdefault(spec.name, importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", arguments("guarded-options"))
def test_every_option_is_described(tables: Any, path: str) -> None:
    """Each parameter of a public factory has its line in the docstring, and no line is about another one."""
    factory = tables.factory_of(path)
    rows = list(tables.option_rows(path))
    assert len(rows) == len(tables.documented(factory))
    assert all(meaning for _, _, meaning in rows)


def test_every_policy_has_a_table_of_its_events() -> None:
    """Each layer that has events has a page that shows them."""
    layers = {name.partition(".")[0] for name in EVENTS}
    assert layers - set(arguments("guarded-events")) <= {"call", "policy", "config"}


def test_every_part_of_the_schema_is_shown() -> None:
    """Each definition of the config schema has its table in the reference."""
    assert set(arguments("guarded-config")) == set(json_schema()["$defs"]) - {"Defaults"}
