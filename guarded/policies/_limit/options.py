"""What a limit is made of, checked all at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from guarded._core.durations import parse_duration
from guarded._core.keys import amount_problem, key_problem, number_problem
from guarded._core.numbers import is_whole
from guarded.events.redact import scrub
from guarded.policies._limit.adaptive import Adaptive
from guarded.policies._store_option import WhenStoreFails, read_store

Amount = int | str | Callable[..., int]


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """What `limit` was given, with `max_wait` in seconds."""

    max_concurrent: int | Adaptive
    max_queue: int | None = None
    max_wait: float | None = None
    key: str | Callable[..., object] | None = None
    weight: Amount = 1
    priority: Amount | None = None
    store: Any = None
    when_store_fails: WhenStoreFails = "local"

    @classmethod
    def checked(cls, max_wait: Any, name: str | None = None, **given: Any) -> LimitOptions:
        """Raise one ValueError that names every wrong option."""
        problems = _problems(given)
        if given["store"] is not None or given["when_store_fails"] != "local":
            given["store"] = read_store(given["store"], "limit", name, given["when_store_fails"], problems)
        if max_wait is not None:
            try:
                max_wait = parse_duration(max_wait, option="max_wait", allow_zero=True)
            except ValueError as error:
                problems.append(str(error))
        if problems:
            raise ValueError("limit: " + "; ".join(problems))
        return cls(max_wait=max_wait, **given)

    @property
    def largest(self) -> int:
        """Permits there can be at once, by these options."""
        size = self.max_concurrent
        return size.max_limit if isinstance(size, Adaptive) else size

    @property
    def initial(self) -> int:
        """Permits to begin with."""
        size = self.max_concurrent
        return size.initial if isinstance(size, Adaptive) else size


def _problems(given: dict[str, Any]) -> list[str]:
    problems = []
    size, weight, key, priority = given["max_concurrent"], given["weight"], given["key"], given["priority"]
    is_adaptive = isinstance(size, Adaptive)
    if not is_adaptive and not is_whole(size, 1):
        problems.append(f"max_concurrent={size!r}: must be a whole number from 1 up, or adaptive(…)")
    if given["max_queue"] is not None and not is_whole(given["max_queue"], 0):
        problems.append(f"max_queue={given['max_queue']!r}: must be a whole number from 0 up, or None for any number")
    if key is not None and (problem := key_problem(key)):
        problems.append(f"key={key!r}: {problem}")
    if problem := amount_problem(weight):
        problems.append(f"weight={weight!r}: {problem}")
    elif not isinstance(weight, str) and not callable(weight) and (is_adaptive or is_whole(size, 1)):
        largest = size.max_limit if is_adaptive else size
        if weight > largest:
            problems.append(f"weight={weight!r}: must not be above the capacity of {largest}")
    if priority is not None and not is_whole(priority, -inf):
        taken = isinstance(priority, str) or callable(priority)
        problem = number_problem(priority) if taken else "must be a whole number"
        if problem:
            problems.append(f"priority={priority!r}: {problem}")
    if is_adaptive and key is not None:
        problems.append(
            f"key={key!r}: an adaptive limit forgets what it learned about a key that nobody uses: drop one"
        )
    if is_adaptive and given["store"] is not None:
        problems.append(f"store={scrub(str(given['store']))!r}: an adaptive limit is of one process: drop one")
    return problems
