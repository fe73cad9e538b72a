"""limit: how many at once (bulkhead).

One budget of permits for threads and any number of event loops, served in strict order of arrival inside a priority.
Beside this: `_limit.core` decides, `_limit.wait` stands in the queue, `_limit.shells` goes around callables.
Waits are seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from math import inf
from typing import TYPE_CHECKING, Any, cast

from guarded._core import clock
from guarded._core.call import Call, current
from guarded._core.durations import Duration, parse_duration
from guarded._core.factory import factory
from guarded._core.fork import after_fork
from guarded._core.keys import Key, canonical
from guarded._core.numbers import is_whole
from guarded._core.policy import AsyncNext, Site, SyncNext
from guarded._core.registry import registry
from guarded.events.bus import bus
from guarded.events.model import DEBUG, TRACE
from guarded.policies._limit.adaptive import Adaptive, adaptive
from guarded.policies._limit.blocks import Blocks
from guarded.policies._limit.core import KeyedPools, LimitSnapshot, Pool
from guarded.policies._limit.hand import Claim, Permit, Scope
from guarded.policies._limit.learner import Learner
from guarded.policies._limit.options import Amount, LimitOptions
from guarded.policies._limit.shells import Needs, full_async_shell, full_shell, quick_async_shell, quick_shell
from guarded.policies._limit.wait import Gate
from guarded.policies._store_option import WhenStoreFails
from guarded.policies._turns import is_sent_back, with_turns, with_turns_async

if TYPE_CHECKING:
    from guarded.policies._limit.stored import StoredLimit

__all__ = ["Adaptive", "Limit", "LimitOptions", "LimitSnapshot", "Permit", "adaptive", "limit"]


class Limit(Blocks):
    """A budget of permits: put it on callables, or around a block with ``with`` or ``async with``.

    Attributes:
        gate: the way to a permit.
        learner: what sizes an adaptive limit; None for a fixed one.
        max_wait: seconds that a call may wait; ``inf`` without a bound.
    """

    kind = "limit"
    _label: str | None

    def __init__(self, options: LimitOptions, *, name: str | None = None) -> None:
        super().__init__(options, name=name)
        self.stored: StoredLimit | None = None
        self._build()
        after_fork(self, Limit._forget_callers)

    def _build(self) -> None:
        """Fresh pools for the options."""
        make = Pool if self.options.key is None else KeyedPools
        self._pools: Pool | KeyedPools = make(self.options.initial, self.options.max_queue)
        self._adopt()

    def _forget_callers(self) -> None:
        """A forked child: who held and who waited is in the parent. A call that goes on here ends in the old pools."""
        old = self._pools
        self._pools = fresh = type(old)(old.limit, old.max_queue)
        if old.closed:
            fresh.close()
        if self._quick is not None:
            self._quick = cast("Pool", fresh)
        if self.learner is not None:
            self.learner.renew_lock()

    @property
    def label(self) -> str:
        """Name, else the repr, which is made once: a long queue asks for it often."""
        if self._label is None:
            self._label = self.name or repr(self)
        return self._label

    @property
    def local_pools(self) -> Pool | KeyedPools:
        """The permits of this process, also where those in force live in a store."""
        return self._pools

    def _adopt(self) -> None:
        """What follows from the options without touching the pools."""
        self._label = None
        options, size = self.options, self.options.max_concurrent
        self.max_wait = inf if options.max_wait is None else options.max_wait
        self.learner = Learner(self, size) if isinstance(size, Adaptive) else None
        self._weight = None if isinstance(options.weight, str) or callable(options.weight) else options.weight
        self._priority = options.priority if isinstance(options.priority, int) else 0
        pools = self._pools if self._weight == 1 and self.learner is None else None
        self._quick = pools if isinstance(pools, Pool) else None  # may be taken from without the lock
        if options.store is not None:
            self._quick = None
            self.stored = self.stored or self._in_store()
        self.gate: Gate = self.stored or Gate(self)

    def _in_store(self) -> StoredLimit:
        from guarded.policies._limit.stored import StoredLimit  # only where there is a store

        return StoredLimit(self)

    def __repr__(self) -> str:
        given = [repr(self.options.max_concurrent)]
        given += [
            f"{field.name}={_shown(value)}"
            for field in fields(self.options)[1:]
            if (value := getattr(self.options, field.name)) != field.default
        ]
        if self.name:
            given.append(f"name={self.name!r}")
        return f"limit({', '.join(given)})"

    def reconfigure(self, options: LimitOptions) -> None:
        """Take other options in place: the pools are resized, holders finish, waiters keep their places."""
        before, closed = self.options, self._pools.closed
        super().reconfigure(options)
        other_keys = (before.key is None) is not (options.key is None)
        if other_keys or (before.store, before.when_store_fails) != (options.store, options.when_store_fails):
            self.stored = None
        if other_keys:
            self._build()
            if closed:
                self.close()
            return
        if before.max_concurrent == options.max_concurrent:
            learner = self.learner
            self._adopt()
            self.learner = learner  # what it has learned still holds
        else:
            self._adopt()
            previous = self.apply(options.initial)
            self.tell_resized(None, previous, options.initial, "reconfigured")
        self._pools.allow(options.max_queue)
        if self.stored is not None:
            self.stored.allow(options.max_queue)

    def check(self, site: Site) -> None:
        """Raise ValueError when `key`, `weight` or `priority` names a parameter the callable has not."""
        Needs(self.options, site.wrapped)

    def worst_case(self, calls: float, seconds: float, site: Site) -> tuple[float, float]:
        """Adds the longest wait for a permit."""
        return calls, seconds + (0.0 if self.options.max_queue == 0 else self.max_wait)

    def live_state(self) -> dict[str, Any]:
        """The snapshot as plain values."""
        return self.snapshot().as_dict()

    def sync_layer(self, proceed: SyncNext, site: Site) -> SyncNext:
        """Holds the permits for the whole call, of a generator from its first ``next`` to its end."""
        needs = Needs(self.options, site.wrapped)
        if self._quick is not None and not site.is_stream:
            shell = quick_shell(self, self._quick, needs, proceed)
            return quick_shell(self, self._quick, needs, proceed, shell) if is_sent_back(site) else shell
        return with_turns(full_shell(self, needs, site.is_stream, proceed), site)

    def async_layer(self, proceed: AsyncNext, site: Site) -> AsyncNext:
        """The same for coroutine functions and async generators."""
        needs = Needs(self.options, site.wrapped)
        if self.stored is not None:
            return with_turns_async(self.stored.async_shell(needs, site.is_stream, proceed), site)
        if self._quick is not None and not site.is_stream:
            shell = quick_async_shell(self, self._quick, needs, proceed)
            return quick_async_shell(self, self._quick, needs, proceed, shell) if is_sent_back(site) else shell
        return with_turns_async(full_async_shell(self, needs, site.is_stream, proceed), site)

    def resize(self, limit: int) -> None:
        """Set how many at once (of each key, where there are keys); never blocks.

        Growing serves waiters in order. Shrinking lets holders finish; 0 pauses. A call whose weight no longer fits
        runs alone. An adaptive limit goes on from there, but for 0, which also stops it from learning.

        Raises:
            ValueError: not a whole number from 0 up.
        """
        if not is_whole(limit, 0):
            raise ValueError(f"limit={limit!r}: must be a whole number from 0 up")
        previous = self.apply(limit) if self.learner is None else self.learner.override(limit)
        self.tell_resized(current.get(), previous, limit, "resized")

    def apply(self, limit: int) -> int:
        """Resize without a word; gives the previous size."""
        previous = self._pools.limit
        if previous != limit:
            self._pools.resize(limit)
        return previous

    def tell_resized(self, call: Call | None, previous: int, limit: int, reason: str) -> None:
        """The size has changed, if it has."""
        if previous != limit and bus.threshold <= DEBUG:
            state = self.snapshot()
            bus.emit(
                "limit.resized",
                call,
                self,
                active=state.held,
                queued=state.queued,
                limit=limit,
                previous=previous,
                reason=reason,
            )

    def close(self) -> None:
        """Refuse new calls, and those that wait, with LimitFull; those inside finish."""
        self._pools.close()
        if self.stored is not None:
            self.stored.close()

    def snapshot(self) -> LimitSnapshot:
        """What is held and who waits, at this moment; summed over all keys."""
        return (self._pools if self.stored is None else self.stored).snapshot(clock.monotonic())

    def acquire(
        self,
        *,
        timeout: Duration | None = None,
        key: object = None,
        weight: int | None = None,
        priority: int | None = None,
    ) -> Permit:
        """Take permits by hand, blocking this thread; `Permit.release` gives them back.

        Args:
            timeout: how long to wait at most; 0 not at all, default the limit's `max_wait`.
            key: which budget, where the limit has keys.
            weight: how many permits; default the limit's own weight, where that is a number.
            priority: higher goes first; default the limit's own, where that is a number, else 0.

        Raises:
            LimitFull, DeadlineExceeded, Cancelled, Deadlock: like a guarded call. Nobody can know where a permit taken
                by hand is released, so taking another one inside it may wait for ever.
            TypeError: a key or weight is missing, or there are no keys.
        """
        claim = self._claim(timeout, key, weight, priority)
        taken = False
        try:
            waited = self.gate.enter(*claim)
            taken = True
            return self._permit(claim, waited)
        except BaseException:
            if taken:
                claim.pool.give_back(claim.weight)
            claim.pool.depart()
            raise

    async def acquire_async(
        self,
        *,
        timeout: Duration | None = None,  # noqa: ASYNC109 - the word of every semaphore, and it covers the wait only
        key: object = None,
        weight: int | None = None,
        priority: int | None = None,
    ) -> Permit:
        """Like `acquire`, suspending the running task."""
        claim = self._claim(timeout, key, weight, priority)
        taken = False
        try:
            waited = await self.gate.enter_async(*claim)
            taken = True
            return self._permit(claim, waited)
        except BaseException:
            if taken:
                claim.pool.give_back(claim.weight)
            claim.pool.depart()
            raise

    def _claim(self, timeout: Duration | None, key: object, weight: int | None, priority: int | None) -> Claim:
        keyed = isinstance(self._pools, KeyedPools)
        if keyed is (key is None):
            raise TypeError(f"{self!r} has a budget for each key: give a key" if keyed else f"{self!r} has no keys")
        if weight is None:
            weight = self._weight
        elif not is_whole(weight, 1):
            raise ValueError(f"weight={weight!r}: must be a whole number from 1 up")
        if weight is None:
            raise TypeError(f"{self!r} weighs calls by their arguments: give a weight")
        if priority is None:
            priority = self._priority
        elif not is_whole(priority, -inf):
            raise ValueError(f"priority={priority!r}: must be a whole number")
        max_wait = self.max_wait if timeout is None else parse_duration(timeout, option="timeout", allow_zero=True)
        pool = self.pool_for(key if key is None or isinstance(key, str) else canonical(key), weight)
        return Claim(current.get() or Scope(), pool, weight, priority, max_wait)

    def _permit(self, claim: Claim, waited: float) -> Permit:
        permit = Permit(claim.pool, claim.weight)
        if bus.threshold <= TRACE:
            self.tell_acquired(claim.call, claim.pool, waited)
        return permit

    def pool_for(self, key: Key, weight: int) -> Pool:
        """Where a call finds its permits; `Pool.depart` has to follow. Raises ValueError for an impossible weight."""
        pools = self._pools
        if weight > pools.limit and weight > self.options.largest:
            raise ValueError(f"weight: {weight} is above the capacity of {self!r}, so the call could never run")
        if self.stored is not None:
            return cast("Pool", self.stored.loan(key, weight))
        return pools if isinstance(pools, Pool) else pools.enter(key)

    def tell_acquired(self, call: Call, pool: Pool, waited: float) -> None:
        """A call got its permits."""
        bus.emit("limit.acquired", call, self, wait=waited, active=pool.held, queued=len(pool.queue), limit=pool.limit)


def _shown(value: object) -> str:
    return getattr(value, "__qualname__", None) or repr(value)


@factory
def limit(
    max_concurrent: int | Adaptive,
    *,
    name: str | None = None,
    max_queue: int | None = None,
    max_wait: Duration | None = None,
    key: str | Callable[..., object] | None = None,
    weight: Amount = 1,
    priority: Amount | None = None,
    store: Any = None,
    when_store_fails: WhenStoreFails = "local",
) -> Limit:
    """So many calls at once, in all threads and event loops together; the others wait their turn.

    Put it on callables, or around a block: ``with db_limit:``, ``async with db_limit:``. Callers are served in order of
    arrival inside a priority, and nobody overtakes the first of the queue, whatever its weight. A generator holds
    its permits from the first item to its end.

    Args:
        max_concurrent: permits, from 1 up; or `adaptive` for a limit that finds its own size.
        name: register the policy under this name; whoever says the same shares the budget.
        max_queue: how many may wait (for each key); more are refused at once. 0: nobody waits. Default any number.
        max_wait: how long one may wait; a duration. 0: nobody waits. Default for ever, or until the deadline.
        key: one budget for each key: a parameter name, a template such as ``"{user.id}"``, or a callable over the
            arguments. A key's budget exists only while somebody holds or waits for it.
        weight: permits that a call takes, from 1 up: a number, or like `key`. Default 1.
        priority: a whole number, or like `key`; higher goes first. Asked only where it may matter. Default 0.
        store: where the budget lives: an address such as ``"redis://host:6379/0"``, or a store; None for this process.
            A holder has a lease there; `resize`, `close` and `max_queue` are about the calls of this process.
        when_store_fails: ``local`` goes on with a budget of this process alone, ``open`` lets every call through,
            ``closed`` raises StoreError.

    Raises:
        ValueError: an option is wrong; all wrong ones are named.
        PolicyConflict: the name stands for something else already.

    Calls raise LimitFull (reason ``queue_full``, ``timeout`` or ``closed``); DeadlineExceeded or Cancelled when that
    ends the wait; ValueError for a weight above the capacity; and Deadlock instead of waiting where that would freeze
    an event loop (a sync call on its thread), or where the limit is held further out already.

    Example:
        >>> from guarded import limit
        >>> db_limit = limit(20)
        >>> @db_limit
        ... def query(sql: str) -> str:
        ...     return "rows"
        >>> query("select 1")
        'rows'
    """
    options = LimitOptions.checked(
        max_wait=max_wait,
        max_concurrent=max_concurrent,
        max_queue=max_queue,
        key=key,
        weight=weight,
        priority=priority,
        store=store,
        when_store_fails=when_store_fails,
        name=name,
    )
    return registry.intern(Limit(options, name=name))
