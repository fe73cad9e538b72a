"""Options that one call site gives to layers of a stack that others use too.

An overridden layer is a policy of its own, with the options of the shared one under those given here; it follows the
shared one when a file changes it. Kinds whose state is what is shared (limit, rate, circuit) can only be left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from guarded._core.factory import STORED_AS, factory_of
from guarded._core.nearest import choices
from guarded._core.order import ORDER
from guarded._core.place import complain
from guarded._core.policy import Policy, arguments_of
from guarded._core.registry import registry

_SHARED_STATE = frozenset(("limit", "rate", "circuit"))
KEYS = (*dict.fromkeys(ORDER), "attempt_deadline")
"""What can be overridden: kinds of layers, and of two deadlines the inner one."""


def checked(given: Mapping[str, Any]) -> dict[str, Mapping[str, Any] | None]:
    """Overrides by key of the layer, a bare value as the layer's first option.

    Raises:
        ValueError: naming every layer and option there is not, and every layer that shares its state.
    """
    found: dict[str, Mapping[str, Any] | None] = {}
    problems: list[str] = []
    for key, value in given.items():
        if key not in KEYS:
            problems.append(f"{key}={value!r}: must be a layer ({choices(key, KEYS)})")
            continue
        if value is not None and key in _SHARED_STATE:
            problems.append(f"{key}={value!r}: must be None (to leave it out): its state is one for all call sites")
            continue
        names = _parameters(_kind(key))
        options = dict(value) if isinstance(value, Mapping) else {names[0]: value}
        found[key] = None if value is None else options
        unknown = [f"{name!r} ({choices(name, names)})" for name in options if name not in names]
        problems += [f"{key}={value!r}: must have known options only, not {name}" for name in unknown]
    if problems:
        raise ValueError(f"guard: {'; '.join(problems)}")
    return found


def _kind(key: str) -> str:
    return "deadline" if key == "attempt_deadline" else key


def _parameters(kind: str) -> tuple[str, ...]:
    return tuple(name for name in inspect.signature(factory_of(kind)).parameters if name != "name")


def keyed(layers: tuple[Policy[Any], ...]) -> list[tuple[str, Policy[Any]]]:
    """Each layer with the key that overrides it."""
    found: list[tuple[str, Policy[Any]]] = []
    seen: set[str] = set()
    for layer in layers:
        is_inner = layer.kind == "deadline" and ("deadline" in seen or (layer.name or "").endswith(".attempt_deadline"))
        found.append(("attempt_deadline" if is_inner else layer.kind, layer))
        seen.add(layer.kind)
    return found


class Twins:
    """The overridden layers of one call site, by key; each is made once and then follows what it was made from."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._twins: dict[str, Policy[Any]] = {}

    def apply(
        self, layers: tuple[Policy[Any], ...], overrides: Mapping[str, Mapping[str, Any] | None]
    ) -> tuple[Policy[Any], ...]:
        """`layers` with the overridden ones in place of the shared ones; raises ValueError for a wrong option."""
        if not overrides:
            return layers
        found = []
        for key, layer in keyed(layers):
            options = overrides.get(key, {})
            if options is not None:
                found.append(self._twin(key, layer, options) if options else layer)
        return tuple(found)

    def _twin(self, key: str, shared: Policy[Any], given: Mapping[str, Any]) -> Policy[Any]:
        arguments = arguments_of(shared.options)
        if "attempts" in given:
            arguments.pop("retries", None)
        try:
            with registry.drafting():
                made = factory_of(shared.kind)(**{**arguments, **given}, name=shared.name)
            if not isinstance(made, Policy):  # a bare function is what @retry decorates
                raise ValueError(f"{shared.kind}: {key}={dict(given)!r}: must be options, not a function")
        except ValueError as error:
            if (kept := self._twins.get(key)) is None:
                raise
            complain(f"{shared.label} has changed, but not for the override at {self._place}: {error}")
            return kept
        told = {STORED_AS.get(name, name): f"call site {self._place}" for name in given}
        twin = self._twins.setdefault(key, made)
        if twin.options != made.options:
            twin.reconfigure(made.options)
        twin.place, twin.given, twin.sources = shared.place, shared.given, {**shared.sources, **told}
        return twin
