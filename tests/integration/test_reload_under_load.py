"""Reloads while threads and event loops call: no call is lost, no bound is passed."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import guarded
from guarded import guard, registry
from guarded.config import Loaded
from guarded.errors import ConfigError
from guarded.testing import capture

SMALL, LARGE = 3, 6
TEXT = """
policies:
  db: {{limit: {{max_concurrent: {size}}}}}
  p:
    limit: db
    retry: {{retries: {retries}, base: 1ms, on: [KeyError]}}
    circuit: {{failures: {failures}}}
    rate: {{spec: "{rate}/s", max_wait: 10s}}
"""


@pytest.fixture(autouse=True)
def _take_out() -> Iterator[None]:
    """No config outlives its test."""
    yield
    if isinstance(registry.config, Loaded):
        registry.config.close()


class Meter:
    """Counts how many run at once, as the other side would."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.running = 0
        self.peak = 0
        self.done = 0

    def start_over(self) -> None:
        """Begin to measure anew."""
        with self._lock:
            self.peak = self.running

    def __enter__(self) -> None:
        with self._lock:
            self.running += 1
            self.peak = max(self.peak, self.running)

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self.running -= 1
            self.done += 1


@pytest.mark.real_clock
def test_reload_under_load(tmp_path: Path) -> None:
    """8 threads and 2 loops call throughout 40 reloads, every fourth of a file that is wrong."""
    file = tmp_path / "g.yaml"

    def write(size: int, number: int) -> None:
        file.write_text(TEXT.format(size=size, retries=number, failures=5 + number, rate=100_000 + number))

    write(SMALL, 0)
    guarded.load(file)
    db = registry["db"]
    meter = Meter()
    stop = threading.Event()
    ended: Counter[str] = Counter()

    @guard("p")
    def call() -> int:
        with meter:
            time.sleep(0.0005)
        return 1

    @guard("p")
    async def call_async() -> int:
        with meter:
            await asyncio.sleep(0.0005)
        return 1

    def work(name: str) -> None:
        count = 0
        while not stop.is_set():
            count += call()
        ended[name] += count

    async def tasks(name: str) -> None:
        async def one() -> int:
            count = 0
            while not stop.is_set():
                count += await call_async()
            return count

        ended[name] += sum(await asyncio.gather(*(one() for _ in range(6))))

    failures: list[BaseException] = []

    def guarded_thread(target: object) -> threading.Thread:
        def body() -> None:
            try:
                target()  # type: ignore[operator]
            except BaseException as error:
                failures.append(error)

        return threading.Thread(target=body)

    threads = [guarded_thread(lambda n=n: work(f"thread {n}")) for n in range(8)]
    threads += [guarded_thread(lambda n=n: asyncio.run(tasks(f"loop {n}"))) for n in range(2)]
    for thread in threads:
        thread.start()
    for number in range(1, 41):
        if number % 4 == 0:
            file.write_text("policies: {p: {limit: dbb}}\n")
            with pytest.raises(ConfigError):
                registry.reload()
        else:
            write(LARGE if number % 2 else SMALL, number)
            registry.reload()
        time.sleep(0.01)
    assert SMALL < meter.peak <= LARGE
    write(SMALL, 0)
    registry.reload()
    # Calls let in under the larger bound may reach the body after the reload; once they are out there are no more.
    _until(lambda: registry.snapshot()["db"]["held"] <= SMALL)
    meter.start_over()
    time.sleep(0.1)
    assert meter.peak == SMALL
    stop.set()
    for thread in threads:
        thread.join(20)
    assert failures == []
    assert not any(thread.is_alive() for thread in threads)
    assert len(ended) == 10
    assert all(count > 0 for count in ended.values())
    assert sum(ended.values()) == meter.done
    assert registry["db"] is db
    assert registry.snapshot()["db"]["held"] == registry.snapshot()["db"]["queued"] == 0


@pytest.mark.real_clock
def test_waiters_keep_their_places_when_a_file_resizes(tmp_path: Path) -> None:
    """Three wait for one permit; a larger file serves them, in order, with nobody losing the place."""
    file = tmp_path / "g.yaml"
    file.write_text("policies: {db: {limit: 1}}\n")
    guarded.load(file)
    order: list[int] = []

    async def main() -> None:
        gate = asyncio.Event()

        @guard("db")
        async def call(number: int) -> None:
            order.append(number)
            await gate.wait()

        tasks = []
        for number in range(4):
            tasks.append(asyncio.create_task(call(number)))
            await asyncio.sleep(0)
        while registry.snapshot()["db"]["queued"] < 3:
            await asyncio.sleep(0)
        file.write_text("policies: {db: {limit: 3}}\n")
        registry.reload()
        while len(order) < 3:
            await asyncio.sleep(0.001)
        assert order == [0, 1, 2]
        assert registry.snapshot()["db"]["queued"] == 1
        gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(asyncio.wait_for(main(), 10))
    assert order == [0, 1, 2, 3]


def test_rate_and_circuit_state_survive(tmp_path: Path) -> None:
    """What was spent stays spent and what was counted stays counted, until the kind itself changes."""
    file = tmp_path / "g.yaml"
    file.write_text("policies: {p: {rate: 2/h, circuit: {failures: 2}}}\n")
    guarded.load(file)

    @guard("p")
    def call(fail: bool) -> None:
        if fail:
            raise KeyError

    with pytest.raises(KeyError):
        call(True)
    file.write_text("policies: {p: {rate: {spec: 2/h, max_wait: 0}, circuit: {failures: 2, reset_after: 5s}}}\n")
    registry.reload()
    with pytest.raises(KeyError):
        call(True)  # the second failure in a row
    with pytest.raises(guarded.CircuitOpen):
        call(False)
    file.write_text("policies: {p: {rate: {spec: 2/h, max_wait: 0}}}\n")
    registry.reload()
    with pytest.raises(guarded.RateExceeded):
        call(False)  # both of the hour are spent


def test_500_policies_load_in_under_a_second() -> None:
    """2 500 layers from one template, in CPU time; imports and models are paid for once, before."""
    bodies = "".join(
        f"  p{n}: {{extends: t, limit: {n + 1}, rate: {{spec: '50/s; 1000/minute', key: '{{merchant}}'}}}}\n"
        for n in range(500)
    )
    text = f"""
templates:
  t: {{deadline: 10s, retry: 3, circuit: {{failure_rate: 0.5, min_calls: 20, window: 30s}}}}
policies:
{bodies}"""
    guarded.load("version: 1\n")
    started = time.process_time()
    guarded.load(text)
    taken = time.process_time() - started
    assert len(registry) == 500 * 6
    assert taken < 1 or sys.gettrace() is not None  # coverage makes it several times slower


@pytest.mark.real_clock
def test_the_watcher_reloads_and_survives_a_bad_file(tmp_path: Path) -> None:
    """By mtime, in its own thread."""
    file = tmp_path / "g.yaml"
    file.write_text("policies: {db: {limit: 1}}\n")
    with guarded.load(file, watch="10ms"), capture() as events:
        file.write_text("policies: {db: {limit: 0}}  # wrong\n")
        _until(lambda: any(event.name == "config.reload_failed" for event in events))
        assert registry["db"].options.max_concurrent == 1
        file.write_text("policies: {db: {limit: 22}}\n")
        _until(lambda: registry["db"].options.max_concurrent == 22)


def _until(condition: object) -> None:
    deadline = time.monotonic() + 10
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.005)
