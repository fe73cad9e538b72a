"""fallback: answers in place of calls that were refused or failed."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from guarded import (
    Cancelled,
    CircuitOpen,
    GuardWarning,
    PolicyConflict,
    RateExceeded,
    attempt,
    fallback,
    registry,
    retry,
)
from guarded.testing import capture

Drive = Callable[..., Any]


@pytest.fixture(params=["sync", "async"])
def drive(request: pytest.FixtureRequest) -> Drive:
    """Call a plain body under policies (innermost first), itself or as a coroutine function."""

    def run(body: Callable[..., Any], *policies: Any, args: tuple[Any, ...] = (), **kwargs: Any) -> Any:
        async def body_async(*args: Any, **kwargs: Any) -> Any:
            return body(*args, **kwargs)

        guarded: Any = body if request.param == "sync" else body_async
        for policy in policies:
            guarded = policy(guarded)
        return guarded(*args, **kwargs) if request.param == "sync" else asyncio.run(guarded(*args, **kwargs))

    return run


def raising(error: BaseException) -> Callable[..., Any]:
    """A body that takes anything and raises `error`."""

    def body(*args: Any, **kwargs: Any) -> Any:
        raise error

    return body


def refused() -> RateExceeded:
    """A rejection."""
    return RateExceeded("too many", retry_after=1.0)


@pytest.mark.parametrize("value", [None, 0, False, "", [], {"cached": True}])
def test_a_value_answers_for_a_rejection(drive: Drive, value: object) -> None:
    """The same object each time, false ones included."""
    assert drive(raising(refused()), fallback(value)) is value


def test_success_never_asks_the_fallback(drive: Drive) -> None:
    """And tells nothing."""
    with capture("DEBUG") as events:
        assert drive(lambda: "fresh", fallback(raising(AssertionError()))) == "fresh"
    assert events == []


def test_by_default_only_rejections_fall_back(drive: Drive) -> None:
    """An error of the function itself comes out, the same object; an open circuit is a rejection."""
    error = ConnectionError("down")
    with pytest.raises(ConnectionError) as caught:
        drive(raising(error), fallback("stale"))
    assert caught.value is error
    assert drive(raising(CircuitOpen("open")), fallback("stale")) == "stale"


def test_on_says_which_errors(drive: Drive) -> None:
    """Types, predicates, tuples of both."""
    on = (ConnectionError, lambda error: "soft" in str(error))
    assert drive(raising(BrokenPipeError()), fallback(1, on=on)) == 1
    assert drive(raising(ValueError("soft")), fallback(1, on=on)) == 1
    with pytest.raises(ValueError):
        drive(raising(ValueError("hard")), fallback(1, on=on))


def test_a_function_gets_the_arguments_of_the_call(drive: Drive) -> None:
    """Positional and keyword, as given."""
    policy = fallback(lambda item, *, size=1: (item, size))
    assert drive(raising(refused()), policy, args=("tea",), size=3) == ("tea", 3)


def test_a_function_with_a_parameter_error_gets_the_exception(drive: Drive) -> None:
    """Keyword-only, so that it never takes the place of an argument."""
    error = refused()

    def cached(item: str, *, error: Exception) -> tuple[str, Exception]:
        return item, error

    assert drive(raising(error), fallback(cached), args=("tea",)) == ("tea", error)


def test_a_function_without_a_signature_gets_the_arguments(drive: Drive) -> None:
    """Some functions in C have none."""
    assert drive(raising(refused()), fallback(dict), args=([("a", 1)],)) == {"a": 1}


def test_a_method_hands_its_instance_over() -> None:
    """The fallback is written like the method; class and static methods alike."""

    class Prices:
        cached = 7

        def from_cache(self, item: str) -> tuple[int, str]:
            return self.cached, item

        @fallback(from_cache)
        def fetch(self, item: str) -> tuple[int, str]:
            raise refused()

        @classmethod
        @fallback(lambda cls, item: (cls.cached, item))
        def of_class(cls, item: str) -> tuple[int, str]:
            raise refused()

        @staticmethod
        @fallback(lambda item: (0, item))
        def static(item: str) -> tuple[int, str]:
            raise refused()

    assert Prices().fetch("tea") == (7, "tea")
    assert Prices.fetch(Prices(), "tea") == (7, "tea")
    assert Prices.of_class("tea") == (7, "tea")
    assert Prices.static("tea") == (0, "tea")


def test_a_bound_method_that_was_guarded_bound_has_no_instance_to_give() -> None:
    """The call's arguments are all there is."""

    class Prices:
        def fetch(self, item: str) -> str:
            raise refused()

    assert fallback(lambda item: item)(Prices().fetch)("tea") == "tea"


