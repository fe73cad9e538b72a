"""Idempotency records in a SQLite file: `IdempotentStore` over the pure life of a record; payloads are bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from guarded.policies._idempotent import records
from guarded.policies._idempotent.records import Record
from guarded.stores._sqlite.link import US, Link, Transaction
from guarded.stores.contract.idempotent import Claim, InThreads, Reply

ResultT = TypeVar("ResultT")


class SQLiteRecords(InThreads):
    """See `IdempotentStore` for the methods. A step that has returned survives a power cut."""

    durable = True

    def __init__(self, link: Link, name: str) -> None:
        self.name = name
        self._link = link

    def begin(self, key: str, claim: Claim) -> Reply[bytes]:
        """See `IdempotentStore.begin`."""

        def step(file: Transaction) -> Reply[bytes]:
            found, now = _find(file, key), file.now / US
            reply, record = records.begin(found, claim, now)
            if record is not None:
                _put(file, key, record)
                if found is None:
                    file.sweep("records", now)
            return reply

        return self._run(step)

    def complete(self, key: str, claim: Claim, payload: bytes) -> bool:
        """See `IdempotentStore.complete`."""
        return self._change(key, lambda found, now: records.complete(found, claim, payload, now))

    def renew(self, key: str, claim: Claim) -> bool:
        """See `IdempotentStore.renew`."""
        return self._change(key, lambda found, now: records.renew(found, claim, now))

    def release(self, key: str, claim: Claim) -> bool:
        """See `IdempotentStore.release`."""

        def step(file: Transaction) -> bool:
            if not records.may_release(_find(file, key), claim, file.now / US):
                return False
            file.write("DELETE FROM records WHERE key = ?", key)
            return True

        return self._run(step)

    def _change(self, key: str, decide: Callable[[Record[bytes] | None, float], Record[bytes] | None]) -> bool:
        def step(file: Transaction) -> bool:
            record = decide(_find(file, key), file.now / US)
            if record is None:
                return False
            _put(file, key, record)
            return True

        return self._run(step)

    def _run(self, step: Callable[[Transaction], ResultT]) -> ResultT:
        return self._link.run(step, "FULL")


def _find(file: Transaction, key: str) -> Record[Any] | None:
    row = file.find("SELECT owner, fingerprint, since, until, expires, payload FROM records WHERE key = ?", key)
    return None if row is None else Record(*row)


def _put(file: Transaction, key: str, record: Record[bytes]) -> None:
    file.write(
        "INSERT OR REPLACE INTO records (key, owner, fingerprint, since, until, expires, payload) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        key, record.owner, record.fingerprint, record.since, record.until, record.expires, record.payload,
    )  # fmt: skip
