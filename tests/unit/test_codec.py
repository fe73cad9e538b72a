"""The codec: what goes in comes out, of the same type; nothing else goes in; nothing in it runs code."""

from __future__ import annotations

import collections
import math
import sys
import types
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag, IntEnum
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guarded.stores import codec


class Color(Enum):
    """An enum."""

    RED = "r"
    GREEN = "g"


class Level(IntEnum):
    """Numbers that are members."""

    LOW = 1


class Rights(Flag):
    """Members that combine."""

    READ = 1
    WRITE = 2


class Point(NamedTuple):
    """A named tuple."""

    x: int
    y: int = 0


@dataclass
class Item:
    """A plain dataclass."""

    name: str
    tags: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Order:
    """Frozen and slotted, with a check that must not run when decoding."""

    number: int
    items: tuple[Item, ...] = ()
    total: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", self.number * 100)
        created.append(self.number)


created: list[int] = []


class Money(pydantic.BaseModel):
    """A model that validates."""

    amount: Decimal
    currency: str = "EUR"

    @pydantic.field_validator("currency")
    @classmethod
    def _upper(cls, value: str) -> str:
        validated.append(value)
        return value.upper()


validated: list[str] = []


class Open(pydantic.BaseModel):
    """A model with extra fields and a private attribute."""

    model_config = pydantic.ConfigDict(extra="allow")
    _note: str = "n"
    name: str


class Plain:
    """No record."""


T = TypeVar("T")


@dataclass
class Box(Generic[T]):
    """A generic dataclass."""

    content: T


VALUES = [
    None,
    True,
    False,
    0,
    -1,
    10**30,
    1.0,
    0.1,
    -0.0,
    math.inf,
    -math.inf,
    "",
    "ä\ud800\x00\u2028",
    b"\x00\xff",
    bytearray(b"x"),
    1 + 2j,
    (),
    (1, (2, [3, ()])),
    [],
    [None, [1, (2,)]],
    set(),
    {1, "1", (1,)},
    frozenset({1, frozenset()}),
    {},
    {"a": 1, "b": {"c": ()}},
    {"~tuple": [1]},
    {"~tuple": [1], "x": 2},
    {"~unknown": 1},
    {1: "a", (1, 2): "b", None: "c", "1": "d"},
    {b"k": {Color.RED: [Point(1)]}},
    Decimal("1.10"),
    Decimal("NaN").copy_sign(Decimal(1)),
    Decimal("-Infinity"),
    UUID(int=5),
    date(2026, 2, 28),
    time(1, 2, 3, 4),
    time(1, tzinfo=UTC, fold=1),
    timedelta(days=-1, seconds=5, microseconds=7),
    timedelta.max,
    datetime(2026, 1, 2, 3, 4, 5, 6),
    datetime(2026, 1, 2, tzinfo=UTC),
    datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
    datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=5, minutes=30), "IST")),
    datetime(2026, 1, 2, tzinfo=timezone(timedelta(seconds=-90))),
    timezone(timedelta(hours=2)),
    ZoneInfo("UTC"),
    Color.GREEN,
    Level.LOW,
    Rights.READ | Rights.WRITE,
    Rights(0),
    Point(1, 2),
    Item("a", {"x"}),
    Order(3, (Item("a"),)),
    Box([Box((1,))]),
    Money(amount=Decimal("1.5")),
    [Open(name="x", more=(1, 2))],
]


@pytest.mark.parametrize("value", VALUES, ids=[f"{index}-{type(value).__name__}" for index, value in enumerate(VALUES)])
def test_round_trip(value: Any) -> None:
    """Equal, and of the same type all the way down."""
    again = codec.decode(codec.encode(value))
    if not isinstance(value, set):  # which has no order of its own
        assert repr(again) == repr(value)
    if value == value:
        assert again == value
    assert _shape(again) == _shape(value)


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return [(_shape(name), _shape(item)) for name, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [_shape(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return type(value), sorted(repr(_shape(item)) for item in value)
    if isinstance(value, datetime):
        return type(value), value.fold, type(value.tzinfo), value.utcoffset()
    return type(value)


_leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.datetimes(timezones=st.none() | st.timezones())
    | st.timedeltas()
    | st.sampled_from(Color)
)
_hashable = st.recursive(
    _leaves, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5
)
_values = st.recursive(
    _leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(_hashable, inner, max_size=4)
        | st.builds(Item, name=st.text(), tags=st.sets(st.text(), max_size=2))
        | st.builds(Box, inner)
    ),
    max_leaves=12,
)


@given(_values)
def test_any_nesting_round_trips(value: Any) -> None:
    """Whatever is built of what can be encoded comes back equal and of the same types."""
    again = codec.decode(codec.encode(value))
    assert again == value
    assert _shape(again) == _shape(value)


def test_ints_longer_than_the_interpreter_reads() -> None:
    """Decimal text of so many digits would be refused when decoding."""
    for value in (10**5000, -(10**5000)):
        assert codec.decode(codec.encode(value)) == value


def test_nan_is_nan() -> None:
    """The one float that is not equal to itself."""
    assert math.isnan(codec.decode(codec.encode(math.nan)))


class OddZone(tzinfo):
    """A time zone of somebody's own."""


class Text(str):
    """More than a str."""

    __slots__ = ()


@dataclass
class Both(dict):  # type: ignore[type-arg]
    """A dataclass that is a dict too."""

    name: str = ""


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Plain(), "result: "),
        ([1, {"a": (Plain(),)}], "result[1]['a'][0]: "),
        (Item("a", {Plain()}), "result.tags[0]: "),  # type: ignore[arg-type]
        (Point(1, Plain()), "result.y: "),  # type: ignore[arg-type]
        ({Plain(): 1}, "result key: "),
        (Text("x"), "result: "),
        (collections.OrderedDict(a=1), "result: "),
        (datetime(2026, 1, 1, tzinfo=OddZone()), "result: "),
        (len, "result: "),
        (Plain, "result: "),
        (Both("x"), "result: "),
        (iter([]), "result: "),
        (ValueError("x"), "result: "),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_encoded_is_named_by_its_path(value: Any, path: str) -> None:
    """TypeError, with the way to the culprit."""
    with pytest.raises(TypeError) as caught:
        codec.encode(value)
    assert str(caught.value).startswith(path)
    assert "cannot encode" in str(caught.value)


