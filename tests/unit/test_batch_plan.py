"""Options and signatures of batches."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from guarded import gather_limit, imap_limit, limit, map_limit


async def told_later(done: int, failed: int, total: int | None) -> None:
    """Nobody would await it."""


@pytest.mark.parametrize(
    ("options", "say"),
    [
        ({"concurrency": 0}, "concurrency=0: must be a whole number from 1 up"),
        ({"concurrency": True}, "concurrency=True"),
        ({"concurrency": 2.0}, "concurrency=2.0"),
        ({"window": 0}, "window=0: must be a whole number"),
        ({"concurrency": 8, "window": 7}, "window=7: must not be below concurrency=8"),
        ({"errors": "ignore"}, "errors='ignore': must be 'raise' or 'collect'"),
        ({"progress": "yes"}, "progress='yes'"),
        ({"progress": 1}, "progress=1: must be True, False or None"),
        ({"on_progress": 3}, "on_progress=3: must be callable"),
        ({"on_progress": told_later}, "on_progress=told_later: must be a plain function"),
        ({"on_progress": functools.partial(told_later)}, "on_progress=partial: must be a plain function"),
        ({"executor": object()}, "must be a concurrent.futures.Executor"),
        ({"cancel": object()}, "must be a CancelToken"),
    ],
)
@pytest.mark.parametrize("batch", [map_limit, imap_limit])
def test_bad_options_fail_at_the_call(batch: Callable[..., Any], options: dict[str, Any], say: str) -> None:
    """Each wrong value is named with its option and the rule, before anything runs."""
    with pytest.raises(ValueError, match=say):
        batch(len, ["a"], **options)


def test_all_bad_options_are_named_at_once() -> None:
    """One error tells about every wrong option."""
    with pytest.raises(ValueError, match=r"^map_limit: concurrency=0.*; errors='x'") as error:
        map_limit(len, ["a"], concurrency=0, errors="x", progress=3)  # type: ignore[call-overload]
    assert "progress=3" in str(error.value)


def item_only(item: int) -> tuple[Any, ...]:
    return (item,)


def with_index(item: int, index: int) -> tuple[Any, ...]:
    return item, index


def with_default(item: int, timeout: float = 9.0) -> tuple[Any, ...]:
    return item, timeout


def only_default(item: int = 5) -> tuple[Any, ...]:
    return (item,)


def anything(*args: Any) -> tuple[Any, ...]:
    return args


class Service:
    def method(self, item: int, index: int) -> tuple[Any, ...]:
        return item, index

    @limit(2)
    def guarded(self, item: int, index: int) -> tuple[Any, ...]:
        return item, index


class CallableObject:
    def __call__(self, item: int, index: int) -> tuple[Any, ...]:
        return item, index


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (item_only, (7,)),
        (with_index, (7, 0)),
        (with_default, (7, 9.0)),
        (only_default, (7,)),
        (anything, (7,)),
        (functools.partial(with_index, index=4), (7, 4)),
        (functools.partial(with_index, 1), (1, 7)),
        (Service().method, (7, 0)),
        (Service().guarded, (7, 0)),
        (CallableObject(), (7, 0)),
        (limit(1)(with_index), (7, 0)),
        (str, "7"),
    ],
)
def test_the_index_goes_to_functions_that_need_two_arguments(fn: Any, expected: Any) -> None:
    """Parameters with defaults stay the function's own."""
    assert map_limit(fn, [7]) == [expected]


def needs_three(a: int, b: int, c: int) -> None: ...
def needs_none() -> None: ...
def needs_keyword(a: int, *, b: int) -> None: ...
def gives_many(a: int) -> Iterator[int]:
    yield a


async def gives_many_async(a: int) -> AsyncIterator[int]:
    yield a


@pytest.mark.parametrize("fn", [needs_three, needs_none, needs_keyword, gives_many, gives_many_async, 3, None])
def test_what_cannot_take_an_item_is_refused(fn: Any) -> None:
    """With a TypeError, before anything runs."""
    with pytest.raises(TypeError, match=r"^map_limit: "):
        map_limit(fn, [1])


@pytest.mark.parametrize("items", [3, None, object()])
def test_what_gives_no_items_is_refused(items: Any) -> None:
    """With a TypeError that says what is expected."""
    with pytest.raises(TypeError, match="items must be an iterable or an async iterable"):
        map_limit(len, items)


def test_thunks_must_be_callable() -> None:
    """A coroutine in the place of a thunk is refused, and does not complain that nobody awaited it."""

    async def fetch() -> int:
        return 1

    with pytest.raises(TypeError, match="argument 1 is coroutine, which is not callable; write a lambda around it"):
        gather_limit(fetch, fetch())  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"argument 0 is list, which is not callable; unpack it with \*$"):
        gather_limit([len])  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="argument 0 is int"):
        gather_limit(3)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="gather_limit: concurrency=0"):
        gather_limit(lambda: 1, concurrency=0)


class OldStyle:
    """A sequence by the protocol of ``__getitem__``."""

    def __getitem__(self, index: int) -> str:
        if index > 2:
            raise IndexError
        return "x" * index


def test_items_may_be_anything_that_iterates() -> None:
    """Sets of items without a length, old sequences, dicts and none at all."""
    assert map_limit(len, OldStyle()) == [0, 1, 2]  # type: ignore[arg-type]
    assert map_limit(len, {"a": 1, "bb": 2}) == [1, 2]
    assert map_limit(len, []) == []
    assert gather_limit() == []
