"""A payment gateway that fails the way real ones do, as a process of its own.

``POST /charge`` takes ``{"order_id": …}`` and answers by a fixed script: most calls succeed, some get 503, 429 with
Retry-After in seconds or as a date, a slow answer, a dropped connection, or none at all. ``POST /down`` and ``/up``
switch an outage on and off; ``GET /stats`` tells what the server saw. It counts for itself: requests at once (a
request is over when it is answered or its connection is gone), requests per outcome, executions per order.

Run ``python failing_server.py``: it prints its port and serves until it is killed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections import Counter
from email.utils import formatdate
from time import time

SCRIPT = ("ok", "ok", "503", "ok", "429 seconds", "slow", "ok", "drop", "ok", "429 date", "ok", "ok", "hang", "ok")
SLOW = 0.25
REASONS = {200: "OK", 404: "Not Found", 429: "Too Many Requests", 503: "Service Unavailable"}


class Gateway:
    """The state of the server and its answers."""

    def __init__(self) -> None:
        self.script = itertools.cycle(SCRIPT)
        self.down = False
        self.active = 0
        self.peak = 0
        self.outcomes: Counter[str] = Counter()
        self.executions: Counter[str] = Counter()
        self.arrivals: list[float] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request after another."""
        try:
            while (request := await read_request(reader)) is not None:
                method, path, body = request
                if path == "/charge":
                    if not await self.charge(json.loads(body), reader, writer):
                        return
                else:
                    respond(writer, 200, self.control(method, path))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def control(self, method: str, path: str) -> dict[str, object]:
        """Switches and figures for the quickstart itself."""
        if method == "POST":
            self.down = path == "/down"
        return {
            "peak": self.peak,
            "active": self.active,
            "outcomes": dict(self.outcomes),
            "executions": dict(self.executions),
            "busiest": busiest(self.arrivals),
        }

    async def charge(self, order: dict[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one charge; False when the connection is to be closed without an answer."""
        self.active += 1
        self.arrivals.append(asyncio.get_running_loop().time())
        gone = asyncio.ensure_future(reader.read(1))  # ends when the client hangs up
        work = asyncio.ensure_future(self.answer(order, writer))
        try:
            # The connections that went away before this request came in are noticed in the same round of the loop.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.peak = max(self.peak, self.active)
            await asyncio.wait({gone, work}, return_when=asyncio.FIRST_COMPLETED)
            return work.done() and work.result()
        finally:
            self.active -= 1
            gone.cancel()
            work.cancel()
            await asyncio.wait({gone, work})

    async def answer(self, order: dict[str, str], writer: asyncio.StreamWriter) -> bool:
        """What the script says for this request."""
        step = "503" if self.down else order.get("step") or next(self.script)
        self.outcomes[step] += 1
        match step:
            case "503":
                respond(writer, 503, {"error": "try again"})
            case "429 seconds":
                respond(writer, 429, {"error": "slow down"}, {"Retry-After": "0.2"})
            case "429 date":
                respond(writer, 429, {"error": "slow down"}, {"Retry-After": formatdate(time() + 1, usegmt=True)})
            case "drop":
                return False
            case "hang":
                await asyncio.sleep(3600)
            case _:
                await asyncio.sleep(SLOW if step == "slow" else 0.01)
                self.executions[order["order_id"]] += 1
                respond(writer, 200, {"receipt": f"receipt-{order['order_id']}"})
        return True


async def read_request(reader: asyncio.StreamReader) -> tuple[str, str, bytes] | None:
    """Method, path and body of the next request; None at the end of the connection."""
    head = await reader.readuntil(b"\r\n\r\n")
    request_line, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = request_line.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return method, path, body


def respond(writer: asyncio.StreamWriter, status: int, content: object, headers: dict[str, str] | None = None) -> None:
    """Write one response."""
    body = json.dumps(content).encode()
    fields = {"Content-Type": "application/json", "Content-Length": str(len(body)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    writer.write(f"HTTP/1.1 {status} {REASONS[status]}\r\n{head}\r\n".encode() + body)


def busiest(arrivals: list[float], window: float = 0.95) -> int:
    """The most requests in any second, less 50 ms: what the network may shift two requests against each other."""
    best = start = 0
    for end, at in enumerate(arrivals):
        while at - arrivals[start] >= window:
            start += 1
        best = max(best, end - start + 1)
    return best


async def main() -> None:
    """Serve on a free port of the loopback interface until killed."""
    gateway = Gateway()
    server = await asyncio.start_server(gateway.serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        sys.exit(0)
