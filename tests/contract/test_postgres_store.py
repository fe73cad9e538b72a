"""What is PostgreSQL's own: many at once, a server that hangs, ends or forgets, rights."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from guarded import StoreError, deadline, idempotent
from guarded.errors import DeadlineExceeded
from guarded.stores import open_store
from guarded.stores.contract.idempotent import Claim, Finished, Running, Started

pytestmark = pytest.mark.real_clock
psycopg = pytest.importorskip("psycopg")


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A store in a schema of its own."""
    store = open_store(request.getfixturevalue("postgres_schema"), timeout=2.0, probe=0.05)
    yield store
    store.close()


def claim(owner: str, **changes: Any) -> Claim:
    """Half a minute of lease, an hour of life."""
    return Claim(owner, None, **{"lease": 30.0, "ttl": 3600.0, **changes})


def backends(url: str) -> list[int]:
    """Processes of the server that serve others' connections to this schema."""
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE query LIKE '%guarded_records%' AND pid <> pg_backend_pid()"
        )
        return [pid for (pid,) in found]


def test_options_and_name_without_secrets(postgres: str) -> None:
    """One address is one store, and nothing shows its password."""
    store = open_store(postgres)
    assert pickle.loads(pickle.dumps(store)) is store
    assert "secret" not in f"{store.name} {store!r}"
    with pytest.raises(ValueError, match=r"store: timeout=-1: .*; probe=0"):
        open_store("postgresql://host/db", timeout=-1, probe=0)


def test_one_of_many_wins_each_of_many_keys(store: Any) -> None:
    """Connections race for new keys, for finished ones, and for those abandoned."""
    keys = [f"{number}" for number in range(25)]
    barrier = threading.Barrier(6)

    def ask(thread: int) -> list[Any]:
        replies = []
        for key in keys:
            barrier.wait(20)
            replies.append(store.idempotent.begin(key, claim(f"{key}-{thread}", lease=0.001 if thread % 2 else 30.0)))
        return replies

    with ThreadPoolExecutor(6) as pool:
        for replies in zip(*pool.map(ask, range(6)), strict=True):
            started = [reply for reply in replies if isinstance(reply, Started)]
            fresh = [reply for reply in started if reply.abandoned_for is None]
            assert len(fresh) == 1, "the others have taken over what ran out"
            assert all(isinstance(reply, (Started, Running)) for reply in replies)


def test_what_has_expired_goes_as_others_come(store: Any, postgres_schema: str) -> None:
    """A few with each question."""
    for number in range(20):
        store.idempotent.begin(f"old {number}", claim("one", lease=0.001, ttl=0.001))
    time.sleep(0.05)
    for number in range(4):
        store.idempotent.begin(f"new {number}", claim("one"))
    with psycopg.connect(postgres_schema) as connection:
        assert connection.execute("SELECT count(*) FROM guarded_records").fetchone() == (4,)


def test_a_frozen_server_costs_the_time_out(store: Any, postgres_schema: str) -> None:
    """It has the statement and says nothing: the call is told in time, or at its deadline, and nothing hangs later."""
    ran = []

    @idempotent("key", store=store)
    def work(key: str) -> str:
        ran.append(key)
        return key

    assert work("first") == "first"
    (backend,) = backends(postgres_schema)
    os.kill(backend, signal.SIGSTOP)
    try:
        before = time.monotonic()
        with pytest.raises(StoreError):
            work("second")
        assert time.monotonic() - before < 5
    finally:
        os.kill(backend, signal.SIGCONT)
    assert ran == ["first"]
    time.sleep(0.1)
    assert work("first") == "first"


def test_a_call_s_deadline_cuts_a_step(store: Any, postgres_schema: str) -> None:
    """Sooner than the time-out of the store."""
    store.idempotent.begin("warm", claim("one"))
    (backend,) = backends(postgres_schema)

    @deadline(0.2, mode="cooperative")
    @idempotent("key", store=store)
    def work(key: str) -> None: ...

    os.kill(backend, signal.SIGSTOP)
    try:
        before = time.monotonic()
        with pytest.raises((DeadlineExceeded, StoreError)):
            work("one")
        assert time.monotonic() - before < 1.5
    finally:
        os.kill(backend, signal.SIGCONT)


def test_a_connection_that_was_ended_is_replaced(store: Any, postgres_schema: str) -> None:
    """The server has closed it while nobody used it: no call notices."""
    assert store.idempotent.begin("key", claim("one")) == Started()
    with psycopg.connect(postgres_schema, autocommit=True) as connection:
        for backend in backends(postgres_schema):
            connection.execute("SELECT pg_terminate_backend(%s)", (backend,))
    time.sleep(0.2)
    assert isinstance(store.idempotent.begin("key", claim("two")), Running)


def test_a_table_that_was_dropped_is_made_again(store: Any, postgres_schema: str) -> None:
    """After one failing step."""
    store.idempotent.begin("key", claim("one"))
    with psycopg.connect(postgres_schema, autocommit=True) as connection:
        connection.execute("DROP TABLE guarded_records")
    with pytest.raises(Exception, match="42P01"):
        store.idempotent.begin("key", claim("two"))
    assert store.idempotent.begin("key", claim("two")) == Started()


def test_no_right_to_create_is_needed_where_the_table_is(store: Any, postgres_schema: str) -> None:
    """Somebody else has made it."""
    store.idempotent.begin("key", claim("one"))
    name = f"weak{time.monotonic_ns()}"
    with psycopg.connect(postgres_schema, autocommit=True) as connection:
        schema = connection.execute("SELECT current_schema()").fetchone()[0]
        connection.execute(f"CREATE USER {name}")
        connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {name}")
        connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON guarded_records TO {name}")
    weak = open_store(postgres_schema.replace("guarded:secret", name), timeout=2.0)
    assert isinstance(weak.idempotent.begin("key", claim("two")), Running)
    weak.close()


def test_a_forked_child_leaves_its_parent_s_connections_alone(store: Any) -> None:
    """It makes its own."""
    store.idempotent.begin("key", claim("one"))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = int(not store.idempotent.complete("key", claim("one"), b"from the child"))
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    found = store.idempotent.begin("key", claim("two"))
    assert isinstance(found, Finished)
    assert found.payload == b"from the child"


def test_no_server_is_a_store_error_before_the_effect() -> None:
    """At once, where the port is closed."""
    ran = []

    @idempotent("key", store="postgresql://guarded:secret@127.0.0.1:1/none")
    def work(key: str) -> None:
        ran.append(key)

    before = time.monotonic()
    with pytest.raises(StoreError) as caught:
        work("one")
    assert time.monotonic() - before < 1
    assert "secret" not in str(caught.value)
    assert not ran
