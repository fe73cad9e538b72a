"""The stores that every contract test runs over: sync and async, on each kind of server."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from guarded.policies._rate.lines import Lines, Refusal
from guarded.policies._rate.meters import make_meter
from guarded.stores import open_store
from guarded.stores.contract.rate import Booked, Budget, Passed, RateRule, Refused
from guarded.stores.memory import MemoryStore

SERVERS = ("valkey", "redis_6_2")


@dataclass
class Face:
    """One face of a store, called one way: ``face("take", …)`` is `take`, or `take_async`, if any, on its own loop."""

    target: Any
    mode: str
    name: str

    def __call__(self, step: str, *args: Any) -> Any:
        if self.mode == "sync" or not hasattr(self.target, f"{step}_async"):
            return getattr(self.target, step)(*args)
        return asyncio.run(self._later(step, args))

    async def _later(self, step: str, args: tuple[Any, ...]) -> Any:
        return await getattr(self.target, f"{step}_async")(*args)


class MemoryRates:
    """The way a rate decides in one process, as a store: its own lines, one for each budget."""

    def __init__(self) -> None:
        self._lines: dict[tuple[Budget, str], Lines] = {}
        self._tickets: dict[str, Any] = {}

    def _of(self, rule: RateRule, budget: Budget) -> Lines:
        make = partial(make_meter, rule.algorithm, rule.quotas, rule.burst)
        return self._lines.setdefault((budget, rule.shape), Lines(make, keyed=False))

    def take(self, rule: RateRule, budget: Budget, cost: int, patience: float) -> Any:
        ticket = self._of(rule, budget).begin(None, cost, None, patience, float("inf"))
        if isinstance(ticket, Refusal):
            return Refused(ticket.retry_after)
        mark = uuid.uuid4().hex
        self._tickets[mark] = ticket
        return Passed(mark) if ticket.done else Booked(mark, self._of(rule, budget).due(ticket)[1])

    def confirm(self, rule: RateRule, budget: Budget, cost: int, mark: str) -> Any:
        delay = self._of(rule, budget).due(self._tickets[mark])[1]
        return Booked(mark, delay) if delay > 0 else Passed(mark)

    def correct(self, rule: RateRule, budget: Budget, mark: str, cost: int, units: int) -> None:
        ticket = self._tickets.get(mark)
        if ticket is not None and ticket.mark is None:
            self._of(rule, budget).withdraw(ticket)
        else:
            self._of(rule, budget).correct(None, ticket and ticket.mark, units)

    def look(self, rule: RateRule, budget: Budget, cost: int) -> tuple[int, float]:
        free, delay, _ = self._of(rule, budget).look(None, cost)
        return free, delay

    def pause(self, rule: RateRule, rate: str, seconds: float) -> None:
        for (budget, _), lines in self._lines.items():
            if budget.rate == rate:
                lines.pause(seconds)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.endswith("_async"):
            raise AttributeError(name)

        async def step(*args: Any) -> Any:
            return getattr(self, name.removesuffix("_async"))(*args)

        return step


def _postgres_binaries() -> Path:
    """The folder of the newest server there is, wherever distributions put it."""
    folders = [*Path("/usr/lib/postgresql").glob("*/bin"), *Path("/usr").glob("pgsql-*/bin")]
    found = sorted((each for each in folders if (each / "initdb").exists()), key=lambda each: str(each).zfill(60))
    which = shutil.which("initdb")
    if which is not None and not found:
        found = [Path(which).parent]
    if not found:
        pytest.skip("no PostgreSQL server here: initdb is neither on the path nor in /usr/lib/postgresql/*/bin")
    return found[-1]


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a PostgreSQL server of our own, run by another user than root, which it refuses."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    binaries = _postgres_binaries()
    folder = tempfile.mkdtemp(prefix="guarded-postgres-")
    user = None
    if os.getuid() == 0:
        names = [entry.pw_name for entry in pwd.getpwall()]
        user = "postgres" if "postgres" in names else "nobody"
        shutil.chown(folder, user)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {"user": user, "cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    make = [str(binaries / "initdb"), "-D", folder, "-A", "trust", "-U", "guarded", "--no-sync"]
    subprocess.run(make, check=True, **options)
    server = subprocess.Popen(
        [str(binaries / "postgres"), "-D", folder, "-p", str(port), "-h", "127.0.0.1", "-k", "", "-F"], **options
    )
    url = f"postgresql://guarded:secret@127.0.0.1:{port}/postgres"
    try:
        _until_it_answers(url)
        yield url
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)
        shutil.rmtree(folder)


def _until_it_answers(url: str) -> None:
    import psycopg

    give_up = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(url, connect_timeout=5).close()
            return
        except psycopg.OperationalError:
            assert time.monotonic() < give_up, "the server does not start"
            time.sleep(0.05)


@pytest.fixture
def postgres_schema(postgres: str) -> str:
    """The address of an empty schema."""
    import psycopg

    schema = f"s{uuid.uuid4().hex}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    return f"{postgres}?options=-csearch_path%3D{schema}"


def lanes(*names: str) -> Callable[[Any], Any]:
    """Run a fixture over these stores, sync and async."""
    both = [pytest.param((name, mode), id=f"{name}-{mode}") for name in names for mode in ("sync", "async")]
    return pytest.fixture(params=both)


def _store(request: pytest.FixtureRequest, name: str) -> Any:
    if name == "sqlite":
        return open_store(f"sqlite:///{request.getfixturevalue('tmp_path')}/store.db")
    if name == "postgres":
        return open_store(request.getfixturevalue("postgres_schema"), timeout=5.0)
    return open_store(request.getfixturevalue(name).url, timeout=2.0, prefix=f"{uuid.uuid4().hex}:")


@lanes("memory", "sqlite", *SERVERS)
def rates(request: pytest.FixtureRequest) -> Iterator[Face]:
    """Every store that keeps rates."""
    name, mode = request.param
    if name == "memory":
        yield Face(MemoryRates(), mode, name)
        return
    store = _store(request, name)
    yield Face(store.rates, mode, name)
    store.close()


@lanes(*SERVERS)
def limits(request: pytest.FixtureRequest) -> Iterator[Face]:
    """Every store that keeps limits."""
    name, mode = request.param
    store = _store(request, name)
    yield Face(store.limits, mode, name)
    store.close()


@lanes("memory", "sqlite", "postgres", *SERVERS)
def records(request: pytest.FixtureRequest) -> Iterator[Face]:
    """Every store that keeps idempotency records."""
    name, mode = request.param
    if name == "memory":
        yield Face(MemoryStore(), mode, name)
        return
    store = _store(request, name)
    yield Face(store.idempotent, mode, name)
    store.close()
