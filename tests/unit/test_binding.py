"""Binding of arguments to names."""

from __future__ import annotations

import functools
import gc
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import wrapt
from hypothesis import given
from hypothesis import strategies as st

from guarded._core.binding import binder_for, underlying


def every_kind(a: Any, /, b: Any, c: Any = 3, *rest: Any, d: Any, e: Any = 5, **extra: Any) -> None: ...


def no_rest(a: Any, b: Any = 2, *, c: Any = 3) -> None: ...


def nothing() -> None: ...


def only_rest(*rest: Any, **extra: Any) -> None: ...


def hidden_name(a: Any, /, **extra: Any) -> None: ...


class Service:
    tenant = "t"

    def charge(self, order_id: str, amount: int = 1) -> None: ...

    @classmethod
    def make(cls, order_id: str) -> None: ...

    @staticmethod
    def check(order_id: str) -> None: ...

    def __call__(self, order_id: str) -> None: ...


names = st.sampled_from(["a", "b", "c", "d", "e", "f", "rest", "extra"])


@given(
    st.sampled_from([every_kind, no_rest, nothing, only_rest, hidden_name]),
    st.lists(st.integers(), max_size=6).map(tuple),
    st.dictionaries(names, st.integers(), max_size=5),
)
def test_binds_as_the_interpreter_does(fn: Callable[..., Any], args: tuple[int, ...], kwargs: dict[str, int]) -> None:
    """Every call gives what `inspect.Signature.bind` gives with defaults, in the same order, or a TypeError."""
    try:
        expected = inspect.signature(fn).bind(*args, **kwargs)
    except TypeError:
        with pytest.raises(TypeError, match=fn.__qualname__):
            binder_for(fn).bind(fn, args, kwargs)
        return
    expected.apply_defaults()
    bound = binder_for(fn).bind(fn, args, kwargs)
    assert list(bound.items()) == list(expected.arguments.items())


@given(
    st.sampled_from([every_kind, no_rest]),
    st.lists(st.integers(), max_size=6).map(tuple),
    st.dictionaries(names, st.integers(), max_size=5),
)
def test_one_argument_is_the_one_that_binding_gives(fn: Any, args: tuple[int, ...], kwargs: dict[str, int]) -> None:
    """The short way to one argument agrees with the long one for every call that fits."""
    binder = binder_for(fn)
    try:
        bound = binder.bind(fn, args, kwargs)
    except TypeError:
        return
    for name in binder.names:
        assert binder.argument(name)(fn, args, kwargs) == bound[name]


def test_methods_have_their_instance_by_name() -> None:
    """Bound method, method called through its class, class method: one set of arguments each."""
    service = Service()
    binder = binder_for(Service.charge)
    assert binder.instance == "self"
    expected = {"self": service, "order_id": "o", "amount": 1}
    assert binder.bind(service.charge, ("o",), {}) == expected
    assert binder.bind(Service.charge, (service, "o"), {}) == expected
    assert binder.argument("self")(service.charge, ("o",), {}) is service
    assert binder.argument("order_id")(service.charge, (), {"order_id": "o"}) == "o"
    assert binder.argument("order_id")(Service.charge, (service, "o"), {}) == "o"
    make = binder_for(Service.make)
    assert make.instance == "cls"
    assert make.bind(Service.make, ("o",), {}) == {"cls": Service, "order_id": "o"}


def test_the_wrapper_library_hands_over_bound_and_unbound_calls() -> None:
    """What `wrapt` gives to a wrapper for `obj.method()` and `Class.method(obj)` binds alike."""
    seen: list[dict[str, Any]] = []

    @wrapt.decorator
    def record(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        seen.append(binder_for(wrapped).bind(wrapped, args, kwargs))

    class Wrapped:
        @record
        def charge(self, order_id: str) -> None: ...

    one = Wrapped()
    one.charge("o")
    Wrapped.charge(one, "o")
    Wrapped.charge(one, order_id="o")
    assert seen == [{"self": one, "order_id": "o"}] * 3


def test_callable_objects_and_static_methods_have_no_instance() -> None:
    """Their signature as seen from outside is what counts."""
    service = Service()
    assert binder_for(service).bind(service, ("o",), {}) == {"order_id": "o"}
    assert binder_for(service).instance is None
    static = inspect.getattr_static(Service, "check")
    assert binder_for(static).bind(Service.check, ("o",), {}) == {"order_id": "o"}


def test_partials_give_what_they_hold() -> None:
    """Held and given arguments bind together, the given ones winning."""
    service = Service()
    held = functools.partial(functools.partial(service.charge, "o"), amount=2)
    assert binder_for(held).bind(held, (), {}) == {"self": service, "order_id": "o", "amount": 2}
    assert binder_for(held).bind(held, (), {"amount": 3})["amount"] == 3
    assert binder_for(held).argument("order_id")(held, (), {}) == "o"


def test_transparent_wrappers_are_seen_through() -> None:
    """A function that says what it wraps binds like that; one with a signature of its own does not."""
    service = Service()

    @functools.wraps(service.charge)
    def around(*args: Any, **kwargs: Any) -> None: ...

    assert binder_for(Service.charge).bind(around, ("o",), {})["self"] is service
    assert binder_for(Service.charge).argument("order_id")(around, ("o",), {}) == "o"
    cached = functools.lru_cache(no_rest)
    assert binder_for(cached).bind(cached, (1,), {}) == {"a": 1, "b": 2, "c": 3}

    around.__signature__ = inspect.signature(nothing)  # type: ignore[attr-defined]
    assert binder_for(around).names == ()


def test_objects_that_claim_every_attribute_are_taken_as_they_are() -> None:
    """A remote proxy does not send the search for the function below into a loop."""

    class Remote:
        def __getattr__(self, name: str) -> Any:
            return self

    remote = Remote()
    assert underlying(remote, (1,), {"b": 2}) == (remote, (1,), {"b": 2})


def test_a_function_that_wraps_itself_is_refused() -> None:
    """A cycle of wrappers ends with an error that says so."""

    def odd() -> None: ...

    odd.__wrapped__ = odd  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="wraps itself"):
        binder_for(odd)


def test_binders_are_kept_per_function_and_go_with_it() -> None:
    """One binder for all bound methods of a function; none keeps the function alive."""
    assert binder_for(Service().charge) is binder_for(Service.charge)

    def short_lived(a: Callable[..., int]) -> None: ...

    gone = weakref.ref(short_lived)
    binder = binder_for(short_lived)
    del short_lived
    gc.collect()
    assert gone() is None
    assert binder.names == ("a",)


def test_names_the_function_when_a_call_does_not_fit() -> None:
    """The interpreter's words, with the function before them."""
    with pytest.raises(TypeError, match=r"no_rest\(\): missing a required argument: 'a'"):
        binder_for(no_rest).bind(no_rest, (), {})
    with pytest.raises(TypeError, match=r"no_rest\(\): multiple values for argument 'a'"):
        binder_for(no_rest).bind(no_rest, (1,), {"a": 2})
