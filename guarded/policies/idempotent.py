"""idempotent: once per key.

The first call of a key runs the function; duplicates in flight join that run, later ones get a fresh copy of its
result for `ttl` from its completion. One execution per key at a time, over tasks, loops and threads, and over
processes with a durable store. Async work runs in a task of its own, so that cancelling a caller harms no other;
sync work runs in the thread of the first caller. Times are seconds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

from guarded._core import clock, waiters
from guarded._core.binding import underlying
from guarded._core.call import Call
from guarded._core.durations import Duration, format_duration, parse_duration
from guarded._core.factory import factory
from guarded._core.keys import binder_for, compile_key, key_problem
from guarded._core.policy import Args, AsyncNext, Fn, Kwargs, Policy, Site, SyncNext
from guarded._core.registry import registry
from guarded._core.waiters import ThreadWaiter
from guarded.policies._idempotent.async_shell import AsyncShell
from guarded.policies._idempotent.core import AGAIN, JOINING, Conduct, is_own, polls
from guarded.policies._idempotent.inflight import Cut, Failed, Neutral, Outcome, Phase, Returned, Run, Runs, Step
from guarded.policies._idempotent.results import Bytes, Copies, Keeper, return_problem
from guarded.policies._store_option import WhenStoreFails, read_store
from guarded.stores.contract.idempotent import IdempotentStore, Running
from guarded.stores.memory import MemoryStore

OnDuplicate = Literal["join", "reject"]
OnAbandoned = Literal["rerun", "raise"]


@dataclass(frozen=True, slots=True)
class IdempotentOptions:
    """What `idempotent` was given; `ttl` and `lease` in seconds."""

    key: str | Callable[..., object] | None = None
    ttl: float = 86_400.0
    on_duplicate: OnDuplicate = "join"
    fingerprint: bool = True
    store_errors: tuple[type[Exception], ...] = ()
    lease: float = 30.0
    on_abandoned: OnAbandoned = "rerun"
    store: Any = None
    when_store_fails: WhenStoreFails = "closed"

    @classmethod
    def checked(cls, **given: Any) -> IdempotentOptions:
        """Raise one ValueError that names every wrong option."""
        problems = []
        if given["key"] is not None and (problem := key_problem(given["key"])):
            problems.append(f"key={given['key']!r}: {problem}")
        for option in ("ttl", "lease"):
            try:
                given[option] = parse_duration(given[option], option=option)
            except ValueError as error:
                problems.append(str(error))
        for option, choices in (("on_duplicate", ("join", "reject")), ("on_abandoned", ("rerun", "raise"))):
            if given[option] not in choices:
                problems.append(f"{option}={given[option]!r}: must be {choices[0]!r} or {choices[1]!r}")
        if not isinstance(given["fingerprint"], bool):
            problems.append(f"fingerprint={given['fingerprint']!r}: must be True or False")
        errors = given["store_errors"]
        given["store_errors"] = errors = errors if isinstance(errors, (tuple, list)) else (errors,)
        wrong = [each for each in errors if not (isinstance(each, type) and issubclass(each, Exception))]
        if wrong:
            problems.append(f"store_errors={wrong[0]!r}: must be Exception types; control flow is never stored")
        given["store_errors"] = tuple(errors)
        store, mode = given["store"], given["when_store_fails"]
        if mode != "closed" or not (store is None or isinstance(store, IdempotentStore)):
            given["store"] = read_store(store, "idempotent", "", mode, problems)
        if problems:
            raise ValueError("idempotent: " + "; ".join(problems))
        return cls(**given)


class _SyncShell:
    """Drives runs in the threads of their first callers."""

    def __init__(self, conduct: Conduct, proceed: SyncNext) -> None:
        self._conduct = conduct
        self._proceed = proceed

    def __call__(self, call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        conduct = self._conduct
        key, claim = conduct.identity.of(fn, args, kwargs)
        result = AGAIN
        while result is AGAIN:
            entry = conduct.runs.enter(key, claim, call, join=conduct.joins, make=ThreadWaiter)
            step, run = entry.step, entry.run
            try:
                if step is Step.LEAD:
                    self._lead(run, call, fn, args, kwargs)
                elif isinstance(entry.waiter, ThreadWaiter):
                    if step is Step.JOIN:
                        conduct.joined(run, call)
                    self._wait(run, call, entry.waiter)
                    if step is Step.WATCH:
                        continue
                elif step is not Step.TAKE:
                    conduct.refuse(entry, call)
                result = conduct.deliver(run, call, step is Step.LEAD)
            finally:
                del entry, run  # an exception in flight has this frame in its traceback
        return result

    def _wait(self, run: Run, call: Call, waiter: ThreadWaiter) -> None:
        try:
            waiters.wait(call, waiter, inf, JOINING)
        except BaseException:
            self._conduct.runs.leave(run, waiter)
            raise

    def _lead(self, run: Run, call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> None:
        """Bring the run to its outcome; only what is no Exception leaves here."""
        conduct = self._conduct
        try:
            outcome = self._ask(run, call)
            if outcome is None:
                conduct.runs.advance(run, Phase.GOING)
                outcome = self._run(run, call, fn, args, kwargs)
        except Exception as error:
            outcome = Cut(error) if is_own(run, call, error) else Failed(error)
        except BaseException:
            conduct.release(run)
            conduct.runs.settle(run, Neutral())
            raise
        if run.phase is not Phase.OVER:
            conduct.release(run)
            conduct.runs.settle(run, outcome)
        del outcome

    def _ask(self, run: Run, call: Call) -> Outcome | None:
        conduct = self._conduct
        for pause in polls():
            verdict = conduct.begin(run, call)
            if not isinstance(verdict, Running):
                return verdict
            waiters.refuse_on_loop_thread(f"{call.function}: {JOINING}", conduct.policy.label)
            conduct.runs.advance(run, Phase.GOING)
            # no mere sleep: the run of another process is waited for
            waiters.wait(call, ThreadWaiter(), clock.monotonic() + min(pause, verdict.left), JOINING)
        raise AssertionError("polls never end")

    def _run(self, run: Run, call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Outcome:
        conduct = self._conduct
        held, outer_key = call.held, call.key
        call.held, call.key = (run, held), run.key
        started = clock.monotonic()
        outcome: Returned | Failed | Cut
        try:
            value = self._proceed(call, fn, args, kwargs)
        except Exception as error:
            outcome = conduct.raised(run, call, error)
        else:
            outcome = conduct.returned(run, call, value)
        finally:
            call.held, call.key = held, outer_key
        try:
            if not isinstance(outcome, Cut) and outcome.payload is not None:
                conduct.save(run, call, outcome, started)
            return outcome
        finally:
            del outcome  # the traceback of a failure has this frame: no cycle through its outcome


def _is_method(wrapped: Any) -> bool:
    """Whether calls depend on an instance: a method, a class method, or an object with ``__call__``."""
    target, args, _ = underlying(wrapped)
    return binder_for(wrapped).instance is not None or bool(args) or not inspect.isroutine(target)


class Idempotent(Policy[IdempotentOptions]):
    """Runs a function once per key and gives every further caller a fresh copy of the result.

    Attributes:
        store: where finished results live; by default the memory of this process, for this policy alone.
        runs: the runs in flight in this process.
    """

    kind = "idempotent"

    def __init__(self, options: IdempotentOptions, *, name: str | None = None) -> None:
        super().__init__(options, name=name)
        self.runs = Runs()
        self._store = self._open()

    def _open(self) -> IdempotentStore[Any]:
        store = self.options.store
        if store is None:
            return MemoryStore()
        if isinstance(store, IdempotentStore):
            return store
        from guarded.policies._idempotent.stored import Behind  # only where there is a store that may fail

        return Behind(self, store, self.options.when_store_fails)

    def reconfigure(self, options: IdempotentOptions) -> None:
        """Take other options; results go on where the store is the same."""
        before = self.options
        super().reconfigure(options)
        if (before.store, before.when_store_fails) != (options.store, options.when_store_fails):
            self._store = self._open()

    @property
    def store(self) -> IdempotentStore[Any]:
        """The store in force."""
        return self._store

    def keeper(self) -> Keeper:
        """What turns results into what the store keeps."""
        if not self.store.durable:
            return Copies()
        from guarded.stores.codec import Codec

        return Bytes(Codec(), self.options.store_errors)

    def snapshot(self) -> dict[str, Any]:
        """How many runs are in flight here, and what a memory store holds."""
        stored = self.store.snapshot() if isinstance(self.store, MemoryStore) else {"store": self.store.name}
        return {**stored, "running": len(self.runs)}

    def check(self, site: Site) -> None:
        """Refuse generators, results that cannot be kept, and methods without a key."""
        if site.is_stream:
            raise TypeError(
                f"{site.function} is a generator, whose items cannot be replayed: "
                "put @idempotent on a function that returns a list of them"
            )
        problem = return_problem(underlying(site.wrapped)[0], self.store.durable)
        if problem is not None:
            raise TypeError(f"{site.function} cannot be idempotent: {problem}")
        if self.options.key is not None:
            compile_key(self.options.key, site.wrapped)
        elif _is_method(site.wrapped):
            raise TypeError(
                f"{site.function} is a method, whose instance cannot be part of a key: name the key, "
                "as in @idempotent(key='order_id')"
            )

    def sync_layer(self, proceed: SyncNext, site: Site) -> SyncNext:
        """Runs in the thread of the first caller; others park."""
        return _SyncShell(Conduct(self, site), proceed)

    def async_layer(self, proceed: AsyncNext, site: Site) -> AsyncNext:
        """Runs in a task of its own; all callers await it."""
        return AsyncShell(Conduct(self, site), proceed)

    def __repr__(self) -> str:
        options = self.options
        key = options.key if isinstance(options.key, str) else getattr(options.key, "__name__", "…")
        shown = "" if options.key is None else f"key={key!r}, "
        return f"idempotent({shown}ttl={format_duration(options.ttl)!r}{f', name={self.name!r}' if self.name else ''})"


@factory
def idempotent(
    key: str | Callable[..., object] | None = None,
    *,
    ttl: Duration = "24h",
    on_duplicate: OnDuplicate = "join",
    fingerprint: bool = True,
    store_errors: type[Exception] | tuple[type[Exception], ...] = (),
    lease: Duration = 30,
    on_abandoned: OnAbandoned = "rerun",
    store: Any = None,
    when_store_fails: WhenStoreFails = "closed",
    name: str | None = None,
) -> Idempotent:
    """Run a function once per key; duplicates join the run in flight or get a fresh copy of its result.

    Args:
        key: a parameter name, a template such as ``"{order.id}:{region}"``, or a callable that gets the arguments
            it names. Default: all arguments; methods must give one. The function's qualified name is part of it.
        ttl: how long a result is replayed, from its completion. Default 24 hours.
        on_duplicate: ``"join"`` waits for the run in flight, ``"reject"`` raises InProgress at once.
        fingerprint: compare the other arguments too: the same key with others raises KeyMismatch. Default True.
        store_errors: types of exceptions that are replayed like results; others let the next call run again.
        lease: durable stores only: seconds after which a run whose process died counts as abandoned. It is renewed
            every third of that. Default 30.
        on_abandoned: ``"rerun"`` runs an abandoned key again, ``"raise"`` raises Abandoned.
        store: where results are kept: an address such as ``"redis://host:6379/0"`` or ``"sqlite:///jobs.db"``, a store,
            or any `IdempotentStore`. Default: the memory of this process.
        when_store_fails: for stores by address: ``closed`` raises StoreError before the effect; ``local`` goes on with
            the memory of this process, ``open`` without any: both may run a key twice.
        name: registers the policy.

    Raises:
        ValueError: naming every wrong option.

    Example:
        >>> from guarded import idempotent
        >>> @idempotent(key="order_id")
        ... def charge(order_id: str) -> str:
        ...     print("charged")
        ...     return f"receipt for {order_id}"
        >>> charge("A1") == charge("A1")
        charged
        True
    """
    options = IdempotentOptions.checked(
        key=key,
        ttl=ttl,
        on_duplicate=on_duplicate,
        fingerprint=fingerprint,
        store_errors=store_errors,
        lease=lease,
        on_abandoned=on_abandoned,
        store=store,
        when_store_fails=when_store_fails,
    )
    return registry.intern(Idempotent(options, name=name))
