"""What all policies share: options, a name, and how they become a layer on a callable.

A policy is frozen options plus shared state. Applied to a callable it is compiled, once for sync and
once for async use, into a closure around the next layer: ``(call, fn, args, kwargs) -> result``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Never, ParamSpec, TypeAlias, TypeVar

from guarded._core import registry
from guarded._core.kinds import Kind
from guarded._core.place import caller_place

if TYPE_CHECKING:
    from guarded._core.call import Call

Fn: TypeAlias = Callable[..., Any]
Args: TypeAlias = tuple[Any, ...]
Kwargs: TypeAlias = dict[str, Any]
SyncNext: TypeAlias = "Callable[[Call, Fn, Args, Kwargs], Any]"
AsyncNext: TypeAlias = "Callable[[Call, Fn, Args, Kwargs], Awaitable[Any]]"

F = TypeVar("F", bound="Fn | classmethod[Any, Any, Any] | staticmethod[Any, Any]")
OptionsT = TypeVar("OptionsT")
P = ParamSpec("P")
R = TypeVar("R")

_NOTHING: Any = object()  # what `Policy.__call__` has when it is called like a function without arguments


@dataclass(frozen=True, slots=True)
class Site:
    """The place a layer is compiled for.

    Attributes:
        function: qualified name, ``module.Class.method``.
        wrapped: the callable below all layers, unbound.
        kind: how it is called. In a stream (generator) the chain runs up to the first item only.
        layers: the whole stack so far, outermost first.
        index: which of `layers` is being compiled.
        declared: the whole finished stack, also where a test has taken layers out of `layers`; empty while an outer
            decorator may still come.
    """

    function: str
    wrapped: Any
    kind: Kind
    layers: tuple[Policy[Any], ...]
    index: int
    declared: tuple[Policy[Any], ...] = ()

    @property
    def is_stream(self) -> bool:
        """Whether calls give a generator or an async generator."""
        return self.kind.endswith("generator")

    @property
    def outer(self) -> tuple[Policy[Any], ...]:
        """The layers around this one, outermost first."""
        return self.layers[: self.index]

    @property
    def inner(self) -> tuple[Policy[Any], ...]:
        """The layers below this one, outermost first."""
        return self.layers[self.index + 1 :]


def name_problem(name: Any) -> str | None:
    """What is wrong with a ``name`` option, or None."""
    if name is None or (isinstance(name, str) and name):
        return None
    return f"name={name!r}: must be a text that is not empty"


class Policy(Generic[OptionsT]):
    """One rule with its options and its shared state; decorates callables.

    Attributes:
        kind: the word of this policy, ``"limit"``; events and rejections call it the layer.
        options: frozen dataclass of the options as given, all of them checked.
        name: the name it is registered under, or None.
        place: ``file:line`` where it was made.
        given: arguments that code wrote down at that place, also those it gave their default values.
        sources: where an option's value came from, for those that a file or the environment gave.
        declared: the options as code gave them; None while only a file has.
        enabled: whether it becomes a layer at all; a file may switch it off.
    """

    kind: str

    def __init__(self, options: OptionsT, *, name: str | None = None) -> None:
        if problem := name_problem(name):
            raise ValueError(f"{self.kind}: {problem}")
        self.options: OptionsT = options
        self.name: str | None = name
        self.place: str = caller_place()
        self.given: tuple[str, ...] = ()
        self.sources: dict[str, str] = {}
        self.declared: OptionsT | None = options
        self.enabled = True

    @property
    def label(self) -> str:
        """What messages and events call this policy: its name, else a short repr."""
        return self.name or repr(self)

    def expand(self) -> tuple[Policy[Any], ...]:
        """The layers this policy stands for when a callable is compiled; itself, but for stacks and handles."""
        return (self,) if self.enabled else ()

    def known(self) -> tuple[Policy[Any], ...]:
        """`expand`, leaving out names that are not loaded yet."""
        try:
            return self.expand()
        except LookupError:
            return ()

    def reconfigure(self, options: OptionsT) -> None:
        """Take other options in place; shared state goes on. The registry's `changed` has to follow."""
        self.options = options

    def check(self, site: Site) -> None:
        """Raise TypeError or ValueError when this policy cannot guard such a callable."""

    def sync_layer(self, proceed: SyncNext, site: Site) -> SyncNext:
        """The closure around `proceed` for a plain function or generator."""
        raise NotImplementedError

    def async_layer(self, proceed: AsyncNext, site: Site) -> AsyncNext:
        """The closure around `proceed` for a coroutine function or async generator."""
        raise NotImplementedError

    def live_state(self) -> dict[str, Any]:
        """Live state as plain values, for `registry.snapshot()`; empty for a policy without any."""
        return {}

    def worst_case(self, calls: float, seconds: float, site: Site) -> tuple[float, float]:
        """How often, and for how many seconds, one call can run through this layer.

        Args:
            calls: how often what is below can run the function.
            seconds: how long what is below can take; ``inf`` when nothing bounds it.
        """
        return calls, seconds

    def __call__(self, fn: F = _NOTHING, /, *args: Never, **kwargs: Never) -> F:
        """Put this policy on `fn`, outside the layers it already has."""
        if fn is _NOTHING or args or kwargs:
            raise self._not_a_function()
        return self._put_on(fn)

    def _put_on(self, fn: F) -> F:
        from guarded._core.wrapper import decorate  # the wrapper needs this module first

        return decorate(fn, (self,))

    def _not_a_function(self) -> TypeError:
        return TypeError(
            f"{self!r} is a policy, which takes one callable to guard, and was called like a function; "
            f"write @{self.kind}(...), with parentheses, where this was made: {self.place}; "
            "to call a function under it, write .call(function, ...)"
        )

    def call(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `fn` once under this policy; gives an awaitable when `fn` is async. Of a class, it makes an instance."""
        once = functools.partial(fn) if isinstance(fn, type) else fn
        return self(once)(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.options if self.declared is None else self.declared, self.name)


def arguments_of(options: Any) -> dict[str, Any]:
    """Options as keyword arguments of the factory; those left at their defaults are not repeated."""
    given = [(field, getattr(options, field.name)) for field in dataclasses.fields(options)]
    return {field.name: value for field, value in given if field.init and value != field.default}


PolicyT = TypeVar("PolicyT", bound="Policy[Any]")


def _restore(cls: type[PolicyT], options: Any, name: str | None) -> PolicyT:
    """Unpickle: a named policy is the one of this process, or becomes it; state never travels."""
    known = registry.registry.get(name) if name is not None else None
    if known is not None and type(known) is cls and known.declared is None:
        # A file has made it; what travels is no declaration of code.
        return known
    return registry.registry.intern(cls(options, name=name))
