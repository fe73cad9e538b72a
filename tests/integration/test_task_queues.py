"""Guarded functions as tasks of real queues: real workers, a real broker, delays in the queue and not in the worker."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.real_clock, pytest.mark.slow]

COMMON = """
import asyncio, os, time
from guarded import attempt, guard, limit, rate, retry

retry(retries=2, base=1.5, factor=1, jitter="none", name="again")
rate("1/1.5s", max_wait=0, name="slow rate")
guard(limit(1, max_wait=0), "again", name="outbound")
rate("1/h", max_wait=0, name="hourly")
URL = os.environ["TASK_URL"]

def log(*words):
    with open(os.environ["TASK_LOG"], "a") as file:
        file.write(" ".join(map(str, [time.time(), *words])) + "\\n")

def tasks(task):
    @task("outbound")
    def flaky(key):
        log("flaky", key, attempt())
        if attempt() < 3:
            raise ConnectionError("no luck")

    @task("outbound")
    async def later(key):
        await asyncio.sleep(0)
        log("later", key, attempt())
        if attempt() < 2:
            raise ConnectionError("no luck")

    @task()
    def quick(key):
        log("quick", key, attempt())

    @task("slow rate")
    def slow(key):
        log("slow", key, attempt())

    @task("outbound")
    def broken(key):
        log("broken", key, attempt())
        raise ValueError("never again")

    @task("hourly", max_rejections=0)
    def seldom(key):
        log("seldom", key, attempt())

    @task("outbound")
    def hopeless(key):
        log("hopeless", key, attempt())
        raise ConnectionError("no luck")

    return flaky, later, quick, slow, broken, seldom, hopeless
"""
NAMES = "flaky, later, quick, slow, broken, seldom, hopeless"
CELERY = f"""
from celery import Celery
from guarded.integrations.celery import task

app = Celery("tasks", broker=URL)
app.conf.broker_connection_retry_on_startup = True
{NAMES} = tasks(lambda *parts, **options: task(app, *parts, **options))
def send(name, key): globals()[name].delay(key)
"""
RQ = f"""
from redis import Redis
from rq import Queue, SimpleWorker
from guarded.integrations.rq import task

queue = Queue(connection=Redis.from_url(URL))
def at_the_top(*parts, **options):
    def decorate(fn):
        fn.__qualname__ = fn.__name__  # a job is found by its path
        return task(queue, *parts, **options)(fn)
    return decorate
{NAMES} = tasks(at_the_top)
def send(name, key): globals()[name].enqueue(key)
def work(): SimpleWorker([queue], connection=queue.connection).work(with_scheduler=True, logging_level="WARNING")
"""
DRAMATIQ = f"""
import dramatiq
from dramatiq.brokers.redis import RedisBroker
from guarded.integrations.dramatiq import task

broker = RedisBroker(url=URL)
dramatiq.set_broker(broker)
{NAMES} = tasks(lambda *parts, **options: task(broker, *parts, **options))
def send(name, key): globals()[name].send(key)
"""
TASKIQ = f"""
from taskiq import TaskiqScheduler
from taskiq_redis import ListQueueBroker, ListRedisScheduleSource
from guarded.integrations.taskiq import task

broker, source = ListQueueBroker(URL), ListRedisScheduleSource(URL)
scheduler = TaskiqScheduler(broker, [source])
{NAMES} = tasks(lambda *parts, **options: task(broker, *parts, schedule_source=source, **options))
async def kiq(name, key):
    await broker.startup()
    await globals()[name].kiq(key)
    await broker.shutdown()
def send(name, key): asyncio.run(kiq(name, key))
"""
MODULES = {"celery": CELERY, "rq": RQ, "dramatiq": DRAMATIQ, "taskiq": TASKIQ}
WORKERS = {
    "celery": ["-m celery -A queued worker --pool solo -l WARNING --without-gossip --without-mingle"],
    "rq": ["-c import queued;queued.work()"],
    "dramatiq": ["-m dramatiq queued --processes 1 --threads 1"],
    "taskiq": [
        "-m taskiq worker queued:broker --workers 1 --max-async-tasks 1",
        "-m taskiq scheduler queued:scheduler --update-interval 1",
    ],
}


class Lines:
    """What tasks have written: when, which, with which key, in which attempt."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def of(self, task: str) -> list[tuple[float, str, int]]:
        """Time, key and attempt of each run of a task so far."""
        words = [line.split() for line in self._path.read_text().splitlines()]
        return [(float(at), key, int(attempt)) for at, name, key, attempt in words if name == task]

    def wait(self, task: str, runs: int, seconds: float = 40) -> list[tuple[float, str, int]]:
        """The same, when there are so many."""
        give_up = time.monotonic() + seconds
        while len(self.of(task)) < runs:
            assert time.monotonic() < give_up, f"{task} has run {len(self.of(task))} times, not {runs}"
            time.sleep(0.05)
        return self.of(task)


