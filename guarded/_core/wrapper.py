"""The single wrapper: one `wrapt.FunctionWrapper` per callable, however many layers.

A decorator on an already guarded callable merges its layer into that callable's stack. The stack is
compiled into one chain of closures at the first call, since an outer decorator may still come and names
may still be loaded; a change of the registry compiles it again.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import wrapt

from guarded._core.chain import Chain
from guarded._core.entry import enter
from guarded._core.order import check_order
from guarded._core.policy import F, Policy


class BoundGuarded(wrapt.BoundFunctionWrapper[Any, Any]):
    """A guarded method bound to its instance or class."""

    @property
    def layers(self) -> tuple[Policy[Any], ...]:
        """The stack, outermost first."""
        return self._self_parent.layers  # type: ignore[no-any-return]

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._self_instance, self.__name__)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return getattr(copy.deepcopy(self._self_instance, memo), self.__name__)


class Guarded(wrapt.FunctionWrapper[Any, Any]):
    """A callable with its stack of layers."""

    __bound_function_wrapper__ = BoundGuarded

    def __init__(self, wrapped: Any, layers: tuple[Policy[Any], ...]) -> None:
        chain = Chain(wrapped, layers)
        entry = enter(chain)
        super().__init__(wrapped, entry)
        # At each call wrapt looks for the `__self__` of what it wraps, which takes longer than the rest of the call,
        # unless it knows an instance; the entry needs none. Methods get theirs when they are bound.
        super(wrapt.FunctionWrapper, self).__init__(wrapped, chain, entry, None, self._self_binding)  # type: ignore[call-arg]
        self._self_chain = chain

    @property
    def layers(self) -> tuple[Policy[Any], ...]:
        """The stack, outermost first; names that stand for other policies are looked up."""
        return self._self_chain.expanded()

    def __reduce__(self) -> str:
        return self.__qualname__

    def __reduce_ex__(self, protocol: Any) -> str:
        return self.__reduce__()

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self


def decorate(fn: F, layers: tuple[Policy[Any], ...]) -> F:
    """`fn` with `layers` put outside those it has; raises TypeError for what cannot be guarded."""
    wrapped, inner = parts_of(fn)
    check_order(layers, inner, wrapped)
    return Guarded(wrapped, layers + inner)  # type: ignore[return-value]


def parts_of(target: Any) -> tuple[Any, tuple[Policy[Any], ...]]:
    """The callable below all layers, and the layers it has; raises TypeError for what cannot be guarded."""
    if isinstance(target, (classmethod, staticmethod)) and isinstance(target.__func__, Guarded):
        return type(target)(target.__func__.__wrapped__), target.__func__._self_chain.layers
    if isinstance(target, Guarded):
        return target.__wrapped__, target._self_chain.layers
    if isinstance(target, BoundGuarded):
        return target.__wrapped__, target._self_parent._self_chain.layers
    refuse_unguardable(target)
    return target, ()


def refuse_unguardable(target: object) -> None:
    """Raise TypeError, with what to do instead, for what a decorator cannot guard."""
    if isinstance(target, type):
        raise TypeError(f"cannot guard the class {target.__qualname__}: guard its methods, or a function that makes it")
    if isinstance(target, (property, functools.cached_property)):
        raise TypeError("cannot guard a property: put the policy on the function below @property")
    if not callable(target) and not isinstance(target, (classmethod, staticmethod)):
        raise TypeError(
            f"cannot guard {type(target).__qualname__!r} object: a policy goes on a callable; "
            "this may be a call of what was decorated without parentheses, as @deadline for @deadline('10s')"
        )
