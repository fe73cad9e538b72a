"""What is kept of results and errors, and which return types are refused beforehand."""

from __future__ import annotations

import asyncio
import copyreg
import socket
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import IO, Annotated, Any, Generic, Literal, NamedTuple, Protocol, TypedDict, TypeVar

import pydantic
import pytest

from guarded import RateExceeded
from guarded.policies._idempotent.results import Copies, errors_problem, return_problem, twin_of

T = TypeVar("T")


class Coded(Exception):
    """Its constructor turns its argument into another one."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class Failing(Exception):
    """Its constructor works once."""

    count = 0

    def __init__(self, text: str) -> None:
        super().__init__(text)
        Failing.count += 1
        if Failing.count > 1:
            raise LookupError("not again")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a", 1),
        KeyError("k"),
        OSError(2, "no such file", "name", None, "other"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        Coded(5),
        Failing("x"),
        RateExceeded("slow down", policy="api", retry_after=2.5),
        ExceptionGroup("all", [ValueError(1), Coded(2)]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_twin_is_equal_fresh_and_unraised(error: Exception) -> None:
    """Type, text, args and attributes are the same; traceback and chain are not taken over."""
    error.add_note("a note")
    try:
        raise error from LookupError("cause")
    except Exception:
        pass
    twin = twin_of(error)
    assert twin is not error
    assert type(twin) is type(error)
    assert (str(twin), twin.args) == (str(error), error.args)
    assert twin.__dict__ == error.__dict__
    assert twin.__notes__ is not error.__notes__
    assert twin.__traceback__ is None
    assert twin.__cause__ is None
    assert getattr(twin, "filename", None) == getattr(error, "filename", None)


def test_twins_are_fresh_where_a_library_has_exceptions_copied_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reducers for whole exception classes, as those that send tracebacks to other processes, change nothing."""

    def reduced(error: ValueError) -> tuple[Any, ...]:
        return revived, (error.args, error.__traceback__, error.__cause__, error.__dict__)

    def revived(args: Any, traceback: Any, cause: Any, state: dict[str, Any]) -> ValueError:
        error = ValueError(*args).with_traceback(traceback)
        error.__cause__ = cause
        error.__dict__ = state
        return error

    monkeypatch.setitem(copyreg.dispatch_table, ValueError, reduced)
    error = ValueError("x")
    error.reasons = ["a"]  # type: ignore[attr-defined]
    try:
        raise error from LookupError("cause")
    except ValueError:
        pass
    twin: Any = Copies().open(Copies().keep("error", error))[1]
    assert (twin.args, twin.reasons, twin.__traceback__, twin.__cause__) == (("x",), ["a"], None, None)
    assert twin.reasons is not error.reasons  # type: ignore[attr-defined]


class Fields(Exception):
    """Says itself how it is copied."""

    def __copy__(self) -> Fields:
        twin = Fields(*self.args)
        twin.origin = "copied"  # type: ignore[attr-defined]
        return twin


def test_a_twin_is_made_the_way_its_class_says() -> None:
    """Its own ``__copy__`` is used."""
    assert twin_of(Fields(1)).origin == "copied"  # type: ignore[attr-defined]


def test_kept_errors_share_no_attributes_where_those_can_be_copied() -> None:
    """A mutable attribute is each one's own; one that cannot be copied is shared rather than losing the error."""
    keeper = Copies()
    error = ValueError("x")
    error.reasons = ["a"]  # type: ignore[attr-defined]
    _, first = keeper.open(keeper.keep("error", error))
    first.reasons.append("b")
    assert error.reasons == ["a"]  # type: ignore[attr-defined]
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    _, second = keeper.open(keeper.keep("error", error))
    assert second.lock is error.lock  # type: ignore[attr-defined]


class Connection:
    """No record."""


class Readable(Protocol):
    """Says nothing about what implements it."""

    def name(self) -> str: ...


@dataclass
class Row:
    """A record."""

    name: str


def returns(annotation: Any) -> Callable[[], Any]:
    """A function annotated to return that."""

    def function() -> Any: ...

    function.__annotations__ = {"return": annotation}
    return function


