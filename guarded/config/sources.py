"""Paths, texts and Python mappings to one kind of document tree."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, TypeAlias

from guarded.config.compose import MAX_BYTES, MAX_DEPTH, MAX_NODES, Stop, compose
from guarded.config.document import Node, Path, Place, Problem, dotted
from guarded.config.scalars import Expanded, interpolate

Source: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any]"


def read_source(source: Source, variables: Mapping[str, str], problems: list[Problem]) -> tuple[Node | None, str]:
    """The tree of a path, a text or a mapping, and the name it goes by; None when nothing could be read.

    A str is text when it holds a newline, ``": "`` or starts with ``{``, else a path.
    """
    if isinstance(source, Mapping):
        return _Convert(variables, problems).root(source), "<mapping>"
    if isinstance(source, str) and ("\n" in source or ": " in source or source.startswith("{")):
        return compose(source, "<text>", variables, problems), "<text>"
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"sources: {source!r} is neither a path, nor a text, nor a mapping")
    name = os.fspath(source)
    text = _read_file(name, problems)
    return (None if text is None else compose(text, name, variables, problems)), name


def _read_file(name: str, problems: list[Problem]) -> str | None:
    place = Place("file", name)
    try:
        with open(name, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        problems.append(Problem("", f"cannot be read: {reason}", place))
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line, start = before.count(b"\n") + 1, before.rfind(b"\n") + 1
        col = len(before[start:].decode("utf-8", "replace")) + 1
        problems.append(Problem("", "not UTF-8 text", Place("file", name, line, col)))
        return None


class _Convert:
    """A Python mapping to nodes; leaves may also be timedeltas, types and callables."""

    def __init__(self, variables: Mapping[str, str], problems: list[Problem]) -> None:
        self._variables = variables
        self._problems = problems
        self._place = Place("mapping", "<mapping>")
        self._nodes = 0

    def root(self, source: Mapping[str, Any]) -> Node | None:
        try:
            return self._node(source, ())
        except Stop:
            return None

    def _node(self, value: Any, path: Path) -> Node:
        self._nodes += 1
        if len(path) > MAX_DEPTH:
            self._stop(f"nested deeper than {MAX_DEPTH} levels", path)
        if self._nodes > MAX_NODES:
            self._stop(f"holds more than {MAX_NODES} values", path)
        if isinstance(value, Mapping):
            return Node(dict(self._items(value, path)), self._place)
        if isinstance(value, (list, tuple)):
            return Node([self._node(item, (*path, index)) for index, item in enumerate(value)], self._place)
        if isinstance(value, str):
            return self._text(value, path)
        if not (value is None or isinstance(value, (bool, int, float, timedelta)) or callable(value)):
            self._note(f"a value of type {type(value).__name__} cannot stand in a config", path)
            return Node(None, self._place, broken=True)
        return Node(value, self._place)

    def _items(self, value: Mapping[Any, Any], path: Path) -> Iterator[tuple[str, Node]]:
        for key, child in value.items():
            if isinstance(key, str):
                yield key, self._node(child, (*path, key)).under(self._place)
            else:
                self._note(f"key {key!r} is not text", path)

    def _text(self, value: str, path: Path) -> Node:
        done = interpolate(value, self._variables)
        for _, message, hint in done.faults:
            self._note(message, path, hint)
        if not done.used:
            return Node(value, self._place)
        return Node(Expanded(done.text), self._place, shown=value, broken=bool(done.faults))

    def _note(self, message: str, path: Path, hint: str | None = None) -> None:
        self._problems.append(Problem(dotted(path), message, self._place, hint))

    def _stop(self, message: str, path: Path) -> None:
        self._note(message, path)
        raise Stop
