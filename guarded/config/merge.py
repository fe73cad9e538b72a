"""``extends``, ``defaults`` and ``null``: raw bodies of the document to effective ones.

Maps merge, lists and scalars replace, ``null`` removes. Later names in ``extends`` win over earlier
ones, the own body over all of them. Each value keeps the place it was written at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from guarded._core.nearest import choices
from guarded.config.document import Node, Problem, problem_at

T = TypeVar("T")

MAX_CHAIN = 32
_RIVALS = (
    frozenset(("retries", "attempts")),
    frozenset(("failures", "failure_rate")),
    frozenset(("value", "function")),
)
_KEEPS_NULL = ("fallback", "value")


def merge(base: Node, over: Node) -> Node:
    """`over` on top of `base`; a null stays in the result, to remove what comes below it later too."""
    if not (isinstance(base.value, dict) and isinstance(over.value, dict)):
        return over
    # A policy or template may be called like an option, but it is a mapping.
    merged = without_rivals(base.value, (key for key, node in over.value.items() if not isinstance(node.value, dict)))
    for key, node in over.value.items():
        merged[key] = merge(merged[key], node) if key in merged else node
    return replace(over, value=merged)


def without_rivals(base: Mapping[str, T], over: Iterable[str]) -> dict[str, T]:
    """`base` without options that say the same thing as one of `over` in another way."""
    names = frozenset(over)
    replaced = {rival for group in _RIVALS if group & names for rival in group - names}
    return {name: node for name, node in base.items() if name not in replaced}


def without_nulls(key: str, layer: Node) -> Node:
    """A layer without the options that null has removed."""
    given = layer.value.items()
    options = {name: node for name, node in given if node.value is not None or (key, name) == _KEEPS_NULL}
    return replace(layer, value=options)


class Templates:
    """The templates of one document, resolved once each; cycles and unknown names become problems."""

    def __init__(self, raw: Mapping[str, Node], policies: Mapping[str, Node], problems: list[Problem]) -> None:
        self._raw = raw
        self._policies = policies
        self._problems = problems
        self._done: dict[str, Node | None] = {}
        self._circles: set[frozenset[str]] = set()

    def apply(self, body: Node, path: tuple[str, ...], trail: tuple[str, ...] = ()) -> Node | None:
        """`body` with everything it extends below it; None when a name in ``extends`` is no good."""
        extends = body.value.get("extends")
        own = replace(body, value={key: node for key, node in body.value.items() if key != "extends"})
        if extends is None or extends.value is None:
            return own
        names = extends.value if isinstance(extends.value, list) else [extends]
        result: Node | None = None
        for name in names:
            template = self._template(name, (*path, "extends"), trail)
            if template is None:
                return None
            result = template if result is None else merge(result, template)
        return own if result is None else merge(result, own)

    def _template(self, name: Node, path: tuple[str, ...], trail: tuple[str, ...]) -> Node | None:
        word = name.value
        if not isinstance(word, str) or name.broken:
            return None  # it has been told before
        if word in trail:
            self._circle(trail[trail.index(word) :], name, path)
            return None
        if word in self._done:
            return self._done[word]
        if word not in self._raw:
            self._unknown(name, path)
            return None
        if len(trail) >= MAX_CHAIN:
            self._note(name, path, f"a chain of more than {MAX_CHAIN} templates")
            return None
        raw = self._raw[word]
        done = self.apply(raw, ("templates", word), (*trail, word)) if isinstance(raw.value, dict) else None
        self._done[word] = done
        return done

    def check(self) -> None:
        """Find what is wrong with templates that no policy uses."""
        for word, raw in self._raw.items():
            if isinstance(raw.value, dict):
                self.apply(raw, ("templates", word), (word,))

    def _circle(self, trail: tuple[str, ...], name: Node, path: tuple[str, ...]) -> None:
        if frozenset(trail) not in self._circles:
            self._circles.add(frozenset(trail))
            way = " → ".join((*trail, str(name.value)))
            self._note(name, path, f"templates extend each other in a circle: {way}")

    def _unknown(self, name: Node, path: tuple[str, ...]) -> None:
        word = name.value
        if word in self._policies:
            hint = f"a policy is shared, not extended: name it in a layer, as in limit: {word}, or make it a template"
            self._note(name, path, f"{word!r} is a policy, not a template", hint)
        else:
            self._note(name, path, f"there is no template {word!r}", choices(word, self._raw))

    def _note(self, name: Node, path: tuple[str, ...], message: str, hint: str | None = None) -> None:
        self._problems.append(problem_at(name, path, message, hint))
