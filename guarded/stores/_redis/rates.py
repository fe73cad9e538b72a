"""Rates on Redis: the arguments of the scripts, and what their replies mean.

Windows are whole microseconds there, rounded up; for gcra and leaky the time of a unit is exact in any case.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, inf
from typing import TYPE_CHECKING, Any

from guarded.stores._redis.link import Script, Word
from guarded.stores.contract.rate import Booked, Budget, Mark, Passed, RateRule, Refused

if TYPE_CHECKING:
    from guarded.stores.redis import RedisStore

_US = 1_000_000
_SLIDING, _FIXED, _GCRA, _PAUSE = (
    Script("rate_sliding"),
    Script("rate_fixed"),
    Script("rate_gcra"),
    Script("rate_pause"),
)
Step = tuple[Script, list[str], list[Word]]


class RedisRates:
    """`RateStore` on Redis; see there for the methods."""

    def __init__(self, store: RedisStore) -> None:
        self._prefix = f"{store.prefix}rate:"
        self._link = store.link
        self.name = store.name

    def take(self, rule: RateRule, budget: Budget, cost: int, patience: float) -> Passed | Booked | Refused:
        """See `RateStore.take`."""
        return _verdict(self._link.run(*self._step("take", rule, budget, cost, patience)))

    async def take_async(self, rule: RateRule, budget: Budget, cost: int, patience: float) -> Passed | Booked | Refused:
        """See `RateStore.take`."""
        return _verdict(await self._link.run_async(*self._step("take", rule, budget, cost, patience)))

    def confirm(self, rule: RateRule, budget: Budget, cost: int, mark: Mark) -> Passed | Booked:
        """See `RateStore.confirm`."""
        return _verdict(self._link.run(*self._step("confirm", rule, budget, cost, inf, mark)))  # type: ignore[return-value]

    async def confirm_async(self, rule: RateRule, budget: Budget, cost: int, mark: Mark) -> Passed | Booked:
        """See `RateStore.confirm`."""
        return _verdict(await self._link.run_async(*self._step("confirm", rule, budget, cost, inf, mark)))  # type: ignore[return-value]

    def correct(self, rule: RateRule, budget: Budget, mark: Mark, cost: int, units: int) -> None:
        """See `RateStore.correct`."""
        self._link.run(*self._step("correct", rule, budget, cost, inf, mark, units))

    async def correct_async(self, rule: RateRule, budget: Budget, mark: Mark, cost: int, units: int) -> None:
        """See `RateStore.correct`."""
        await self._link.run_async(*self._step("correct", rule, budget, cost, inf, mark, units))

    def look(self, rule: RateRule, budget: Budget, cost: int) -> tuple[int, float]:
        """See `RateStore.look`."""
        return _standing(rule, self._link.run(*self._step("look", rule, budget, cost)))

    async def look_async(self, rule: RateRule, budget: Budget, cost: int) -> tuple[int, float]:
        """See `RateStore.look`."""
        return _standing(rule, await self._link.run_async(*self._step("look", rule, budget, cost)))

    def pause(self, rule: RateRule, rate: str, seconds: float) -> None:
        """See `RateStore.pause`."""
        self._link.run(_PAUSE, [self._pause_key(rate)], [ceil(seconds * _US)])

    async def pause_async(self, rule: RateRule, rate: str, seconds: float) -> None:
        """See `RateStore.pause`."""
        await self._link.run_async(_PAUSE, [self._pause_key(rate)], [ceil(seconds * _US)])

    def _pause_key(self, rate: str) -> str:
        return f"{self._prefix}{{{rate}}}:pause"

    def _step(
        self, step: str, rule: RateRule, budget: Budget, cost: int, patience: float = 0, mark: Mark = "", units: int = 0
    ) -> Step:
        key = f"{self._prefix}{{{budget.rate}}}:{rule.shape}:{budget.key}"
        pause = self._pause_key(budget.rate)
        wait = -1 if patience == inf else int(patience * _US)
        if rule.algorithm in ("gcra", "leaky"):
            sign = (units > 0) - (units < 0)
            return _GCRA, [key, pause], [step, wait, mark, sign, *_paces(rule, cost, abs(units) or cost)]
        script = _SLIDING if rule.algorithm == "sliding" else _FIXED
        keys = [key, f"{key}:log", f"{key}:book", pause] if script is _SLIDING else [key, pause]
        return script, keys, [step, cost, wait, mark, units, *_windows(rule)]


@lru_cache(maxsize=1024)
def _windows(rule: RateRule) -> tuple[int, ...]:
    words: list[int] = []
    for count, window in rule.quotas:
        words += (count, -(-window // 1000))
    return tuple(words)


@lru_cache(maxsize=1024)
def _paces(rule: RateRule, cost: int, moved: int) -> tuple[int, ...]:
    """Seven numbers for each quota, see ``rate_gcra.lua``."""
    words: list[int] = []
    for count, window in rule.quotas:
        parts = count * 1000  # a nanosecond of the timeline is divided into `count`
        burst = rule.burst or count
        ahead = 0 if rule.algorithm == "leaky" else (burst - cost) * window
        words += (parts, *divmod(moved * window, parts), *divmod(ahead, parts), *divmod(window, parts))
    return tuple(words)


def _verdict(reply: Any) -> Passed | Booked | Refused:
    kind = reply[0]
    if kind == 1:
        return Passed(reply[1].decode())
    if kind == 2:
        return Booked(reply[1].decode(), reply[2] / _US)
    return Refused(reply[1] / _US)


def _standing(rule: RateRule, reply: Any) -> tuple[int, float]:
    if rule.algorithm not in ("gcra", "leaky"):
        return reply[0], reply[1] / _US
    delay, ahead = reply
    return min([_free(rule, *each) for each in zip(rule.quotas, ahead, strict=True)]), delay / _US


def _free(rule: RateRule, quota: tuple[int, int], ahead: tuple[int, int]) -> int:
    """Units that calls of cost 1 would get, the arrival time being so far ahead of the clock; -1 in a pause."""
    count, window = quota
    whole, parts = ahead
    if whole < 0:
        return 0
    if rule.algorithm == "leaky":
        return int(whole == parts == 0)
    return max(0, ((rule.burst or count) * window - whole * 1000 * count - parts) // window)
