"""Overrides from the environment: ``GUARDED__POLICIES__PAYMENTS__RETRY__RETRIES=5``.

A name is the path into the document in any case, its steps joined by two underscores; ``-`` and ``.`` of a
policy's name are written as one. Values are YAML: ``null`` removes a layer, ``[a, b]`` is a list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from guarded._core.nearest import choices
from guarded.config.compose import compose
from guarded.config.document import Node, Place, Problem, dotted
from guarded.config.merge import without_rivals
from guarded.config.scalars import resolve

PREFIX = "GUARDED__"
SECTIONS = ("defaults", "templates", "policies", "stores", "events")


def override(root: Node, variables: Mapping[str, str], problems: list[Problem], declared: frozenset[str]) -> Node:
    """`root` with every ``GUARDED__…`` variable applied; `declared` policies need no entry."""
    for variable in sorted(variables):
        if not variable.upper().startswith(PREFIX):
            continue
        place = Place("environment", variable)
        steps = [step.casefold() for step in variable[len(PREFIX) :].split("__")]
        if len(steps) < 2 or "" in steps:
            problems.append(Problem("", "names no value", place, "the form is GUARDED__POLICIES__NAME__LAYER__OPTION"))
        elif steps[0] not in SECTIONS:
            problems.append(Problem(steps[0], "there is no such section", place, choices(steps[0], SECTIONS)))
        else:
            root = _set(root, steps, _value(variables[variable], place, problems), place, problems, declared)
    return root


def _value(text: str, place: Place, problems: list[Problem]) -> Node:
    if text.lstrip()[:1] in ("[", "{"):
        found: list[Problem] = []
        node = compose(text, str(place), {}, found)
        problems.extend(replace(problem, place=place) for problem in found)
        return _moved(node, place) if node is not None else Node(None, place)
    return Node(resolve(text), place)


def _moved(node: Node, place: Place) -> Node:
    value = node.value
    if isinstance(value, dict):
        value = {key: _moved(child, place) for key, child in value.items()}
    elif isinstance(value, list):
        value = [_moved(child, place) for child in value]
    return Node(value, place, place, node.shown)


def _set(
    root: Node, steps: list[str], value: Node, place: Place, problems: list[Problem], declared: frozenset[str]
) -> Node:
    """A copy of `root` with `value` at the path that `steps` spell."""
    spine: list[tuple[Node, str]] = []
    node = root
    for depth, step in enumerate(steps):
        if not isinstance(node.value, dict):
            path = dotted(tuple(key for _, key in spine))
            hint = None
            if isinstance(node.value, str) and node.shown is None and depth == 3:
                shared = node.value.upper()
                hint = f"it is the shared policy {node.value}: set GUARDED__POLICIES__{shared}__… instead"
            problems.append(Problem(path, "has no options to override", place, hint))
            return root
        key = _match(step, node.value)
        if key is None and depth == 1 and steps[0] in ("policies", "templates", "stores"):
            key = _match(step, declared) if steps[0] == "policies" else None
            if key is None:
                hint = choices(step, [*node.value, *declared])
                problems.append(Problem(dotted((steps[0], step)), "there is no such name", place, hint))
                return root
        key = key or step
        spine.append((node, key))
        child = node.value.get(key)
        node = child if child is not None and child.value is not None else Node({}, place, place)
    for parent, key in reversed(spine):
        value = value.under(value.key or place)
        beside = parent.value if isinstance(value.value, dict) else without_rivals(parent.value, (key,))
        value = replace(parent, value={**beside, key: value})
    return value


def _match(step: str, names: Mapping[str, object] | frozenset[str]) -> str | None:
    folded = step.replace("-", "_").replace(".", "_")
    for name in names:
        if name.casefold().replace("-", "_").replace(".", "_") == folded:
            return name
    return None