Send = Callable[..., None]


@pytest.fixture(scope="module", params=list(MODULES))
def queue(
    request: pytest.FixtureRequest, valkey: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Send, Lines]]:
    """One worker that does one thing at a time, and a way to send it tasks; a database of its own."""
    pytest.importorskip(request.param)
    tmp_path = tmp_path_factory.mktemp(request.param)
    url = f"{valkey.url}/{8 + list(MODULES).index(request.param)}"
    (tmp_path / "queued.py").write_text(COMMON + MODULES[request.param])
    log = tmp_path / "log"
    log.touch()
    paths = os.pathsep.join([str(tmp_path), os.getcwd(), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "TASK_URL": url, "TASK_LOG": str(log), "PYTHONPATH": paths}
    with (tmp_path / "output").open("wb") as output:
        streams: Any = {"env": env, "cwd": tmp_path, "stdout": output, "stderr": output}
        workers = []
        for line in WORKERS[request.param]:
            first, rest = line.split(" ", 1)
            command = [first, rest] if first == "-c" else line.split()
            workers.append(subprocess.Popen([sys.executable, *command], start_new_session=True, **streams))

        def send(*tasks: tuple[str, str]) -> None:
            calls = "; ".join(f"queued.send({name!r}, {key!r})" for name, key in tasks)
            subprocess.run([sys.executable, "-c", f"import queued; {calls}"], check=True, timeout=60, **streams)

        try:
            yield send, Lines(log)
        finally:
            for worker in workers:
                os.killpg(worker.pid, 9)
                worker.wait()
    print((tmp_path / "output").read_text()[-4000:])


def test_waits_are_in_the_queue_and_not_in_the_worker(queue: tuple[Send, Lines]) -> None:
    """Retries by a named stack: attempts go on counting over deliveries, other tasks run meanwhile."""
    send, lines = queue
    send(("flaky", "a"), ("quick", "b"))
    runs = lines.wait("flaky", 3)
    assert [attempt for _, _, attempt in runs] == [1, 2, 3]
    times = [at for at, _, _ in runs]
    assert all(later - earlier >= 1.45 for earlier, later in pairwise(times))
    assert lines.wait("quick", 1)[0][0] < times[1], "one worker, and it did not sleep"
    send(("hopeless", "c"), ("broken", "d"), ("later", "e"))
    assert [attempt for _, _, attempt in lines.wait("later", 2)] == [1, 2], "an async function"
    assert [attempt for _, _, attempt in lines.wait("hopeless", 3)] == [1, 2, 3]
    send(("quick", "f"))
    lines.wait("quick", 2)
    time.sleep(2.5)
    assert len(lines.of("broken")) == 1, "an error that no retry is for"
    assert len(lines.of("hopeless")) == 3, "exhausted"


def test_rejections_come_again_when_they_are_admitted(queue: tuple[Send, Lines]) -> None:
    """Each runs once, at the rate, and a rejection is no attempt; a bound on rejections ends the task."""
    send, lines = queue
    send(("slow", "a"), ("slow", "b"), ("slow", "c"), ("seldom", "d"), ("seldom", "e"))
    runs = lines.wait("slow", 3)
    assert sorted(key for _, key, _ in runs) == ["a", "b", "c"]
    assert [attempt for _, _, attempt in runs] == [1, 1, 1]
    times = [at for at, _, _ in runs]
    assert all(later - earlier >= 1.45 for earlier, later in pairwise(times))
    time.sleep(2.5)
    assert len(lines.of("slow")) == 3
    assert len(lines.of("seldom")) == 1
