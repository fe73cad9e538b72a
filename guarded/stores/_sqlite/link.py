"""One SQLite file, used by the threads of this process and by other processes at once.

Every step is one ``BEGIN IMMEDIATE`` transaction in WAL mode: SQLite lets in one writer at a time. A process has one
connection, handed from thread to thread by a lock, so that its threads do not poll against each other; it is closed
before a fork and opened again when needed. The clock is the wall clock of the machine in whole microseconds, held back
so that it never decreases (`Transaction.now`); a clock set forward ends leases early.
"""

from __future__ import annotations

import math
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar

from guarded._core import clock
from guarded.stores._patience import allowance
from guarded.stores.health import Shortened

ResultT = TypeVar("ResultT")
Synchronous = Literal["FULL", "NORMAL"]
"""Whether a commit survives a power cut, or only the end of this process; the file stays whole in either case."""

US: Final = 1_000_000
_VERSION = 1
_PAUSE = 0.01
_SWEPT = 16  # expired rows deleted with each new one: more than one, so that they never pile up
_SCHEMA = """
CREATE TABLE clock (id INTEGER PRIMARY KEY CHECK (id = 1), last INTEGER NOT NULL, skew INTEGER NOT NULL);
INSERT INTO clock VALUES (1, 0, 0);
CREATE TABLE records (
    key TEXT PRIMARY KEY, owner TEXT, fingerprint TEXT, since REAL NOT NULL, until REAL NOT NULL, expires REAL NOT NULL,
    payload BLOB
);
CREATE INDEX records_expires ON records (expires);
CREATE TABLE budgets (key TEXT PRIMARY KEY, state TEXT NOT NULL, expires REAL NOT NULL);
CREATE INDEX budgets_expires ON budgets (expires);
CREATE TABLE pauses (rate TEXT PRIMARY KEY, until INTEGER NOT NULL);
"""


class Transaction:
    """One step on the file.

    Attributes:
        now: microseconds of the store's clock.
        skew: how far that is ahead of the wall clock.
    """

    __slots__ = ("_connection", "_wrote", "now", "skew")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._wrote = False
        last, self.skew = connection.execute("SELECT last, skew FROM clock").fetchone()
        self.now = round(clock.wall() * US) + self.skew
        if self.now < last:
            self.skew += last - self.now
            self.now = last

    def find(self, sql: str, *values: Any) -> Any:
        """The first row of a query, or None."""
        return self._connection.execute(sql, values).fetchone()

    def write(self, sql: str, *values: Any) -> None:
        """Change something."""
        if not self._wrote:
            self._wrote = True
            self._connection.execute("UPDATE clock SET last = ?, skew = ?", (self.now, self.skew))
        self._connection.execute(sql, values)

    def sweep(self, table: Literal["records", "budgets"], now: float) -> None:
        """Delete some of the rows that have expired."""
        self.write(f"DELETE FROM {table} WHERE key IN (SELECT key FROM {table} WHERE expires <= ? LIMIT {_SWEPT})", now)


