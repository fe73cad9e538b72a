"""How a call enters its chain: one function for plain callables, one for those that give awaitables.

Each makes the `Call`, publishes it to the body and runs the chain. How the call ended is told to the bus by
a detour that is taken only while somebody listens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CoroutineType
from typing import Any

from guarded._core import clock
from guarded._core.call import Call, current
from guarded._core.chain import Chain, ReturnsAwaitable
from guarded._core.interrupt import InterruptOnToken
from guarded._core.policy import Args, AsyncNext, Fn, Kwargs, SyncNext
from guarded._core.streams import enter_async_generator, enter_generator
from guarded._core.told import told_failed, told_succeeded
from guarded.events.bus import bus
from guarded.events.model import DEBUG

Entry = Callable[[Fn, Any, Args, Kwargs], Any]


def enter(chain: Chain) -> Entry:
    """The wrapt wrapper function for a chain."""
    if chain.kind == "async":
        return _async(chain)
    if chain.kind == "generator":
        return enter_generator(chain)
    if chain.kind == "async_generator":
        return enter_async_generator(chain)
    return _sync(chain)


def _sync(chain: Chain) -> Entry:
    new_call, get, publish, restore = chain.new_call, current.get, current.set, current.reset
    turned: Entry | None = None

    def enter_sync(fn: Fn, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        nonlocal turned
        if turned is not None:
            return turned(fn, instance, args, kwargs)
        around = get()
        call = new_call(around)
        try:
            token = publish(call)
        except BaseException:  # of a signal handler, right after the call was published: nobody would take it back
            publish(around)
            raise
        try:
            if bus.threshold <= DEBUG:
                return _observed(chain.run, call, fn, args, kwargs)
            return chain.run(call, fn, args, kwargs)
        except ReturnsAwaitable as found:
            awaitable = found.awaitable
        finally:
            restore(token)
        turned = _async(Chain(chain.wrapped, chain.layers, "async"))
        return _first(turned, awaitable, fn, instance, args, kwargs)

    return enter_sync


def _observed(run: SyncNext, call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
    started = clock.monotonic()
    try:
        result = run(call, fn, args, kwargs)
    except ReturnsAwaitable:
        raise
    except BaseException as error:
        told_failed(call, started, error)
        raise
    told_succeeded(call, started)
    return result


async def _first(turned: Entry, awaitable: Any, fn: Fn, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    """The call that showed that `fn` returns awaitables: it has given its first one already."""
    waiting = [awaitable]

    @functools.wraps(fn)
    def first_then(*args: Any, **kwargs: Any) -> Any:
        return waiting.pop() if waiting else fn(*args, **kwargs)

    try:
        return await turned(first_then, instance, args, kwargs)
    finally:
        if waiting and type(awaitable) is CoroutineType:
            awaitable.close()  # refused before it began


def _async(chain: Chain) -> Entry:
    new_call, get, publish, restore = chain.new_call, current.get, current.set, current.reset

    async def enter_async(fn: Fn, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        call = new_call(get())
        token = publish(call)
        try:
            if bus.threshold <= DEBUG or call.token is not None:
                return await _observed_async(chain.run, call, fn, args, kwargs)
            return await chain.run(call, fn, args, kwargs)
        finally:
            try:
                restore(token)
            except ValueError:
                pass  # an abandoned coroutine is closed by the garbage collector, in a context that is not its own

    return enter_async


async def _observed_async(run: AsyncNext, call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
    """The detour of calls that somebody listens to or that a token may cancel."""
    started = clock.monotonic()
    try:
        result = await _cancellable(run, call, fn, args, kwargs)
    except BaseException as error:
        told_failed(call, started, error)
        raise
    told_succeeded(call, started)
    return result


async def _cancellable(run: AsyncNext, call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
    if call.token is None:
        return await run(call, fn, args, kwargs)
    with InterruptOnToken(call.token):
        return await run(call, fn, args, kwargs)
