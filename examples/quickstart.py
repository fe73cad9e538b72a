"""The whole stack against a real server that fails the way real ones do.

Starts `failing_server.py` as a process, then calls it from threads and from tasks on two event loops through one
service class whose sync and async methods share their policies. Three acts: a busy hour, one order charged twice
at once, an outage. Ends with a table and exit code 0 if every bound was kept, by the server's own count.

    python examples/quickstart.py
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from loguru import logger

from guarded import (
    GuardedError,
    circuit,
    deadline,
    events,
    idempotent,
    limit,
    rate,
    remaining,
    retry,
)

MAX_CONCURRENT = 8
PER_SECOND = 60
DEADLINE = 4.0
THREADS, TASKS = 8, 24
ORDERS = 160

db_limit = limit(MAX_CONCURRENT, name="db")
api_rate = rate(f"{PER_SECOND}/s", name="partner-api")
gateway_circuit = circuit("gateway", failure_rate=0.6, window=40, min_calls=20, reset_after="500ms", half_open=2)


class Payments:
    """A service as users write it: the policies are shared, the bodies know nothing of them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = httpx.Client(base_url=url, timeout=1.0)

    @deadline(DEADLINE)
    @db_limit
    @retry(retries=5, base="50ms", max_delay="1s")
    @gateway_circuit
    @api_rate
    def charge(self, order_id: str) -> str:
        """Charge an order, from a thread."""
        response = self.client.post("/charge", json={"order_id": order_id}, timeout=min(1.0, remaining()))
        return receipt(response)

    @deadline(DEADLINE)
    @db_limit
    @retry(retries=5, base="50ms", max_delay="1s")
    @gateway_circuit
    @api_rate
    async def acharge(self, client: httpx.AsyncClient, order_id: str) -> str:
        """Charge an order, from a task."""
        response = await client.post("/charge", json={"order_id": order_id}, timeout=min(1.0, remaining()))
        return receipt(response)

    @idempotent(key="order_id", ttl="1h")
    @deadline(DEADLINE)
    @db_limit
    @retry(retries=5, base="50ms")
    async def charge_once(self, order_id: str) -> str:
        """Charge an order once, however often it is asked for."""
        async with httpx.AsyncClient(base_url=self.url, timeout=1.0) as client:
            return receipt(await client.post("/charge", json={"order_id": order_id, "step": "slow"}))


def receipt(response: httpx.Response) -> str:
    """The receipt, or the error of the response."""
    response.raise_for_status()
    return str(response.json()["receipt"])


