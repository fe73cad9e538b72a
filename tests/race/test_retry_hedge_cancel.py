"""Cancelling retry and hedge at every step of the event loop: nothing leaks, whatever the moment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import guarded
from guarded import RetryBudget, attempt, hedge, retry
from guarded.testing import virtual_time


async def cancelled_after(steps: int, call: Any) -> str:
    """How a call ends that is cancelled after so many turns of the loop."""
    task = asyncio.ensure_future(call())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    try:
        await task
        ended = "success"
    except asyncio.CancelledError:
        ended = "cancelled"
    except ConnectionError:
        ended = "failure"
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return ended


@pytest.mark.parametrize("steps", range(40))
def test_retry_cancelled_at_any_step_keeps_its_budget_right(steps: int) -> None:
    """Every retry that was charged did start, or was given back; no attempt starts after the cancellation."""
    complaints: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        budget = RetryBudget(0, 5)
        attempts: list[int] = []

        async def hook(error: Exception, number: int) -> None:
            await asyncio.sleep(0)

        @retry(retries=3, base=0.01, budget=budget, before_retry=hook)
        async def body() -> None:
            attempts.append(attempt())
            await asyncio.sleep(0)
            raise ConnectionError

        assert await cancelled_after(steps, body) in ("cancelled", "failure")
        assert budget.live_state()["retries"] == max(0, len(attempts) - 1)
        await asyncio.sleep(0)
        assert attempts == list(range(1, len(attempts) + 1))

    with virtual_time():
        asyncio.run(main())
    assert complaints == []


@pytest.mark.parametrize("after", [0, 0.01])
@pytest.mark.parametrize("steps", range(30))
def test_hedge_cancelled_at_any_step_ends_every_copy(steps: int, after: float) -> None:
    """Each copy that started has ended when the caller goes on, and no error is left unretrieved."""
    complaints: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        running: list[int] = []
        started = 0

        @hedge(after, max_hedges=2, idempotent=True)
        async def body() -> str:
            nonlocal started
            number = started
            started += 1
            running.append(number)
            try:
                await asyncio.sleep(0)
                if number == 0:
                    raise ConnectionError
                await guarded.asleep(0.05)
                return "answer"
            finally:
                try:
                    await asyncio.sleep(0)
                finally:
                    running.remove(number)

        assert await cancelled_after(steps, body) in ("cancelled", "success")
        assert running == []

    with virtual_time():
        asyncio.run(main())
    assert complaints == []
