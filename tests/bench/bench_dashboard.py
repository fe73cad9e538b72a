"""10 000 guarded calls a second, with the dashboard closed and open, by turns: what the calls notice.

    PYTHONPATH=. python tests/bench/bench_dashboard.py

One thread calls at that rate; another process watches the stream ten times a second, as the page does.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from guarded import circuit, events, limit, rate, registry, retry
from guarded.integrations import dashboard

RATE = 10_000
SECONDS = 3.0
TURNS = 3

WATCH = """
import sys, urllib.request
with urllib.request.urlopen(sys.argv[1] + "api/stream") as stream:
    for line in stream:
        if line.startswith(b"event: state"):
            print("x", flush=True)
"""


def drive(work: object) -> tuple[list[float], float, float]:
    """Seconds of each call, calls per second, and share of a processor that the thread took."""
    clock, lengths = time.perf_counter, []
    began, used, done = clock(), time.thread_time(), 0
    while clock() - began < SECONDS:
        for _ in range(50):
            before = clock()
            work()  # type: ignore[operator]
            lengths.append(clock() - before)
        done += 50
        time.sleep(max(0.0, began + done / RATE - clock()))
    passed = clock() - began
    return lengths, done / passed, (time.thread_time() - used) / passed


def report(title: str, lengths: list[float], pace: float, share: float, pieces: int) -> None:
    """One line."""
    parts = statistics.quantiles(lengths, n=1000)
    middle, most = statistics.median(lengths) * 1e6, [parts[index] * 1e6 for index in (989, 998)]
    print(
        f"{title:8} {pace:8.0f} calls/s   median {middle:6.1f} µs   99 % {most[0]:7.1f}   99.9 % {most[1]:8.1f}"
        f"   CPU {share:5.1%}   documents/s {pieces / SECONDS:4.1f}"
    )


def main() -> None:
    """Closed and open, by turns."""
    events.set_level("OFF")
    work = limit(20, name="db")(rate("100000000/s", name="api")(retry(retries=3)(circuit("gateway")(lambda: None))))
    with dashboard.serve(0, interval="100ms") as server:
        for _ in range(TURNS):
            report("closed", *drive(work), 0)
            watcher = subprocess.Popen([sys.executable, "-c", WATCH, server.url], stdout=subprocess.PIPE)
            assert watcher.stdout is not None
            watcher.stdout.readline()
            found = drive(work)
            watcher.kill()
            report("open", *found, len(watcher.stdout.read().splitlines()))
            watcher.wait()
            time.sleep(0.5)


if __name__ == "__main__":
    with registry.isolated():
        main()
