"""One process of the fleet in the tests: `python fleet_worker.py WHAT URL …`. Says ``ready`` when it has begun."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

import redis

from guarded import events, idempotent, limit, rate
from guarded.stores import open_store

LEASE = 1.0
ENTER = """
local inside = redis.call('INCR', KEYS[1])
if inside > tonumber(redis.call('GET', KEYS[2]) or 0) then redis.call('SET', KEYS[2], inside) end
local time = redis.call('TIME')
redis.call('RPUSH', KEYS[3], string.format('%.0f', time[1] * 1000000 + time[2]))
"""


def say(text: str) -> None:
    """To whoever started this."""
    print(text, flush=True)


def both(url: str, seconds: float, threads: int) -> None:
    """Threads that take a rate of 50 per second and a limit of 5, and tell the server when they are inside."""
    store = open_store(url, timeout=3.0)
    permits = limit(5, name="db", store=store)
    pace = rate("50/s", name="api", store=store)
    client = redis.Redis.from_url(url)
    enter = client.register_script(ENTER)
    until = time.monotonic() + seconds

    @permits
    def work() -> None:
        enter(keys=["inside", "peak", "bodies"])
        time.sleep(0.02)
        client.decr("inside")

    @pace
    def paced() -> None:
        client.eval("redis.call('RPUSH', KEYS[1], table.concat(redis.call('TIME'), '.'))", 1, "paced")

    def run() -> None:
        while time.monotonic() < until:
            paced()
            work()

    workers = [threading.Thread(target=run) for _ in range(threads)]
    for worker in workers:
        worker.start()
    say("ready")
    for worker in workers:
        worker.join()


def hold(url: str, seconds: float) -> None:
    """Hold the only permit, until the time is over or the lease is lost; says what it hears."""
    store = open_store(url, lease=LEASE)
    events.subscribe(lambda event: say(event.name), "WARNING")

    @limit(1, name="db", store=store)
    def work() -> None:
        from guarded import sleep

        say("ready")
        sleep(seconds)

    try:
        work()
    except Exception as error:
        say(type(error).__name__)


def charge(url: str, seconds: float, name: str) -> None:
    """Run one key, slowly; says when it begins and what it got."""
    store = open_store(url, lease=LEASE)
    client = redis.Redis.from_url(url)

    @idempotent("order", store=store, lease=LEASE)
    def pay(order: str) -> str:
        client.rpush("runs", name)
        say("ready")
        time.sleep(seconds)
        client.rpush("ends", name)
        return name

    say(f"got {pay('one')}")


if __name__ == "__main__":
    steps: dict[str, Callable[..., None]] = {
        "both": lambda url, seconds, threads: both(url, float(seconds), int(threads)),
        "hold": lambda url, seconds: hold(url, float(seconds)),
        "charge": lambda url, seconds, name: charge(url, float(seconds), name),
    }
    events.set_level("OFF")
    steps[sys.argv[1]](*sys.argv[2:])
