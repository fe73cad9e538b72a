"""Keep calls to the outside world from taking a service down.

Names are loaded on first use: ``import guarded`` alone costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from guarded import batch as batch
    from guarded import cancel as cancel
    from guarded import config as config
    from guarded import errors as errors
    from guarded import events as events
    from guarded import http as http
    from guarded import stack as stack
    from guarded import stores as stores
    from guarded import testing as testing
    from guarded._core.call import attempt, idempotency_key, remaining
    from guarded._core.registry import registry
    from guarded.batch import Settled, all_of, all_settled, any_of, gather_limit, imap_limit, map_limit, race
    from guarded.cancel import CancelToken, asleep, checkpoint, sleep
    from guarded.config import check, load
    from guarded.errors import (
        Abandoned,
        Cancelled,
        CircuitOpen,
        ConfigError,
        DeadlineExceeded,
        Deadlock,
        GuardedError,
        GuardWarning,
        InProgress,
        KeyMismatch,
        LimitFull,
        PolicyConflict,
        PolicyNotFound,
        RateExceeded,
        Rejected,
        StoreError,
    )
    from guarded.events.tally import Stats, stats
    from guarded.http import transient
    from guarded.policies.circuit import circuit
    from guarded.policies.deadline import deadline
    from guarded.policies.fallback import fallback
    from guarded.policies.hedge import hedge
    from guarded.policies.idempotent import idempotent
    from guarded.policies.limit import adaptive, limit
    from guarded.policies.rate import rate
    from guarded.policies.retry import Done, RetryBudget, retry
    from guarded.stack import explain, guard

    __version__: str

# Spelled out, since type checkers and editors read no other form.
__all__ = [
    "Abandoned",
    "CancelToken",
    "Cancelled",
    "CircuitOpen",
    "ConfigError",
    "DeadlineExceeded",
    "Deadlock",
    "Done",
    "GuardWarning",
    "GuardedError",
    "InProgress",
    "KeyMismatch",
    "LimitFull",
    "PolicyConflict",
    "PolicyNotFound",
    "RateExceeded",
    "Rejected",
    "RetryBudget",
    "Settled",
    "Stats",
    "StoreError",
    "adaptive",
    "all_of",
    "all_settled",
    "any_of",
    "asleep",
    "attempt",
    "check",
    "checkpoint",
    "circuit",
    "deadline",
    "explain",
    "fallback",
    "gather_limit",
    "guard",
    "hedge",
    "idempotency_key",
    "idempotent",
    "imap_limit",
    "limit",
    "load",
    "map_limit",
    "race",
    "rate",
    "registry",
    "remaining",
    "retry",
    "sleep",
    "stats",
    "transient",
]

_HOMES: Final = {
    "guarded._core.call": "attempt idempotency_key remaining",
    "guarded._core.registry": "registry",
    "guarded.batch": "Settled all_of all_settled any_of gather_limit imap_limit map_limit race",
    "guarded.cancel": "CancelToken asleep checkpoint sleep",
    "guarded.config": "check load",
    "guarded.errors": (
        "Abandoned Cancelled CircuitOpen ConfigError DeadlineExceeded Deadlock GuardWarning GuardedError "
        "InProgress KeyMismatch LimitFull PolicyConflict PolicyNotFound RateExceeded Rejected StoreError"
    ),
    "guarded.events.tally": "Stats stats",
    "guarded.http": "transient",
    "guarded.policies.circuit": "circuit",
    "guarded.policies.deadline": "deadline",
    "guarded.policies.fallback": "fallback",
    "guarded.policies.hedge": "hedge",
    "guarded.policies.idempotent": "idempotent",
    "guarded.policies.limit": "adaptive limit",
    "guarded.policies.rate": "rate",
    "guarded.policies.retry": "Done RetryBudget retry",
    "guarded.stack": "explain guard",
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names.split()}
_PARTS: Final = ("batch", "cancel", "config", "errors", "events", "http", "stack", "stores", "testing")

if not TYPE_CHECKING:  # to a type checker this would make every misspelt name one of ours

    def __getattr__(name: str) -> object:
        if name in _HOME_OF:
            value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
            return value
        if name in _PARTS:
            return import_module(f"guarded.{name}")
        if name == "__version__":
            return import_module("importlib.metadata").version("guarded")
        raise AttributeError(f"module 'guarded' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PARTS})
