"""idempotent: once per key.

The first call of a key runs the function; duplicates in flight join that run, later ones get a fresh copy of its
result for `ttl` from its completion. One execution per key at a time, over tasks, loops and threads, and over
processes with a durable store. Async work runs in a task of its own, so that cancelling a caller harms no other;
sync work runs in the thread of the first caller. Times are seconds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from guarded._core.binding import underlying
from guarded._core.durations import Duration, format_duration
from guarded._core.factory import factory
from guarded._core.keys import binder_for, compile_key
from guarded._core.policy import AsyncNext, Policy, Site, SyncNext
from guarded._core.registry import registry
from guarded.policies._idempotent.async_shell import AsyncShell
from guarded.policies._idempotent.core import Conduct
from guarded.policies._idempotent.inflight import Runs
from guarded.policies._idempotent.options import IdempotentOptions, OnAbandoned, OnDuplicate
from guarded.policies._idempotent.results import errors_problem, return_problem
from guarded.policies._idempotent.sync_shell import SyncShell
from guarded.policies._store_option import WhenStoreFails
from guarded.stores.contract.idempotent import IdempotentStore
from guarded.stores.memory import MemoryStore

__all__ = ["Idempotent", "IdempotentOptions", "idempotent"]


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
        self.runs: Runs = Runs()
        self.store = self._open()

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
            self.store = self._open()

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
        durable = self.store.durable
        problem = return_problem(underlying(site.wrapped)[0], durable)
        problem = problem or errors_problem(self.options.store_errors, durable)
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
        return SyncShell(self._conduct(site), proceed)

    def async_layer(self, proceed: AsyncNext, site: Site) -> AsyncNext:
        """Runs in a task of its own; all callers await it."""
        return AsyncShell(self._conduct(site), proceed)

    def _conduct(self, site: Site) -> Conduct:
        return Conduct(self, self.store, self.runs, site)

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