def test_an_error_of_the_fallback_is_chained_to_the_original(drive: Drive) -> None:
    """Asked once: its own rejection does not ask again."""
    error, own = refused(), refused()
    with capture() as events, pytest.raises(RateExceeded) as caught:
        drive(raising(error), fallback(raising(own)))
    assert caught.value is own
    assert own.__context__ is error
    assert not [event for event in events if event.name == "fallback.used"]


@pytest.mark.parametrize(
    "control",
    [
        KeyboardInterrupt(),
        SystemExit(),
        GeneratorExit(),
        Cancelled("stop"),
        ExceptionGroup("stopped", [Cancelled("stop"), refused()]),
    ],
)
def test_cancellation_never_falls_back(control: BaseException) -> None:
    """Whatever `on` says; no predicate sees it."""
    seen: list[object] = []
    with pytest.raises(type(control)):
        fallback(1, on=lambda error: seen.append(error) or True)(raising(control))()
    assert seen == []


def test_a_cancelled_task_never_falls_back() -> None:
    """CancelledError passes."""

    @fallback(1, on=Exception)
    async def hangs() -> int:
        await asyncio.get_running_loop().create_future()
        return 0

    async def main() -> None:
        task = asyncio.create_task(hangs())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_a_raising_predicate_surfaces_chained(drive: Drive) -> None:
    """As itself."""
    error = refused()

    def predicate(error: Exception) -> bool:
        raise TypeError("bug")

    with pytest.raises(TypeError, match="bug") as caught:
        drive(raising(error), fallback(1, on=predicate))
    assert caught.value.__context__ is error


def test_an_async_fallback_is_awaited_where_the_function_is_async() -> None:
    """And refused on a plain function, at decoration."""

    async def cached(item: str) -> str:
        await asyncio.sleep(0)
        return f"cached {item}"

    @fallback(cached)
    async def fetch(item: str) -> str:
        raise refused()

    assert asyncio.run(fetch("tea")) == "cached tea"
    with pytest.raises(TypeError, match="is async, but"):
        fallback(cached)(lambda item: item)


def test_the_event_says_what_happened(drive: Drive) -> None:
    """The cause, and never the answer."""
    with capture() as events:
        drive(raising(refused()), fallback({"secret": "hunter2"}, name="prices"))
    (used,) = [event for event in events if event.name == "fallback.used"]
    assert (used.policy, str(used.cause), used.reason) == ("prices", "RateExceeded: too many", "RateExceeded")
    assert "hunter2" not in repr(fallback({"secret": "hunter2"}))
    assert repr(fallback(len, on=OSError)) == "fallback(len, on=OSError)"


def test_fallback_around_retry_sees_the_last_error_and_no_attempt(drive: Drive) -> None:
    """It runs outside of all attempts."""
    tries: list[int] = []

    def body() -> int:
        tries.append(attempt())
        raise ConnectionError

    assert drive(body, retry(retries=2, base=0), fallback(lambda: attempt(), on=ConnectionError)) == 1
    assert tries == [1, 2, 3]


def test_fallback_inside_retry_warns() -> None:
    """It would hide every failure."""
    with pytest.warns(GuardWarning, match="fallback inside retry"):
        retry(fallback(1)(lambda: None))


# Streams


