"""Connections to one PostgreSQL server: one statement, one round trip, a bounded time.

Works on libpq as psycopg wraps it, since cursors wait for ever on a server that is frozen. Threads share a few
connections. Nothing is tried twice: what a statement did when its answer was lost, nobody knows. Times are seconds.
"""

from __future__ import annotations

import selectors
import threading
from collections import deque
from typing import Any, Final, TypeAlias

from psycopg import pq
from psycopg.errors import OperationalError

from guarded._core import clock
from guarded._core.fork import after_fork
from guarded.stores._patience import allowance
from guarded.stores.health import Shortened

Value: TypeAlias = bytes | None
Row: TypeAlias = tuple[Value, ...]
_CONNECTIONS: Final = 16
_FINE: Final = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)


class Refusal(Exception):
    """The server has answered with an error; named by its SQLSTATE, since its words may quote values."""


class Link:
    """The way to one server.

    Args:
        url: ``postgresql://…``, as libpq reads it.
        timeout: seconds after which a step, or making a connection, has failed.
        setup: statements that make what the others need, where it is missing.
    """

    def __init__(self, url: str, timeout: float, setup: str) -> None:
        self.timeout = timeout
        self._url = url.encode()
        self._setup = setup.encode()
        self._forget()
        after_fork(self, Link._forget)

    def _forget(self) -> None:
        self._is_set_up = False
        self._idle: deque[Any] = deque()
        self._free = threading.Semaphore(_CONNECTIONS)

    def run(self, statement: str, *values: Value) -> list[Row]:
        """The rows that a statement gives; raises Refusal, TimeoutError, what psycopg raises, or `Shortened`."""
        seconds, cut = allowance(self.timeout)
        until = clock.monotonic() + seconds
        try:
            if not self._free.acquire(timeout=seconds):
                raise TimeoutError("no connection came free in time")
            try:
                return self._run(statement.encode(), values, until)
            finally:
                self._free.release()
        except TimeoutError as error:
            if cut:
                raise Shortened from error
            raise

    def _run(self, statement: bytes, values: Row, until: float) -> list[Row]:
        connection = self._take(until)
        try:
            connection.send_query_params(statement, list(values))  # older ones of psycopg take no tuple
            rows = _rows(_answer(connection, until))
        except Refusal:
            self._is_set_up = False  # perhaps the table is gone
            self._idle.append(connection)
            raise
        except BaseException:
            connection.finish()
            raise
        self._idle.append(connection)
        return rows

    def _take(self, until: float) -> Any:
        while self._idle:
            connection = self._idle.pop()
            if self._is_set_up and not _is_ready(connection, selectors.EVENT_READ, 0):
                return connection  # else the server has said something unasked: mostly that it closes
            connection.finish()
        connection = pq.PGconn.connect_start(self._url)
        try:
            _connect(connection, until)
            patience = f"SET statement_timeout = {max(1, int(self.timeout * 1000))};"
            connection.send_query(patience.encode() + (b"" if self._is_set_up else self._setup))
            _answer(connection, until)
        except BaseException:
            connection.finish()
            raise
        self._is_set_up = True
        return connection

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().finish()


def _connect(connection: Any, until: float) -> None:
    step = pq.PollingStatus.WRITING
    while step != pq.PollingStatus.OK:
        if step == pq.PollingStatus.FAILED:
            raise OperationalError("cannot connect")
        _wait(connection, selectors.EVENT_READ if step == pq.PollingStatus.READING else selectors.EVENT_WRITE, until)
        step = connection.connect_poll()
    connection.nonblocking = 1


def _answer(connection: Any, until: float) -> Any:
    """The last result; raises Refusal for an error."""
    while connection.flush():
        _wait(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, until)
        connection.consume_input()
    last, refusal = None, None
    while True:
        while connection.is_busy():
            _wait(connection, selectors.EVENT_READ, until)
            connection.consume_input()
        result = connection.get_result()
        if result is None:
            break
        last = result
        if result.status not in _FINE:
            state = result.error_field(pq.DiagnosticField.SQLSTATE) or b"connection lost"
            refusal = Refusal(state.decode())
    if refusal is not None:
        if connection.status != pq.ConnStatus.OK:
            raise OperationalError("connection lost")
        raise refusal
    return last


def _rows(result: Any) -> list[Row]:
    return [tuple([result.get_value(row, column) for column in range(result.nfields)]) for row in range(result.ntuples)]


def _wait(connection: Any, events: int, until: float) -> None:
    if not _is_ready(connection, events, max(0.0, until - clock.monotonic())):
        raise TimeoutError("the server did not answer in time")


def _is_ready(connection: Any, events: int, seconds: float) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(connection.socket, events)
        return bool(selector.select(seconds))
