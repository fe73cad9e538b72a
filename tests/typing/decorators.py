"""What mypy and pyright see of guarded callables: what went in. Checked, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import assert_type

import guarded
from guarded import circuit, deadline, explain, fallback, guard, hedge, idempotent, limit, rate, retry
from guarded.policies.circuit import Circuit
from guarded.policies.limit import Limit
from guarded.policies.rate import Rate
from guarded.stack import Explanation, Guard


@fallback(b"")
@idempotent(key="url")
@deadline("10s")
@limit(20, name="db")
@retry(retries=3)
@hedge("200ms")
@circuit("gateway")
@rate("5/s")
@guard("outbound", retry={"retries": 1}, fallback=None)
def load(url: str, *, verify: bool = True) -> bytes:
    return url.encode()


@retry
async def fetch(url: str) -> bytes:
    return url.encode()


@limit(2)
def lines(path: str) -> Iterator[str]:
    yield path


@limit(2)
async def rows(table: str) -> AsyncIterator[int]:
    yield len(table)


class Service:
    @deadline(1)
    @retry(attempts=2)
    def method(self, order_id: str) -> int:
        return len(order_id)

    @limit(1)
    @classmethod
    def made(cls, name: str) -> Service:
        return cls()

    @staticmethod
    @limit(1)
    def plain(name: str) -> str:
        return name


def functions() -> None:
    assert_type(load("a", verify=False), bytes)
    kept: Callable[[str], bytes] = load
    assert_type(kept("a"), bytes)
    for line in lines("a"):
        assert_type(line, str)
    load(1)  # type: ignore[arg-type]
    load("a", verfy=True)  # type: ignore[call-arg]


async def coroutines() -> None:
    assert_type(await fetch("a"), bytes)
    async for row in rows("a"):
        assert_type(row, int)
    await fetch()  # type: ignore[call-arg]


def methods() -> None:
    assert_type(Service().method("a"), int)
    assert_type(Service.made("a"), Service)
    assert_type(Service.plain("a"), str)
    Service().method(1)  # type: ignore[arg-type]


def policies() -> None:
    assert_type(limit(20), Limit)
    assert_type(rate("5/s"), Rate)
    assert_type(circuit("gateway"), Circuit)
    assert_type(guard(limit(20), "db"), Guard)
    assert_type(explain(load), Explanation)


def misspelt() -> None:
    """What is loaded on first use is known by name all the same: a name there is not is an error."""
    guarded.limitt  # type: ignore[attr-defined]  # noqa: B018
    guarded.events.recentt  # type: ignore[attr-defined]  # noqa: B018
    guarded.errors.CircuitOpened  # type: ignore[attr-defined]  # noqa: B018
    assert_type(guarded.__version__, str)
