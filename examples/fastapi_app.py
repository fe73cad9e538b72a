"""A payment service on FastAPI whose stack is in fastapi_app.yaml, and what it promises.

``POST /charge`` takes ``{"order_id": …, "amount": …}`` and charges a bank that loses every seventh connection.
``GET /stats`` tells what the bank saw. A full queue, a used-up rate or a spent deadline becomes a problem response
by itself; a request with an ``Idempotency-Key`` is executed once.

    python examples/fastapi_app.py          # prints its port and serves until it is killed
    python examples/fastapi_client.py       # starts one and hammers it
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections import Counter
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

import guarded
from guarded import guard
from guarded.integrations.fastapi import install


class Order(BaseModel):
    """What is to be paid."""

    order_id: str
    amount: int


class Bank:
    """Stands for the outside: slow, unreliable, and counting."""

    def __init__(self) -> None:
        self.calls = itertools.count(1)
        self.active = 0
        self.peak = 0
        self.charged: Counter[str] = Counter()

    async def charge(self, order: Order) -> str:
        """Take the money, or lose the connection before."""
        self.active += 1
        self.peak = max(self.peak, self.active)
        try:
            await asyncio.sleep(0.02)
            if next(self.calls) % 7 == 0:
                raise ConnectionError("the bank has hung up")
            self.charged[order.order_id] += 1
            return f"receipt-{order.order_id}"
        finally:
            self.active -= 1


bank = Bank()
app = FastAPI()


@app.post("/charge")
@guard("payments")
async def charge(order: Order) -> dict[str, str]:
    """Charge an order."""
    return {"receipt": await bank.charge(order)}


@app.get("/stats")
async def stats() -> dict[str, int]:
    """What the bank saw."""
    return {
        "orders": len(bank.charged),
        "charges": bank.charged.total(),
        "most for one order": max(bank.charged.values(), default=0),
        "peak": bank.peak,
    }


install(app, guards="front")


def main() -> None:
    """Serve on a free port of the loopback interface."""
    guarded.load(Path(__file__).with_suffix(".yaml"))
    guarded.check()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning", proxy_headers=False)).run(sockets=[listener])


if __name__ == "__main__":
    main()
