"""YAML text to a document tree, with every problem of form collected.

Built from the parser's event stream, never from its object constructors: tags cannot run code. Depth, size,
node count and what aliases expand to are bounded while reading: a hostile file costs no more than its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import yaml

from guarded.config.document import Node, Place, Problem, dotted
from guarded.config.scalars import Expanded, interpolate, resolve

MAX_BYTES = 2 * 1024 * 1024
MAX_DEPTH = 32
MAX_NODES = 100_000
MAX_ALIASED = 5_000

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_CORE_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "str"))


class Stop(Exception):
    """Reading cannot go on; the problem is already noted."""


def compose(text: str, file: str, variables: Mapping[str, str], problems: list[Problem]) -> Node | None:
    """The tree of one YAML document; None when it has no readable root."""
    text = text.removeprefix("\ufeff")
    if len(text) > MAX_BYTES:
        problems.append(Problem("", f"is larger than {MAX_BYTES} bytes", Place("file", file)))
        return None
    if bad := _UNPRINTABLE.search(text):
        line = text.count("\n", 0, bad.start()) + 1
        place = Place("file", file, line, bad.start() - text.rfind("\n", 0, bad.start()))
        problems.append(Problem("", f"character U+{ord(bad[0]):04X} is not allowed in YAML", place))
        return None
    composer = _Composer(file, variables, problems)
    try:
        for event in _events(text):
            composer.take(event)
    except Stop:
        return None
    except yaml.MarkedYAMLError as error:
        composer.syntax(error, text)
        return None
    if composer.root is None:
        problems.append(Problem("", "is empty", Place("file", file, 1, 1)))
    return composer.root


def _events(text: str) -> Iterator[Any]:
    # Of the loaders only the parser is used; nothing is ever constructed.
    parser: Any = yaml.CSafeLoader(text) if yaml.__with_libyaml__ else yaml.SafeLoader(text)
    while parser.check_event():
        yield parser.get_event()


class _Frame:
    """A collection being read; `size` counts its nodes with aliases expanded."""

    __slots__ = ("anchor", "broken", "children", "key", "key_broken", "key_place", "place", "size")

    def __init__(self, children: dict[str, Node] | list[Node], place: Place, anchor: str | None, broken: bool) -> None:
        self.children = children
        self.place = place
        self.anchor = anchor
        self.broken = broken
        self.key: str | None = None
        self.key_place: Place | None = None
        self.key_broken = False
        self.size = 1


class _Composer:
    """Event by event to nodes, without recursion."""

    def __init__(self, file: str, variables: Mapping[str, str], problems: list[Problem]) -> None:
        self.file = file
        self.variables = variables
        self.problems = problems
        self.root: Node | None = None
        self._frames: list[_Frame] = []
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._documents = 0
        self._nodes = 0
        self._aliased = 0

    def take(self, event: Any) -> None:
        """Consume one parser event."""
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            self._open(event)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self._close()
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                self._stop("a second document starts here", self._place(event), "one file holds one document")

    def syntax(self, error: yaml.MarkedYAMLError, text: str) -> None:
        """Note a syntax error, with the usual cause where it is recognisable."""
        mark = error.problem_mark or error.context_mark
        place = Place("file", self.file, mark.line + 1, mark.column + 1) if mark else Place("file", self.file)
        line = text.splitlines()[mark.line] if mark and mark.line < len(text.splitlines()) else ""
        char = line[mark.column : mark.column + 1] if mark else ""
        hint = None
        if char == "\t":
            hint = "indent with spaces, not tabs"
        elif char in ("@", "`", "%"):
            hint = f"quote a value that starts with {char}"
        elif "mapping values" in str(error.problem):
            hint = "quote a value that holds ': '"
        elif "unexpected ':'" in str(error.problem):
            hint = "a colon needs a space after it"
        elif mark and error.context_mark and error.context_mark.line < mark.line:
            hint = f"what it belongs to begins on line {error.context_mark.line + 1}"
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        self.problems.append(Problem(self._path(), f"not valid YAML: {reason}", place, hint))

    def _scalar(self, event: Any) -> None:
        place = self._place(event)
        frame = self._frames[-1] if self._frames else None
        if frame is not None and isinstance(frame.children, dict) and frame.key is None:
            self._key(frame, event.value, place)
            return
        tagged = self._tag(event.tag, place)
        plain = event.implicit[0]
        if "${" not in event.value:
            node = Node(resolve(event.value) if plain else event.value, place, broken=tagged)
        else:
            node = self._interpolated(event, plain, place)
        self._add(node, 1, event.anchor)

    def _interpolated(self, event: Any, plain: bool, place: Place) -> Node:
        done = interpolate(event.value, self.variables)
        one_line = event.start_mark.line == event.end_mark.line
        # An offset into the value is an offset into the line only for an unescaped scalar on one line.
        exact = one_line and (plain or event.end_mark.column - event.start_mark.column == len(event.value) + 2)
        for offset, message, hint in done.faults:
            col = (place.col or 1) + (offset + (not plain) if exact else 0)
            at = Place("file", self.file, place.line, col)
            self.problems.append(Problem(self._path(), message, at, hint))
        value = resolve(done.text) if plain and not done.faults else Expanded(done.text)
        return Node(value, place, shown=event.value, broken=bool(done.faults))

    def _key(self, frame: _Frame, text: str, place: Place) -> None:
        assert isinstance(frame.children, dict)
        frame.key, frame.key_place, frame.key_broken = text, place, text == "<<" or "${" in text
        if text == "<<":
            self._note("merge keys (<<) are not part of YAML 1.2", place, "use extends with a template")
        elif text in frame.children:
            first = frame.children[text].key
            line = f" on line {first.line}" if first is not None else ""
            self._note(f"duplicate key, first used{line}", place)
        elif "${" in text:
            self._note("keys are not interpolated", place, "only values may hold ${…}")

    def _open(self, event: Any) -> None:
        place = self._place(event)
        if len(self._frames) >= MAX_DEPTH:
            self._stop(f"nested deeper than {MAX_DEPTH} levels", place)
        parent = self._frames[-1] if self._frames else None
        if parent is not None and isinstance(parent.children, dict) and parent.key is None:
            self._stop(
                "a key must be a single word, not a list or mapping",
                place,
                "quote a value that starts with { or [",
            )
        children: dict[str, Node] | list[Node] = {} if isinstance(event, yaml.MappingStartEvent) else []
        self._frames.append(_Frame(children, place, event.anchor, self._tag(event.tag, place)))
        if event.anchor:
            self._anchors.pop(event.anchor, None)

    def _close(self) -> None:
        frame = self._frames.pop()
        self._add(Node(frame.children, frame.place, broken=frame.broken), frame.size, frame.anchor)

    def _alias(self, event: Any) -> None:
        place = self._place(event)
        frame = self._frames[-1] if self._frames else None
        if frame is not None and isinstance(frame.children, dict) and frame.key is None:
            self._stop("an alias cannot be a key", place)
        if event.anchor not in self._anchors:
            inside = any(open_.anchor == event.anchor for open_ in self._frames)
            what = "is inside what it stands for" if inside else "has no anchor before it"
            self._note(f"alias *{event.anchor} {what}", place)
            self._add(Node(None, place, broken=True), 1, None)
            return
        node, size = self._anchors[event.anchor]
        self._aliased += size
        if self._aliased > MAX_ALIASED:
            self._stop(f"aliases expand to more than {MAX_ALIASED} nodes", place, "use extends with a template")
        self._add(node, size, None)

    def _add(self, node: Node, size: int, anchor: str | None) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            self._stop(f"holds more than {MAX_NODES} values", node.place)
        if anchor:
            self._anchors[anchor] = (node, size)
        if not self._frames:
            self.root = node
            return
        frame = self._frames[-1]
        frame.size += size
        if isinstance(frame.children, list):
            frame.children.append(node)
        else:
            assert frame.key is not None
            # The first of two equal keys stays, so that later problems speak of one value.
            node = node.under(frame.key_place)
            frame.children.setdefault(frame.key, replace(node, broken=True) if frame.key_broken else node)
            frame.key = frame.key_place = None

    def _tag(self, tag: str | None, place: Place) -> bool:
        """Refuse a tag that asks for more than plain values; whether it did."""
        if tag is None or tag == "!" or tag in _CORE_TAGS:
            return False
        short = tag.replace("tag:yaml.org,2002:", "!!")
        self._note(f"tag {short} is not allowed", place, "write the plain value; module:Name refers to Python")
        return True

    def _place(self, event: Any) -> Place:
        return Place("file", self.file, event.start_mark.line + 1, event.start_mark.column + 1)

    def _path(self) -> str:
        steps: list[str | int] = []
        for frame in self._frames:
            if isinstance(frame.children, list):
                steps.append(len(frame.children))
            elif frame.key is not None:
                steps.append(frame.key)
        return dotted(tuple(steps))

    def _note(self, message: str, place: Place, hint: str | None = None) -> None:
        self.problems.append(Problem(self._path(), message, place, hint))

    def _stop(self, message: str, place: Place, hint: str | None = None) -> None:
        self._note(message, place, hint)
        raise Stop
