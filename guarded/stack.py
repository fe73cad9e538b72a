"""Stacks of layers by hand and by name, and what they amount to.

`guard` puts several policies on a callable at once, or the stack that a name stands for; a name may be loaded
later than the module that uses it. `explain` says what a stack does in the worst case.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf, isinf
from typing import Any

from guarded._core.durations import format_duration
from guarded._core.factory import STORED_AS, duration_options
from guarded._core.order import ORDER, check_order
from guarded._core.policy import Policy, Site
from guarded._core.registry import registry
from guarded._core.wrapper import BoundGuarded, Guarded
from guarded._overrides import Twins, checked, keyed

_expanding: ContextVar[tuple[str, ...]] = ContextVar("guarded_expanding", default=())


@dataclass(frozen=True, slots=True)
class GuardOptions:
    """The parts of a stack, outermost first: policies, and names that are looked up when a call needs them.

    Attributes:
        overrides: options of layers that are others here, by kind of the layer; None leaves a layer out.
    """

    parts: tuple[Policy[Any] | str, ...]
    overrides: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        """Whether the stacks are written alike: a part without a name is told by its options."""
        if not isinstance(other, GuardOptions):
            return NotImplemented
        return (
            len(self.parts) == len(other.parts)
            and all(map(_alike, self.parts, other.parts))
            and self.overrides == other.overrides
        )


def _alike(one: Policy[Any] | str, other: Policy[Any] | str) -> bool:
    if isinstance(one, str) or isinstance(other, str) or one.name is not None or other.name is not None:
        return one == other
    return type(one) is type(other) and bool(one.declared == other.declared)


class Guard(Policy[GuardOptions]):
    """Several layers under one name, or a name whose layers come from elsewhere."""

    kind = "guard"

    def __init__(self, options: GuardOptions, *, name: str | None = None) -> None:
        super().__init__(options, name=name)
        self._twins = Twins(self.place)

    def __repr__(self) -> str:
        parts = [*map(repr, self.options.parts), *(f"{key}=…" for key in self.options.overrides)]
        return f"guard({', '.join(parts)}{f', name={self.name!r}' if self.name else ''})"

    def expand(self) -> tuple[Policy[Any], ...]:
        """The layers, with all names looked up. Raises PolicyNotFound, ValueError for a name inside itself."""
        layers: list[Policy[Any]] = []
        if not self.enabled:
            return ()
        for part in self.options.parts:
            layers.extend(part.expand() if isinstance(part, Policy) else _named(part))
        return self._twins.apply(tuple(layers), self.options.overrides)

    def known(self) -> tuple[Policy[Any], ...]:
        """The layers, leaving out the parts that are not loaded yet."""
        layers: list[Policy[Any]] = []
        for part in self.options.parts if self.enabled else ():
            try:
                layers.extend(part.known() if isinstance(part, Policy) else _named(part))
            except LookupError:
                continue
        return self._twins.apply(tuple(layers), self.options.overrides)


def _named(name: str) -> tuple[Policy[Any], ...]:
    path = _expanding.get()
    if name in path:
        raise ValueError(f"the stack {name!r} contains itself: {' → '.join((*path, name))}")
    token = _expanding.set((*path, name))
    try:
        return registry[name].expand()
    finally:
        _expanding.reset(token)


def guard(*parts: Policy[Any] | str, name: str | None = None, **overrides: Any) -> Guard:
    """A stack of layers to put on callables.

    Args:
        parts: outermost first; policies, or names of policies and stacks. A name may be defined later: it is looked
            up at the first call, and again whenever the registry changes.
        name: register the stack under this name.
        overrides: other options for layers of the stack, here only and before those of the environment, a file and
            code: ``guard("payments", retry={"retries": 1}, deadline="2s", fallback=None)``. A mapping is merged over
            the layer's options, a bare value is its first one, None leaves the layer out. ``attempt_deadline`` is the
            inner of two deadlines. limit, rate and circuit can only be left out, since their state is shared.

    Raises:
        ValueError: no parts, something that is neither a policy nor a name, or an override that cannot be.
        PolicyConflict: the name stands for something else already.

    Example:
        >>> from guarded import guard, limit, retry
        >>> outbound = guard(limit(20), retry(retries=2))
        >>> @outbound
        ... def fetch() -> str:
        ...     return "page"
        >>> [layer.kind for layer in fetch.layers]
        ['limit', 'retry']
    """
    if not parts:
        raise ValueError("guard: give a policy, or the name of one")
    for part in parts:
        if not isinstance(part, (Policy, str)):
            uncalled = ": this may be a policy, or @guard itself, without its parentheses" if callable(part) else ""
            raise ValueError(
                f"guard: give policies or names, not {getattr(part, '__qualname__', repr(part))}{uncalled}"
            )
    made = Guard(GuardOptions(parts, checked(overrides)), name=name)
    if overrides:
        _check_overrides(made)
    return registry.intern(made)


def _check_overrides(made: Guard) -> None:
    """Raise ValueError for an override that meets no layer, or a wrong option, if the stack is loaded already."""
    try:
        below = Guard(GuardOptions(made.options.parts)).expand()
        made.expand()
    except LookupError:
        return
    keys = [key for key, _ in keyed(below)]
    for key, options in made.options.overrides.items():
        if options is not None and key not in keys:
            has = ", ".join(keys)
            raise ValueError(f"guard: {key}={dict(options)!r}: must be a layer of the stack, which has {has}")


@dataclass(frozen=True, slots=True)
class Explanation:
    """What `explain` found; its text is the report.

    Attributes:
        subject: the function or the name that was asked for.
        layers: the stack, outermost first.
        calls: how often one call can run the function, at the worst.
        seconds: how long one call can take, at the worst; ``inf`` when nothing bounds it.
        notes: what holds a slot during backoff, and order warnings.
    """

    subject: str
    layers: tuple[Policy[Any], ...]
    calls: float
    seconds: float
    notes: tuple[str, ...]

    def __str__(self) -> str:
        lines = [self.subject]
        for number, layer in enumerate(self.layers, 1):
            lines.append(f"  {number}. {layer.kind}" + (f" {layer.name!r}" if layer.name else ""))
            lines.extend(f"       {option} = {value}  ({source})" for option, value, source in option_rows(layer))
        time = "unbounded" if isinf(self.seconds) else format_duration(self.seconds)
        lines.append(f"  worst case: {self.calls:g} call{'s' if self.calls != 1 else ''} of the function, {time}")
        lines.extend(f"  note: {note}" for note in self.notes)
        return "\n".join(lines)

    __repr__ = __str__


def explain(subject: Any) -> Explanation:
    """What a stack does: its layers, their options and where each came from, the worst case, and what looks wrong.

    Args:
        subject: a guarded callable, a policy or stack, or the name of one. Raises PolicyNotFound, TypeError.
    """
    layers, wrapped, kind, name = _subject(subject)
    calls, seconds = 1.0, inf
    for index in range(len(layers) - 1, -1, -1):
        calls, seconds = layers[index].worst_case(calls, seconds, Site(name, wrapped, kind, layers, index))
    notes = [*_slot_notes(layers), *check_order(layers, (), wrapped if wrapped is not None else name, quiet=True)]
    return Explanation(name, layers, calls, seconds, tuple(notes))


def _subject(subject: Any) -> tuple[tuple[Policy[Any], ...], Any, Any, str]:
    if isinstance(subject, BoundGuarded):
        subject = subject._self_parent
    if isinstance(subject, Guarded):
        chain = subject._self_chain
        return subject.layers, chain.wrapped, chain.kind, chain.function
    if isinstance(subject, str):
        return _named(subject), None, "sync", subject
    if isinstance(subject, Policy):
        return subject.expand(), None, "sync", subject.label
    raise TypeError(f"explain: {subject!r} is neither a guarded callable, nor a policy, nor a name of one")


def option_rows(layer: Policy[Any]) -> list[tuple[str, str, str]]:
    """Each option that was given, or has a default that says something: name, value as one writes it, source."""
    rows, written = [], {STORED_AS.get(name, name) for name in layer.given}
    for option in dataclasses.fields(layer.options):
        name, value = option.name, getattr(layer.options, option.name)
        # What a circuit fills in where a rate needs it is a default, too.
        is_given = name in written or value not in (option.default, option.metadata.get("filled_in"))
        if name in layer.sources or is_given or value is not None:
            source = layer.sources.get(name) or (f"code {layer.place}" if is_given else "default")
            rows.append((name, _show(value, layer.kind, name), source))
    return rows


def _show(value: object, kind: str, option: str) -> str:
    if isinstance(value, timedelta):
        return format_duration(value.total_seconds())
    if isinstance(value, float) and kind in ORDER and option in duration_options(kind):
        return format_duration(value)
    if isinstance(value, tuple) and value:
        return f"({', '.join([_show(each, kind, option) for each in value])})"
    if isinstance(value, type) or callable(value):
        return getattr(value, "__qualname__", None) or repr(value)
    return repr(value)


def _slot_notes(layers: tuple[Policy[Any], ...]) -> list[str]:
    notes = []
    for index, layer in enumerate(layers):
        if layer.kind == "limit" and any(below.kind == "retry" for below in layers[index + 1 :]):
            notes.append(f"{layer.label}: the slot is held for the whole logical call, backoff included")
        if layer.kind == "retry" and any(below.kind == "limit" for below in layers[index + 1 :]):
            notes.append(f"{layer.label}: the slot below is free during backoff and queued for again by each attempt")
    return notes
