"""Hammers fastapi_app.py: each order is sent twice at once, far faster than the service allows.

Ends with exit code 0 if every order was charged once, and the bank never saw more calls at once than the limit says.
Needs fastapi and uvicorn beside guarded.

    python examples/fastapi_client.py
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

import guarded
from guarded import events
from guarded.integrations.httpx import GuardedTransport

HERE = Path(__file__).parent
ORDERS = 120


@contextmanager
def service() -> Iterator[str]:
    """The service, as a process of its own."""
    command = [sys.executable, str(HERE / "fastapi_app.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            port = process.stdout.readline()
            if not port:
                sys.exit("the service did not start; it needs fastapi and uvicorn")
            yield f"http://127.0.0.1:{int(port)}"
        finally:
            process.terminate()


async def hammer(url: str) -> tuple[Counter[str], dict[str, int]]:
    """All orders, twice, at once; how they ended, and what the bank saw."""
    outcomes: Counter[str] = Counter()

    async def send(order: str) -> None:
        body = {"order_id": order, "amount": 250}
        response = await client.post("/charge", json=body, headers={"Idempotency-Key": order})
        outcomes[str(response.status_code)] += 1
        outcomes["replayed"] += "Idempotent-Replayed" in response.headers

    pool = httpx.Limits(max_connections=64)
    transport = GuardedTransport("shop", transport=httpx.AsyncHTTPTransport(limits=pool))
    async with httpx.AsyncClient(base_url=url, transport=transport, timeout=30) as client:
        await asyncio.gather(*(send(f"order-{number % ORDERS}") for number in range(2 * ORDERS)))
    async with httpx.AsyncClient(base_url=url) as client:
        await asyncio.sleep(1.1)  # the rate of this client is used up
        return outcomes, (await client.get("/stats")).json()


def main() -> int:
    """Run both, print a table, say whether every bound was kept."""
    retries: Counter[str] = Counter()

    def count(event: events.Event) -> None:
        if event.name == "retry.scheduled":
            retries[str(event.status or "a lost connection")] += 1

    guarded.load(HERE / "fastapi_app.yaml")
    with service() as url, events.subscribe(count):
        outcomes, seen = asyncio.run(hammer(url))
    rows = [
        ("requests", 2 * ORDERS),
        *((f"answered {status}", count) for status, count in sorted(outcomes.items()) if status.isdecimal()),
        ("replayed answers", outcomes["replayed"]),
        *((f"retries after {status}", count) for status, count in sorted(retries.items())),
        *((f"bank: {name}", count) for name, count in seen.items()),
    ]
    for name, number in rows:
        print(f"{name:<26}{number:>6}")
    kept = [
        outcomes["200"] == 2 * ORDERS,
        seen["orders"] == seen["charges"] == ORDERS,
        seen["most for one order"] == 1,
        seen["peak"] <= 8,
        retries["429"] > 0,
    ]
    print("every promise was kept" if all(kept) else f"something is wrong: {kept}", file=sys.stderr)
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
