"""Keep calls to the outside world from taking a service down.

Names are loaded on first use: ``import guarded`` alone costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guarded._core.call import attempt as attempt
    from guarded._core.call import idempotency_key as idempotency_key
    from guarded._core.call import remaining as remaining
    from guarded._core.registry import registry as registry
    from guarded.batch import Settled as Settled
    from guarded.batch import all_of as all_of
    from guarded.batch import all_settled as all_settled
    from guarded.batch import any_of as any_of
    from guarded.batch import gather_limit as gather_limit
    from guarded.batch import imap_limit as imap_limit
    from guarded.batch import map_limit as map_limit
    from guarded.batch import race as race
    from guarded.cancel import CancelToken as CancelToken
    from guarded.cancel import asleep as asleep
    from guarded.cancel import checkpoint as checkpoint
    from guarded.cancel import sleep as sleep
    from guarded.config import check as check
    from guarded.config import load as load
    from guarded.errors import Abandoned as Abandoned
    from guarded.errors import Cancelled as Cancelled
    from guarded.errors import CircuitOpen as CircuitOpen
    from guarded.errors import ConfigError as ConfigError
    from guarded.errors import DeadlineExceeded as DeadlineExceeded
    from guarded.errors import Deadlock as Deadlock
    from guarded.errors import GuardedError as GuardedError
    from guarded.errors import GuardWarning as GuardWarning
    from guarded.errors import InProgress as InProgress
    from guarded.errors import KeyMismatch as KeyMismatch
    from guarded.errors import LimitFull as LimitFull
    from guarded.errors import PolicyConflict as PolicyConflict
    from guarded.errors import PolicyNotFound as PolicyNotFound
    from guarded.errors import RateExceeded as RateExceeded
    from guarded.errors import Rejected as Rejected
    from guarded.errors import StoreError as StoreError
    from guarded.events.tally import Stats as Stats
    from guarded.events.tally import stats as stats
    from guarded.http import transient as transient
    from guarded.policies.circuit import circuit as circuit
    from guarded.policies.deadline import deadline as deadline
    from guarded.policies.fallback import fallback as fallback
    from guarded.policies.hedge import hedge as hedge
    from guarded.policies.idempotent import idempotent as idempotent
    from guarded.policies.limit import adaptive as adaptive
    from guarded.policies.limit import limit as limit
    from guarded.policies.rate import rate as rate
    from guarded.policies.retry import Done as Done
    from guarded.policies.retry import RetryBudget as RetryBudget
    from guarded.policies.retry import retry as retry
    from guarded.stack import explain as explain
    from guarded.stack import guard as guard

_HOMES = {
    "guarded._core.call": ("attempt", "idempotency_key", "remaining"),
    "guarded._core.registry": ("registry",),
    "guarded.batch": (
        "Settled",
        "all_of",
        "all_settled",
        "any_of",
        "gather_limit",
        "imap_limit",
        "map_limit",
        "race",
    ),
    "guarded.cancel": ("CancelToken", "asleep", "checkpoint", "sleep"),
    "guarded.config": ("check", "load"),
    "guarded.errors": (
        "Abandoned",
        "Cancelled",
        "CircuitOpen",
        "ConfigError",
        "DeadlineExceeded",
        "Deadlock",
        "GuardWarning",
        "GuardedError",
        "InProgress",
        "KeyMismatch",
        "LimitFull",
        "PolicyConflict",
        "PolicyNotFound",
        "RateExceeded",
        "Rejected",
        "StoreError",
    ),
    "guarded.events.tally": ("Stats", "stats"),
    "guarded.http": ("transient",),
    "guarded.policies.circuit": ("circuit",),
    "guarded.policies.deadline": ("deadline",),
    "guarded.policies.fallback": ("fallback",),
    "guarded.policies.hedge": ("hedge",),
    "guarded.policies.idempotent": ("idempotent",),
    "guarded.policies.limit": ("adaptive", "limit"),
    "guarded.policies.rate": ("rate",),
    "guarded.policies.retry": ("Done", "RetryBudget", "retry"),
    "guarded.stack": ("explain", "guard"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("guarded")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'guarded' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
