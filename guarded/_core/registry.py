"""Names to policies and stacks, one namespace for the process.

The same name with equal options is the same object; with other options it is a PolicyConflict. Changes
tell listeners (compiled stacks) to look names up again, after the lock is released.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from guarded.errors import PolicyConflict, PolicyNotFound
from guarded.events.bus import bus

if TYPE_CHECKING:
    from guarded._core.policy import Policy

PolicyT = TypeVar("PolicyT", bound="Policy[Any]")


_drafting: ContextVar[bool] = ContextVar("guarded_drafting", default=False)


class Config(Protocol):
    """What a loaded file says about names; ``guarded.config`` puts one in place."""

    def overlay(self, policy: Policy[Any]) -> None:
        """Put the file's options over those that code has just declared for the same name."""

    def reload(self) -> object:
        """Read the sources again; raises ConfigError and changes nothing when they are wrong."""


class Registry:
    """The named policies and stacks of this process; iterates over its names.

    Attributes:
        config: the config in force, if any.
        block: stands for the `isolated` block that is open, or for being in none.

    Example:
        >>> from guarded import limit, registry
        >>> with registry.isolated():
        ...     db_limit = limit(20, name="db")
        ...     registry["db"] is db_limit
        True
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._policies: dict[str, Policy[Any]] = {}
        self._listeners: list[Callable[[], object]] = []
        self._annexes: list[Callable[[], Iterable[Policy[Any]]]] = []
        self.config: Config | None = None
        self.block = object()

    def intern(self, policy: PolicyT) -> PolicyT:
        """Register `policy` under its name, or give back the equal one that has it already.

        A policy without a name is given back as it is. Raises PolicyConflict.
        """
        if policy.name is None or _drafting.get():
            return policy
        with self._lock:
            known = self._policies.setdefault(policy.name, policy)
        if known is policy:
            self.changed()
            bus.emit("policy.added", None, policy, source=policy.place)
            return policy
        if type(known) is type(policy):
            if known.declared is None and self.config is not None:
                known.declared, known.place = policy.options, policy.place
                self.config.overlay(known)
                return known
            if known.declared == policy.options:
                return known
        raise PolicyConflict(
            f"{policy.name!r} is already {known!r}, made at {known.place}; "
            f"{policy!r} at {policy.place} has other options: use another name, or the same options"
        )

    def replace(self, policies: dict[str, Policy[Any] | None]) -> None:
        """Swap several names at once; None removes a name."""
        with self._lock:
            table = dict(self._policies)
            for name, policy in policies.items():
                if policy is None:
                    table.pop(name, None)
                else:
                    table[name] = policy
            self._policies = table
        self.changed()

    def reload(self) -> object:
        """Read the loaded config again and swap in what it says; raises ConfigError, then the old stays in force."""
        if self.config is None:
            raise LookupError("nothing has been loaded yet: call guarded.load first")
        return self.config.reload()

    def on_change(self, listener: Callable[[], object]) -> None:
        """Call `listener` after each change of what names mean."""
        self._listeners.append(listener)

    def changed(self) -> None:
        """Tell all listeners."""
        for listener in self._listeners:
            listener()

    def __getitem__(self, name: str) -> Policy[Any]:
        try:
            return self._policies[name]
        except KeyError:
            raise PolicyNotFound(name, self._policies) from None

    def __contains__(self, name: object) -> bool:
        return name in self._policies

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._policies))

    def __len__(self) -> int:
        return len(self._policies)

    def get(self, name: str) -> Policy[Any] | None:
        """The policy of that name, or None."""
        return self._policies.get(name)

    def census(self) -> dict[str, Policy[Any]]:
        """Every named policy, and those made from one of them, by name."""
        found = dict(self._policies)
        for annex in self._annexes:
            for policy in annex():
                found.setdefault(policy.label, policy)
        return found

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """Live state of every named policy, and of those made from one: its kind, and what ``live_state()`` says."""
        return {name: {"kind": policy.kind, **policy.live_state()} for name, policy in self.census().items()}

    def annex(self, policies: Callable[[], Iterable[Policy[Any]]]) -> None:
        """Have the census include what `policies` gives: made from registered ones, but not registered."""
        self._annexes.append(policies)

    @contextmanager
    def drafting(self) -> Iterator[None]:
        """Policies made inside, by this thread or task, are checked as ever but registered nowhere."""
        token = _drafting.set(True)
        try:
            yield
        finally:
            _drafting.reset(token)

    @contextmanager
    def isolated(self) -> Iterator[Registry]:
        """An empty registry for the length of a ``with`` block, for tests."""
        with self._lock:
            saved, self._policies = self._policies, {}
            config, self.config = self.config, None
            block, self.block = self.block, object()
        self.changed()
        try:
            yield self
        finally:
            with self._lock:
                self._policies = saved
                self.config = config
                self.block = block
            self.changed()

    def __repr__(self) -> str:
        kinds: dict[str, int] = {}
        for policy in tuple(self._policies.values()):
            kinds[policy.kind] = kinds.get(policy.kind, 0) + 1
        return f"<registry: {', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items())) or 'empty'}>"


registry = Registry()
