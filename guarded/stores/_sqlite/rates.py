"""Rates in a SQLite file: `RateStore` over ledgers, one row for each budget."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from guarded.stores._sqlite.ledger import Ledger
from guarded.stores._sqlite.link import US, Transaction
from guarded.stores._threads import in_thread
from guarded.stores.contract.rate import Booked, Budget, Mark, Passed, RateRule, Refused

if TYPE_CHECKING:
    from guarded.stores.sqlite import SQLiteStore

ResultT = TypeVar("ResultT")
_NS = 1_000  # nanoseconds of a microsecond


class SQLiteRates:
    """See `RateStore` for the methods. A step that has returned survives the end of its process, not a power cut."""

    def __init__(self, store: SQLiteStore) -> None:
        self.name = store.name
        self.health = store.health
        self._link = store.link

    def take(self, rule: RateRule, budget: Budget, cost: int, patience: float) -> Passed | Booked | Refused:
        """See `RateStore.take`."""
        return self._run(rule, budget, lambda ledger: ledger.take(cost, patience))

    def confirm(self, rule: RateRule, budget: Budget, cost: int, mark: Mark) -> Passed | Booked:
        """See `RateStore.confirm`."""
        return self._run(rule, budget, lambda ledger: ledger.confirm(cost, mark))

    def correct(self, rule: RateRule, budget: Budget, mark: Mark, cost: int, units: int) -> None:
        """See `RateStore.correct`."""
        self._run(rule, budget, lambda ledger: ledger.correct(mark, max(units, -cost) if mark else units))

    def look(self, rule: RateRule, budget: Budget, cost: int) -> tuple[int, float]:
        """See `RateStore.look`."""
        return self._link.run(lambda file: _open(file, rule, budget)[0].look(cost), "NORMAL")

    def pause(self, rule: RateRule, rate: str, seconds: float) -> None:
        """See `RateStore.pause`."""

        def step(file: Transaction) -> None:
            until = file.now + round(seconds * US)
            file.write("DELETE FROM pauses WHERE until <= ?", file.now)
            file.write(
                "INSERT INTO pauses VALUES (?, ?) ON CONFLICT (rate) DO UPDATE SET until = max(until, excluded.until)",
                rate, until,
            )  # fmt: skip

        self._link.run(step, "NORMAL")

    async def take_async(self, rule: RateRule, budget: Budget, cost: int, patience: float) -> Passed | Booked | Refused:
        """Like `take`, in a worker thread."""
        return await in_thread(partial(self.take, rule, budget, cost, patience))

    async def confirm_async(self, rule: RateRule, budget: Budget, cost: int, mark: Mark) -> Passed | Booked:
        """Like `confirm`."""
        return await in_thread(partial(self.confirm, rule, budget, cost, mark))

    async def correct_async(self, rule: RateRule, budget: Budget, mark: Mark, cost: int, units: int) -> None:
        """Like `correct`."""
        await in_thread(partial(self.correct, rule, budget, mark, cost, units))

    async def look_async(self, rule: RateRule, budget: Budget, cost: int) -> tuple[int, float]:
        """Like `look`."""
        return await in_thread(partial(self.look, rule, budget, cost))

    async def pause_async(self, rule: RateRule, rate: str, seconds: float) -> None:
        """Like `pause`."""
        await in_thread(partial(self.pause, rule, rate, seconds))

    def _run(self, rule: RateRule, budget: Budget, decide: Callable[[Ledger], ResultT]) -> ResultT:
        def step(file: Transaction) -> ResultT:
            ledger, is_new = _open(file, rule, budget)
            reply = decide(ledger)
            if isinstance(reply, Refused):
                return reply
            if is_new:
                file.sweep("budgets", file.now)
            file.write(
                "INSERT OR REPLACE INTO budgets (key, state, expires) VALUES (?, ?, ?)",
                _key(rule, budget), ledger.text(), ledger.expires() / _NS,
            )  # fmt: skip
            return reply

        return self._link.run(step, "NORMAL")


def _open(file: Transaction, rule: RateRule, budget: Budget) -> tuple[Ledger, bool]:
    """The ledger of a budget, and whether it is a new one."""
    state, paused = file.find(
        "SELECT (SELECT state FROM budgets WHERE key = ? AND expires > ?), (SELECT until FROM pauses WHERE rate = ?)",
        _key(rule, budget), file.now, budget.rate,
    )  # fmt: skip
    return Ledger(rule, state, file.now * _NS, (paused or 0) * _NS, -file.skew * _NS), state is None


def _key(rule: RateRule, budget: Budget) -> str:
    return f"{budget.rate}\0{rule.shape}\0{budget.key}"
