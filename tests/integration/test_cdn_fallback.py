"""The first good answer of several mirrors, against real servers on loopback."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from guarded import DeadlineExceeded, any_of, deadline, limit

pytestmark = pytest.mark.real_clock


def nobody_listens() -> str:
    """The address of a mirror that is down."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


def until_closed(upstream: Any) -> None:
    """Wait for the server to see that its client has hung up."""
    until = time.monotonic() + 5
    while upstream.open:
        assert time.monotonic() < until, "the connection of the loser is still open"
        time.sleep(0.005)


def test_the_good_mirror_answers_and_the_slow_one_is_hung_up_on(make_upstream: Callable[[], Any]) -> None:
    """One mirror down, one slow, one good, under one deadline: its answer, the others' connections closed."""
    slow, good = make_upstream(), make_upstream()
    slow.steps = [slow.HANG]
    good.steps = [good.Reply(body=b"the file")]
    mirrors = [nobody_listens(), slow.url, good.url]
    slots = limit(10, name="mirrors")

    async def main() -> bytes:
        async with httpx.AsyncClient(timeout=30) as client:

            @slots
            async def fetch(url: str) -> bytes:
                response = await client.get(f"{url}/file")
                return response.raise_for_status().content

            async def after_slow(url: str) -> bytes:
                while not slow.seen:
                    await asyncio.sleep(0.005)
                return await fetch(url)

            @deadline("5s")
            async def download() -> bytes:
                return await any_of(fetch(mirrors[0]), fetch(mirrors[1]), after_slow(mirrors[2]))

            started = time.monotonic()
            content = await download()
            assert time.monotonic() - started < 4
            assert slots.snapshot().held == 0
            await asyncio.to_thread(until_closed, slow)
            return content

    assert asyncio.run(main()) == b"the file"
    assert len(slow.seen) == 1


def test_no_mirror_answers_within_the_deadline(make_upstream: Callable[[], Any]) -> None:
    """All slow: DeadlineExceeded at the point, and every connection closed."""
    mirrors = [make_upstream() for _ in range(3)]
    for mirror in mirrors:
        mirror.steps = [mirror.HANG]

    async def main() -> None:
        async with httpx.AsyncClient(timeout=30) as client:

            @deadline("300ms")
            async def download() -> httpx.Response:
                return await any_of(*(client.get(mirror.url) for mirror in mirrors))

            started = time.monotonic()
            with pytest.raises(DeadlineExceeded):
                await download()
            assert time.monotonic() - started < 1
            for mirror in mirrors:
                await asyncio.to_thread(until_closed, mirror)

    asyncio.run(main())


def test_every_mirror_is_down() -> None:
    """One group with the error of each, in order."""
    mirrors = [nobody_listens() for _ in range(3)]

    async def main() -> None:
        async with httpx.AsyncClient(timeout=5) as client:
            with pytest.raises(ExceptionGroup, match="all 3 failed") as caught:
                await any_of(*(client.get(mirror) for mirror in mirrors))
            assert [str(error.request.url) for error in caught.value.exceptions] == [  # type: ignore[union-attr]
                f"{mirror}" for mirror in mirrors
            ]

    asyncio.run(main())
