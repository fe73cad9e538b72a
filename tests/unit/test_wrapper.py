"""The single merging wrapper, on every kind of callable."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import os
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import wrapt

import guarded
from guarded import deadline, guard, registry
from guarded._core.call import Call, current
from guarded._core.policy import AsyncNext, Policy, Site, SyncNext

LOG: ContextVar[list[str]] = ContextVar("log")


@dataclass(frozen=True)
class TraceOptions:
    """Options of the policy below."""

    word: str


class Trace(Policy[TraceOptions]):
    """Writes down when it is entered and how it is left."""

    kind = "trace"

    def __init__(self, word: str, log: list[str]) -> None:
        super().__init__(TraceOptions(word))
        self.log = log

    def sync_layer(self, proceed: SyncNext, site: Site) -> SyncNext:
        def shell(call: Call, fn: Any, args: Any, kwargs: Any) -> Any:
            self.log.append(f"+{self.options.word}")
            try:
                return proceed(call, fn, args, kwargs)
            finally:
                self.log.append(f"-{self.options.word}")

        return shell

    def async_layer(self, proceed: AsyncNext, site: Site) -> AsyncNext:
        async def shell(call: Call, fn: Any, args: Any, kwargs: Any) -> Any:
            self.log.append(f"+{self.options.word}")
            try:
                return await proceed(call, fn, args, kwargs)
            finally:
                self.log.append(f"-{self.options.word}")

        return shell


@pytest.fixture
def log() -> list[str]:
    """What the layers wrote down."""
    return []


@deadline("10s", name="module-level")
def module_level(x: int, *, y: int = 2) -> int:
    """Adds."""
    return x + y


class Service:
    """Methods of all kinds, decorated in both orders."""

    def __init__(self, base: int = 10) -> None:
        self.base = base

    @deadline(5)
    def method(self, x: int) -> int:
        """Adds the base."""
        return self.base + x

    @deadline(5)
    async def amethod(self, x: int) -> int:
        return self.base + x

    @classmethod
    @deadline(5)
    def class_inside(cls, x: int) -> tuple[type, int]:
        return cls, x

    @deadline(5)
    @classmethod
    def class_outside(cls, x: int) -> tuple[type, int]:
        return cls, x

    @staticmethod
    @deadline(5)
    def static_inside(x: int) -> int:
        return x

    @deadline(5)
    @staticmethod
    def static_outside(x: int) -> int:
        return x

    @deadline(5)
    @classmethod
    async def aclass(cls, x: int) -> tuple[type, int]:
        return cls, x

    @deadline(5)
    def items(self, n: int) -> Iterator[int]:
        yield from range(self.base, self.base + n)


class Sub(Service):
    """Inherits guarded methods."""


def test_layers_merge_into_one_wrapper(log: list[str]) -> None:
    """Six decorators are six layers in one wrapper around the plain function."""

    def body() -> str:
        log.append("body")
        return "done"

    fn: Any = body
    for word in "fedcba":
        fn = Trace(word, log)(fn)
    assert fn.__wrapped__ is body
    assert not isinstance(fn.__wrapped__, wrapt.ObjectProxy)
    assert [layer.options.word for layer in fn.layers] == list("abcdef")
    assert fn() == "done"
    assert log == [*(f"+{w}" for w in "abcdef"), "body", *(f"-{w}" for w in "fedcba")]


def test_a_decorator_leaves_the_function_it_was_given_alone(log: list[str]) -> None:
    """Putting a layer on a guarded function makes a new one; the old keeps its stack."""
    inner = Trace("inner", log)(lambda: None)
    Trace("outer", log)(inner)()
    assert log == ["+outer", "+inner", "-inner", "-outer"]
    log.clear()
    inner()
    assert log == ["+inner", "-inner"]


def test_introspection_passes_through() -> None:
    """Name, docstring, signature and the kind of function are those of the function."""
    assert module_level.__name__ == "module_level"
    assert module_level.__doc__ == "Adds."
    assert str(inspect.signature(module_level)) == "(x: 'int', *, y: 'int' = 2) -> 'int'"
    assert inspect.iscoroutinefunction(Service.amethod)
    assert inspect.iscoroutinefunction(Service().amethod)
    assert not inspect.iscoroutinefunction(Service.method)
    assert inspect.isgeneratorfunction(Service.items)
    assert str(inspect.signature(Service().method)) == "(x: 'int') -> 'int'"


@pytest.mark.parametrize("cls", [Service, Sub])
def test_methods_of_every_kind(cls: type[Service]) -> None:
    """Methods bind their instance or class in both decorator orders, from instance, class and subclass."""
    service = cls(20)
    assert service.method(1) == 21
    assert cls.method(service, 2) == 22
    assert service.class_inside(3) == (cls, 3)
    assert cls.class_inside(3) == (cls, 3)
    assert service.class_outside(4) == (cls, 4)
    assert cls.class_outside(4) == (cls, 4)
    assert service.static_inside(5) == cls.static_inside(5) == 5
    assert service.static_outside(6) == cls.static_outside(6) == 6
    assert asyncio.run(service.amethod(7)) == 27
    assert asyncio.run(cls.aclass(8)) == (cls, 8)
    assert list(service.items(3)) == [20, 21, 22]


def test_layers_merge_through_classmethod_and_staticmethod(log: list[str]) -> None:
    """A decorator above and one below @classmethod still make one wrapper."""

    class Both:
        @Trace("outer", log)
        @classmethod
        @Trace("inner", log)
        def klass(cls) -> str:
            return cls.__name__

        @Trace("outer", log)
        @staticmethod
        @Trace("inner", log)
        def static() -> str:
            return "static"

    assert Both.klass() == "Both"
    assert Both().static() == "static"
    assert log == ["+outer", "+inner", "-inner", "-outer"] * 2
    assert [layer.options.word for layer in vars(Both)["klass"].layers] == ["outer", "inner"]
    assert [layer.options.word for layer in Both.klass.layers] == ["outer", "inner"]


class AsyncCallable:
    """An object with an async ``__call__``."""

    async def __call__(self, x: int) -> int:
        return x


class PlainCallable:
    """An object with a plain ``__call__``."""

    def __call__(self, x: int) -> int:
        return x


async def _coroutine(x: int) -> int:
    return x


def _undeclared(x: int) -> Awaitable[int]:
    return _coroutine(x)


def _future(x: int) -> Any:
    future = asyncio.get_running_loop().create_future()
    future.set_result(x)
    return future


class Bound:
    """Gives a bound coroutine method."""

    async def method(self, x: int) -> int:
        return x


@pytest.mark.parametrize(
    "fn",
    [
        _coroutine,
        functools.partial(_coroutine),
        functools.partial(functools.partial(_coroutine)),
        AsyncCallable(),
        functools.partial(AsyncCallable()),
        Bound().method,
        _undeclared,
        functools.partial(_undeclared),
        _future,
        lambda x: _coroutine(x),
    ],
)
def test_no_async_shape_passes_through_unguarded(fn: Callable[[int], Awaitable[int]], log: list[str]) -> None:
    """The layers are left only when the awaitable is done, whatever shape the async callable has."""
    guarded = Trace("a", log)(fn)

    async def main() -> None:
        for x in (1, 2, 3):
            log.clear()
            awaitable = guarded(x)
            assert await awaitable == x
            assert log[-2:] == ["+a", "-a"]

    asyncio.run(main())
    assert log == ["+a", "-a"]


def test_a_function_found_to_return_awaitables_runs_once_per_call(log: list[str]) -> None:
    """Finding out does not cost a second call of the function, and the layer holds while the awaitable runs."""
    made = 0

    def undeclared() -> Any:
        nonlocal made
        made += 1

        async def work() -> list[str]:
            return list(log)

        return work()

    guarded = Trace("a", log)(undeclared)
    held = asyncio.run(guarded())  # type: ignore[arg-type]
    assert held == ["+a", "-a", "+a"]  # found out, unwound, and entered again as async
    assert made == 1


def test_a_first_call_that_is_refused_leaves_no_coroutine_behind(log: list[str]) -> None:
    """What the function had given before it was known as async is closed, not complained about as never awaited."""

    class Refuses(Trace):
        def async_layer(self, proceed: AsyncNext, site: Site) -> AsyncNext:
            async def shell(call: Call, fn: Any, args: Any, kwargs: Any) -> Any:
                raise LookupError

            return shell

    made: list[Any] = []

    def undeclared() -> Any:
        made.append(_coroutine(1))
        return made[0]

    with pytest.raises(LookupError):
        asyncio.run(Refuses("a", log)(undeclared)())
    assert inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED


def test_callable_objects_and_partials() -> None:
    """Plain callable objects, partials and builtins are guarded like functions."""
    assert deadline(5)(PlainCallable())(3) == 3
    assert deadline(5)(functools.partial(module_level, 1))(y=4) == 5
    assert deadline(5)(len)([1, 2]) == 2


@pytest.mark.parametrize(
    ("target", "say"),
    [
        (Service, "cannot guard the class Service"),
        (property(lambda self: 1), "below @property"),
        (functools.cached_property(lambda self: 1), "below @property"),
        (3, "policy goes on a callable.*without parentheses"),
        (None, "policy goes on a callable"),
    ],
)
def test_what_cannot_be_guarded_is_refused(target: Any, say: str) -> None:
    """Classes, properties and non-callables are refused with what to do instead."""
    with pytest.raises(TypeError, match=say):
        deadline(5)(target)


def test_pickle_copy_and_deepcopy() -> None:
    """Decorated module-level functions travel by name, bound methods with their instance."""
    assert pickle.loads(pickle.dumps(module_level)) is module_level
    assert copy.copy(module_level) is module_level
    assert copy.deepcopy({"fn": module_level})["fn"] is module_level
    bound = Service(5).method
    assert pickle.loads(pickle.dumps(bound))(1) == 6
    assert copy.copy(bound)(2) == 7
    twin = copy.deepcopy(bound)
    assert twin(1) == 6
    assert twin.__self__ is not bound.__self__


def test_generator_does_nothing_before_its_first_next(log: list[str]) -> None:
    """Calling a guarded generator enters no layer; closing it early leaves nothing behind."""

    @Trace("a", log)
    def numbers() -> Iterator[int]:
        log.append("body")
        yield 1

    iterator = numbers()
    iterator.close()  # type: ignore[attr-defined]
    del iterator
    assert log == []
    assert list(numbers()) == [1]
    assert log == ["+a", "body", "-a"]


def test_generator_sends_throws_and_returns() -> None:
    """send, throw, close and the return value reach the body as in a plain generator."""
    seen: list[Any] = []

    @deadline(5)
    def echo() -> Any:
        try:
            received = yield "first"
            seen.append(received)
            yield "second"
        except KeyError as error:
            seen.append(error)
            yield "caught"
        finally:
            seen.append("closed")
        return "value"

    iterator = echo()
    assert next(iterator) == "first"
    assert iterator.send("sent") == "second"
    error = KeyError("thrown")
    assert iterator.throw(error) == "caught"
    with pytest.raises(StopIteration) as stop:
        next(iterator)
    assert stop.value.value == "value"
    assert seen == ["sent", error, "closed"]


def test_contextmanager_over_a_guarded_generator_sees_exceptions() -> None:
    """@contextmanager over a guarded generator still gets what the block raised."""
    seen: list[BaseException] = []

    @contextmanager
    @deadline(5)
    def resource() -> Iterator[str]:
        try:
            yield "resource"
        except ValueError as error:
            seen.append(error)

    with resource() as value:
        raise ValueError(value)
    assert [str(error) for error in seen] == ["resource"]


def test_async_generator_sends_throws_and_closes() -> None:
    """asend, athrow and aclose reach the body."""
    seen: list[Any] = []

    @deadline(5)
    async def echo() -> AsyncIterator[Any]:
        try:
            seen.append((yield "first"))
            yield "second"
        except KeyError as error:
            seen.append(str(error))
            yield "caught"
        finally:
            seen.append("closed")

    async def main() -> None:
        iterator: Any = echo()
        assert await anext(iterator) == "first"
        assert await iterator.asend("sent") == "second"
        assert await iterator.athrow(KeyError("thrown")) == "caught"
        await iterator.aclose()

    asyncio.run(main())
    assert seen == ["sent", "'thrown'", "closed"]


def test_nothing_leaks_into_the_consumer_of_a_generator() -> None:
    """The call is published to the body only, not to the code between two items."""

    @deadline(5)
    def numbers() -> Iterator[Call | None]:
        yield current.get()
        yield current.get()

    inside = []
    for call in numbers():
        inside.append(call)
        assert current.get() is None
    assert None not in inside


def test_context_variables_set_by_an_async_body_stay_visible() -> None:
    """An async body runs in its caller's own context."""
    variable: ContextVar[str] = ContextVar("variable")

    @deadline(5)
    async def body() -> None:
        variable.set("set")

    async def main() -> str:
        await body()
        return variable.get()

    assert asyncio.run(main()) == "set"