@dataclass
class Tally:
    """How the calls of one act ended, and how long the longest took."""

    outcomes: Counter[str] = field(default_factory=Counter)
    longest: float = 0.0

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count one call; errors of guarded and of the server end here."""
        started = time.monotonic()
        try:
            yield
        except (GuardedError, httpx.HTTPError) as error:
            self.outcomes[type(error).__name__] += 1
        else:
            self.outcomes["served"] += 1
        finally:
            self.longest = max(self.longest, time.monotonic() - started)


@contextmanager
def failing_server() -> Iterator[str]:
    """The server process; gives its address."""
    script = Path(__file__).with_name("failing_server.py")
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def busy_hour(payments: Payments, tally: Tally) -> None:
    """Threads and two event loops charge orders through the same policies."""
    orders = [f"order-{number}" for number in range(ORDERS)]

    def from_thread(order_id: str) -> None:
        with tally.call():
            payments.charge(order_id)

    async def from_tasks(mine: list[str]) -> None:
        waiting = iter(mine)
        async with httpx.AsyncClient(base_url=payments.url, timeout=1.0) as client:

            async def worker() -> None:
                for order_id in waiting:
                    with tally.call():
                        await payments.acharge(client, order_id)

            await asyncio.gather(*(worker() for _ in range(TASKS)))

    loops = [
        threading.Thread(target=lambda mine=orders[start::4]: asyncio.run(from_tasks(mine)))  # type: ignore[misc]
        for start in (0, 1)
    ]
    for thread in loops:
        thread.start()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(from_thread, orders[2::4] + orders[3::4]))
    for thread in loops:
        thread.join()


def charged_twice_at_once(payments: Payments) -> list[str]:
    """One order is charged by two tasks at once, and once more afterwards."""

    async def main() -> list[str]:
        both = await asyncio.gather(*(payments.charge_once("order-once") for _ in range(2)))
        return [*both, await payments.charge_once("order-once")]

    return asyncio.run(main())


def outage(payments: Payments, tally: Tally) -> float:
    """The server goes down and comes back; seconds from its return until the circuit is closed again."""
    payments.client.post("/down")
    while not tally.outcomes["CircuitOpen"]:
        # In a hurry: a caller with time would wait for the circuit's next trial, and see the server's error instead.
        with tally.call(), deadline("200ms"):
            payments.charge("order-outage")
    payments.client.post("/up")
    back = time.monotonic()
    while gateway_circuit.state != "closed" and time.monotonic() - back < 10:
        with tally.call():
            payments.charge("order-outage")
    return time.monotonic() - back


def short(value: object) -> str:
    """A field of an event, as short as a line of a log needs it."""
    return f"{value:.3f}" if isinstance(value, float) else str(value)[:60]


def log_line(record: Any) -> str:
    """One short line for an event: loguru has its fields under ``extra``."""
    shown = ("function", "call_id", "policy", "attempt", "queued", "wait", "delay", "retry_after", "cause")
    extra = record["extra"]
    told = {name: extra[name] for name in shown if extra.get(name) is not None}
    extra["line"] = " ".join(f"{name}={short(value)}" for name, value in told.items())
    return "{time:HH:mm:ss.SSS} {level:<7} {message:<19} {extra[line]}\n"


def report(rows: list[tuple[str, Any, str, bool]]) -> bool:
    """Print what was measured against what was promised; True when all was kept."""
    width = max(len(name) for name, *_ in rows)
    for name, measured, promised, kept in rows:
        print(f"{name:<{width}}  {measured!s:>12}  {promised:<28} {'kept' if kept else 'BROKEN'}")
    return all(kept for *_, kept in rows)


def main() -> int:
    """Run the three acts and judge them."""
    logger.remove()
    logger.add(sys.stderr, format=log_line, level="INFO")
    seen: Counter[str] = Counter()
    waits: list[float] = [0.0]

    def count(event: events.Event) -> None:
        seen[event.name] += 1
        waits.append(event.wait or 0.0)

    busy, broken = Tally(), Tally()
    with failing_server() as url, events.subscribe(count, level="TRACE"):
        payments = Payments(url)
        busy_hour(payments, busy)
        receipts = charged_twice_at_once(payments)
        recovery = outage(payments, broken)
        server = json.loads(payments.client.get("/stats").text)
    calls, requests = sum(busy.outcomes.values()), sum(server["outcomes"].values())
    executed = server["executions"]
    print()
    print(f"{calls} calls from {THREADS} threads and {2 * TASKS} tasks on 2 loops: {dict(busy.outcomes)}")
    print(f"{requests} requests reached the server, which did: {server['outcomes']}")
    print(f"events: {dict(sorted(seen.items()))}")
    print(f"longest wait in a queue: {max(waits):.2f} s\n")
    rows = [
        ("calls that ended", calls, f"all {ORDERS}", calls == ORDERS),
        ("calls served", busy.outcomes["served"], "at least 95 %", busy.outcomes["served"] >= 0.95 * ORDERS),
        ("retries", seen["retry.scheduled"], "some", seen["retry.scheduled"] > 0),
        ("rejections seen by callers", broken.outcomes["CircuitOpen"], "some", broken.outcomes["CircuitOpen"] > 0),
        ("longest call", f"{busy.longest:.2f} s", f"{DEADLINE:g} s", busy.longest < DEADLINE + 0.25),
        ("peak concurrency", server["peak"], f"{MAX_CONCURRENT}, by the server", server["peak"] <= MAX_CONCURRENT),
        ("busiest second", server["busiest"], f"{PER_SECOND}, by the server", server["busiest"] <= PER_SECOND),
        ("one order, asked 3 times", executed["order-once"], "executed once", executed["order-once"] == 1),
        ("its receipts", len(set(receipts)), "all equal", len(receipts) == 3 and len(set(receipts)) == 1),
        ("circuit opened", seen["circuit.opened"], "in the outage", seen["circuit.opened"] > 0),
        ("circuit closed again", seen["circuit.closed"], "after it", seen["circuit.closed"] > 0),
        ("time to recover", f"{recovery:.2f} s", "within 3 s", recovery < 3),
    ]
    return 0 if report(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
