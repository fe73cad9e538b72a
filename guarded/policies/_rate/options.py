"""The options of `rate`: what they are, and everything that can be wrong with them, told at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from guarded._core.durations import format_duration, parse_duration, parse_duration_ns
from guarded._core.keys import amount_problem, key_problem
from guarded._core.numbers import is_whole
from guarded._core.quotas import LARGEST_COUNT, parse_rate_spec
from guarded.policies._rate.core import Algorithm, Quota
from guarded.policies._store_option import WhenStoreFails, read_store

_ALGORITHMS = get_args(Algorithm)


@dataclass(frozen=True, slots=True)
class RateOptions:
    """What `rate` was given, checked: `spec` in one spelling, shortest window first, `max_wait` in seconds."""

    spec: str
    burst: int | None = None
    algorithm: Algorithm = "sliding"
    max_wait: float | None = None
    key: str | Callable[..., object] | None = None
    cost: int | str | Callable[..., int] = 1
    store: Any = None
    when_store_fails: WhenStoreFails = "local"

    @classmethod
    def checked(
        cls, spec: Any, per: Any, max_wait: Any, *, store: Any = None, name: str | None = None, **given: Any
    ) -> RateOptions:
        """The options, or one ValueError that names every wrong one."""
        problems: list[str] = []
        when_store_fails = given.pop("when_store_fails", "local")
        if store is not None or when_store_fails != "local":
            store = read_store(store, "rate", name, when_store_fails, problems)
        quotas = _read_quotas(spec, per, problems)
        if max_wait is not None:
            try:
                max_wait = parse_duration(max_wait, option="max_wait", allow_zero=True)
            except ValueError as error:
                problems.append(str(error))
        problems += _problems(quotas, **given)
        if problems:
            raise ValueError("rate: " + "; ".join(problems))
        # All of them hold, so their order means nothing: sorted, equal rates are equal, and share what a store has.
        shown = "; ".join(map(_shown, sorted(quotas, key=lambda quota: quota[1])))
        return cls(spec=shown, max_wait=max_wait, store=store, when_store_fails=when_store_fails, **given)

    @property
    def quotas(self) -> tuple[Quota, ...]:
        """``(units, window in nanoseconds)`` of each window."""
        return parse_rate_spec(self.spec)

    @property
    def capacity(self) -> int:
        """The largest cost that can be admitted."""
        return _capacity(self.quotas, self.burst)


def _read_quotas(spec: Any, per: Any, problems: list[str]) -> tuple[Quota, ...]:
    try:
        if per is None and not isinstance(spec, int):
            return parse_rate_spec(spec)
        if not is_whole(spec, 1):
            problems.append(f"spec={spec!r}: must be a whole number from 1 up where `per` gives the window")
        elif spec > LARGEST_COUNT:
            problems.append(f"spec={spec!r}: must count to at most {LARGEST_COUNT:_}")
        elif per is None:
            problems.append(f"spec={spec!r}: needs a window: rate({spec}, per='1m') or rate('{spec}/minute')")
        window = 1 if per is None else parse_duration_ns(per, option="per")
        return () if problems else ((spec, max(1, window)),)
    except ValueError as error:
        problems.append(str(error))
        return ()


def _problems(quotas: tuple[Quota, ...], *, burst: Any, algorithm: Any, key: Any, cost: Any) -> list[str]:
    problems = []
    if algorithm not in _ALGORITHMS:
        problems.append(f"algorithm={algorithm!r}: must be one of {', '.join(_ALGORITHMS)}")
    bad_burst = None if burst is None else _burst_problem(quotas, burst, algorithm)
    if bad_burst:
        problems.append(f"burst={burst!r}: {bad_burst}")
    if key is not None and (problem := key_problem(key)):
        problems.append(f"key={key!r}: {problem}")
    if problem := amount_problem(cost):
        problems.append(f"cost={cost!r}: {problem}")
    elif isinstance(cost, int) and quotas and not bad_burst and cost > _capacity(quotas, burst):
        problems.append(f"cost={cost!r}: must not be above the capacity of {_capacity(quotas, burst)}")
    return problems


def _burst_problem(quotas: tuple[Quota, ...], burst: Any, algorithm: Any) -> str | None:
    if not is_whole(burst, 1):
        return "must be a whole number from 1 up, or None for the whole quota"
    if algorithm != "gcra":
        return "means something to algorithm='gcra' only"
    return "needs one window, since each would allow another burst" if len(quotas) > 1 else None


def _capacity(quotas: tuple[Quota, ...], burst: int | None) -> int:
    return min([count for count, _ in quotas]) if burst is None else burst


def _shown(quota: Quota) -> str:
    count, window = quota
    length = format_duration(window / 1e9)
    return f"{count}/{length if parse_duration_ns(length) == window else f'{window}ns'}"
