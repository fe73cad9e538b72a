"""Which exceptions an option such as ``on`` means: types, predicates, or a tuple of both.

A type means an ExceptionGroup when it means each of its leaves; a predicate gets the group itself. Nothing
means a cancellation, alone or in a group: a predicate does not even see it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from guarded._core.kinds import kind_of
from guarded.errors import Cancelled

Match: TypeAlias = type[Exception] | Callable[[Exception], object]
"""One exception type, or a predicate over exceptions."""

Matches: TypeAlias = Match | tuple[Match, ...]
"""What ``on`` and ``unless`` take."""


def tidy(given: Any) -> Any:
    """`given` as it is kept in options: hashable, and equal for equal meanings."""
    return tuple(given) if isinstance(given, list) else given


def problems(option: str, given: Any) -> list[str]:
    """What is wrong with the value of `option`, one sentence each."""
    found = []
    for one in given if isinstance(given, tuple) else (given,):
        if isinstance(one, type):
            if not issubclass(one, BaseException):
                found.append(f"{option}={one.__qualname__}: must be an exception type")
            elif not issubclass(one, Exception):
                found.append(
                    f"{option}={one.__qualname__}: must derive from Exception, since control flow is always passed on"
                )
        elif not callable(one):
            found.append(f"{option}={one!r}: must be an exception type, a predicate, or a tuple of them")
        elif kind_of(one) != "sync":
            found.append(f"{option}={title(one)}: a predicate must be a plain function that returns true or false")
    return found


def compile_match(given: Matches) -> Callable[[Exception], bool]:
    """Whether an exception is meant; a group by types only when all its leaves are."""
    types, predicates, groups = _split(given)

    def matches(error: Exception) -> bool:
        if isinstance(error, BaseExceptionGroup):
            if is_cancellation(error):
                return False
            found = isinstance(error, groups) or all(isinstance(leaf, types) for leaf in leaves(error))
        else:
            found = isinstance(error, types) and not isinstance(error, Cancelled)
        return found or (bool(predicates) and not is_cancellation(error) and _any(predicates, error))

    return matches


def compile_exclusion(given: Matches) -> Callable[[Exception], bool]:
    """Whether an exception is excluded; a group by types already when one of its leaves is."""
    types, predicates, _ = _split(given)

    def excludes(error: Exception) -> bool:
        if any(isinstance(leaf, types) for leaf in leaves(error)) or isinstance(error, types):
            return True
        return bool(predicates) and not is_cancellation(error) and _any(predicates, error)

    return excludes


def is_cancellation(error: BaseException) -> bool:
    """Whether `error` is a cancellation, or a group with one in it."""
    return any(isinstance(leaf, Cancelled) or not isinstance(leaf, Exception) for leaf in leaves(error))


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions in a group, however deeply nested; `error` itself when it is none."""
    pending = [error]
    while pending:
        one = pending.pop()
        if isinstance(one, BaseExceptionGroup):
            pending.extend(one.exceptions)
        else:
            yield one


def title(match: object) -> str:
    """A type or predicate as code would name it."""
    if isinstance(match, tuple):
        return f"({', '.join(map(title, match))}{',' if len(match) == 1 else ''})"
    return getattr(match, "__qualname__", None) or type(match).__qualname__


def _any(predicates: tuple[Callable[[Exception], object], ...], error: Exception) -> bool:
    return any(predicate(error) for predicate in predicates)


def _split(
    given: Matches,
) -> tuple[tuple[type[Exception], ...], tuple[Callable[[Exception], object], ...], tuple[type[Any], ...]]:
    """Types, predicates, and those of the types that are groups themselves."""
    one_by_one = given if isinstance(given, tuple) else (given,)
    types = tuple(one for one in one_by_one if isinstance(one, type))
    predicates = tuple(one for one in one_by_one if not isinstance(one, type))
    return types, predicates, tuple(one for one in types if issubclass(one, BaseExceptionGroup))
