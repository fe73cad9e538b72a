"""How a call to a generator function enters its chain, and how the stream is driven.

The chain runs up to the first item only; from then on the generator is driven here. The call is published
around each resumption of the body, and never between two, so that nothing leaks to the consumer.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import suppress
from typing import Any

from guarded._core import clock
from guarded._core.call import Call, Stream, current
from guarded._core.chain import Chain
from guarded._core.policy import Args, Fn, Kwargs
from guarded._core.told import told_failed, told_succeeded

Entry = Callable[[Fn, Any, Args, Kwargs], Any]


def enter_generator(chain: Chain) -> Entry:
    """The wrapt wrapper function of a generator function."""

    def enter(fn: Fn, instance: Any, args: Args, kwargs: Kwargs) -> Generator[Any, Any, Any]:
        call = chain.new_call(current.get())
        stream = call.stream = Stream(lambda resume: resume())
        started = clock.monotonic()
        ended: BaseException | None = None

        def published(step: Callable[[], Any]) -> Any:
            around = current.get()
            try:
                current.set(call)
                return step()
            finally:
                current.set(around)

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

    return enter


def enter_async_generator(chain: Chain) -> Entry:
    """The wrapt wrapper function of an async generator function."""

    async def at_once(resume: Callable[[], Any]) -> Any:
        return await resume()

    async def enter(fn: Fn, instance: Any, args: Args, kwargs: Kwargs) -> AsyncGenerator[Any, Any]:
        call = chain.new_call(current.get())
        stream = call.stream = Stream(at_once)
        started = clock.monotonic()
        ended: BaseException | None = None

        async def published(step: Callable[[], Any]) -> Any:
            token = current.set(call)
            try:
                return await step()
            finally:
                with suppress(ValueError):  # an abandoned stream is closed in a context that is not its own
                    current.reset(token)

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

    return enter


def _leave(exits: list[Callable[[BaseException | None], None]], ended: BaseException | None) -> None:
    """Run every exit; one that raises (a user's predicate) keeps none of the others from running."""
    if exits:
        try:
            exits[0](ended)
        finally:
            _leave(exits[1:], ended)


def _end(call: Call, stream: Stream, ended: BaseException | None, started: float) -> None:
    """A stream is over: tell the layers that held on to it, innermost first, then the bus."""
    if ended is stream.thrown or isinstance(ended, GeneratorExit):
        ended = None if ended is None else GeneratorExit()  # the consumer's doing, never the body's failure
    _leave(stream.exits, ended)
    if ended is None or isinstance(ended, GeneratorExit):
        told_succeeded(call, started)
    else:
        told_failed(call, started, ended)
