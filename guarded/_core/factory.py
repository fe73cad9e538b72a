"""The public functions that make policies (``limit``, ``retry`` …): where they are, what they take, what one was given.

A policy keeps its options checked and whole; only the factory sees which of them a call wrote down.
"""

from __future__ import annotations

import functools
import importlib
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final, ParamSpec, TypeVar

from guarded._core.policy import Policy

P = ParamSpec("P")
R = TypeVar("R")

STORED_AS: Final[Mapping[str, str]] = {"attempts": "retries", "function": "value"}
"""What one can write, to the option that it is kept as, where that has another name."""


def factory(make: Callable[P, R]) -> Callable[P, R]:
    """Have a policy that `make` gives know the options it was given, by name, in `Policy.given`."""
    code = make.__code__
    positional: tuple[str, ...] = code.co_varnames[: code.co_argcount]

    @functools.wraps(make)
    def noting(*args: P.args, **kwargs: P.kwargs) -> R:
        made = make(*args, **kwargs)
        if isinstance(made, Policy) and not made.given:  # else its first declaration counts, whose place it tells
            made.given = (*positional[: len(args)], *map(str, kwargs))
        return made

    return noting


@functools.cache
def factory_of(kind: str) -> Callable[..., Policy[Any]]:
    """The factory of a kind of layer; the policy's module is imported on first use."""
    return getattr(importlib.import_module(f"guarded.policies.{kind}"), kind)  # type: ignore[no-any-return]


@functools.cache
def duration_options(kind: str) -> frozenset[str]:
    """The options of a kind of layer that are lengths of time."""
    hints = typing.get_type_hints(factory_of(kind))
    return frozenset(name for name, annotation in hints.items() if timedelta in atoms(annotation))


def atoms(annotation: Any) -> Iterator[Any]:
    """The types a union is made of; of generic ones their origin, of ``Literal`` the whole."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        for part in typing.get_args(annotation):
            yield from atoms(part)
    else:
        yield origin if isinstance(origin, type) else annotation
