"""Permits taken without a callable: by hand, and for the length of a ``with`` block."""

from __future__ import annotations

import types
from collections.abc import Generator
from typing import NamedTuple, Self, cast

from guarded._core.call import Call
from guarded.policies._limit.core import Pool


class Scope(Call):
    """What ``with db_limit:`` puts into the context, so that a limit taken again inside it is noticed.

    Its `held` goes on behind the link: the limit until it is left, the token of the context variable, and a `Visit`
    for all but the simplest use.
    """

    function = "with limit"

    def still_open(self) -> Call | None:
        """The nearest call or scope from here on out that has not been left."""
        call: Call | None = self
        while type(call) is Scope and call.held[2] is None:
            call = call.parent
        return call


class Visit(NamedTuple):
    """How a ``with`` block began: its permits, how many were held with it, and when by the monotonic clock."""

    weight: int
    inflight: int
    started: float


class Claim(NamedTuple):
    """What is asked for by hand."""

    call: Call
    pool: Pool
    weight: int
    priority: int
    max_wait: float


class Permit:
    """Permits taken by hand; `release` them, or leave it to ``with``, in sync and async code alike."""

    __slots__ = ("_pool", "_weight")

    def __init__(self, pool: Pool, weight: int) -> None:
        self._pool = [pool]
        self._weight = weight

    @property
    def released(self) -> bool:
        """Whether the permits went back."""
        return not self._pool

    def release(self) -> None:
        """Give the permits back, from any thread; harmless when done already."""
        try:
            pool = self._pool.pop()  # atomic, so that only one of two racing threads gets it
        except IndexError:
            return
        pool.give_back(self._weight)
        pool.depart()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()


@types.coroutine
def _nothing() -> Generator[None]:
    return
    yield


# Awaiting a finished generator ends at once, over and over: no coroutine is made where nothing is waited for.
NOTHING_TO_AWAIT = _nothing()
next(cast("Generator[None]", NOTHING_TO_AWAIT), None)