def test_a_value_that_contains_itself_is_refused() -> None:
    """No endless recursion."""
    value: list[Any] = []
    value.append(value)
    with pytest.raises(TypeError, match="contains itself"):
        codec.encode(value)


def test_a_class_that_could_not_be_found_again_is_refused() -> None:
    """Local classes, and classes whose name means another one now, could not be decoded."""

    @dataclass
    class Local:
        a: int

    with pytest.raises(TypeError, match="top of its module"):
        codec.encode(Local(1))
    Shadowed = dataclass(type("Item", (), {"__annotations__": {"a": int}, "__module__": __name__}))
    with pytest.raises(TypeError, match="another class"):
        codec.encode(Shadowed(1))


def test_decoding_runs_no_constructor_and_no_validator() -> None:
    """Fields are set as they were stored."""
    encoded = codec.encode([Order(3), Money(amount=Decimal(1), currency="usd")])
    created.clear()
    validated.clear()
    order, money = codec.decode(encoded)
    assert (created, validated) == ([], [])
    assert order.total == 300
    assert money.currency == "USD"
    assert money.model_fields_set == {"amount", "currency"}


def test_decoding_imports_nothing() -> None:
    """A module that is not loaded stays so."""
    assert "antigravity" not in sys.modules
    with pytest.raises(ValueError, match="not loaded"):
        codec.decode(b'{"~data":["antigravity:fly",{}]}')
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    "data",
    [
        b'{"~data":["os:system",{"command":"true"}]}',
        b'{"~data":["subprocess:Popen",{}]}',
        b'{"~model":["subprocess:Popen",{}]}',
        b'{"~named":["builtins:list",[1]]}',
        b'{"~enum":["subprocess:Popen","x"]}',
        b'{"~flag":["subprocess:Popen",1]}',
        b'{"~enum":["%s:Color","mro"]}' % __name__.encode(),
        b'{"~data":["%s:Item.__init__",{}]}' % __name__.encode(),
        b'{"~data":["%s:Item",{"name":"x"}]}' % __name__.encode(),
        b'{"~data":["%s:Item",{"name":"x","tags":1,"__class__":2}]}' % __name__.encode(),
        b'{"~named":["%s:Point",[1]]}' % __name__.encode(),
        b'{"~nothing":1}',
        b'{"~tuple":5}',
        b'{"~datetime":["x"]}',
        b'{"~bytes":"%%%"}',
        b'{"~set":[[1]]}',
        b"{",
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
    ],
    ids=lambda data: data[:40].decode("latin1"),
)
def test_hostile_bytes_are_value_errors(data: bytes) -> None:
    """Nothing but records is made, and damage is told from a value."""
    with pytest.raises(ValueError):
        codec.decode(data)


def test_a_class_that_has_changed_is_not_filled_with_old_fields() -> None:
    """A record stored before a field was added is refused, not half made."""
    module = types.ModuleType("changing")
    sys.modules["changing"] = module
    try:
        old = dataclass(type("Thing", (), {"__annotations__": {"a": int}, "__module__": "changing"}))
        module.Thing = old  # type: ignore[attr-defined]
        encoded = codec.encode(old(1))
        module.Thing = dataclass(  # type: ignore[attr-defined]
            type("Thing", (), {"__annotations__": {"a": int, "b": int}, "__module__": "changing"})
        )
        with pytest.raises(ValueError, match="other fields"):
            codec.decode(encoded)
    finally:
        del sys.modules["changing"]