class Link:
    """The way to one file.

    Args:
        path: absolute.
        timeout: seconds after which a step that waits for other processes has failed.
    """

    def __init__(self, path: str, timeout: float) -> None:
        self.path = path
        self.timeout = timeout
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._settings: tuple[Synchronous, int] = ("FULL", 0)
        self._close: Callable[[], object] = _nothing
        self._lock = threading.Lock()
        _links.add(self)

    def run(self, step: Callable[[Transaction], ResultT], synchronous: Synchronous) -> ResultT:
        """Make a step; it is made whole or not at all.

        Raises what sqlite3 raises, TimeoutError when other threads have kept this one out, or `Shortened`.
        """
        seconds, cut = allowance(self.timeout)
        until = clock.monotonic() + seconds
        if not self._lock.acquire(timeout=seconds):
            raise Shortened if cut else TimeoutError(f"{self.path}: other threads were busy with it for {seconds:g} s")
        try:
            return self._transact(step, synchronous, max(0.0, until - clock.monotonic()))
        except sqlite3.OperationalError as error:
            if cut and _is_busy(error):
                raise Shortened from error
            raise
        finally:
            self._lock.release()

    def _transact(self, step: Callable[[Transaction], ResultT], synchronous: Synchronous, seconds: float) -> ResultT:
        try:
            connection = self._open(seconds)
            self._set(connection, synchronous, seconds)
            connection.execute("BEGIN IMMEDIATE")
            try:
                reply = step(Transaction(connection))
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            if not _is_busy(error):
                self._close()  # perhaps the file is gone or damaged: look again next time
            raise
        return reply

    def _set(self, connection: sqlite3.Connection, synchronous: Synchronous, seconds: float) -> None:
        if seconds > 0.9 * self.timeout:
            seconds = self.timeout  # nobody was in the way: spare the change
        patience = math.ceil(seconds * 1000)  # not before the time is up: then it would not be for the deadline
        if self._settings != (synchronous, patience):
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            connection.execute(f"PRAGMA busy_timeout = {patience}")
            self._settings = synchronous, patience

    def _open(self, seconds: float) -> sqlite3.Connection:
        """The connection; a new one when there is none, or another file is in the place of the one it was made for."""
        if self._connection is not None:
            if _identity(self.path) == self._file:
                return self._connection
            self._close()
        connection = sqlite3.connect(self.path, timeout=seconds, isolation_level=None, check_same_thread=False)
        try:
            _prepare(connection, clock.monotonic() + seconds)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._file = _identity(self.path)
        self._settings = ("FULL", -1)
        finalizer = weakref.finalize(self, connection.close)
        self._close = lambda: self._forget(finalizer)
        return connection

    def _forget(self, finalizer: Callable[[], object]) -> None:
        self._connection, self._close = None, _nothing
        finalizer()

    def close(self) -> None:
        """Close the connection; the next step opens a new one."""
        with self._lock:
            self._close()

    def before_fork(self) -> bool:
        """Close the connection and let no thread in; False when a step is in the way.

        A child must not inherit a connection: SQLite's own table of file locks would tell it of locks it has not, and
        the log of a file that nobody seems to use any more is deleted.
        """
        if not self._lock.acquire(timeout=self.timeout):
            return False
        self._close()
        return True

    def in_parent(self) -> None:
        """The fork is over."""
        self._lock.release()

    def in_child(self) -> None:
        """Begin anew; what could not be closed before the fork is left as it is."""
        self._lock = threading.Lock()
        if self._connection is not None:
            _left.append(self._connection)
            self._connection, self._close = None, _nothing


def _nothing() -> None:
    pass


def _prepare(connection: sqlite3.Connection, until: float) -> None:
    """Log mode and tables, whoever makes them first."""
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            break
        except sqlite3.OperationalError as error:  # two that change the mode at once: SQLite does not wait here
            if not _is_busy(error) or clock.monotonic() >= until:
                raise
            clock.pause(_PAUSE)
    if mode != "wal":
        raise sqlite3.NotSupportedError(f"the file cannot be used by several processes at once: journal mode {mode}")
    if _version(connection) != _VERSION:
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            if _version(connection) == 0:
                for statement in _SCHEMA.split(";\n"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {_VERSION}")
            elif _version(connection) != _VERSION:
                raise sqlite3.NotSupportedError(f"the file is of version {_version(connection)}, not {_VERSION}")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_busy(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)  # what the sqlite3 module itself raises has none
    return code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


_links: weakref.WeakSet[Link] = weakref.WeakSet()
_forking = threading.local()  # the links that this thread's fork holds
_left: list[sqlite3.Connection] = []  # closing them in a child would touch locks of its parent


def _before_fork() -> None:
    _forking.links = [link for link in list(_links) if link.before_fork()]


def _in_parent() -> None:
    for link in _forking.links:
        link.in_parent()


def _in_child() -> None:
    for link in list(_links):
        link.in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
