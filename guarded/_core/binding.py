"""Which argument of a call has which name: fast binding by the signature of the function below all wrapping.

Bound methods give their instance back under the name it has in the function (`self`), partials give back
what they hold, so that one call has one set of arguments however it was made.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from inspect import Parameter
from types import FunctionType, MethodType
from typing import Any

import wrapt

_NONE: Any = object()
_DEEPEST = 100
_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)

Fn = Callable[..., Any]
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Argument = Callable[[Fn, Args, Kwargs], Any]


def underlying(fn: Any, args: Args = (), kwargs: Kwargs | None = None) -> tuple[Any, Args, Kwargs]:
    """The function below methods, partials and transparent wrappers, with all the arguments it gets."""
    kwargs = kwargs or {}
    for _ in range(_DEEPEST):
        if _is_bare(fn):
            return fn, args, kwargs
        if isinstance(fn, MethodType):
            fn, args = fn.__func__, (fn.__self__, *args)
        elif isinstance(fn, functools.partial):
            fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
        elif isinstance(fn, wrapt.PartialCallableObjectProxy):  # a method called through its class
            held = fn._self_args
            fn, args, kwargs = fn.__wrapped__, (*held, *args), {**fn._self_kwargs, **kwargs}
        elif isinstance(fn, (staticmethod, classmethod)):
            fn = fn.__func__
        elif isinstance(fn, wrapt.BaseObjectProxy) or _is_transparent(fn):
            fn = fn.__wrapped__
        else:
            return fn, args, kwargs
    raise ValueError(f"{type(fn).__qualname__} is wrapped more than {_DEEPEST} times, or wraps itself")


def _is_bare(fn: object) -> bool:
    return type(fn) is FunctionType and "__wrapped__" not in fn.__dict__


def _is_transparent(fn: object) -> bool:
    # Its own dict, since a remote proxy claims to have every attribute.
    state = getattr(fn, "__dict__", ())
    return "__wrapped__" in state and "__signature__" not in state


class Binder:
    """The parameters of one function; made by `binder_for`, which keeps them.

    Attributes:
        names: parameter names in order; what ``*args`` and ``**kwargs`` collect is one argument each.
        instance: the name of a method's instance or class, told by habit: ``self`` or ``cls``; else None.
        function: the qualified name, for messages.
    """

    def __init__(self, target: Any) -> None:
        parameters = list(inspect.signature(target).parameters.values())
        # Without annotations, which could keep the function alive that this is cached for.
        self._signature = inspect.Signature([each.replace(annotation=Parameter.empty) for each in parameters])
        self.function: str = getattr(target, "__qualname__", None) or type(target).__qualname__
        self.names = tuple(each.name for each in parameters)
        self._positional = tuple(each.name for each in parameters if each.kind in _POSITIONAL)
        self._named = frozenset(each.name for each in parameters if each.kind in _NAMED)
        self._rest = next((each.name for each in parameters if each.kind is Parameter.VAR_POSITIONAL), None)
        self._extra = next((each.name for each in parameters if each.kind is Parameter.VAR_KEYWORD), None)
        self._defaults = {each.name: _NONE if each.default is Parameter.empty else each.default for each in parameters}
        if self._rest is not None:
            self._defaults[self._rest] = ()
        self._required = tuple(name for name in self.names if self._defaults[name] is _NONE and name != self._extra)
        first = self._positional[:1]
        self.instance = first[0] if first and first[0] in ("self", "cls") else None

    def bind(self, fn: Fn, args: Args, kwargs: Kwargs) -> dict[str, Any]:
        """Every argument by name in the order of the signature, defaults included.

        Raises:
            TypeError: the call does not fit the signature.
        """
        _, args, kwargs = underlying(fn, args, kwargs)
        positional = self._positional
        bound = self._defaults.copy()
        bound.update(zip(positional, args, strict=False))
        if len(args) > len(positional):
            if self._rest is None:
                return self._bind_strictly(args, kwargs)
            bound[self._rest] = args[len(positional) :]
        named = kwargs
        if self._extra is not None:
            named = {name: item for name, item in kwargs.items() if name in self._named}
            bound[self._extra] = {name: item for name, item in kwargs.items() if name not in self._named}
        if named:
            if not self._named.issuperset(named) or not named.keys().isdisjoint(positional[: len(args)]):
                return self._bind_strictly(args, kwargs)
            bound.update(named)
        for name in self._required:
            if bound[name] is _NONE:
                return self._bind_strictly(args, kwargs)
        return bound

    def _bind_strictly(self, args: Args, kwargs: Kwargs) -> dict[str, Any]:
        """Let the interpreter find and word what is wrong with the call."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.function}(): {error}") from None
        bound.apply_defaults()
        return bound.arguments

    def argument(self, name: str) -> Argument:
        """A function ``(fn, args, kwargs) -> value`` for one argument, without binding the others where possible."""
        default = self._defaults[name]

        def bound_argument(fn: Fn, args: Args, kwargs: Kwargs) -> Any:
            return self.bind(fn, args, kwargs)[name]

        if name not in self._named:
            return bound_argument
        index = self._positional.index(name) if name in self._positional else -1

        def plain_argument(fn: Fn, args: Args, kwargs: Kwargs) -> Any:
            target, at = (fn.__func__, index - 1) if isinstance(fn, MethodType) else (fn, index)
            if _is_bare(target):
                if 0 <= at < len(args):
                    return args[at]
                value = kwargs.get(name, default)
                if value is not _NONE:
                    return value
            return bound_argument(fn, args, kwargs)

        return plain_argument


_binders: weakref.WeakKeyDictionary[FunctionType, Binder] = weakref.WeakKeyDictionary()


def binder_for(fn: Fn) -> Binder:
    """The binder of the function below `fn`.

    Raises:
        ValueError: its parameters cannot be read (some built-in functions).
    """
    target = underlying(fn)[0]
    if not isinstance(target, FunctionType):
        return Binder(target)
    binder = _binders.get(target)
    if binder is None:
        binder = _binders[target] = Binder(target)
    return binder
