"""Everything guarded raises or warns with.

GuardedError
├── Rejected(policy, layer, retry_after)      the call did not run
│   ├── LimitFull      reason = queue_full | timeout | closed
│   ├── RateExceeded
│   ├── CircuitOpen    also a pybreaker.CircuitBreakerError; __cause__ = the last failure
│   └── InProgress     the same idempotency key is running elsewhere
├── DeadlineExceeded   also a TimeoutError; during = running | queued for … | backing off …
├── Cancelled          a CancelToken fired (reason)
├── Deadlock           also a RuntimeError; the wait could never end
├── KeyMismatch        idempotency key reused with other arguments
├── Abandoned          an earlier run of this key died half way, outcome unknown
├── StoreError
└── ConfigError        also a ValueError: every problem at once
PolicyConflict(ValueError), PolicyNotFound(LookupError)
GuardWarning(UserWarning)

Every error is raised fresh, survives pickling, and names the policy and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from guarded._core.nearest import did_you_mean

if TYPE_CHECKING:
    from guarded._core.breaker import CircuitOpen as CircuitOpen


class GuardedError(Exception):
    """Base of all errors of guarded.

    Attributes beside the message are plain values, kept in ``__dict__``, so that an error crosses
    process boundaries whole.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _rebuild(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class Rejected(GuardedError):
    """The call was refused before it ran.

    Args:
        message: what was refused, by which policy, for how long, and what to do.
        policy: name (or short repr) of the policy that refused.
        layer: the kind of policy: ``limit``, ``rate``, ``circuit``, ``idempotent``.
        retry_after: seconds after which the same call would be admitted; None when nobody can know.
    """

    layer: str = ""

    def __init__(
        self, message: str, *, policy: str | None = None, layer: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.policy = policy
        self.layer = layer or type(self).layer
        self.retry_after = retry_after


LimitReason = Literal["queue_full", "timeout", "closed"]


class LimitFull(Rejected):
    """No slot was free: ``reason`` says whether the queue was full, the wait timed out or the limit is closed."""

    layer = "limit"

    def __init__(
        self,
        message: str,
        *,
        reason: LimitReason,
        policy: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, policy=policy, retry_after=retry_after)
        self.reason: LimitReason = reason


class RateExceeded(Rejected):
    """The rate is used up; ``retry_after`` seconds later the same call is admitted."""

    layer = "rate"


class InProgress(Rejected):
    """The same idempotency key is being executed elsewhere and this caller chose not to join it."""

    layer = "idempotent"


class DeadlineExceeded(GuardedError, TimeoutError):
    """The time allowed for the call is over.

    Args:
        message: what was being done and for how long.
        policy: name (or short repr) of the deadline; None when it came from a plain scope.
        during: ``"running"``, ``"queued for limit 'db'"``, ``"backing off before attempt 3"`` …
        until: the absolute point, in seconds of the monotonic clock, that has passed.
    """

    def __init__(
        self, message: str, *, policy: str | None = None, during: str = "running", until: float | None = None
    ) -> None:
        super().__init__(message)
        self.policy = policy
        self.during = during
        self.until = until


class Cancelled(GuardedError):
    """A CancelToken fired; ``reason`` is what was given to ``cancel``."""

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class Deadlock(GuardedError, RuntimeError):
    """Waiting would never end: a limit or key taken again inside itself, or a sync wait on a loop's own thread."""

    def __init__(self, message: str, *, policy: str | None = None) -> None:
        super().__init__(message)
        self.policy = policy


class KeyMismatch(GuardedError):
    """An idempotency key was reused with other arguments."""

    def __init__(self, message: str, *, policy: str | None = None) -> None:
        super().__init__(message)
        self.policy = policy


class Abandoned(GuardedError):
    """An earlier run of this idempotency key died half way; whether it had its effect is unknown."""

    def __init__(self, message: str, *, policy: str | None = None) -> None:
        super().__init__(message)
        self.policy = policy


class StoreError(GuardedError):
    """The store behind a policy could not be used, and the policy does not go on without it."""

    def __init__(self, message: str, *, policy: str | None = None, store: str | None = None) -> None:
        super().__init__(message)
        self.policy = policy
        self.store = store


class ConfigError(GuardedError, ValueError):
    """A config source is wrong; ``problems`` holds every problem found, each with its place."""

    def __init__(self, problems: Sequence[object]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems: tuple[object, ...] = tuple(problems)


class PolicyConflict(GuardedError, ValueError):
    """One name was given to two different policies; the message names both places in the code."""


class PolicyNotFound(GuardedError, LookupError):
    """No policy or stack of that name is registered; the message lists near matches."""

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        hint = did_you_mean(name, known, most=3) or "load the file or define the policy first"
        super().__init__(f"no policy or stack is named {name!r}: {hint}")
        self.name = name

    def __str__(self) -> str:
        return str(self.args[0])


class GuardWarning(UserWarning):
    """An order or a use that is almost surely wrong."""


if not TYPE_CHECKING:  # to a type checker this would make every misspelt name one of ours

    def __getattr__(name: str) -> object:
        # CircuitOpen derives from pybreaker's error; importing that also imports redis, so it waits for its first use.
        if name == "CircuitOpen":
            from guarded._core.breaker import CircuitOpen

            return CircuitOpen
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
