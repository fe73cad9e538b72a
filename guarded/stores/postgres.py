"""A store on a PostgreSQL server (12 and up), for idempotency records.

Every step is one statement, by the server's clock, on one row that the statement locks. Needs psycopg 3. Tasks make
their steps in worker threads. The table ``guarded_records`` is made where it is missing; whoever may not create
tables has it made before: `SETUP` is what makes it. Times are seconds.
"""

from __future__ import annotations

from functools import cached_property
from math import inf
from typing import Any, Final

from guarded._core.durations import Duration
from guarded.policies._idempotent import records
from guarded.policies._idempotent.records import Record
from guarded.stores import StoreProblem
from guarded.stores._address import opened_again, public_name, read_times
from guarded.stores._postgres.link import Link, Row, Value
from guarded.stores.contract.idempotent import Claim, InThreads, Reply, Started
from guarded.stores.health import PROBE, Health

TIMEOUT = 1.0
_DEFAULTS: Final = {"timeout": TIMEOUT, "probe": PROBE}
_SWEPT = 8  # expired rows deleted with each question: more than one, so that they never pile up
_QUESTIONS = 5  # how often to ask again when others were faster between two looks of one statement

SETUP: Final = """
SELECT pg_advisory_xact_lock(hashtext('guarded_records'));
CREATE TABLE IF NOT EXISTS guarded_records (
    key text PRIMARY KEY, owner text, fingerprint text, since float8 NOT NULL, until float8 NOT NULL,
    expires float8 NOT NULL, abandoned_for float8, payload bytea
);
CREATE INDEX IF NOT EXISTS guarded_records_expires ON guarded_records (expires);
"""
_IF_MISSING: Final = f"""
DO $guarded$ BEGIN IF to_regclass('guarded_records') IS NULL THEN
{SETUP.replace("SELECT pg", "PERFORM pg")}
END IF; END $guarded$;
"""
_CLOCK: Final = "WITH clock AS MATERIALIZED (SELECT extract(epoch FROM clock_timestamp())::float8 AS now)"

# Parameters: 1 key, 2 owner, 3 fingerprint, 4 lease, 5 ttl, 6 whether to take over. `won` sees the row as it is now,
# the last part as it was when the statement began: when it changes in between, the answer may be no row at all.
_BEGIN: Final = f"""
{_CLOCK}, swept AS (
    DELETE FROM guarded_records WHERE key IN (
        SELECT key FROM guarded_records, clock WHERE expires <= now AND key <> $1
        ORDER BY expires LIMIT {_SWEPT} FOR UPDATE OF guarded_records SKIP LOCKED
    )
), won AS (
    INSERT INTO guarded_records AS mine (key, owner, fingerprint, since, until, expires)
    SELECT $1, $2, $3, now, now + $4::float8, now + $4::float8 + $5::float8 FROM clock
    ON CONFLICT (key) DO UPDATE SET
        owner = excluded.owner, until = excluded.until, expires = excluded.expires, payload = NULL,
        fingerprint = CASE WHEN mine.expires > excluded.since AND mine.owner = excluded.owner
            THEN mine.fingerprint ELSE excluded.fingerprint END,
        since = CASE WHEN mine.expires > excluded.since AND mine.owner = excluded.owner
            THEN mine.since ELSE excluded.since END,
        abandoned_for = CASE WHEN mine.expires > excluded.since AND mine.owner <> excluded.owner
            THEN excluded.since - mine.since END
    WHERE mine.expires <= excluded.since OR (
        mine.owner IS NOT NULL
        AND (mine.fingerprint IS NULL OR excluded.fingerprint IS NULL OR mine.fingerprint = excluded.fingerprint)
        AND (mine.owner = excluded.owner OR ($6::bool AND mine.until <= excluded.since))
    )
    RETURNING abandoned_for
)
SELECT true, abandoned_for, NULL, NULL, NULL, NULL, NULL, NULL FROM won
UNION ALL
SELECT false, now, owner, fingerprint, since, until, expires, payload FROM guarded_records, clock
WHERE key = $1 AND expires > now AND NOT EXISTS (SELECT FROM won)
"""
_COMPLETE: Final = f"""
{_CLOCK} INSERT INTO guarded_records AS mine (key, fingerprint, since, until, expires, payload)
SELECT $1, $3, now, now + $4::float8, now + $4::float8, $5::bytea FROM clock
ON CONFLICT (key) DO UPDATE SET
    owner = NULL, fingerprint = excluded.fingerprint, since = excluded.since, until = excluded.until,
    expires = excluded.expires, abandoned_for = NULL, payload = excluded.payload
WHERE mine.owner = $2 OR mine.expires <= excluded.since
RETURNING true
"""
_RENEW: Final = f"""
{_CLOCK} UPDATE guarded_records SET until = now + $3::float8, expires = now + $3::float8 + $4::float8
FROM clock WHERE key = $1 AND owner = $2 AND expires > now RETURNING true
"""
_RELEASE: Final = f"""
{_CLOCK} DELETE FROM guarded_records USING clock WHERE key = $1 AND owner = $2 AND expires > now RETURNING true
"""