@pytest.mark.parametrize(
    "annotation",
    [
        Iterator[int],
        Generator[int, None, None],
        AsyncIterator[int],
        list[Awaitable[int]],
        Awaitable[Iterator[int]],
        IO[str],
        list[Iterator[int]],
        Annotated[Iterator[int], "x"],
    ],
    ids=str,
)
def test_return_types_that_are_used_up_are_refused(annotation: Any) -> None:
    """Even in memory."""
    assert "used up" in (return_problem(returns(annotation), durable=False) or "")


@pytest.mark.parametrize(
    "annotation", [Connection, list[Connection], Connection | None, dict[str, tuple[Connection, ...]]], ids=str
)
def test_return_types_no_store_can_keep_are_refused_for_durable_ones(annotation: Any) -> None:
    """Named, wherever they are in the annotation; memory takes them."""
    assert "Connection" in (return_problem(returns(annotation), durable=True) or "")
    assert return_problem(returns(annotation), durable=False) is None


def test_callable_objects_say_it_at_their_call() -> None:
    """Plain and async ones."""

    class Plain:
        def __call__(self) -> Iterator[int]: ...  # type: ignore[empty-body]

    class Async:
        async def __call__(self) -> Connection: ...  # type: ignore[empty-body]

    assert "used up" in (return_problem(Plain(), durable=False) or "")
    assert "Connection" in (return_problem(Async(), durable=True) or "")


def test_what_an_awaitable_gives_is_looked_at() -> None:
    """A plain function that returns one is awaited like an async one, and what it then gives is kept."""
    assert "Connection" in (return_problem(returns(Awaitable[Connection]), durable=True) or "")

    async def twice() -> Awaitable[int]: ...  # type: ignore[empty-body]

    assert "used up" in (return_problem(twice, durable=False) or "")


@pytest.mark.parametrize("annotation", [socket.socket, sqlite3.Connection, Path, memoryview, list[Path]], ids=str)
def test_context_managers_and_paths_are_refused_like_other_classes(annotation: Any) -> None:
    """`issubclass` takes them for ABCs, which stand for other classes; they are none."""
    assert "which the store cannot encode" in (return_problem(returns(annotation), durable=True) or "")


class Page(pydantic.BaseModel, Generic[T]):
    """A generic model: what it makes of a type has no name in any module."""

    items: list[T]


def made_in_a_function() -> list[type]:
    """A record of each kind."""

    @dataclass
    class Data:
        name: str

    class Named(NamedTuple):
        name: str

    class Choice(Enum):
        YES = 1

    class Model(pydantic.BaseModel):
        name: str

    return [Data, Named, Choice, Model]


@pytest.mark.parametrize("kind", [*made_in_a_function(), Page[int]], ids=lambda kind: kind.__name__)
def test_records_that_no_name_leads_to_are_refused(kind: type) -> None:
    """A durable store keeps the name of their class, and nobody could find it; memory takes them."""
    assert "define the class at the top of its module" in (return_problem(returns(list[kind]), durable=True) or "")  # type: ignore[valid-type]
    assert return_problem(returns(kind), durable=False) is None


def test_errors_that_no_name_leads_to_are_refused() -> None:
    """They would be stored, and could not be read again."""

    class Declined(Exception):
        """Of this function only."""

    assert "Declined, which no other process could find" in (errors_problem((OSError, Declined), durable=True) or "")
    assert errors_problem((OSError, Declined), durable=False) is None
    assert errors_problem((OSError, Coded), durable=True) is None


class Receipt(TypedDict):
    """A plain dict, when the program runs."""

    total: int


@pytest.mark.parametrize(
    "annotation",
    [
        None,
        Any,
        object,
        int,
        Row,
        Receipt,
        list[Receipt] | None,
        Awaitable[Row],
        Coroutine[Any, Any, Row],
        asyncio.Task[Row],
        asyncio.Future,
        list[Row] | None,
        Mapping[str, Sequence[int]],
        Readable,
        Literal["a", "b"],
        Annotated[Row, "x"],
        "Unknown",
        type(None),
    ],
    ids=str,
)
def test_return_types_that_may_be_kept_pass(annotation: Any) -> None:
    """Records, plain values, and what says too little to tell."""
    assert return_problem(returns(annotation), durable=True) is None
