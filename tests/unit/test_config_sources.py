"""Paths, texts and mappings as sources."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from guarded.config.document import Problem, plain
from guarded.config.sources import read_source


def read(source: Any, variables: Mapping[str, str] | None = None) -> tuple[object, str, list[str]]:
    """Plain value, name of the source, problems as lines."""
    problems: list[Problem] = []
    root, name = read_source(source, variables or {}, problems)
    return (None if root is None else plain(root)), name, [str(problem) for problem in problems]


def test_a_path_may_be_str_or_pathlike(tmp_path: Path) -> None:
    """Both read the same file; a byte order mark is no part of it."""
    file = tmp_path / "guarded.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read(file) == ({"a": 1}, str(file), [])
    assert read(str(file)) == ({"a": 1}, str(file), [])


@pytest.mark.parametrize("text", ["a: 1", "a:\n  1\n", "{a: 1}"])
def test_text_is_told_from_a_path(text: str) -> None:
    """A newline, a colon with a space or a brace in front make it text."""
    assert read(text) == ({"a": 1}, "<text>", [])


def test_files_that_cannot_be_read_are_problems(tmp_path: Path) -> None:
    """Missing files, directories, impossible names and other encodings are problems, no tracebacks."""
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("a: 1\nnäme: x\n".encode("latin-1"))
    assert read(latin)[2] == [f"{latin}:2:2: document: not UTF-8 text"]
    assert read(tmp_path / "none.yaml")[2] == [f"{tmp_path / 'none.yaml'}: cannot be read: No such file or directory"]
    assert "cannot be read" in read(tmp_path)[2][0]
    assert "cannot be read" in read("a\0b")[2][0]


def test_a_mapping_may_hold_python_objects() -> None:
    """Types, functions and timedeltas pass as they are; text is interpolated."""
    source = {"on": [ValueError, len], "ttl": timedelta(hours=1), "n": "${N}", "plain": "12"}
    value, name, problems = read(source, {"N": "5"})
    assert value == {"on": [ValueError, len], "ttl": timedelta(hours=1), "n": "5", "plain": "12"}
    assert (name, problems) == ("<mapping>", [])


def test_problems_of_a_mapping_have_paths_but_no_lines() -> None:
    """Keys that are no text, values of no use and unset variables are all told."""
    assert read({"a": {1: 2}, "b": object(), "c": "${NOPE}"})[2] == [
        "<mapping>: a: key 1 is not text",
        "<mapping>: b: a value of type object cannot stand in a config",
        "<mapping>: c: environment variable NOPE is not set (give a default: ${NOPE:-…})",
    ]


def test_a_mapping_that_holds_itself_is_refused() -> None:
    """Recursion ends at the depth bound."""
    source: dict[str, Any] = {}
    source["a"] = source
    value, _, problems = read(source)
    assert value is None
    assert "nested deeper than 32 levels" in problems[0]
