"""How a rate goes around a callable: what each call needs, and the closures that count it before it starts.

The quick shells are for the common case, a constant cost without keys or a store; the full ones for the rest. What a
call was counted for stays on it while it runs, so that the function can correct it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from guarded._core.call import Call
from guarded._core.chain import ReturnsAwaitable
from guarded._core.keys import Key, compile_amount, compile_key
from guarded._core.policy import Args, AsyncNext, Fn, Kwargs, Site, SyncNext
from guarded.policies._rate.core import Mark
from guarded.policies._rate.hand import Admission
from guarded.policies._turns import waits_outside

if TYPE_CHECKING:
    from guarded.policies.rate import Rate

_NO_KEY: Final = None


class Needs:
    """What the calls of one callable need of a rate, read off their arguments."""

    __slots__ = ("_cost", "_key", "_rate")

    def __init__(self, rate: Rate, wrapped: Any) -> None:
        options = rate.options
        self._rate = rate
        self._key = None if options.key is None else compile_key(options.key, wrapped)
        self._cost = compile_amount(options.cost, wrapped, option="cost")

    def of(self, fn: Fn, args: Args, kwargs: Kwargs) -> tuple[Key, int]:
        """The key and the cost of a call; ValueError for a cost above the capacity."""
        key = None if self._key is None else self._key(fn, args, kwargs)
        return key, self._rate.possible(self._cost(fn, args, kwargs))


def quick_shell(policy: Rate, cost: int, site: Site, proceed: SyncNext) -> SyncNext:
    """No key, no store, always the same cost."""
    enter = policy.gate.enter_by_turns if waits_outside(site) else policy.gate.enter
    take = policy.lines.take

    def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        mark = take(_NO_KEY, cost) if call.turn is None else None
        if mark is None:
            mark = enter(call, _NO_KEY, cost, policy.max_wait)
        outer = call.spent
        call.spent = spent = [policy, _NO_KEY, mark, cost, outer]
        try:
            return proceed(call, fn, args, kwargs)
        except ReturnsAwaitable:
            Admission(spent).refund()  # it comes again, as async
            raise
        finally:
            call.spent = outer

    return shell


def full_shell(policy: Rate, needs: Needs, site: Site, proceed: SyncNext) -> SyncNext:
    """Keys, costs by the arguments, streams, and rates in a store."""
    gate, take, is_stream = policy.stored or policy.gate, _take_of(policy), site.is_stream
    enter = gate.enter_by_turns if waits_outside(site) else gate.enter

    def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        key, cost = needs.of(fn, args, kwargs)
        mark = take(key, cost) if call.turn is None else None
        if mark is None:
            mark = enter(call, key, cost, policy.max_wait)
        outer = call.spent
        call.spent = spent = [policy, key, mark, cost, outer]
        try:
            return proceed(call, fn, args, kwargs)
        except ReturnsAwaitable:
            Admission(spent).refund()
            raise
        finally:
            if not is_stream:  # the body of a stream goes on after this
                call.spent = outer

    return shell


def quick_async_shell(policy: Rate, cost: int, site: Site, proceed: AsyncNext) -> AsyncNext:
    """`quick_shell` for coroutine functions."""
    enter = policy.gate.enter_by_turns_async if waits_outside(site) else policy.gate.enter_async
    take = policy.lines.take

    async def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        mark = take(_NO_KEY, cost) if call.turn is None else None
        if mark is None:
            mark = await enter(call, _NO_KEY, cost, policy.max_wait)
        outer = call.spent
        call.spent = [policy, _NO_KEY, mark, cost, outer]
        try:
            return await proceed(call, fn, args, kwargs)
        finally:
            call.spent = outer

    return shell


def _take_of(policy: Rate) -> Callable[[Key, int], Mark | None]:
    """What admits a call at once, without a step of a store."""
    return policy.lines.take if policy.stored is None else lambda key, cost: None


def full_async_shell(policy: Rate, needs: Needs, site: Site, proceed: AsyncNext) -> AsyncNext:
    """`full_shell` for coroutine functions and async generators."""
    gate, take, is_stream = policy.stored or policy.gate, _take_of(policy), site.is_stream
    enter = gate.enter_by_turns_async if waits_outside(site) else gate.enter_async

    async def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        key, cost = needs.of(fn, args, kwargs)
        mark = take(key, cost) if call.turn is None else None
        if mark is None:
            mark = await enter(call, key, cost, policy.max_wait)
        outer = call.spent
        call.spent = [policy, key, mark, cost, outer]
        try:
            return await proceed(call, fn, args, kwargs)
        finally:
            if not is_stream:
                call.spent = outer

    return shell
