"""The tree a config source becomes: plain values, each with the place it came from.

Invariants: nodes are never changed once built (aliases and templates share them); lines and columns
count from 1; a value that came out of ``${…}`` is never shown, its raw text is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from guarded.events.redact import scrub

PlaceKind = Literal["environment", "file", "mapping", "code", "default"]
Path: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value came from; ``line`` and ``col`` are None for everything that is not text."""

    kind: PlaceKind
    source: str = ""
    line: int | None = None
    col: int | None = None

    def __str__(self) -> str:
        if self.line is not None:
            return f"{self.source}:{self.line}:{self.col}"
        if self.kind in ("file", "mapping"):
            return self.source
        return f"{self.kind} {self.source}".rstrip()


@dataclass(frozen=True, slots=True)
class Node:
    """One value of the document.

    Args:
        value: a scalar, a dict of nodes or a list of nodes.
        place: where the value stands.
        key: where its key stands; None outside mappings.
        shown: what messages print instead of the value, where it came out of ``${…}``.
        broken: a problem of form has been told already; no other about the same value is of use.
    """

    value: Any
    place: Place
    key: Place | None = None
    shown: str | None = None
    broken: bool = False

    def under(self, key: Place | None) -> Node:
        """The same value under another key."""
        return self if key is self.key else replace(self, key=key)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong; prints as ``file:line:col: path: message (hint)``."""

    path: str
    message: str
    place: Place
    hint: str | None = None

    @property
    def line(self) -> int | None:
        """Line, counted from 1; None where the source is no text."""
        return self.place.line

    @property
    def col(self) -> int | None:
        """Column, counted from 1; None where the source is no text."""
        return self.place.col

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        path = self.path or ("document" if self.line is not None else "")
        return f"{self.place}: {path}{': ' if path else ''}{self.message}{hint}"


def dotted(path: Path) -> str:
    """``("policies", "db", "on", 0)`` as ``policies.db.on[0]``; keys that are no plain words are quoted."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.replace("_", "").replace("-", "").isalnum():
            text += f".{step}" if text else step
        else:
            text += f'["{step}"]'
    return text


def plain(node: Node) -> Any:
    """The node as ordinary dicts, lists and scalars."""
    if isinstance(node.value, dict):
        return {key: plain(child) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [plain(child) for child in node.value]
    return node.value


def find(root: Node, path: Path) -> Node:
    """The node at ``path``, or the deepest one on the way to it."""
    node = root
    for step in path:
        try:
            node = node.value[step]
        except (KeyError, IndexError, TypeError):
            break
    return node


def is_broken(root: Node, path: Path) -> bool:
    """Whether a node on the way to `path`, or there, is broken."""
    return any(find(root, path[:length]).broken for length in range(len(path) + 1))


def shown(node: Node) -> str:
    """The value as messages may print it: raw where it came out of ``${…}``, and never long."""
    return node.shown if node.shown is not None else brief(node.value)


def masked(message: str, *nodes: Node) -> str:
    """`message` about values, with the raw text in the place of those that came out of ``${…}``; no part is shown."""
    raw = {
        text: node.shown
        for node in nodes
        if node.shown is not None
        for text in (repr(node.value), str(node.value) or "null", brief(node.value))
    }
    if not raw:
        return message
    texts = "|".join(map(re.escape, sorted(raw, key=len, reverse=True)))
    message = re.sub(rf"(?<![\w.])(?:{texts})(?![\w.])", lambda found: raw[found[0]], message)
    return re.sub(r"'([^']+)'", lambda part: "'…'" if any(part[1] in text for text in raw) else part[0], message)


def problem_at(
    node: Node, path: Path, message: str, hint: str | None = None, *, at_key: bool = False, about: Iterable[Node] = ()
) -> Problem:
    """A problem with a value, or with its key; `about` are other values that the message may show."""
    place = (node.key or node.place) if at_key else node.place
    return Problem(dotted(path), scrub(masked(message, node, *about)), place, hint)


def brief(value: object) -> str:
    """A value as messages show it; nothing long, and no credentials of an address."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = scrub(repr(value))
    return text if len(text) <= 60 else text[:57] + "..."


def leaves(node: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    """Every scalar under ``node`` with its path."""
    if isinstance(node.value, dict):
        for key, child in node.value.items():
            yield from leaves(child, (*path, key))
    elif isinstance(node.value, list):
        for index, child in enumerate(node.value):
            yield from leaves(child, (*path, index))
    else:
        yield path, node
