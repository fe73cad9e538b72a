"""Keys, amounts and fingerprints of calls."""

from __future__ import annotations

import asyncio
import enum
import io
import mmap
import operator
import sqlite3
import string
import types
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guarded._core.keys import (
    amount_problem,
    binder_for,
    canonical,
    compile_amount,
    compile_argument,
    compile_key,
    fingerprint,
    key_problem,
    one_shot,
)


@dataclass
class User:
    id: Any
    region: str = "eu"


class Shop:
    tenant = "acme"

    def charge(self, order_id: Any, amount: int = 3, *, user: Any = None) -> None: ...


def pay(order_id: Any, rows: Any = (), /, tenant: Any = "acme", *rest: Any, user: Any = None, **extra: Any) -> None: ...


def key_of(key: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
    return compile_key(key, fn)(fn, args, kwargs)


def test_a_parameter_name_is_its_argument() -> None:
    """Given by position, by name or by default, the key is one."""
    charge = Shop().charge
    assert key_of("order_id", charge, "o") == key_of("order_id", charge, order_id="o") == "o"
    assert key_of("tenant", pay, 1) == key_of("tenant", pay, 1, (), "acme") == "acme"
    assert key_of("{tenant}", pay, 1) == "acme"


def test_keys_of_different_types_differ() -> None:
    """1, 1.0, True and "1" are four keys, each hashable, though the first three are equal in Python."""
    keys = [key_of("order_id", Shop().charge, value) for value in (1, 1.0, True, "1", b"1", [1], {"a": 1}, {1})]
    assert len(set(keys)) == len(keys)
    assert {type(key) for key in keys} == {str, bytes}


def test_none_stays_none() -> None:
    """A missing key can be told from every value."""
    assert key_of("user", Shop().charge, 1) is None
    assert key_of(lambda: None, Shop().charge, 1) is None


def test_text_is_text_whatever_its_class() -> None:
    """A subclass of str is its text; a member of a string enum is a member."""

    class Safe(str):
        __slots__ = ()

        def __str__(self) -> str:
            return "decorated"

    class Plan(enum.StrEnum):
        FREE = "free"

    assert key_of("order_id", Shop().charge, Safe("o")) == "o"
    assert type(key_of("order_id", Shop().charge, Safe("o"))) is str
    assert key_of("order_id", Shop().charge, Plan.FREE) != "free"


def test_templates_reach_into_arguments() -> None:
    """Attributes, indexes and dictionary keys, also in a row, also of the instance."""
    user = User({"nr": [7, 8]})
    assert key_of("{user.id[nr][1]}", Shop().charge, 1, user=user) == canonical(8)
    assert key_of("{user.id[nr][1]}:{user.region}", Shop().charge, 1, user=user) == canonical((8, ":", "eu"))
    assert key_of("{self.tenant}", Shop().charge, 1) == "acme"
    assert key_of("{rest[0]}/{extra[a]}", pay, 1, 2, 3, "first", a="second") == canonical(("first", "/", "second"))
    assert key_of("{{{order_id}}}", pay, 1) == canonical(("{", 1, "}"))


def test_parts_of_a_template_do_not_run_into_each_other() -> None:
    """A colon inside a part is not the colon between parts."""
    template = "{order_id}:{tenant}"
    assert key_of(template, pay, "a:b", (), "c") != key_of(template, pay, "a", (), "b:c")


def test_callables_get_arguments_by_name() -> None:
    """By name, with defaults applied, as many as they ask for; positional-only ones by their names too."""
    charge = Shop().charge

    def positional(order_id: Any, amount: Any, /) -> Any:
        return order_id, amount

    def with_rest(order_id: Any, /, **rest: Any) -> Any:
        return order_id, sorted(rest)

    assert key_of(lambda order_id, **_: order_id, charge, "o") == "o"
    assert key_of(lambda order_id: order_id, charge, order_id="o") == "o"
    assert key_of(lambda amount, order_id: f"{order_id}{amount}", charge, "o") == "o3"
    assert key_of(lambda order_id, salt="s": order_id + salt, charge, "o") == "os"
    assert key_of(lambda self, order_id: self.tenant, charge, "o") == "acme"
    assert key_of(lambda rest, extra: f"{rest}{extra}", pay, 1, 2, 3, 4, a=5) == "(4,){'a': 5}"
    assert key_of(lambda: "same for all", charge, "o") == "same for all"
    assert key_of(positional, charge, "o") == canonical(("o", 3))
    assert key_of(with_rest, charge, "o") == canonical(("o", ["amount", "self", "user"]))


@pytest.mark.parametrize(
    ("key", "rule"),
    [
        ("", "one parameter name, or a template"),
        ("order_id.x", "one parameter name, or a template"),
        ("order id", "one parameter name, or a template"),
        ("{order_id", "is no template"),
        ("order_id}", "is no template"),
        ("{}", "field '' must be a parameter name"),
        ("{0}", "field '0' must be a parameter name"),
        ("{ order_id }", "must be a parameter name"),
        ("{order_id.}", "must be a parameter name"),
        ("{order_id[}", "is no template"),
        ("{order_id[]}", "must be a parameter name"),
        ("{order_id()}", "must be a parameter name"),
        ("{{x}}", "a template must name a parameter"),
        ("{order_id!r}", "without a conversion or format"),
        ("{order_id:>{user}}", "without a conversion or format"),
        ("{order_id.__class__}", "private attribute '__class__'"),
        ("{self._secret}", "private attribute '_secret'"),
        ("{user.id[0].__init__.__globals__}", "private attribute '__init__'"),
        (5, "must be a parameter name, a template such as '{tenant}', or a callable, not int"),
        (None, "not NoneType"),
    ],
)
def test_malformed_keys_are_known_without_a_function(key: Any, rule: str) -> None:
    """A policy can refuse them when it is built, and compiling refuses them with option, value and rule."""
    problem = key_problem(key)
    assert problem is not None
    assert rule in problem
    with pytest.raises(ValueError) as caught:
        compile_key(key, Shop.charge, option="by")
    assert str(caught.value) == f"by={key!r}: {problem}"


@pytest.mark.parametrize("key", ["order", "{order}", "{order.id}:{amount}", lambda order: order])
def test_unknown_parameters_name_near_ones(key: Any) -> None:
    """The error says which function, which name, and what was perhaps meant."""
    assert key_problem(key) is None
    with pytest.raises(ValueError, match=r"Shop.charge\(\) has no parameter 'order': did you mean 'order_id'\?"):
        compile_key(key, Shop.charge)


def test_unknown_parameters_without_near_ones_list_all() -> None:
    """Where no name is near, all are there to choose from."""
    with pytest.raises(ValueError, match="it has self, order_id, amount, user"):
        compile_key("zzz", Shop.charge)
    with pytest.raises(ValueError, match="it has none at all"):
        compile_key("zzz", lambda: None)


async def async_key(order_id: Any) -> Any:
    return order_id


def generated_key(order_id: Any) -> Iterator[Any]:
    yield order_id


class AsyncKey:
    async def __call__(self, order_id: Any) -> Any:
        return order_id


@pytest.mark.parametrize(
    ("key", "rule"),
    [
        (async_key, "must be a plain function, not an async one"),
        (AsyncKey(), "must be a plain function, not an async one"),
        (generated_key, "must be a plain function, not an async one or a generator"),
        (lambda *args: args, r"cannot take \*args"),
        (str, "its parameters cannot be read"),
        (operator.itemgetter(0), "cannot be read|has no parameter"),
    ],
)
def test_callables_that_cannot_be_served_are_refused(key: Any, rule: str) -> None:
    """Async ones, ones that take *args, and ones whose parameters nobody knows."""
    with pytest.raises(ValueError, match=rule):
        compile_key(key, Shop.charge)


def test_functions_without_a_signature_are_refused() -> None:
    """Some built-in functions do not tell their parameters."""
    with pytest.raises(ValueError, match="cannot read the parameters of the function"):
        compile_key("x", type("Odd", (), {"__call__": property(lambda self: dict)})())
    with pytest.raises(ValueError, match="key='order_id': cannot read the parameters"):
        compile_key("order_id", dict.fromkeys if not hasattr(dict.fromkeys, "__text_signature__") else vars)


def test_a_value_that_cannot_be_a_key_is_a_type_error() -> None:
    """The error names the option and the type, and shows no value."""
    with pytest.raises(TypeError) as caught:
        key_of("user", Shop().charge, 1, user=types.SimpleNamespace(password="hunter2"))
    assert str(caught.value).startswith("key='user': types.SimpleNamespace has no value")
    assert "hunter2" not in str(caught.value)


def test_errors_of_a_key_function_come_out_as_they_are() -> None:
    """A key function that raises, and a missing attribute or index, are the caller's to see."""
    with pytest.raises(ZeroDivisionError):
        key_of(lambda order_id: 1 / 0, Shop().charge, 1)
    with pytest.raises(AttributeError) as caught:
        key_of("{user.id[0]}", Shop().charge, 1)
    assert caught.value.__notes__ == ["while {user.id[0]} was taken from the arguments of Shop.charge()"]
    with pytest.raises(TypeError, match=r"charge\(\): missing a required argument: 'order_id'"):
        key_of("order_id", Shop().charge)


def test_a_plain_argument_comes_out_as_it_is() -> None:
    """Where a value and not a key is wanted, nothing is made of it."""
    charge = Shop().charge
    user = User(1)
    assert compile_argument("user", charge, "priority")(charge, ("o",), {"user": user}) is user
    assert compile_argument(lambda amount: amount / 2, charge, "seconds")(charge, ("o",), {}) == 1.5


def test_amounts_are_numbers_names_templates_and_callables() -> None:
    """However given, an amount is a whole number per call."""
    charge = Shop().charge

    def amount(given: Any, *args: Any, **kwargs: Any) -> int:
        return compile_amount(given, charge)(charge, args, kwargs)

    assert amount(2, "o") == 2
    assert amount("amount", "o") == 3
    assert amount("amount", "o", 7) == 7
    assert amount("{user.id}", "o", user=User(4)) == 4
    assert amount(lambda order_id: len(order_id), "four") == 4


def test_amounts_take_integers_of_other_libraries() -> None:
    """What is an integer to Python is one here."""

    class Five:
        def __index__(self) -> int:
            return 5

    charge = Shop().charge
    assert compile_amount("amount", charge)(charge, ("o", Five()), {}) == 5


@pytest.mark.parametrize("amount", [0, -1, True, 1.5, None, [1], b"x"])
def test_wrong_amounts_are_refused_when_given_and_when_called(amount: Any) -> None:
    """0, negative, bool and fraction: the error names the option and the rule, both early and late."""
    problem = amount_problem(amount)
    assert problem is not None
    with pytest.raises(ValueError, match=r"^cost=.*: must be a whole number from 1 up, not "):
        compile_amount(amount, Shop.charge, option="cost")
    late = compile_amount("amount", Shop.charge, option="cost")
    with pytest.raises(ValueError, match=r"^cost='amount': must be a whole number from 1 up, not "):
        late(Shop().charge, ("o", amount), {})


def test_amounts_by_unknown_names_are_refused() -> None:
    """Names and templates are checked like keys."""
    assert amount_problem(3) is amount_problem("amount") is amount_problem(len) is None
    assert amount_problem("{") is not None
    with pytest.raises(ValueError, match="did you mean 'amount'"):
        compile_amount("amonut", Shop.charge)


def test_fingerprints_tell_arguments_apart() -> None:
    """Same arguments, however passed, have one fingerprint; others, or other types, another."""
    shop = Shop()
    binder = binder_for(Shop.charge)

    def of(*args: Any, **kwargs: Any) -> str:
        return fingerprint(binder.bind(shop.charge, args, kwargs), exclude=(binder.instance or "",))

    assert of("o") == of(order_id="o") == of("o", 3) == of("o", amount=3, user=None)
    assert len({of("o"), of("p"), of("o", 4), of("o", True), of("o", 1), of("o", 1.0), of("o", user=1)}) == 7
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({"a": 1, "b": 2}, exclude={"b"}) == fingerprint({"a": 1})


def test_fingerprints_name_the_argument_they_cannot_take() -> None:
    """The instance is no plain value, and neither is a connection."""
    with pytest.raises(TypeError, match=r"^argument 'db': sqlite3.Connection has no value"):
        db = sqlite3.connect(":memory:")
        try:
            fingerprint({"a": 1, "db": db})
        finally:
            db.close()


class Sheet:
    def read(self, cell: str) -> str:
        return cell


class Feed:
    def read(self, size: int = -1) -> bytes:
        return b""


class Source:
    def __iter__(self) -> Iterator[int]:
        raise AssertionError("looking must not start it")


async def agen() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    "value",
    [
        iter([1]),
        (n for n in ()),
        map(str, ()),
        zip(()),
        agen(),
        io.BytesIO(),
        io.StringIO(),
        Feed(),
        [Feed()],
        {"f": Feed()},
    ],
    ids=lambda value: type(value).__name__,
)
def test_finds_arguments_that_can_be_used_up(value: Any) -> None:
    """Iterators, generators and streams, also one level inside a list or dict, by position and by name."""
    assert one_shot((1, value), {}) == "positional argument 2"
    assert one_shot((1,), {"body": value}) == "argument 'body'"


