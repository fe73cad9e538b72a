"""One process of the fleet: four threads that send orders to the gateway until the time is over.

Nothing here knows of other processes; that the policies are shared is said by `store` and by their names alone.
Ends with one line of figures.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections import Counter

from guarded import GuardedError, circuit, events, guard, limit, rate
from guarded.policies.circuit import Circuit
from guarded.policies.limit import Limit
from guarded.policies.rate import Rate
from guarded.stack import Guard
from guarded.stores import open_store

THREADS = 4
HOLDERS, PER_SECOND, FAILURES, RESET_AFTER, LEASE = 5, 40, 5, 0.5, 1.0


class Unavailable(Exception):
    """The gateway says that it is down."""


def policies(redis_url: str) -> tuple[Guard, Limit, Rate, Circuit]:
    """One limit around one circuit around one rate, for the whole fleet."""
    store = open_store(redis_url, timeout="1s", lease=LEASE)
    db_limit = limit(HOLDERS, name="db", store=store)
    gateway = circuit("gateway", failures=FAILURES, reset_after=RESET_AFTER, store=store)
    api_rate = rate(PER_SECOND, per="1s", name="partner", store=store)
    return guard(db_limit, gateway, api_rate), db_limit, api_rate, gateway


def send(port: int) -> str:
    """One order to the gateway."""
    with socket.create_connection(("127.0.0.1", port), timeout=2) as link:
        link.sendall(b"order\n")
        answer = link.recv(16).decode()
    if answer != "ok":
        raise Unavailable(answer)
    return answer


def main(redis_url: str, port: int, seconds: float) -> None:
    """Send orders from all threads, and count what became of them."""
    outcomes: Counter[str] = Counter()
    happened: Counter[str] = Counter()
    events.set_level("OFF")
    events.subscribe(lambda event: happened.update([event.name]), "INFO")
    stack, *_ = policies(redis_url)
    order = stack(send)
    until = time.monotonic() + seconds

    def run() -> None:
        while time.monotonic() < until:
            try:
                outcomes[order(port)] += 1
            except GuardedError as error:
                outcomes[type(error).__name__] += 1
                time.sleep(0.02)  # a rejection costs nothing; do not turn it into a busy loop
            except Unavailable:
                outcomes["Unavailable"] += 1

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    print("ready", flush=True)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"outcomes": outcomes, "events": happened}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
