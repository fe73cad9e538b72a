"""The options of `hedge`: what they are, and everything that can be wrong with them, told at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from guarded.policies._hedge.core import read_after
from guarded.policies._retry.budget import RetryBudget, budget_problem


@dataclass(frozen=True, slots=True)
class HedgeOptions:
    """What `hedge` was given, checked; `after` is seconds, or a percentile such as ``"p95"``."""

    after: float | str = "p95"
    max_hedges: int = 1
    budget: RetryBudget | str | None = None
    idempotent: bool = False

    @classmethod
    def checked(cls, after: Any, max_hedges: Any, budget: Any, idempotent: Any) -> HedgeOptions:
        """The options, or one ValueError that names every wrong one."""
        found = []
        try:
            after = read_after(after)
        except ValueError as error:
            found.append(str(error))
        if not isinstance(max_hedges, int) or isinstance(max_hedges, bool) or max_hedges < 1:
            found.append(f"max_hedges={max_hedges!r}: must be a whole number of at least 1")
        if problem := budget_problem(budget):
            found.append(problem)
        if not isinstance(idempotent, bool):
            found.append(f"idempotent={idempotent!r}: must be True or False")
        if found:
            raise ValueError("hedge: " + "; ".join(found))
        return cls(after, max_hedges, budget, idempotent)