def test_a_generator_falls_back_before_its_first_item() -> None:
    """To an iterable, or to what a function makes of the arguments; afterwards errors come out."""

    def make(policy: Any, fail_at: int) -> Any:
        @policy
        def pages(count: int) -> Iterator[int]:
            for number in range(count):
                if number == fail_at:
                    raise refused()
                yield number

        return pages

    assert list(make(fallback([7, 8]), 0)(3)) == [7, 8]
    assert list(make(fallback(()), 0)(3)) == []
    assert list(make(fallback(lambda count: [count]), 0)(3)) == [3]
    got: list[int] = []
    with pytest.raises(RateExceeded):
        got.extend(make(fallback([7, 8]), 2)(3))
    assert list(make(fallback([7]), 9)(3)) == [0, 1, 2]


def test_a_fallback_generator_is_driven_like_the_one_it_stands_for() -> None:
    """It gets what is sent, is closed, and its return value comes out."""
    closed: list[bool] = []

    def echo() -> Iterator[Any]:
        try:
            got = yield "ready"
            yield got
        finally:
            closed.append(True)

    @fallback(echo)
    def stream() -> Iterator[Any]:
        raise refused()
        yield

    running: Any = stream()
    assert next(running) == "ready"
    assert running.send("hello") == "hello"
    running.close()
    assert closed == [True]


def test_an_async_generator_falls_back_to_any_iterable() -> None:
    """Plain, async, or a function that makes either."""

    async def from_cache() -> AsyncIterator[int]:
        yield 1
        yield 2

    class Rows:
        def __aiter__(self) -> AsyncIterator[int]:
            return from_cache()

    async def main() -> list[list[int]]:
        found = []
        for value in ([1, 2], from_cache, lambda: (1, 2), Rows()):

            @fallback(value)
            async def pages() -> AsyncIterator[int]:
                raise refused()
                yield

            found.append([page async for page in pages()])

        @fallback([])
        async def none() -> AsyncIterator[int]:
            raise refused()
            yield

        found.append([page async for page in none()])
        return found

    assert asyncio.run(main()) == [[1, 2]] * 4 + [[]]


@pytest.mark.parametrize("value", ["text", b"bytes", 3, None, iter([1])])
def test_what_cannot_stand_for_a_stream_is_refused(value: object) -> None:
    """At decoration; an iterator would be used up by the first call."""

    def pages() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError):
        fallback(value)(pages)


def test_an_async_stream_cannot_stand_for_a_plain_one() -> None:
    """Nobody could await it."""

    class Rows:
        def __aiter__(self) -> AsyncIterator[int]:
            raise AssertionError

    def pages() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="not async"):
        fallback(Rows())(pages)


# Options


def test_bad_options_are_all_named() -> None:
    """One ValueError."""
    with pytest.raises(ValueError) as caught:
        fallback(1, on=(3, int))  # type: ignore[arg-type]
    assert "on=3" in str(caught.value)
    assert "on=int" in str(caught.value)


def test_a_name_is_one_policy_and_options_travel() -> None:
    """Equal options are one policy; pickling keeps them."""
    policy = fallback("stale", on=[KeyError], name="stale")  # type: ignore[arg-type]
    assert fallback("stale", on=(KeyError,), name="stale") is policy
    assert pickle.loads(pickle.dumps(fallback(5))).options == fallback(5).options


class Elementwise:
    """Compares like an array."""

    def __eq__(self, other: object) -> Any:
        return Elementwise()

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")

    __hash__ = None  # type: ignore[assignment]


def test_answers_that_only_compare_equal_are_two_policies() -> None:
    """A caller can tell them apart; what cannot be compared is equal to itself only."""
    array = Elementwise()
    pairs: list[tuple[Any, Any]] = [
        (0, False),
        (1, 1.0),
        ([0], [False]),
        ({"n": 1}, {"n": True}),
        (array, Elementwise()),
    ]
    for one, other in pairs:
        with registry.isolated():
            policy = fallback(one, name="answer")
            assert fallback(one, name="answer") is policy
            with pytest.raises(PolicyConflict):
                fallback(other, name="answer")
    with registry.isolated():
        assert fallback({"n": [1, ()]}, name="answer") is fallback({"n": [1, ()]}, name="answer")
