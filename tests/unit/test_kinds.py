"""Which callables are async, generators or plain, and what they are called."""

from __future__ import annotations

import asyncio
import collections.abc
import concurrent.futures
import functools
import sys
import typing
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from guarded import Deadlock, limit, retry
from guarded._core.kinds import kind_of
from guarded.testing import capture

if TYPE_CHECKING:
    from collections.abc import Coroutine


async def answer() -> int:
    return 42


def annotated(returns: Any) -> Callable[[], Any]:
    """A plain function that gives an awaitable, with that return annotation."""

    def undeclared():  # type: ignore[no-untyped-def]
        return answer()

    undeclared.__annotations__ = {"return": returns}
    return undeclared


@pytest.mark.parametrize(
    "returns",
    [
        Awaitable,
        Awaitable[int],
        typing.Awaitable[int],
        typing.Coroutine[Any, Any, int],
        collections.abc.Coroutine[Any, Any, int],
        asyncio.Future,
        asyncio.Future[int],
        asyncio.Task[int],
        "Awaitable",
        "Awaitable[int]",
        " Awaitable[list[int] | None]",
        "typing.Awaitable[NotImported]",
        "collections.abc.Coroutine[Any, Any, int]",
        "Coroutine[Any, Any, int]",
        "abc.Awaitable[int]",
        "asyncio.Task[int]",
        "'Awaitable[int]'",
    ],
)
def test_an_annotation_tells_that_a_plain_function_is_async(returns: Any) -> None:
    """As an object, as text, and where the name was imported for type checkers only."""
    function = annotated(returns)
    assert kind_of(function) == "async"
    assert kind_of(functools.partial(function)) == "async"
    assert kind_of(staticmethod(function)) == "async"
    assert kind_of(SimpleNamespace(method=function).method) == "async"


@pytest.mark.parametrize(
    "returns",
    [
        None,
        int,
        Any,
        Awaitable[int] | None,
        concurrent.futures.Future,
        Callable[[], Awaitable[int]],
        "int",
        "Awaitable[int] | int",
        "Awaitable[int] | Awaitable[str]",
        "concurrent.futures.Future[int]",
        "Future[int]",
        "Task",
        "AwaitableOrNot",
        "Awaitable[",
        "typing.Awaitables",
        42,
    ],
)
def test_other_annotations_tell_nothing(returns: Any) -> None:
    """What may be awaitable or not, what other libraries call a future, and what cannot be read."""
    assert kind_of(annotated(returns)) == "sync"


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations were evaluated by the def statement")
def test_an_annotation_that_names_what_is_not_there_yet_tells_nothing() -> None:
    """From Python 3.14 on annotations are evaluated when they are asked for."""
    names: dict[str, Any] = {}
    exec("def later() -> DefinedLater: ...", names)
    assert kind_of(names["later"]) == "sync"


def test_a_method_and_a_callable_object_are_read_too() -> None:
    """Where the annotation stands on a method or on ``__call__``."""

    class Client:
        def fetch(self) -> Awaitable[int]:
            return answer()

        def __call__(self) -> Coroutine[Any, Any, int]:
            return answer()

    assert kind_of(Client().fetch) == kind_of(Client()) == "async"


def test_the_annotations_of_what_is_wrapped_are_not_those_of_the_wrapper() -> None:
    """``functools.wraps`` copies them also to one that waits for the result itself."""

    @functools.wraps(annotated(Awaitable[int]))
    def waits() -> int:
        return asyncio.run(answer())

    assert kind_of(waits) == "sync"
    assert retry(waits)() == 42


def test_an_annotated_function_waits_from_its_first_call_on() -> None:
    """Without the annotation the first call would be taken for one that blocks the loop."""
    one = limit(1)

    async def main() -> int:
        held = asyncio.Event()

        async def hold() -> None:
            async with one:
                await held.wait()

        holder = asyncio.ensure_future(hold())
        await asyncio.sleep(0)
        waits = asyncio.ensure_future(one(annotated("Awaitable[int]"))())
        with pytest.raises(Deadlock, match="has to say so"):
            one(annotated(None))()
        await asyncio.sleep(0)
        held.set()
        await holder
        return await waits

    with capture() as events:
        assert asyncio.run(main()) == 42
    assert [event.name for event in events].count("limit.queued") == 1
