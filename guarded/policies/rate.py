"""rate: how many per time.

One budget for threads and any number of event loops. Beside this: `_rate.meters` count, `_rate.queue` keeps those who
wait in order of arrival, `_rate.lines` holds all keys under one lock, `_rate.wait` sleeps, `_rate.shells` goes around
callables, `_turns` lets a rate inside a limit wait without a permit. Waits are seconds, costs are units.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from guarded._core.call import Call, current
from guarded._core.durations import Duration, parse_duration
from guarded._core.factory import factory
from guarded._core.fork import after_fork
from guarded._core.keys import Key, canonical
from guarded._core.numbers import is_whole
from guarded._core.policy import AsyncNext, Policy, Site, SyncNext
from guarded._core.registry import registry
from guarded.events.bus import bus
from guarded.policies._rate.core import Algorithm
from guarded.policies._rate.hand import UNCOUNTED, Admission, Peek, RateSnapshot, Reservation, Spent
from guarded.policies._rate.lines import Lines
from guarded.policies._rate.meters import make_meter
from guarded.policies._rate.options import RateOptions
from guarded.policies._rate.shells import Needs, full_async_shell, full_shell, quick_async_shell, quick_shell
from guarded.policies._rate.wait import Gate
from guarded.policies._store_option import WhenStoreFails

if TYPE_CHECKING:
    from guarded.policies._rate.stored import StoredRate

__all__ = ["Admission", "Peek", "Rate", "RateOptions", "RateSnapshot", "Reservation", "rate"]


class Rate(Policy[RateOptions]):
    """A budget of units per time: put it on callables, or take from it with ``with``, ``async with`` or `acquire`.

    Attributes:
        gate: the way in.
        lines: what was let through, and who waits.
        max_wait: seconds that a call may wait; ``inf`` without a bound.
    """

    kind = "rate"

    def __init__(self, options: RateOptions, *, name: str | None = None) -> None:
        super().__init__(options, name=name)
        self.gate: Gate = Gate(self)
        self.lines = self._fresh_lines()
        self._adopt()
        after_fork(self, Rate._forget_callers)

    def _fresh_lines(self) -> Lines:
        options = self.options
        make = partial(make_meter, options.algorithm, options.quotas, options.burst)
        return Lines(make, keyed=options.key is not None)

    def _adopt(self) -> None:
        options = self.options
        self.max_wait: float = inf if options.max_wait is None else options.max_wait
        self.capacity: int = options.capacity
        self.stored: StoredRate | None = None if options.store is None else self._in_store()
        self._cost = None if isinstance(options.cost, str) or callable(options.cost) else options.cost
        plain = options.key is None and self.stored is None
        self._plain = self._cost if plain else None  # what a call costs that needs neither a key nor a store

    def _in_store(self) -> StoredRate:
        from guarded.policies._rate.stored import StoredRate  # only where there is a store

        return StoredRate(self)

    def _forget_callers(self) -> None:
        self.lines.forget_callers()

    def __repr__(self) -> str:
        options = self.options
        given = [repr(options.spec), f"algorithm={options.algorithm!r}"]
        for field in fields(options):
            value = getattr(options, field.name)
            if field.name not in ("spec", "algorithm") and value != field.default:
                given.append(f"{field.name}={getattr(value, '__qualname__', None) or repr(value)}")
        if self.name:
            given.append(f"name={self.name!r}")
        return f"rate({', '.join(given)})"

    def reconfigure(self, options: RateOptions) -> None:
        """Take other options in place; what was counted goes on where algorithm, windows and keys stay the same."""
        before = self.options
        super().reconfigure(options)
        if _shape(before) != _shape(options):
            self.lines = self._fresh_lines()
        elif (before.quotas, before.burst) != (options.quotas, options.burst):
            self.lines.resize(tuple([count for count, _ in options.quotas]), options.burst)
        self._adopt()

    def check(self, site: Site) -> None:
        """Raise ValueError when `key` or `cost` names a parameter the callable has not."""
        Needs(self, site.wrapped)

    def worst_case(self, calls: float, seconds: float, site: Site) -> tuple[float, float]:
        """Adds the longest wait for a due time."""
        return calls, seconds + self.max_wait

    def live_state(self) -> dict[str, Any]:
        """The snapshot as plain values."""
        return self.snapshot().as_dict()

    def sync_layer(self, proceed: SyncNext, site: Site) -> SyncNext:
        """Counts each call before it starts, waiting for its due time; of a generator, the start."""
        if self._plain is not None and not site.is_stream:
            return quick_shell(self, self._plain, site, proceed)
        return full_shell(self, Needs(self, site.wrapped), site, proceed)

    def async_layer(self, proceed: AsyncNext, site: Site) -> AsyncNext:
        """The same for coroutine functions and async generators."""
        if self._plain is not None and not site.is_stream:
            return quick_async_shell(self, self._plain, site, proceed)
        return full_async_shell(self, Needs(self, site.wrapped), site, proceed)

    def possible(self, cost: int) -> int:
        """`cost` itself; ValueError when it is above what can ever be admitted."""
        if cost > self.capacity:
            raise ValueError(f"cost: {cost} is above the capacity of {self!r}, so the call could never run")
        return cost

    def try_acquire(self, cost: int | None = None, *, key: object = None) -> bool:
        """Whether the call is let through at once; if not, nothing is counted.

        Args:
            cost: units; default the rate's own cost, where that is a number.
            key: whose budget, where the rate has keys.

        Raises:
            ValueError: no whole number from 1 up, or above the capacity.
            TypeError: a key or cost is missing, or there are no keys.
        """
        if cost is None and key is None and self._plain is not None:
            return self.lines.take(None, self._plain) is not None
        if self.stored is not None:
            return self.stored.try_take(current.get() or Call(), self._key_of(key), self._cost_of(cost))
        return self.lines.take(self._key_of(key), self._cost_of(cost)) is not None

    def acquire(self, cost: int | None = None, *, key: object = None, timeout: Duration | None = None) -> Admission:
        """Be let through, blocking this thread until the due time; the `Admission` can be refunded or settled.

        Args:
            cost: like `try_acquire`.
            key: like `try_acquire`.
            timeout: how long to wait at most; 0 not at all, default the rate's `max_wait`.

        Raises:
            RateExceeded: at once, when the due time is later than that, or past the deadline.
            DeadlineExceeded, Cancelled, Deadlock: like a guarded call.
        """
        key, cost, max_wait = self._key_of(key), self._cost_of(cost), self._patience(timeout)
        if self.stored is not None:
            mark = self.stored.enter(current.get() or Call(), key, cost, max_wait)
        else:
            mark = self.lines.take(key, cost)
            if mark is None:
                mark = self.gate.enter(current.get() or Call(), key, cost, max_wait)
        return Admission([self, key, mark, cost, None])

    async def acquire_async(
        self,
        cost: int | None = None,
        *,
        key: object = None,
        timeout: Duration | None = None,  # noqa: ASYNC109
    ) -> Admission:
        """Like `acquire`, suspending the running task."""
        key, cost, max_wait = self._key_of(key), self._cost_of(cost), self._patience(timeout)
        if self.stored is not None:
            mark = await self.stored.enter_async(current.get() or Call(), key, cost, max_wait)
        else:
            mark = self.lines.take(key, cost)
            if mark is None:
                mark = await self.gate.enter_async(current.get() or Call(), key, cost, max_wait)
        return Admission([self, key, mark, cost, None])

    def reserve(self, cost: int | None = None, *, key: object = None, timeout: Duration | None = None) -> Reservation:
        """A place in the queue without waiting for it: the caller sleeps `Reservation.delay` itself, or cancels.

        Arguments and errors are those of `acquire`. From its due time on it counts as used. TypeError where the state
        lives in a store, which has to hear of the moment the caller goes on.
        """
        if self.stored is not None:
            raise TypeError(
                f"rate {self.label!r} makes no reservations, since its store has to hear of the moment the caller goes "
                "on: use acquire(), which waits, or peek(), which says how long that would take"
            )
        call = current.get() or Call()
        ticket = self.gate.begin(call, self._key_of(key), self._cost_of(cost), None, self._patience(timeout))
        return Reservation(self, ticket)

    def peek(self, cost: int | None = None, *, key: object = None) -> Peek:
        """What a call of that cost would meet; changes nothing."""
        if self.stored is not None:
            return self.stored.look(current.get() or Call(), self._key_of(key), self._cost_of(cost))
        free, delay, queued = self.lines.look(self._key_of(key), self._cost_of(cost))
        return Peek(free, delay, queued)

    def refund(self, cost: int | None = None, *, key: object = None) -> None:
        """Give units back: no request was made after all.

        Args:
            cost: how many; default all that the running call was counted for, outside of a call the rate's own cost.
            key: whose budget, outside of a call.

        Inside a guarded call it is this call's admission that is reduced, outside it is what was admitted last. What no
        longer counts anyway is not given back.
        """
        spent = self._spent() if key is None else None
        if spent is None:
            self._take_back(self._key_of(key), self._cost_of(cost))
        else:
            Admission(spent).settle(0 if cost is None else max(0, spent[3] - self._cost_of(cost)))

    def _take_back(self, key: Key, cost: int) -> None:
        if self.stored is None:
            self.lines.correct(key, None, -cost)
        else:
            self.stored.correct(key, "", cost, -cost)

    def correct(self, key: Key, mark: Any, cost: int, units: int) -> None:
        """Count `units` more, or fewer, for an admission of `cost`, wherever that was counted."""
        if not isinstance(mark, str):
            self.lines.correct(key, mark, units)
        elif mark is not UNCOUNTED and self.stored is not None:  # None: a reload has taken the store away
            self.stored.correct(key, mark, cost, units)

    def settle(self, actual: int) -> None:
        """Correct the cost of the running call to `actual` units, see `Admission.settle`.

        Raises LookupError outside of a call guarded by this rate: there, use what `acquire` gave.
        """
        spent = self._spent()
        if spent is None:
            raise LookupError(f"{self!r} does not guard the running call: settle the Admission that acquire() gave")
        Admission(spent).settle(actual)

    def pause(self, seconds: Duration) -> None:
        """Let nobody through for `seconds`: the server has asked for it.

        It affects every key and every caller, those that wait already included; who would wait longer than `max_wait`
        or the deadline for it is refused. A pause never shortens an earlier one, and 0 does nothing: so may a server
        answer (``Retry-After: 0``, or a date that has passed).
        """
        length = parse_duration(seconds, option="seconds", allow_zero=True)
        if not length:
            return
        self.lines.pause(length)
        if self.stored is not None:
            self.stored.pause(length)
        bus.emit("rate.paused", current.get(), self, delay=length)

    def snapshot(self) -> RateSnapshot:
        """What is free and who waits, at this moment."""
        keyed = self.options.key is not None
        keys, queued, paused = self.lines.totals()
        free = None if keyed or self.stored is not None else self.lines.look(None, 1).free
        return RateSnapshot(self.options.spec, self.options.algorithm, free, queued, paused, keys if keyed else None)

    def _spent(self) -> Spent | None:
        """What the nearest running call that this rate guards was counted for."""
        call = current.get()
        while call is not None:
            spent: Spent | None = call.spent
            while spent is not None:
                if spent[0] is self:
                    return spent
                spent = spent[4]
            call = call.parent
        return None

    def _key_of(self, key: object) -> Key:
        keyed = self.options.key is not None
        if keyed is (key is None):
            raise TypeError(f"{self!r} has a budget for each key: give a key" if keyed else f"{self!r} has no keys")
        return key if key is None or isinstance(key, str) else canonical(key)

    def _cost_of(self, cost: int | None) -> int:
        if cost is None:
            if self._cost is None:
                raise TypeError(f"{self!r} takes the cost from the arguments of a call: give a cost")
            return self._cost
        if not is_whole(cost, 1):
            raise ValueError(f"cost={cost!r}: must be a whole number from 1 up")
        return self.possible(cost)

    def _patience(self, timeout: Duration | None) -> float:
        return self.max_wait if timeout is None else parse_duration(timeout, option="timeout", allow_zero=True)

    def __enter__(self) -> Admission:
        return self.acquire()

    def __exit__(self, *exc_info: object) -> None:
        pass

    async def __aenter__(self) -> Admission:
        return await self.acquire_async()

    async def __aexit__(self, *exc_info: object) -> None:
        pass


def _shape(options: RateOptions) -> tuple[Any, ...]:
    """What has to stay the same for the counts to mean the same."""
    return options.algorithm, tuple([window for _, window in options.quotas]), options.key is None


@factory
def rate(
    spec: str | int,
    *,
    per: Duration | None = None,
    name: str | None = None,
    burst: int | None = None,
    algorithm: Algorithm = "sliding",
    max_wait: Duration | None = None,
    key: str | Callable[..., object] | None = None,
    cost: int | str | Callable[..., int] = 1,
    store: Any = None,
    when_store_fails: WhenStoreFails = "local",
) -> Rate:
    """Let so many calls, or units of cost, through per time; the others wait for their due time, in order.

    Args:
        spec: quotas such as ``"100/minute"`` or ``"5/s; 1000/h"``, all of which hold; or a number, with `per`.
        per: the window of a number; default none.
        name: registers the rate; the same name with equal options is the same rate.
        burst: units at once, ``gcra`` only; default the whole quota.
        algorithm: ``sliding`` never more than the quota in any window of that length; ``gcra`` the quota on average,
            with bursts (a token bucket, ITU-T I.371); ``leaky`` paced, one every window / quota; ``fixed`` windows
            aligned to UTC, up to twice the quota across a boundary.
        max_wait: how long a call may wait; 0 refuses at once, default None waits as long as it takes. Who would be
            due later than that, or past the deadline, is refused at once with RateExceeded and counts for nothing.
        key: one budget per key: a parameter name, a template ``"{tenant}"``, or a callable. A key costs memory only
            while it is in use: one that decides like a new one is forgotten.
        cost: units of a call: a number, a parameter name, a template or a callable; ValueError at the call when it is
            below 1 or above the capacity.
        store: where the state lives: an address such as ``"redis://host:6379/0"``, or a store; default in this process.
            All processes that say the same name share the budget.
        when_store_fails: ``local`` goes on with a budget of this process alone, ``open`` lets every call through,
            ``closed`` raises StoreError.

    What is admitted stays counted when the call fails, or is refused further in; `Rate.refund` gives it back.

    Raises:
        ValueError: naming every wrong option.
        PolicyConflict: the name is taken by a policy with other options.

    Example:
        >>> from guarded import rate
        >>> partner = rate("2/minute", max_wait=0)
        >>> [partner.try_acquire() for _ in range(3)]
        [True, True, False]
    """
    options = RateOptions.checked(
        spec,
        per,
        max_wait,
        burst=burst,
        algorithm=algorithm,
        key=key,
        cost=cost,
        store=store,
        when_store_fails=when_store_fails,
        name=name,
    )
    return registry.intern(Rate(options, name=name))
