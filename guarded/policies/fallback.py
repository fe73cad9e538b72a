"""fallback: answer something else when the call is refused or fails.

Asked once, and never on a cancellation. What the fallback itself raises is chained to the error it stood in
for. A generator falls back only before its first item; the rest of the stream then comes from the fallback.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import wrapt

from guarded._core import clock
from guarded._core.call import Call
from guarded._core.factory import factory
from guarded._core.kinds import kind_of
from guarded._core.policy import Args, AsyncNext, Fn, Kwargs, Policy, Site, SyncNext
from guarded._core.registry import registry
from guarded.errors import Rejected
from guarded.events.bus import bus
from guarded.policies import _matching
from guarded.policies._matching import Matches, compile_match, title

__all__ = ["Fallback", "FallbackOptions", "fallback"]

Answer = Callable[[Exception, Fn, Args, Kwargs], Any]


@dataclass(frozen=True, slots=True)
class FallbackOptions:
    """What `fallback` was given, checked."""

    value: Any
    on: Matches = Rejected

    def __eq__(self, other: object) -> bool:
        """Whether the answers are alike too: 0 and False are equal, and are two answers."""
        if not isinstance(other, FallbackOptions):
            return NotImplemented
        return self.on == other.on and _alike(self.value, other.value)


def _alike(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_alike(value, other[key]) for key, value in one.items())
    try:
        return bool(one == other)
    except Exception:  # an array, which says so for each of its elements
        return False


def _answer(value: Any, site: Site) -> Answer:
    """How to get the answer: the value itself, or what the function makes of the call's arguments."""
    if not callable(value):
        return lambda error, fn, args, kwargs: value
    takes_error = _takes_error(value)
    was_bound = inspect.ismethod(site.wrapped)  # before it was guarded: its instance is no argument of the call

    def answer(error: Exception, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        if not was_bound:
            args = (*_instance(fn), *args)
        if takes_error and "error" not in kwargs:
            kwargs = {**kwargs, "error": error}
        return value(*args, **kwargs)

    return answer


def _instance(fn: Fn) -> Args:
    """The instance or class that the wrapper has bound a method to; nothing for a function."""
    if inspect.ismethod(fn):
        return (fn.__self__,)
    if isinstance(fn, wrapt.PartialCallableObjectProxy):  # a method called through its class
        return fn._self_args
    return ()


def _takes_error(function: Callable[..., Any]) -> bool:
    try:
        parameter = inspect.signature(function).parameters.get("error")
    except (TypeError, ValueError):  # some functions in C have no signature
        return False
    return parameter is not None and parameter.kind is parameter.KEYWORD_ONLY


def _started(items: Iterable[Any]) -> tuple[Iterator[Any], bool, Any]:
    """A stream over `items`, run up to its first one, as the wrapper of a generator wants it."""
    stream = _stream(items)
    try:
        return stream, False, next(stream)
    except StopIteration as stop:
        return stream, True, stop.value


def _stream(items: Iterable[Any]) -> Generator[Any, Any, Any]:
    return (yield from items)


async def _started_async(items: Iterable[Any] | AsyncIterable[Any]) -> tuple[AsyncIterator[Any], bool, Any]:
    stream = aiter(items) if inspect.isasyncgen(items) else _stream_async(items)
    try:
        return stream, False, await anext(stream)
    except StopAsyncIteration:
        return stream, True, None


async def _stream_async(items: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


class Fallback(Policy[FallbackOptions]):
    """Answers in place of a call that failed; see `fallback`."""

    kind = "fallback"

    def __repr__(self) -> str:
        value = self.options.value
        shown = title(value) if callable(value) else f"<{type(value).__qualname__}>"  # events show this: no values
        on = "" if self.options.on is Rejected else f", on={title(self.options.on)}"
        return f"fallback({shown}{on}{f', name={self.name!r}' if self.name else ''})"

    def check(self, site: Site) -> None:
        """Refuse an answer of another kind than the function's."""
        value, wants_async = self.options.value, site.kind.startswith("async")
        if callable(value):
            if kind_of(value).startswith("async") and not wants_async:
                raise TypeError(f"fallback {title(value)} is async, but {site.function} is not: give a plain function")
        elif site.is_stream:
            if isinstance(value, (str, bytes)) or not isinstance(value, (Iterable, AsyncIterable)):
                raise TypeError(f"{self!r}: {site.function} is a generator; give an iterable or a function")
            if isinstance(value, AsyncIterable) and not wants_async:
                raise TypeError(f"{self!r}: {site.function} is not async, but its fallback is")
            if hasattr(type(value), "__next__") or hasattr(type(value), "__anext__"):
                raise TypeError(f"{self!r}: the first call would use the iterator up; give a list or a function")

    def sync_layer(self, proceed: SyncNext, site: Site) -> SyncNext:
        """Answers in the caller's thread."""
        matches, answer, is_stream = compile_match(self.options.on), _answer(self.options.value, site), site.is_stream

        def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
            try:
                return proceed(call, fn, args, kwargs)
            except Exception as error:
                if not matches(error):
                    raise
                started = clock.monotonic()
                result = answer(error, fn, args, kwargs)  # inside the except block: what it raises is chained
                if is_stream:
                    result = _started(result)
                self._tell(call, error, started)
                return result

        return shell

    def async_layer(self, proceed: AsyncNext, site: Site) -> AsyncNext:
        """Answers in the caller's task; the function may be async."""
        matches, answer, is_stream = compile_match(self.options.on), _answer(self.options.value, site), site.is_stream

        async def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
            try:
                return await proceed(call, fn, args, kwargs)
            except Exception as error:
                if not matches(error):
                    raise
                started = clock.monotonic()
                result = answer(error, fn, args, kwargs)
                if hasattr(type(result), "__await__"):
                    result = await result
                if is_stream:
                    result = await _started_async(result)
                self._tell(call, error, started)
                return result

        return shell

    def _tell(self, call: Call, error: Exception, started: float) -> None:
        spent = max(0.0, clock.monotonic() - started)
        bus.emit("fallback.used", call, self, cause=error, reason=title(type(error)), duration=spent)


@factory
def fallback(value: Any, *, on: Matches = Rejected, name: str | None = None) -> Fallback:
    """Answer with something else when the call is refused, or fails as told.

    Args:
        value: the answer; a mutable one is the same object each time. A function (anything callable) is called like
            the guarded one, with the same arguments, a method's instance first; when it has a keyword-only parameter
            ``error``, with the exception as well. It may be async where the guarded function is. Of a generator,
            an iterable or a function that makes one.
        on: which errors: a type, a predicate ``(exc) -> bool``, or a tuple of them. Default `Rejected`: the call
            did not run. Cancellations never are.
        name: register the policy under this name.

    Raises:
        ValueError: naming every wrong option.
        TypeError: at decoration, for an async fallback of a plain function.
        PolicyConflict: the name stands for something else already.

    Example:
        >>> from guarded import fallback
        >>> @fallback("none", on=LookupError)
        ... def price(item: str) -> str:
        ...     return {"tea": "3.50"}[item]
        >>> price("tea"), price("coffee")
        ('3.50', 'none')
    """
    on = _matching.tidy(on)
    found = _matching.problems("on", on)
    if found:
        raise ValueError("fallback: " + "; ".join(found))
    return registry.intern(Fallback(FallbackOptions(value, on), name=name))
