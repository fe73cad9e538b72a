"""Problems and changes, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from guarded.config.document import Node, Problem, dotted, leaves, shown

What = Literal["added", "replaced", "removed"]


@dataclass(frozen=True, slots=True)
class Change:
    """One value that is new, other or gone; `before` and `after` as messages may show them."""

    what: What
    path: str
    before: str | None = None
    after: str | None = None
    place: str | None = None

    def __str__(self) -> str:
        sign = {"added": "+", "replaced": "~", "removed": "-"}[self.what]
        value = " → ".join(text for text in (self.before, self.after) if text is not None)
        return f"{sign} {self.path}: {value}" + (f"  ({self.place})" if self.place else "")


@dataclass(frozen=True, slots=True)
class Diff:
    """What a load or reload changed.

    Attributes:
        added: names of policies that are new.
        replaced: names that mean something else, or have other options.
        removed: names that are gone from the config.
        changes: every single value.
    """

    added: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.replaced or self.removed or self.changes)

    def __len__(self) -> int:
        return len(self.added) + len(self.replaced) + len(self.removed)

    def __str__(self) -> str:
        return "\n".join(map(str, self.changes)) or "no changes"

    def as_json(self) -> str:
        """The same as one JSON object."""
        return json.dumps(asdict(self), ensure_ascii=False, indent=2)


def compare(before: Mapping[str, Node], after: Mapping[str, Node]) -> Diff:
    """The difference between two sets of effective policies, by name."""
    names = [*after, *(name for name in before if name not in after)]
    kinds: dict[What, list[str]] = {"added": [], "replaced": [], "removed": []}
    changes: list[Change] = []
    for name in names:
        found = list(_changes(name, before.get(name), after.get(name)))
        if found:
            what: What = "added" if name not in before else "removed" if name not in after else "replaced"
            kinds[what].append(name)
            changes += found
    return Diff(tuple(kinds["added"]), tuple(kinds["replaced"]), tuple(kinds["removed"]), tuple(changes))


def _changes(name: str, before: Node | None, after: Node | None) -> Iterable[Change]:
    old = dict(leaves(before, (name,))) if before is not None else {}
    new = dict(leaves(after, (name,))) if after is not None else {}
    for path, node in new.items():
        known = old.get(path)
        if known is None:
            yield Change("added", dotted(path), None, shown(node), str(node.place))
        elif (known.value, type(known.value)) != (node.value, type(node.value)):
            yield Change("replaced", dotted(path), shown(known), shown(node), str(node.place))
    for path, node in old.items():
        if path not in new:
            yield Change("removed", dotted(path), shown(node))


def as_lines(problems: Iterable[Problem]) -> str:
    """One line per problem, in the order of the file."""
    return "\n".join(map(str, in_order(problems)))


def as_json(problems: Iterable[Problem]) -> str:
    """A JSON array of objects with file, line, col, path, message and hint."""
    rows: list[dict[str, Any]] = [
        {
            "file": problem.place.source,
            "line": problem.line,
            "col": problem.col,
            "path": problem.path,
            "message": problem.message,
            "hint": problem.hint,
        }
        for problem in in_order(problems)
    ]
    return json.dumps(rows, ensure_ascii=False, indent=2)


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Problems by file, line and column; those without a line come last.

    What is wrong with one value is told once, though every policy that extends its template is wrong then.
    """
    last = float("inf")
    unique: dict[object, Problem] = {}
    for problem in problems:
        key = (problem.place, problem.message) if problem.line is not None else problem
        unique.setdefault(key, problem)
    return sorted(
        unique.values(), key=lambda problem: (problem.place.source, problem.line or last, problem.col or last)
    )
