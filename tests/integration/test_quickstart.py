"""The main job on real input: the examples' failing server, real threads, loops and HTTP clients."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from guarded import DeadlineExceeded, deadline, limit, retry

pytestmark = pytest.mark.real_clock

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def server() -> Iterator[httpx.Client]:
    """A client of the failing server, which runs as a process of its own."""
    script = EXAMPLES / "failing_server.py"
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        with httpx.Client(base_url=url, timeout=5) as client:
            yield client
        process.kill()


def requests_seen(server: httpx.Client) -> int:
    """How many charges the server has counted."""
    return sum(json.loads(server.get("/stats").text)["outcomes"].values())


def test_the_quickstart_keeps_every_bound() -> None:
    """The example ends with its table, events on stderr, and exit code 0."""
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / "quickstart.py")], capture_output=True, text=True, timeout=100, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr[-3000:]
    assert "BROKEN" not in run.stdout
    assert "peak concurrency" in run.stdout
    assert "retry.scheduled" in run.stderr


@pytest.mark.parametrize("kind", ["thread", "cooperative", "async"])
def test_a_caller_has_its_answer_within_the_deadline(server: httpx.Client, kind: Any) -> None:
    """deadline over retry over a server that always fails: an answer in time, and no attempt afterwards."""
    server.post("/down")
    seconds = 0.6

    def charge() -> None:
        server.post("/charge", json={"order_id": "x"}).raise_for_status()

    async def acharge() -> None:
        async with httpx.AsyncClient(base_url=server.base_url) as client:
            (await client.post("/charge", json={"order_id": "x"})).raise_for_status()

    guard = retry(retries=1000, base="20ms", max_delay="100ms")
    started = time.monotonic()
    with pytest.raises((httpx.HTTPStatusError, DeadlineExceeded)):
        if kind == "async":
            asyncio.run(deadline(seconds)(guard(acharge))())  # type: ignore[arg-type]
        else:
            deadline(seconds, mode=kind)(guard(charge))()
    assert time.monotonic() - started < seconds + 0.25
    seen = requests_seen(server)
    assert seen > 2
    time.sleep(0.3)
    assert requests_seen(server) <= seen + 1  # one may have been on its way


def test_the_wait_in_the_queue_counts_against_the_deadline(server: httpx.Client) -> None:
    """With a limit in the stack, who waits for a slot has that much less time, and says so."""
    one = limit(1, name="one")
    busy, release = threading.Event(), threading.Event()

    def occupy() -> None:
        with one:
            busy.set()
            release.wait()

    @deadline(0.3)
    @one
    def charge() -> None:
        server.post("/charge", json={"order_id": "x"})

    thread = threading.Thread(target=occupy)
    thread.start()
    busy.wait()
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded) as error:
        charge()
    took = time.monotonic() - started
    release.set()
    thread.join()
    assert 0.29 < took < 0.6
    assert error.value.during == "queued for limit 'one'"
    assert requests_seen(server) == 0


def test_one_budget_over_threads_and_loops_by_the_servers_count(server: httpx.Client) -> None:
    """8 threads and 2 event loops on one limit(5): the server never sees more than 5 requests at once."""
    five = limit(5, name="five")

    @five
    def charge() -> None:
        server.post("/charge", json={"order_id": "x", "step": "slow"})

    @five
    async def acharge(client: httpx.AsyncClient) -> None:
        await client.post("/charge", json={"order_id": "x", "step": "slow"})

    async def tasks() -> None:
        async with httpx.AsyncClient(base_url=server.base_url, timeout=30) as client:
            await asyncio.gather(*(acharge(client) for _ in range(8)))

    with ThreadPoolExecutor(10) as pool:
        jobs = [pool.submit(asyncio.run, tasks()) for _ in range(2)]
        jobs += [pool.submit(charge) for _ in range(8)]
        for job in jobs:
            job.result()
    stats = json.loads(server.get("/stats").text)
    assert stats["outcomes"] == {"slow": 24}
    assert stats["peak"] == 5
    assert five.snapshot().held == 0
