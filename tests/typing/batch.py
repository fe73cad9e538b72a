"""What mypy and pyright see of batches and combinators. Checked, never run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, assert_type

from guarded import (
    CancelToken,
    Settled,
    all_of,
    all_settled,
    any_of,
    gather_limit,
    imap_limit,
    limit,
    map_limit,
    race,
)
from guarded.batch import settled_of


async def fetch(url: str) -> bytes:
    return url.encode()


async def fetch_numbered(url: str, index: int) -> bytes:
    return f"{index}{url}".encode()


def load(url: str) -> bytes:
    return url.encode()


def load_numbered(url: str, index: int) -> bytes:
    return f"{index}{url}".encode()


async def urls() -> AsyncIterator[str]:
    yield "a"


@limit(3)
async def guarded_fetch(url: str) -> bytes:
    return url.encode()


@limit(3)
def guarded_load(url: str) -> bytes:
    return url.encode()


def lists() -> None:
    assert_type(map_limit(load, ["a"]), list[bytes])
    assert_type(map_limit(load_numbered, ["a"]), list[bytes])
    assert_type(map_limit(guarded_load, ["a"], concurrency=2, window=8), list[bytes])
    assert_type(map_limit(load, ["a"], errors="collect"), list[Settled[bytes]])
    assert_type(map_limit(load, ["a"], cancel=CancelToken(), progress=True), list[bytes])
    assert_type(map_limit(load, ["a"], executor=ProcessPoolExecutor()), list[bytes])
    assert_type(map_limit(load, ["a"], on_progress=lambda done, failed, total: None), list[bytes])
    assert_type(imap_limit(load, ["a"]), Generator[bytes, None, None])
    assert_type(imap_limit(load, ["a"], errors="collect", as_completed=True), Generator[Settled[bytes], None, None])
    assert_type(gather_limit(lambda: 1, lambda: 2), list[int])
    assert_type(settled_of(ValueError()), list[Settled[Any]])


async def awaitables() -> None:
    pending = assert_type(map_limit(fetch, ["a"]), Coroutine[Any, Any, list[bytes]])
    assert_type(await pending, list[bytes])
    assert_type(await map_limit(fetch_numbered, ["a"]), list[bytes])
    assert_type(await map_limit(guarded_fetch, urls()), list[bytes])
    assert_type(await map_limit(load, urls()), list[bytes])
    assert_type(await map_limit(fetch, urls(), errors="collect"), list[Settled[bytes]])
    through_lambda: list[bytes] = await map_limit(lambda url: fetch(url), ["a"])
    assert_type(through_lambda, list[bytes])
    assert_type(imap_limit(fetch, urls()), AsyncGenerator[bytes, None])
    assert_type(imap_limit(fetch, urls(), errors="collect"), AsyncGenerator[Settled[bytes], None])
    assert_type(await gather_limit(lambda: fetch("a"), lambda: fetch("b")), list[bytes])


async def several() -> None:
    assert_type(await all_of(fetch("a"), fetch("b")), list[bytes])
    assert_type(await all_settled(fetch("a"), lambda: fetch("b")), list[Settled[bytes]])
    assert_type(await race(fetch("a"), fetch("b")), bytes)
    assert_type(await any_of(fetch("a"), fetch("b")), bytes)


def several_plain() -> None:
    assert_type(all_of(lambda: 1, lambda: 2), list[int])
    assert_type(all_settled(lambda: 1, lambda: 2), list[Settled[int]])
    assert_type(race(lambda: 1, lambda: 2), int)
    assert_type(any_of(lambda: 1, lambda: 2), int)


def outcome(settled: Settled[bytes]) -> None:
    assert_type(settled.result(), bytes)
    assert_type(settled.value, bytes | None)
    assert_type(settled.error, Exception | None)
    assert_type(settled.cancelled, bool)
