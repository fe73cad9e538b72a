"""Canonical bytes and digests of values."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import itertools
import math
import pathlib
import subprocess
import sys
import threading
import types
import uuid
from collections import OrderedDict, defaultdict, namedtuple
from decimal import Decimal
from typing import Any

import attrs
import freezegun
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guarded._core.canonical import canonical, digest

PLUS_2 = dt.timezone(dt.timedelta(hours=2))


class Color(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    RED = 1


class Word(enum.StrEnum):
    RED = "red"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Point:
    x: int
    y: int
    seen: int = dataclasses.field(default=0, compare=False)


@dataclasses.dataclass
class Spot:
    x: int
    y: int


class Order(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    id: int
    lines: list[str] = []


class Nothing(pydantic.BaseModel):
    pass


@attrs.define
class Box:
    size: int
    note: str = attrs.field(default="", eq=False)


Pair = namedtuple("Pair", "x y")


class Struct:
    """What msgspec makes of a class: the names of its fields."""

    __struct_fields__ = ("size",)
    size = 1


class OldModel:
    """A model of pydantic 1."""

    __fields__ = {"size": None}  # noqa: RUF012 - as it is there
    size = 1


class Text(str):
    __slots__ = ()


DIFFERENT: list[Any] = [
    None,
    False,
    True,
    0,
    1,
    -1,
    10**5000,
    0.5,
    1.0,
    math.nan,
    math.inf,
    "",
    "1",
    "None",
    "\ud800",
    b"",
    b"1",
    bytearray(b"1"),
    (),
    (1,),
    (1, 2),
    ((1,), 2),
    (1, (2,)),
    [],
    [1],
    {},
    {"a": 1},
    {"a": 1, "b": 2},
    {1: "a"},
    {"1": "a"},
    set(),
    {1},
    frozenset(),
    frozenset({1}),
    ["a", "b"],
    ["ab"],
    ["a,b"],
    Decimal(1),
    Decimal("1.5"),
    Decimal("NaN"),
    Decimal("Infinity"),
    dt.datetime(2026, 1, 2),
    dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    dt.datetime.min.replace(tzinfo=PLUS_2),
    dt.date(2026, 1, 2),
    dt.time(1, 2),
    dt.time(1, 2, tzinfo=dt.UTC),
    dt.timedelta(seconds=1),
    uuid.UUID(int=1),
    Color.RED,
    Level.RED,
    Word.RED,
    Access.READ,
    Access.READ | Access.WRITE,
    Point(1, 2),
    Spot(1, 2),
    Pair(1, 2),
    Order(id=1),
    Order(id=1, lines=["a"]),
    Order(id=1, note="extra"),
    Nothing(),
    Box(1),
    Struct(),
    OldModel(),
    Point,
    Spot,
    int,
    pathlib.PurePosixPath("1"),
]


def test_different_values_and_types_never_meet() -> None:
    """Every pair of values of different type or content has different bytes."""
    seen: dict[bytes, Any] = {}
    for value in DIFFERENT:
        form = canonical(value)
        assert form not in seen, f"{value!r} and {seen[form]!r}"
        seen[form] = value


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (math.nan, -math.nan),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, OrderedDict(a=1)),
        ({"a": 1}, defaultdict(int, a=1)),
        ({3, 1, 2}, {2, 3, 1}),
        ("a", Text("a")),
        (Decimal("10.0"), Decimal("1.00e1")),
        (Decimal("0"), Decimal("-0.00")),
        (dt.datetime(2026, 1, 2, 10, tzinfo=dt.UTC), dt.datetime(2026, 1, 2, 12, tzinfo=PLUS_2)),
        (dt.timedelta(minutes=1), dt.timedelta(seconds=60)),
        (Point(1, 2, seen=1), Point(1, 2, seen=2)),
        (Box(1, "a"), Box(1, "b")),
        (Order(id=1), Order(id=1, lines=[])),
        (uuid.UUID(int=1), uuid.UUID(str(uuid.UUID(int=1)))),
    ],
)
def test_equal_values_have_equal_bytes(one: Any, other: Any) -> None:
    """What is equal by its own account has one form."""
    assert canonical(one) == canonical(other)


def test_decimals_do_not_depend_on_the_context() -> None:
    """A short precision in the caller's context rounds nothing."""
    with decimal.localcontext(prec=2):
        assert canonical(Decimal("1.2345")) != canonical(Decimal("1.2346"))


def test_the_frozen_clock_changes_nothing() -> None:
    """Dates made under freezegun are dates."""
    plain = canonical(dt.datetime(2026, 1, 2, tzinfo=dt.UTC)), canonical(dt.date(2026, 1, 2))
    with freezegun.freeze_time("2026-01-02"):
        assert (canonical(dt.datetime(2026, 1, 2, tzinfo=dt.UTC)), canonical(dt.date(2026, 1, 2))) == plain
        assert canonical(dt.datetime.now(dt.UTC)) == plain[0]
        assert canonical(dt.date.today()) == plain[1]


class Connection:
    pass


@pytest.mark.parametrize(
    "value",
    [
        Connection(),
        object(),
        lambda: 1,
        len,
        threading.Lock(),
        iter([]),
        types.SimpleNamespace(a=1),
        [{"a": Connection()}],
    ],
)
def test_what_is_only_itself_has_no_form(value: Any) -> None:
    """Objects known by identity alone are refused with the name of their type and what to do, never their repr."""
    with pytest.raises(TypeError, match="has no value that is the same in every process: use a plain value of it"):
        canonical(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    """A cycle ends with a TypeError, not with the stack."""
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(TypeError, match="contains itself"):
        canonical(loop)


def test_digest_is_pinned() -> None:
    """Stores keep digests: this one may never change."""
    assert (
        digest("f", 1, None, {"a": [1.5, b"x"]}) == "edfe034d052a5a0c893fab6b0a95ec2a421051f794a8aeeb7b048536777b4088"
    )
    assert digest("a", "b") != digest("ab")


def test_digest_is_the_same_in_another_process() -> None:
    """Hash randomisation does not reach it."""
    code = "from guarded._core.canonical import digest; print(digest({'a', 'b', 'c', 'd'}, {'x': 1, 'y': 2}))"
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] == digest({"a", "b", "c", "d"}, {"x": 1, "y": 2}) + "\n"


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
values = st.recursive(
    plain,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(plain, inner),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    """Equal, and of equal types all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(itertools.starmap(same, zip(one, other, strict=True)))
    if isinstance(one, dict):
        theirs = {(type(key), key): value for key, value in other.items()}
        return len(one) == len(other) and all(
            (type(key), key) in theirs and same(value, theirs[type(key), key]) for key, value in one.items()
        )
    return bool(one == other)


@given(values, values)
def test_bytes_are_equal_exactly_when_values_and_types_are(one: Any, other: Any) -> None:
    """Neither does one value have two forms, nor two values one."""
    assert (canonical(one) == canonical(other)) == same(one, other)
