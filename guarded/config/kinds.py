"""The kinds of layers a file can name, read off the policies themselves.

Options come from the signature of the public factory (``limit``, ``retry`` …), so no option is listed twice; only
what an annotation cannot say (a number that is a ratio, text that is a key) is told here, by the option's name.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from guarded._core.factory import atoms, factory_of
from guarded.config import fields
from guarded.config.fields import FieldType, either

NAME = r"^[A-Za-z_][A-Za-z0-9_.\-]*$"
"""What policies, templates and stores may be called."""

LAYERS: Mapping[str, str] = {
    "fallback": "fallback",
    "idempotent": "idempotent",
    "deadline": "deadline",
    "limit": "limit",
    "retry": "retry",
    "hedge": "hedge",
    "circuit": "circuit",
    "rate": "rate",
    "attempt_deadline": "deadline",
}
"""Key in a policy's body to the kind of the layer, outermost first: the order of a stack that gives none."""

_BY_NAME: Mapping[str, FieldType] = {
    "retries": fields.INTEGER,
    "on": fields.EXCEPTIONS,
    "unless": fields.EXCEPTIONS,
    "ignore": fields.EXCEPTIONS,
    "backoff": either(fields.DELAYS, fields.FUNCTION),
    "store_errors": fields.EXCEPTIONS,
    "failure_rate": fields.RATIO,
    "slow_rate": fields.RATIO,
    "key": fields.KEY,
    "priority": either(fields.INTEGER, fields.KEY),
    "weight": either(fields.INTEGER, fields.KEY),
    "cost": either(fields.INTEGER, fields.KEY),
    "store": fields.TEXT,
    "budget": fields.BUDGET,
    "value": fields.ANYTHING,
    "after": either(fields.DURATION, fields.TEXT),
}
_ONLY_IN_FILES: Mapping[str, Mapping[str, FieldType]] = {"fallback": {"function": fields.FUNCTION}}
"""Options that a file needs to say what code says by the type of a value."""

_NOT_IN_FILES = frozenset(("name", "breaker"))


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of layer.

    Args:
        word: ``"limit"``.
        factory: the public function that makes the policy.
        options: name to kind of value.
        first: the option that a bare scalar stands for.
        help: one line per option, from the factory's docstring.
        has_name: whether the factory takes a name.
    """

    word: str
    factory: Callable[..., Any]
    options: Mapping[str, FieldType]
    first: str
    help: Mapping[str, str]
    has_name: bool

    def is_reference(self, value: object) -> bool:
        """Whether a bare scalar in place of the options is the name of a shared policy."""
        if not isinstance(value, str) or not re.fullmatch(NAME, value):
            return False
        return not (self.word == "hedge" and re.fullmatch(r"p\d+", value))


@functools.cache
def kind(word: str) -> Kind:
    """The kind called `word`; the policy's module is imported on first use."""
    factory = factory_of(word)
    hints = typing.get_type_hints(factory)
    parameters = inspect.signature(factory).parameters
    names = [
        name
        for name, parameter in parameters.items()
        if name not in _NOT_IN_FILES and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    options = {name: _BY_NAME.get(name) or _by_annotation(name, hints.get(name, Any)) for name in names}
    options |= _ONLY_IN_FILES.get(word, {})
    return Kind(word, factory, options, names[0], _help(factory), "name" in parameters)


def _by_annotation(name: str, annotation: Any) -> FieldType:
    """The kind of value an annotation asks for; a union becomes alternatives."""
    found: list[FieldType] = []
    words: list[str] = []
    alternatives = list(atoms(annotation))
    duration = timedelta in alternatives
    for atom in alternatives:
        if typing.get_origin(atom) is typing.Literal:
            words += [word for word in typing.get_args(atom) if isinstance(word, str)]
        elif atom is timedelta:
            found.append(fields.DURATION)
        elif atom is Callable:
            found.append(fields.FUNCTION)
        elif atom is Any:
            return fields.ANYTHING
        elif atom in _SCALARS and not (duration and atom is not bool):
            found.append(_SCALARS[atom])
    if words:
        found.insert(0, fields.choice(*words))
    found.sort(key=lambda field_type: field_type is fields.FUNCTION)
    if not found:
        raise TypeError(f"option {name!r}: no way to write a {annotation!r} in a file")
    return found[0] if len(found) == 1 else either(*found)


_SCALARS: Mapping[Any, FieldType] = {
    int: fields.INTEGER,
    float: fields.NUMBER,
    bool: fields.BOOLEAN,
    str: fields.TEXT,
}


def _help(factory: Callable[..., Any]) -> dict[str, str]:
    """``name: text`` lines below ``Args:`` in a docstring."""
    _, _, arguments = (inspect.getdoc(factory) or "").partition("Args:\n")
    block = re.split(r"\n(?=\S)", arguments)[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", block, flags=re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text) for name, text in entries}
