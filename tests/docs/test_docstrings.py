"""The examples in docstrings run and give what they say."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

import guarded

ROOT = Path(__file__).parents[2]
WITH_EXAMPLES = [
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for file in sorted((ROOT / "guarded").rglob("*.py"))
    if ">>> " in file.read_text("utf-8")
]


API = (ROOT / "docs" / "api.md").read_text("utf-8")


@pytest.mark.parametrize("name", guarded.__all__)
def test_every_public_name_is_described(name: str) -> None:
    """It has a docstring of its own, and its place on the page of the API."""
    if name != "registry":  # an object; its class is shown
        assert inspect.getdoc(getattr(guarded, name))
        assert getattr(guarded, name).__doc__
    assert re.search(rf"(::|guarded\.)\s*{name}\b", API)


@pytest.mark.parametrize(
    "name", ["limit", "rate", "retry", "deadline", "circuit", "idempotent", "fallback", "hedge", "guard", "map_limit"]
)
def test_what_people_write_first_has_an_example(name: str) -> None:
    """The docstring of each decorator shows it in use."""
    assert "Example:" in getattr(guarded, name).__doc__


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_the_examples_of_a_module(module: str) -> None:
    """Each example gives what stands below it."""
    result = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert result.attempted
    assert result.failed == 0