def test_a_name_may_be_loaded_after_its_use() -> None:
    """A handle is resolved at the call, says what is missing until then, and follows the registry."""
    log: list[str] = []

    @guard("later")
    def fn() -> str:
        return "done"

    with pytest.raises(LookupError, match="no policy or stack is named 'later'"):
        fn()
    first, second = Trace("first", log), Trace("second", log)
    registry.replace({"later": first})
    assert fn() == "done"
    registry.replace({"later": second})
    assert fn() == "done"
    assert log == ["+first", "-first", "+second", "-second"]
    assert fn.layers == (second,)  # type: ignore[attr-defined]


def test_an_abandoned_coroutine_makes_no_noise(recwarn: pytest.WarningsRecorder) -> None:
    """A guarded coroutine that is closed half way, in whatever context, only runs its finally blocks."""
    left = []

    @deadline(5)
    async def body() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            left.append(True)

    async def main() -> None:
        coroutine = body()
        coroutine.send(None)  # type: ignore[attr-defined]
        coroutine.close()  # type: ignore[attr-defined]

    asyncio.run(main())
    assert left == [True]
    assert not recwarn.list


def test_a_call_does_not_look_for_an_instance() -> None:
    """wrapt does, in vain and at twice the cost of the call, unless the wrapper was made as ours is."""
    looked_for: list[str] = []

    class Answer:
        def __getattr__(self, name: str) -> Any:
            looked_for.append(name)
            raise AttributeError(name)

        def __call__(self) -> int:
            return 5

    guarded_fn = Trace("t", [])(Answer())
    assert guarded_fn() == 5
    looked_for.clear()
    assert guarded_fn() == 5
    assert "__self__" not in looked_for


@pytest.mark.parametrize("arguments", [(), (1,), (1, 2)])
@pytest.mark.parametrize("bare", [guarded.deadline, guarded.fallback, guarded.idempotent])
def test_a_decorator_without_its_parentheses_is_told(bare: Any, arguments: tuple[int, ...]) -> None:
    """It took the function for its option, so that what is called is a policy: the error says so."""

    @bare
    def charge(*amounts: int) -> int:
        return sum(amounts)

    with pytest.raises(TypeError, match=r"with(out)? parentheses"):
        charge(*arguments)


@pytest.mark.parametrize("how", ["script", "module", "prompt"])
def test_a_script_calls_its_functions_as_others_import_them(how: str, tmp_path: Path) -> None:
    """Idempotency keys have the name in them: a script and a worker that imports it mean the same function."""
    source = "from guarded import retry\n@retry\ndef charge(): pass\nprint(charge._self_chain.function)\n"
    (tmp_path / "payments.py").write_text(source)
    started = {"script": [str(tmp_path / "payments.py")], "module": ["-m", "payments"], "prompt": ["-c", source]}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, *started[how]], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ("__main__.charge" if how == "prompt" else "payments.charge")