@pytest.mark.parametrize(
    "value",
    [
        1,
        "text",
        b"",
        [1, [iter(())]],
        {"a": 1},
        range(3),
        Sheet(),
        Source(),
        string.Formatter(),
        None,
        Feed,
        [iter(())] * 101,
    ],
    ids=lambda value: type(value).__name__,
)
def test_lets_pass_what_can_be_read_again(value: Any) -> None:
    """Containers, ranges, and objects whose `read` asks what to read; nothing is started by looking."""
    assert one_shot((value,), {"body": value}) is None


def test_a_stream_whose_read_tells_no_parameters_can_be_used_up() -> None:
    """Streams written in C do not always say what their `read` takes."""
    with mmap.mmap(-1, 1) as memory:
        assert one_shot((memory,), {}) == "positional argument 1"


def test_coroutines_can_be_used_up_and_cursors_cannot() -> None:
    """A coroutine runs once; a database cursor starts over with each query."""

    async def work() -> None: ...

    coroutine = work()
    assert one_shot((coroutine,), {}) == "positional argument 1"
    asyncio.run(coroutine)
    db = sqlite3.connect(":memory:")
    assert one_shot((db.cursor(),), {}) is None
    db.close()


@given(st.text(), st.text())
def test_any_template_compiles_or_names_its_problem(start: str, end: str) -> None:
    """No text makes anything but a working key or a ValueError that names it."""
    template = f"{start}{{order_id}}{end}"
    message = ""
    try:
        assert compile_key(template, Shop.charge)(Shop().charge, ("o",), {}) is not None
    except ValueError as error:
        message = str(error)
    assert not message or message.startswith("key=")
