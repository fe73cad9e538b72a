"""The share of calls that may be retries."""

from __future__ import annotations

import asyncio
import pickle
import threading

import pytest

from guarded import Done, PolicyConflict, PolicyNotFound, RetryBudget, registry, retry
from guarded.policies._retry.budget import WINDOW, Ledger
from guarded.testing import capture, virtual_time


def test_calls_earn_and_retries_spend() -> None:
    """With a ratio of 0.2, five calls pay for one retry."""
    ledger = Ledger()
    for _ in range(10):
        ledger.deposit(100.0)
    assert [ledger.withdraw(100.0, 0.2, 0) for _ in range(3)] == [True, True, False]


def test_tenths_add_up() -> None:
    """Ten calls at 0.1 are one retry, binary fractions or not."""
    ledger = Ledger()
    for _ in range(10):
        ledger.deposit(0.0)
    assert ledger.withdraw(0.0, 0.1, 0)


def test_a_trickle_is_always_allowed() -> None:
    """min_per_second applies without any call, averaged over the window, and comes back."""
    ledger = Ledger()
    assert sum(ledger.withdraw(5.0, 0.0, 1) for _ in range(50)) == WINDOW
    assert not ledger.withdraw(14.9, 0.0, 1)
    assert ledger.withdraw(15.0, 0.0, 1)


def test_calls_count_for_the_window_only() -> None:
    """What was earned more than ten seconds ago is gone."""
    ledger = Ledger()
    for _ in range(100):
        ledger.deposit(0.5)
    assert ledger.balance(9.9, 0.2, 0) == pytest.approx(20)
    assert ledger.balance(10.0, 0.2, 0) == 0
    ledger.deposit(1e9)
    assert ledger.calls == 1


def test_time_going_back_changes_nothing() -> None:
    """A clock that jumps back neither raises nor forgets."""
    ledger = Ledger()
    ledger.deposit(100.0)
    ledger.deposit(50.0)
    assert ledger.calls == 2
    assert ledger.balance(100.0, 0.5, 0) == 1


def test_a_refund_undoes_the_latest_withdrawal() -> None:
    """Taken back where it was charged, so that nothing is earned when the window moves on."""
    ledger = Ledger()
    ledger.refund(0.0)
    assert ledger.retries == 0
    assert ledger.withdraw(0.0, 0.0, 1)
    ledger.refund(5.0)
    assert ledger.retries == 0
    assert ledger.balance(12.0, 0.0, 1) == WINDOW


def test_a_name_is_one_budget() -> None:
    """The same name and options give the same object; other options are a conflict naming both places."""
    budget = RetryBudget(0.1, name="gateway")
    budget.deposit()
    assert RetryBudget(0.1, name="gateway") is budget
    assert budget.live_state()["calls"] == 1
    assert RetryBudget(0.1) is not RetryBudget(0.1)
    with pytest.raises(PolicyConflict, match="gateway"):
        RetryBudget(0.2, name="gateway")
    assert registry.snapshot()["gateway"] == {"kind": "retry_budget", "calls": 1, "retries": 0, "balance": 10.1}


def test_pickling_brings_the_named_budget_back() -> None:
    """State never travels: a named budget is that of the process."""
    budget = RetryBudget(0.3, 2, name="shared")
    assert pickle.loads(pickle.dumps(budget)) is budget
    copy = pickle.loads(pickle.dumps(RetryBudget(0.3, 2)))
    assert copy.options == budget.options


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_storm_is_cut_down(mode: str) -> None:
    """100 failing calls at once make 0.2 * 100 + 10 retries at most, instead of 300."""
    ran = []

    def fails() -> None:
        ran.append(1)
        raise ConnectionError("down")

    async def fails_async() -> None:
        fails()

    policy = retry(retries=3, budget=RetryBudget(0.2, 1), backoff=[0])
    with virtual_time(), capture("WARNING") as events:
        for _ in range(100):
            with pytest.raises(ConnectionError):
                policy(fails)() if mode == "sync" else asyncio.run(policy(fails_async)())
    assert 20 <= len(ran) - 100 <= 30
    assert any(event.name == "retry.budget_spent" for event in events)


def test_the_budget_is_asked_before_sleeping() -> None:
    """A caller without budget has its error at once."""
    budget = RetryBudget(0, 0.1)
    policy = retry(retries=5, base=2, jitter="none", budget=budget)

    def fails() -> None:
        raise ConnectionError("down")

    with virtual_time() as time:
        started = time.monotonic()
        with pytest.raises(ConnectionError):
            policy(fails)()
        assert time.monotonic() == started + 2  # one retry was there to spend, the second was refused
        assert budget.balance == pytest.approx(0)


def test_a_budget_by_name_may_be_defined_later() -> None:
    """The name is looked up when a call needs it."""

    @retry(budget="later")
    def ask() -> str:
        return "answer"

    with pytest.raises(PolicyNotFound, match="later"):
        ask()
    budget = RetryBudget(name="later")
    assert ask() == "answer"
    assert budget.live_state()["calls"] == 1


def test_a_name_of_something_else_is_refused() -> None:
    """Only a RetryBudget is a budget."""
    retry(retries=1, name="calm")

    @retry(budget="calm")
    def ask() -> None:
        raise AssertionError("must not run")

    with pytest.raises(TypeError, match="not a RetryBudget"):
        ask()


def test_a_cancelled_wait_gives_its_retry_back() -> None:
    """A retry that never took place is not charged."""
    budget = RetryBudget(0, 1)

    @retry(retries=3, base=5, jitter="none", budget=budget)
    async def fails() -> None:
        raise ConnectionError("down")

    async def main() -> None:
        task = asyncio.create_task(fails())
        while budget.live_state()["retries"] == 0:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert budget.live_state()["retries"] == 0


def test_a_retry_that_the_hook_made_needless_is_given_back() -> None:
    """Done, or an error of the hook: no attempt took place."""
    budget = RetryBudget(0, 1)

    def fails() -> None:
        raise ConnectionError("down")

    def breaks(error: object, number: int) -> None:
        raise LookupError

    assert retry(base=0, budget=budget, before_retry=lambda error, number: Done(1))(fails)() == 1
    with pytest.raises(LookupError):
        retry(base=0, budget=budget, before_retry=breaks)(fails)()
    assert budget.live_state()["retries"] == 0


def test_a_budget_is_no_decorator() -> None:
    """It says where it belongs."""
    with pytest.raises(TypeError, match=r"retry\(budget="):
        RetryBudget()(print)


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        ({"ratio": -0.1}, ["ratio=-0.1"]),
        ({"ratio": 20}, ["ratio=20"]),
        ({"ratio": True}, ["ratio=True"]),
        ({"min_per_second": float("nan")}, ["min_per_second=nan"]),
        ({"min_per_second": 10**400}, ["min_per_second=1000"]),
        ({"ratio": "x", "min_per_second": -1}, ["ratio='x'", "min_per_second=-1"]),
        ({"ratio": 0, "min_per_second": 0}, ["allows no retry"]),
    ],
)
def test_bad_options_are_all_named(options: dict[str, float], rules: list[str]) -> None:
    """One ValueError with every wrong option."""
    with pytest.raises(ValueError) as caught:
        RetryBudget(**options)
    assert all(rule in str(caught.value) for rule in rules)


def test_threads_share_one_count() -> None:
    """Withdrawals from many threads never exceed the budget."""
    budget = RetryBudget(0, 5)
    granted: list[bool] = []
    threads = [threading.Thread(target=lambda: granted.extend(budget.withdraw() for _ in range(50))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(granted) == 50
