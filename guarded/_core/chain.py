"""The layers of one callable, compiled into one chain of closures.

Each layer is a closure ``(call, fn, args, kwargs)`` around the next one; the innermost calls the user's
function. A chain is compiled at its first call and again after `invalidate_all`.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from types import CoroutineType
from typing import Any, TypeAlias

from guarded._core.call import Call, call_maker
from guarded._core.kinds import Kind, kind_of, qualified_name
from guarded._core.order import expand_known
from guarded._core.policy import Args, Fn, Kwargs, Policy, Site
from guarded._core.registry import registry

Rewrite: TypeAlias = "Callable[[Chain, tuple[Policy[Any], ...]], tuple[Policy[Any], ...]]"
"""Takes layers out of a chain, or puts some in, when it is compiled."""


class ReturnsAwaitable(BaseException):
    """A plain function turned out to return an awaitable: unwinds the sync chain, so that it can run as async."""

    def __init__(self, awaitable: Any) -> None:
        super().__init__()
        self.awaitable = awaitable


class Chain:
    """The stack of one callable and what it was compiled to.

    Attributes:
        block: the ``registry.isolated()`` block in which it was made, if in one.
        layers: outermost first, as decorated; names are not looked up.
        kind: how the callable is called.
        run: the compiled chain; compiles itself at the first call.
        new_call: makes the `Call` that goes through it, within the one around it.
    """

    __slots__ = ("__weakref__", "_version", "block", "function", "kind", "layers", "new_call", "run", "wrapped")

    def __init__(self, wrapped: Any, layers: tuple[Policy[Any], ...], kind: Kind | None = None) -> None:
        self.wrapped = wrapped
        self.layers = layers
        self.kind: Kind = kind or kind_of(wrapped)
        self.function = qualified_name(wrapped)
        self.new_call = call_maker(self.function)
        self.block = registry.block
        self._version = 0
        self.run: Callable[[Call, Fn, Args, Kwargs], Any] = self._compile_and_run
        for index, layer in enumerate(layers):
            layer.check(Site(self.function, wrapped, self.kind, layers, index))
        with _chains_lock:
            _chains.add(self)

    def expanded(self) -> tuple[Policy[Any], ...]:
        """The layers with stacks opened, leaving out names that are not loaded yet."""
        return expand_known(self.layers)

    def invalidate(self) -> None:
        """Compile again at the next call."""
        with _chains_lock:
            self._version += 1
            self.run = self._compile_and_run

    def _compile_and_run(self, call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        version = self._version
        run = self.compile()
        with _chains_lock:
            if version == self._version:  # else names have changed meanwhile, and the next call has to look again
                self.run = run
        return run(call, fn, args, kwargs)

    def compile(self) -> Callable[[Call, Fn, Args, Kwargs], Any]:
        """Look all names up and build the closures; raises what a name or a layer has against it."""
        declared = tuple([part for layer in self.layers for part in layer.expand()])
        layers = declared
        for rewrite in _rewrites:
            layers = rewrite(self, layers)
        chain: Any = _BODIES[self.kind]
        if self.kind == "async" and inspect.iscoroutinefunction(self.wrapped):
            chain = _await_declared
        for index in range(len(layers) - 1, -1, -1):
            site = Site(self.function, self.wrapped, self.kind, layers, index, declared)
            layers[index].check(site)
            make = layers[index].async_layer if self.kind.startswith("async") else layers[index].sync_layer
            chain = make(chain, site)
        return chain  # type: ignore[no-any-return]


_chains: weakref.WeakSet[Chain] = weakref.WeakSet()
_chains_lock = threading.RLock()  # reentrant: a finalizer may decorate something, or call something for the first time
_rewrites: tuple[Rewrite, ...] = ()  # replaced as a whole, so that compiling needs no lock


def add_rewrite(rewrite: Rewrite) -> None:
    """Have every chain compiled through `rewrite`, after those added before; for tests."""
    global _rewrites
    with _chains_lock:
        _rewrites = (*_rewrites, rewrite)
    invalidate_all()


def remove_rewrite(rewrite: Rewrite) -> None:
    """Undo the latest `add_rewrite` of it."""
    global _rewrites
    with _chains_lock:
        kept = list(_rewrites)
        del kept[len(kept) - 1 - kept[::-1].index(rewrite)]
        _rewrites = tuple(kept)
    invalidate_all()


def living() -> list[Chain]:
    """Every chain that some callable still has."""
    with _chains_lock:
        return list(_chains)


def invalidate_all() -> None:
    """Make every chain compile again: names or switches have changed."""
    for chain in living():
        chain.invalidate()


registry.on_change(invalidate_all)


def _in_child() -> None:
    """What a policy was compiled to may hold what it has let go of in the forked child."""
    global _chains_lock
    _chains_lock = threading.RLock()
    invalidate_all()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


_PLAIN = frozenset({bool, int, float, str, bytes, tuple, list, dict, set})  # the question below is a slow one


def _call_sync(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
    result = fn(*args, **kwargs) if kwargs else fn(*args)
    if result is None or type(result) in _PLAIN:
        return result
    if type(result) is CoroutineType or (
        # Other awaitables (a Dask or Ray future) are plain results where nobody could await them.
        hasattr(type(result), "__await__") and asyncio._get_running_loop() is not None
    ):
        raise ReturnsAwaitable(result)
    return result


def _call_async(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Awaitable[Any]:
    result = fn(*args, **kwargs) if kwargs else fn(*args)
    return result if hasattr(type(result), "__await__") else _at_once(result)


def _await_declared(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Awaitable[Any]:
    return fn(*args, **kwargs) if kwargs else fn(*args)  # type: ignore[no-any-return]


async def _at_once(result: Any) -> Any:
    return result


def _start(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
    """Run a generator up to its first item: ``(generator, done, item or return value)``."""
    generator = fn(*args, **kwargs)
    try:
        return generator, False, next(generator)
    except StopIteration as stop:
        return generator, True, stop.value


async def _start_async(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
    generator = fn(*args, **kwargs)
    try:
        return generator, False, await anext(generator)
    except StopAsyncIteration:
        return generator, True, None


_BODIES: dict[Kind, Callable[[Call, Fn, Args, Kwargs], Any]] = {
    "sync": _call_sync,
    "async": _call_async,
    "generator": _start,
    "async_generator": _start_async,
}
