"""How a circuit goes around a callable: admit, run, count; a stream is counted at its end.

The quick path, closed with nothing to watch, asks nobody and takes no lock. Sync and async twins differ in their
awaits, and in that a sync call can be left behind by its caller.
"""

from __future__ import annotations

from typing import Any

from guarded._core import clock
from guarded._core.call import Call
from guarded._core.policy import Args, AsyncNext, Fn, Kwargs, SyncNext
from guarded.policies._circuit.local import LocalCircuit
from guarded.policies._circuit.terms import Permit


def sync_shell(circuit: LocalCircuit, proceed: SyncNext) -> SyncNext:
    succeed, admit, finish = circuit.succeed, circuit.admit_call, circuit.finish

    def watched(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        permit = admit(call, fn, args, kwargs)
        if permit is None:
            return proceed(call, fn, args, kwargs)
        token = None if call.deadline is None else call.token
        # A deadline in thread mode leaves a blocked thread behind; its token is how we hear of it.
        registration = None if token is None else token.on_cancel(lambda: circuit.left_behind(call, permit))
        try:
            result = proceed(call, fn, args, kwargs)
        except BaseException as error:
            finish(call, permit, error)
            raise
        finally:
            if registration is not None:
                registration.close()
        finish(call, permit, None)
        return result

    def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        passing = circuit.passing
        if passing is None or call.token is not None:
            return watched(call, fn, args, kwargs)
        started = None if call.deadline is None else clock.monotonic_ns()
        try:
            result = proceed(call, fn, args, kwargs)
        except BaseException as error:
            finish(call, Permit(passing, started), error)
            raise
        if circuit.calm != passing:
            succeed(call, passing, started)
        return result

    return shell


def stream_shell(circuit: LocalCircuit, proceed: SyncNext) -> SyncNext:
    def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        permit = circuit.admit_call(call, fn, args, kwargs)
        if permit is None:
            return proceed(call, fn, args, kwargs)
        try:
            first = proceed(call, fn, args, kwargs)
        except BaseException as error:
            circuit.finish(call, permit, error)
            raise
        circuit.finish_later(call, permit)
        return first

    return shell


def async_shell(circuit: LocalCircuit, proceed: AsyncNext) -> AsyncNext:
    succeed, admit, finish = circuit.succeed, circuit.admit_call, circuit.finish

    async def watched(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        permit = admit(call, fn, args, kwargs)
        if permit is None:
            return await proceed(call, fn, args, kwargs)
        try:
            result = await proceed(call, fn, args, kwargs)
        except BaseException as error:
            finish(call, permit, error)
            raise
        finish(call, permit, None)
        return result

    async def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        passing = circuit.passing
        if passing is None:
            return await watched(call, fn, args, kwargs)
        started = None if call.deadline is None else clock.monotonic_ns()
        try:
            result = await proceed(call, fn, args, kwargs)
        except BaseException as error:
            finish(call, Permit(passing, started), error)
            raise
        if circuit.calm != passing:
            succeed(call, passing, started)
        return result

    return shell


def async_stream_shell(circuit: LocalCircuit, proceed: AsyncNext) -> AsyncNext:
    async def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        permit = circuit.admit_call(call, fn, args, kwargs)
        if permit is None:
            return await proceed(call, fn, args, kwargs)
        try:
            first = await proceed(call, fn, args, kwargs)
        except BaseException as error:
            circuit.finish(call, permit, error)
            raise
        circuit.finish_later(call, permit)
        return first

    return shell
