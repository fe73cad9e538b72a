"""How a call enters its chain, one function per kind of callable.

Each makes the `Call`, publishes it to the body, runs the chain, and tells how the call ended. The
generator kinds run the chain up to the first item and drive the rest themselves, publishing the call
around each resumption only, so that nothing leaks to the consumer.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Generator
from contextvars import Token
from typing import Any

from guarded._core import clock
from guarded._core.call import Call, Stream, current
from guarded._core.chain import Chain, ReturnsAwaitable
from guarded._core.interrupt import InterruptOnToken
from guarded._core.policy import Args, Fn, Kwargs
from guarded.events.bus import bus
from guarded.events.model import DEBUG, TRACE

Entry = Callable[[Fn, Any, Args, Kwargs], Any]


def enter(chain: Chain) -> Entry:
    """The wrapt wrapper function for a chain."""
    make = {"sync": _sync, "async": _async, "generator": _generator, "async_generator": _async_generator}
    return make[chain.kind](chain)


def _begin(function: str) -> Call:
    call = Call()
    call.function = function
    parent = current.get()
    if parent is not None:
        call.adopt(parent)
    return call


def _restore(token: Token[Call | None]) -> None:
    try:
        current.reset(token)
    except ValueError:
        pass  # an abandoned coroutine is closed by the garbage collector, in a context that is not its own


def _succeeded(call: Call, started: float) -> None:
    bus.emit("call.succeeded", call, None, duration=max(0.0, clock.monotonic() - started), outcome="success")


def _failed(call: Call, started: float, error: BaseException) -> None:
    bus.emit(
        "call.failed",
        call,
        None,
        duration=max(0.0, clock.monotonic() - started) if started else None,
        outcome="failure" if isinstance(error, Exception) else "neutral",
        cancelled=None if isinstance(error, Exception) else True,
        cause=error,
    )


def _sync(chain: Chain) -> Entry:
    function = chain.function
    turned = _async(chain)

    def enter_sync(fn: Fn, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        if chain.kind == "async":
            return turned(fn, instance, args, kwargs)
        call = _begin(function)
        started = clock.monotonic() if bus.threshold <= DEBUG else 0.0
        token = current.set(call)
        try:
            result = chain.run(call, fn, args, kwargs)
        except ReturnsAwaitable as found:
            chain.turn_async()
            awaitable = found.awaitable
        except BaseException as error:
            if bus.threshold <= DEBUG:
                _failed(call, started, error)
            raise
        else:
            if bus.threshold <= TRACE:
                _succeeded(call, started)
            return result
        finally:
            _restore(token)
        return turned(_first_then(awaitable, fn), instance, args, kwargs)

    return enter_sync


def _first_then(awaitable: Any, fn: Fn) -> Fn:
    """`fn`, but for its first call, which gives the `awaitable` that is there already."""
    waiting = [awaitable]

    @functools.wraps(fn)
    def first_then(*args: Any, **kwargs: Any) -> Any:
        return waiting.pop() if waiting else fn(*args, **kwargs)

    return first_then


def _async(chain: Chain) -> Entry:
    function = chain.function

    async def enter_async(fn: Fn, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        call = _begin(function)
        started = clock.monotonic() if bus.threshold <= DEBUG else 0.0
        token = current.set(call)
        try:
            if call.token is None:
                result = await chain.run(call, fn, args, kwargs)
            else:
                with InterruptOnToken(call.token):
                    result = await chain.run(call, fn, args, kwargs)
        except BaseException as error:
            if bus.threshold <= DEBUG:
                _failed(call, started, error)
            raise
        finally:
            _restore(token)
        if bus.threshold <= TRACE:
            _succeeded(call, started)
        return result

    return enter_async


def _generator(chain: Chain) -> Entry:
    def enter_generator(fn: Fn, instance: Any, args: Args, kwargs: Kwargs) -> Generator[Any, Any, Any]:
        call = _begin(chain.function)
        stream = call.stream = Stream(lambda resume: resume())
        started = clock.monotonic()
        ended: BaseException | None = None

        def published(step: Callable[[], Any]) -> Any:
            token = current.set(call)
            try:
                return step()
            finally:
                _restore(token)

        try:
            generator, done, item = published(lambda: chain.run(call, fn, args, kwargs))
            while not done:
                resume: Callable[[], Any]
                try:
                    sent = yield item
                except GeneratorExit:
                    published(generator.close)
                    raise
                except BaseException as thrown:
                    stream.thrown = thrown
                    resume = functools.partial(generator.throw, thrown)
                else:
                    resume = functools.partial(generator.send, sent)
                try:
                    item = published(functools.partial(stream.step, resume))
                except StopIteration as stop:
                    done, item = True, stop.value
            return item
        except BaseException as error:
            ended = error
            raise
        finally:
            _end(call, stream, ended, started)

    return enter_generator


def _async_generator(chain: Chain) -> Entry:
    async def at_once(resume: Callable[[], Any]) -> Any:
        return await resume()

    async def enter_async_generator(fn: Fn, instance: Any, args: Args, kwargs: Kwargs) -> AsyncGenerator[Any, Any]:
        call = _begin(chain.function)
        stream = call.stream = Stream(at_once)
        started = clock.monotonic()
        ended: BaseException | None = None

        async def published(step: Callable[[], Any]) -> Any:
            token = current.set(call)
            try:
                return await step()
            finally:
                _restore(token)

        try:
            generator, done, item = await published(lambda: chain.run(call, fn, args, kwargs))
            while not done:
                resume: Callable[[], Any]
                try:
                    sent = yield item
                except GeneratorExit:
                    await published(generator.aclose)
                    raise
                except BaseException as thrown:
                    stream.thrown = thrown
                    resume = functools.partial(generator.athrow, thrown)
                else:
                    resume = functools.partial(generator.asend, sent)
                try:
                    item = await published(functools.partial(stream.step, resume))
                except StopAsyncIteration:
                    done = True
        except BaseException as error:
            ended = error
            raise
        finally:
            _end(call, stream, ended, started)

    return enter_async_generator


def _end(call: Call, stream: Stream, ended: BaseException | None, started: float) -> None:
    """A stream is over: tell the layers that held on to it, innermost first, then the bus."""
    if ended is stream.thrown or isinstance(ended, GeneratorExit):
        ended = None if ended is None else GeneratorExit()  # the consumer's doing, never the body's failure
    for leave in stream.exits:
        leave(ended)
    if isinstance(ended, Exception):
        if bus.threshold <= DEBUG:
            _failed(call, started, ended)
    elif bus.threshold <= TRACE:
        _succeeded(call, started)
