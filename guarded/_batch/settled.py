"""How one item of a batch, or one of several calls, has ended; and what is left of a batch that was cut short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from guarded.errors import Cancelled

R = TypeVar("R")

_DEEPEST = 10  # causes and contexts can be cyclic


@dataclass(frozen=True, slots=True)
class Settled(Generic[R]):
    """One outcome.

    Attributes:
        ok: whether it is a success.
        value: the result; None of a failure.
        error: the exception; None of a success. `Cancelled` stands for what was cut off or never started.
        index: position in the input, from 0.

    Example:
        >>> from guarded import Settled
        >>> Settled(True, "receipt", None, 7).result()
        'receipt'
    """

    ok: bool
    value: R | None
    error: Exception | None
    index: int

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled, rather than having failed by itself."""
        return isinstance(self.error, Cancelled)

    def result(self) -> R:
        """The value of a success; raises the error of a failure."""
        if self.error is not None:
            raise self.error
        return cast("R", self.value)


def success(value: R, index: int) -> Settled[R]:
    """A success."""
    return Settled(True, value, None, index)


def failure(error: Exception, index: int) -> Settled[Any]:
    """A failure, or with a `Cancelled` what was cancelled."""
    return Settled(False, None, error, index)


def cut_off(index: int, reason: str | None, what: str = "item") -> Settled[Any]:
    """What was cancelled, or never started."""
    why = f": {reason}" if reason else ""
    return failure(Cancelled(f"{what} {index} was cancelled{why}", reason=reason), index)


def leave_behind(error: BaseException, outcomes: Sequence[Settled[Any]]) -> None:
    """Let `error` carry the outcomes of what it cut short."""
    error.settled = list(outcomes)  # type: ignore[attr-defined]


def settled_of(error: BaseException) -> list[Settled[Any]]:
    """The outcomes that a batch had reached when it was cut short, in input order.

    Args:
        error: what came out of it: `Cancelled`, `DeadlineExceeded`, ``asyncio.CancelledError``, ``KeyboardInterrupt``,
            or an error of the source of its items.

    Returns:
        One `Settled` for each item that was taken from the source: finished ones with their outcome, others marked as
        cancelled. Of `imap_limit`, only those that were not handed out. Empty when `error` ended no batch.
    """
    current: BaseException | None = error
    for _ in range(_DEEPEST):
        if current is None:
            break
        found: list[Settled[Any]] | None = getattr(current, "settled", None)
        if found is not None:
            return found
        current = current.__cause__ or current.__context__
    return []
