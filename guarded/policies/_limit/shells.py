"""How a limit goes around a callable: what each call needs, what it holds, and the closures that see to it.

The quick shells are for the common case, one permit without a key; the full ones for keys, weights, streams and
adaptive limits. Sync and async twins differ in their awaits only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from guarded._core import clock
from guarded._core.call import Call
from guarded._core.keys import KeyOf, compile_amount, compile_argument, compile_key
from guarded._core.policy import Args, AsyncNext, Fn, Kwargs, SyncNext
from guarded.events.bus import bus
from guarded.events.model import TRACE
from guarded.policies._turns import MustWait, take_turns, take_turns_async

if TYPE_CHECKING:
    from guarded.policies._limit.core import Pool
    from guarded.policies.limit import Limit, LimitOptions


class Needs:
    """What the calls of one callable need of a limit, read off their arguments.

    Raises ValueError when an option names a parameter the callable has not.
    """

    __slots__ = ("key", "priority", "weight")

    def __init__(self, options: LimitOptions, wrapped: Any) -> None:
        self.key: KeyOf | None = None if options.key is None else compile_key(options.key, wrapped)
        self.weight = compile_amount(options.weight, wrapped, option="weight")
        self.priority = _priority_of(options.priority, wrapped)


def _priority_of(priority: Any, wrapped: Any) -> Callable[[Fn, Args, Kwargs], int]:
    if not isinstance(priority, str) and not callable(priority):
        constant = priority or 0
        return lambda fn, args, kwargs: constant
    argument = compile_argument(priority, wrapped, "priority")

    def priority_of(fn: Fn, args: Args, kwargs: Kwargs) -> int:
        value = argument(fn, args, kwargs)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"priority: must give a whole number, not {type(value).__name__}")
        return value

    return priority_of


class Stay:
    """One call's use of a pool, from before it waits to the return of its permits."""

    __slots__ = ("_call", "_inflight", "_limit", "_node", "_started", "pool", "weight")

    def __init__(self, limit: Limit, call: Call, needs: Needs, fn: Fn, args: Args, kwargs: Kwargs) -> None:
        self._limit = limit
        self._call = call
        self.weight = needs.weight(fn, args, kwargs)
        self.pool = limit.pool_for(None if needs.key is None else needs.key(fn, args, kwargs), self.weight)
        self._node: list[Any] | None = None
        self._inflight = 0
        self._started = 0.0

    def begin(self, waited: float) -> None:
        """The permits are there."""
        self._node = self._call.held = [self.pool, self._call.held]
        if bus.threshold <= TRACE:
            self._limit.tell_acquired(self._call, self.pool, waited)
        if self._limit.learner is not None:
            self._inflight = self.pool.held
            self._started = clock.monotonic()

    def learn(self, error: BaseException | None) -> None:
        """The call answered, or a stream gave its first item."""
        learner = self._limit.learner
        if learner is not None and self._started:
            learner.learn(self._call, self._started, self._inflight, error)

    def end(self, ended: BaseException | None = None) -> None:
        """The permits go back, whatever happened."""
        node = self._node
        if node is not None:
            node[0] = None
            if self._call.held is node:
                self._call.held = node[1]
        try:
            self.pool.give_back(self.weight)
        finally:
            self.pool.depart()


def quick_shell(limit: Limit, pool: Pool, needs: Needs, proceed: SyncNext, again: SyncNext | None = None) -> SyncNext:
    """One permit, no key: without the pool's lock while nobody waits (see `_limit.core`).

    `again` is such a shell too, for calls that a rate inside sends back (see `_turns`); None where there is none.
    """
    sent_back = () if again is None else MustWait
    tokens, push = pool.tokens, pool.tokens.append
    enter, priority_of, only = limit.gate.enter, needs.priority, (pool, None)

    def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        taken, waited, outer = False, 0.0, call.held
        try:
            if not pool.slow:
                try:
                    del tokens[-1]
                    taken = True
                except IndexError:
                    pass  # what is raised further down must not have this in its context
            if not taken:
                waited = enter(call, pool, 1, priority_of(fn, args, kwargs), limit.max_wait)
                taken = True
            call.held = only if outer is None else (pool, outer)
            if bus.threshold <= TRACE:
                limit.tell_acquired(call, pool, waited)
            return proceed(call, fn, args, kwargs)
        except sent_back as must:
            turn = must.turn
        finally:
            call.held = outer
            if taken:
                try:
                    push(True)
                    if pool.slow:
                        pool.post(None)
                except BaseException:  # of a signal handler: others wait for it
                    pool.post(None)
                    raise
        return take_turns(turn, cast("SyncNext", again), call, fn, args, kwargs)

    return shell


def full_shell(limit: Limit, needs: Needs, is_stream: bool, proceed: SyncNext) -> SyncNext:
    """Keys, weights, streams and adaptive limits."""

    def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        stay = Stay(limit, call, needs, fn, args, kwargs)
        try:
            waited = limit.gate.enter(call, stay.pool, stay.weight, needs.priority(fn, args, kwargs), limit.max_wait)
        except BaseException:
            stay.pool.depart()
            raise
        try:
            stay.begin(waited)
            result = proceed(call, fn, args, kwargs)
            stay.learn(None)
        except BaseException as error:
            stay.end()
            stay.learn(error)
            raise
        _end_or_last(stay, call, is_stream)
        return result

    return shell


def quick_async_shell(
    limit: Limit, pool: Pool, needs: Needs, proceed: AsyncNext, again: AsyncNext | None = None
) -> AsyncNext:
    """`quick_shell` for coroutine functions."""
    sent_back = () if again is None else MustWait
    tokens, push = pool.tokens, pool.tokens.append
    enter, priority_of, only = limit.gate.enter_async, needs.priority, (pool, None)

    async def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        taken, waited, outer = False, 0.0, call.held
        try:
            if not pool.slow:
                try:
                    del tokens[-1]
                    taken = True
                except IndexError:
                    pass
            if not taken:
                waited = await enter(call, pool, 1, priority_of(fn, args, kwargs), limit.max_wait)
                taken = True
            call.held = only if outer is None else (pool, outer)
            if bus.threshold <= TRACE:
                limit.tell_acquired(call, pool, waited)
            return await proceed(call, fn, args, kwargs)
        except sent_back as must:
            turn = must.turn
        finally:
            call.held = outer
            if taken:
                try:
                    push(True)
                    if pool.slow:
                        pool.post(None)
                except BaseException:  # of a signal handler: others wait for it
                    pool.post(None)
                    raise
        return await take_turns_async(turn, cast("AsyncNext", again), call, fn, args, kwargs)

    return shell


def full_async_shell(limit: Limit, needs: Needs, is_stream: bool, proceed: AsyncNext) -> AsyncNext:
    """`full_shell` for coroutine functions and async generators."""
    enter = limit.gate.enter_async

    async def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        stay = Stay(limit, call, needs, fn, args, kwargs)
        try:
            waited = await enter(call, stay.pool, stay.weight, needs.priority(fn, args, kwargs), limit.max_wait)
        except BaseException:
            stay.pool.depart()
            raise
        try:
            stay.begin(waited)
            result = await proceed(call, fn, args, kwargs)
            stay.learn(None)
        except BaseException as error:
            stay.end()
            stay.learn(error)
            raise
        _end_or_last(stay, call, is_stream)
        return result

    return shell


def _end_or_last(stay: Stay, call: Call, is_stream: bool) -> None:
    """A stream keeps its permits until it ends."""
    if is_stream and call.stream is not None:
        call.stream.exits.append(stay.end)
    else:
        stay.end()
