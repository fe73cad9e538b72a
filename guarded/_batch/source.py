"""Where the items come from: an iterable or an async iterable, pulled by one caller and closed once.

Iterators are closed as ``yield from`` closes them: by their ``close`` or ``aclose``, where they have one. Files are
left to whoever opened them.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


def size_of(items: object) -> int | None:
    """How many items there are, where that is known."""
    try:
        return len(items)  # type: ignore[arg-type]
    except TypeError:
        return None


class Source(Generic[T]):
    """The items of an iterable; the first `next` asks it for its iterator."""

    __slots__ = ("_closed", "_items", "_iterator")

    def __init__(self, items: Iterable[T]) -> None:
        self._items: Iterable[T] | None = items
        self._iterator: Iterator[T] | None = None
        self._closed = False

    def next(self) -> T:
        """The next item; StopIteration at the end."""
        iterator = self._iterator
        if iterator is None:
            assert self._items is not None
            iterator = self._iterator = iter(self._items)
            self._items = None
        return next(iterator)

    def close(self) -> None:
        """Close the iterator, once; also one that was handed over as such and never asked."""
        if self._closed:
            return
        self._closed = True
        iterator: Any = self._items if self._iterator is None else self._iterator
        if not hasattr(iterator, "__next__"):
            return
        close = getattr(iterator, "close", None)
        if callable(close) and not isinstance(iterator, io.IOBase):
            close()


class AsyncSource(Generic[T]):
    """The items of an async iterable; the first `next` asks it for its iterator."""

    __slots__ = ("_closed", "_items", "_iterator")

    def __init__(self, items: AsyncIterable[T]) -> None:
        self._items: AsyncIterable[T] | None = items
        self._iterator: AsyncIterator[T] | None = None
        self._closed = False

    async def next(self) -> T:
        """The next item; StopAsyncIteration at the end."""
        iterator = self._iterator
        if iterator is None:
            assert self._items is not None
            iterator = self._iterator = aiter(self._items)
            self._items = None
        return await anext(iterator)

    async def close(self) -> None:
        """Close the iterator, once; also one that was handed over as such and never asked."""
        if self._closed:
            return
        self._closed = True
        iterator: Any = self._items if self._iterator is None else self._iterator
        close = getattr(iterator, "aclose", None)
        if close is not None and hasattr(iterator, "__anext__"):
            await close()