class PostgresRecords(InThreads):
    """See `IdempotentStore` for the methods."""

    durable = True

    def __init__(self, link: Link, name: str) -> None:
        self.name = name
        self._link = link

    def begin(self, key: str, claim: Claim) -> Reply[bytes]:
        """See `IdempotentStore.begin`."""
        given = _text(key), _text(claim.owner), _text(claim.fingerprint), _number(claim.lease), _number(claim.ttl)
        for _ in range(_QUESTIONS):
            for row in self._link.run(_BEGIN, *given, b"true" if claim.take_over else b"false"):
                if row[0] == b"t":
                    return Started(None if row[1] is None else max(0.0, float(row[1])))
                reply, _ = records.begin(_record(row), claim, float(row[1] or b"0"))
                if not isinstance(reply, Started):
                    return reply
        raise TimeoutError("others change the record faster than it can be read")

    def complete(self, key: str, claim: Claim, payload: bytes) -> bool:
        """See `IdempotentStore.complete`."""
        more = _text(claim.fingerprint), _number(claim.ttl), b"\\x" + payload.hex().encode()
        return bool(self._link.run(_COMPLETE, _text(key), _text(claim.owner), *more))

    def renew(self, key: str, claim: Claim) -> bool:
        """See `IdempotentStore.renew`."""
        more = _number(claim.lease), _number(claim.ttl)
        return bool(self._link.run(_RENEW, _text(key), _text(claim.owner), *more))

    def release(self, key: str, claim: Claim) -> bool:
        """See `IdempotentStore.release`."""
        return bool(self._link.run(_RELEASE, _text(key), _text(claim.owner)))


def _text(value: str | None) -> Value:
    return None if value is None else value.encode()


def _number(value: float) -> Value:
    return b"Infinity" if value == inf else repr(value).encode()


def _record(row: Row) -> Record[bytes]:
    _, _, owner, fingerprint, since, until, expires, payload = row
    return Record(
        None if owner is None else owner.decode(),
        None if fingerprint is None else fingerprint.decode(),
        float(since or b"0"),
        float(until or b"0"),
        float(expires or b"0"),
        None if payload is None else bytes.fromhex(payload[2:].decode()),
    )


class PostgresStore:
    """Idempotency records shared by all processes that use the same database and schema.

    Made by `guarded.stores.open_store`, so that there is one for each address in a process.

    Args:
        url: ``postgresql://[user:password@]host:port/database?options``, as libpq reads it.
        timeout: how long one step may take before the store counts as failed; default 1 s.
        probe: how often a failed store is tried; default 1 s.

    Raises:
        StoreProblem: a ValueError, naming every wrong option.
    """

    def __init__(self, url: str, *, timeout: Duration = TIMEOUT, probe: Duration = PROBE) -> None:
        problems: list[str] = []
        times = {"timeout": timeout, "probe": probe}
        seconds = read_times(times, problems)
        if not url.startswith(("postgresql://", "postgres://")):
            problems.append("url: must begin with postgresql://")
        if problems:
            raise StoreProblem("store: " + "; ".join(problems))
        self.link: Link = Link(url, seconds["timeout"], _IF_MISSING)
        self.name: str = public_name(url)
        self.health: Health = Health(self.name, seconds["probe"])
        self._again = opened_again(url, times, _DEFAULTS)

    @cached_property
    def idempotent(self) -> PostgresRecords:
        """For `idempotent`."""
        return PostgresRecords(self.link, self.name)

    def close(self) -> None:
        """Close the idle connections; the next step opens one again."""
        self.link.close()

    def __repr__(self) -> str:
        return f"PostgresStore({self.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return self._again, ()
