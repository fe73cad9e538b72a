"""Circuits on Redis: `CircuitStore` over one script."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from guarded.policies._circuit.terms import OPEN, Change, Outcome, Refusal, Rules, State
from guarded.stores._redis.link import Link, Script, Word
from guarded.stores.contract.circuit import Admission, Figures, Let, Settlement

_NS = 1000  # in a microsecond
_SCRIPT: Final = Script("circuit")


class RedisCircuits:
    """See `CircuitStore` for the methods."""

    def __init__(self, link: Link, prefix: str) -> None:
        self._prefix = f"{prefix}circuit:"
        self._link = link

    def admit(self, name: str, rules: Rules) -> Admission:
        """See `CircuitStore.admit`."""
        return _admission(self._link.run(*self._step("admit", name, rules)))

    async def admit_async(self, name: str, rules: Rules) -> Admission:
        """See `CircuitStore.admit`."""
        return _admission(await self._link.run_async(*self._step("admit", name, rules)))

    def settle(self, name: str, rules: Rules, let: Let, outcome: Outcome, slow: bool) -> Settlement:
        """See `CircuitStore.settle`."""
        return _settlement(self._link.run(*self._step("settle", name, rules, *let, outcome, int(slow))))

    async def settle_async(self, name: str, rules: Rules, let: Let, outcome: Outcome, slow: bool) -> Settlement:
        """See `CircuitStore.settle`."""
        return _settlement(await self._link.run_async(*self._step("settle", name, rules, *let, outcome, int(slow))))

    def answered(self, name: str, rules: Rules, let: Let) -> bool:
        """See `CircuitStore.answered`."""
        return bool(self._link.run(*self._step("answered", name, rules, *let))[0])

    async def answered_async(self, name: str, rules: Rules, let: Let) -> bool:
        """See `CircuitStore.answered`."""
        return bool((await self._link.run_async(*self._step("answered", name, rules, *let)))[0])

    def move(self, name: str, rules: Rules, state: State | None) -> Settlement:
        """See `CircuitStore.move`."""
        return _settlement(self._link.run(*self._step("move", name, rules, state or "")))

    def look(self, name: str, rules: Rules) -> Figures:
        """See `CircuitStore.look`."""
        return _figures(self._link.run(*self._step("look", name, rules)))

    def _step(self, step: str, name: str, rules: Rules, *more: Word) -> tuple[Script, list[str], list[Word]]:
        key, window = f"{self._prefix}{{{name}}}", f"{rules.window_calls}:{rules.window_ns}"
        keys = [key, f"{key}:trials", f"{key}:running", f"{key}:overdue", f"{key}:window:{window}"]
        return _SCRIPT, keys, [step, *_words(rules), *more]


@lru_cache(maxsize=1024)
def _words(rules: Rules) -> tuple[Word, ...]:
    """The rules as the script takes them."""
    return (
        rules.failures or 0,
        _rate(rules.failure_rate),
        rules.window_calls or 0,
        _us(rules.window_ns),
        rules.min_calls,
        _us(rules.slow_ns),
        _rate(rules.slow_rate),
        _us(rules.reset_ns),
        _us(rules.max_reset_ns),
        rules.half_open,
        _us(rules.trial_ns),
    )


def _us(ns: int | None) -> int:
    return 0 if ns is None else -(-ns // _NS)


def _rate(rate: float | None) -> str:
    return "-1" if rate is None else repr(rate)


def _optional(word: bytes) -> float | None:
    rate = float(word)
    return None if rate < 0 else rate


def _ns(us: int) -> int | None:
    return None if us < 0 else us * _NS


def _changes(words: list[Any]) -> list[Change]:
    changes = []
    for state, before, reason, failures, failure_rate, slow_rate, open_us in words:
        rates = _optional(failure_rate), _optional(slow_rate)
        changes.append(Change(state.decode(), before.decode(), reason.decode(), failures, *rates, _ns(open_us)))
    return changes


def _admission(reply: Any) -> Admission:
    answer, word, generation, changes = reply
    state: Any = word.decode()
    if answer[0] == 1:
        return Admission(Let(answer[1], answer[2]), state, generation, _changes(changes))
    _, age, wait, trials, reason, failures, failure_rate, slow_rate = answer
    opening = Change(OPEN, OPEN, reason.decode(), failures, _optional(failure_rate), _optional(slow_rate))
    return Admission(Refusal(state, age * _NS, _ns(wait), trials, opening), state, generation, _changes(changes))


def _settlement(reply: Any) -> Settlement:
    return Settlement(reply[0].decode(), reply[1].decode(), reply[2], _changes(reply[3]))


def _figures(reply: Any) -> Figures:
    age, failures, calls, failure_rate, slow_rate, trials, wait, successes, opened_by = reply[0]
    return Figures(
        state=reply[1].decode(),
        age=-1 if age < 0 else age * _NS,
        failures=failures,
        calls=calls,
        failure_rate=float(failure_rate),
        slow_rate=float(slow_rate),
        trials=trials,
        successes=successes,
        opened_by=opened_by,
        retry_ns=_ns(wait),
    )
