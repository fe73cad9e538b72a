"""How a run of an idempotent key can end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Returned:
    """The function returned here: `value` is for its caller, others open `payload`."""

    value: Any
    payload: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """The run failed: `error` is for its caller, others get twins, of the stored one if there is a `payload`."""

    error: Exception
    payload: Any = None


@dataclass(frozen=True, slots=True)
class Replay:
    """The store had a finished record."""

    payload: Any
    age: float


@dataclass(frozen=True, slots=True)
class Cut:
    """The run ended because of its caller's own deadline or token: whoever has more time may run it."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Neutral:
    """The run was interrupted (`error` is its caller's), or its loop died (`lost`): as if it had never been."""

    error: BaseException | None = None
    lost: bool = False


Outcome: TypeAlias = Returned | Failed | Replay | Cut | Neutral
