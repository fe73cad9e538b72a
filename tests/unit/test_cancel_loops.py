"""Tokens and deadlines around async bodies, where loops and clocks are not what they were."""

from __future__ import annotations

import asyncio
import threading

import pytest

from guarded import Cancelled, CancelToken, DeadlineExceeded, deadline, retry
from guarded._core import clock
from guarded.testing import virtual_time


@retry(retries=0)
async def waiting() -> None:
    """A guarded body that knows nothing of tokens."""
    await asyncio.Event().wait()


def test_a_token_that_fires_by_itself_cancels_a_body() -> None:
    """At its time, wherever the body waits; the task is as before."""

    async def main() -> int:
        with CancelToken.after("3s"), pytest.raises(Cancelled, match="3 s have passed"):
            await waiting()
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    with virtual_time():
        assert asyncio.run(main()) == 0
        assert clock.monotonic() == 1003


def test_a_token_that_fires_when_the_loop_is_gone() -> None:
    """There is nothing left to cancel, and whoever fires it does not hear of it."""
    token = CancelToken()
    loop = asyncio.new_event_loop()

    async def begin() -> asyncio.Task[None]:
        with token:
            task = asyncio.ensure_future(waiting())
        await asyncio.sleep(0)
        return task

    task = loop.run_until_complete(begin())
    loop.close()
    assert token.cancel("shutting down")
    assert not task.done()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    task.get_coro().close()  # type: ignore[union-attr]


def test_a_body_that_ends_as_another_thread_fires_its_token() -> None:
    """The cancellation comes too late, and hits nobody else."""
    token = CancelToken()

    @retry(retries=0)
    async def quick() -> str:
        thread = threading.Thread(target=token.cancel)
        thread.start()
        thread.join()
        return "done"

    async def main() -> str:
        with token:
            result = await quick()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return result

    assert asyncio.run(main()) == "done"


def test_a_test_that_switches_to_virtual_time_in_mid_loop() -> None:
    """Deadlines of the time that holds come when they are due, whatever was armed before."""

    @deadline("5s")
    async def body() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        real = asyncio.ensure_future(deadline("1h")(waiting)())
        await asyncio.sleep(0)
        with virtual_time() as moved:
            began = moved.monotonic()
            with pytest.raises(DeadlineExceeded):
                await body()
            assert moved.monotonic() - began == 5
        real.cancel()
        await asyncio.wait({real})

    asyncio.run(main())
