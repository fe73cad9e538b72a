"""How far a batch is: callbacks and bars."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from guarded import CancelToken, GuardWarning, imap_limit, map_limit
from guarded._batch import progress


class Terminal(io.StringIO):
    """A stderr that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def plain(item: int) -> int:
    if item % 4 == 3:
        raise KeyError(item)
    return item


async def in_task(item: int) -> int:
    await asyncio.sleep(0)
    return plain(item)


def run(batch: Any) -> Any:
    return asyncio.run(batch) if asyncio.iscoroutine(batch) else batch


@pytest.mark.parametrize("fn", [plain, in_task])
def test_each_item_is_reported_once(fn: Callable[..., Any]) -> None:
    """Done counts up by one, failures among them, the total where it is known; in the caller's thread."""
    calls: list[tuple[int, int, int | None]] = []
    threads: set[int] = set()

    def on_progress(done: int, failed: int, total: int | None) -> None:
        calls.append((done, failed, total))
        threads.add(threading.get_ident())

    run(map_limit(fn, range(12), errors="collect", on_progress=on_progress))
    assert [done for done, _, _ in calls] == list(range(1, 13))
    assert calls[-1] == (12, 3, 12)
    assert threads == {threading.get_ident()}
    calls.clear()
    run(map_limit(fn, iter(range(3)), on_progress=on_progress))
    assert calls[-1] == (3, 0, None)


@pytest.mark.parametrize("fn", [plain, in_task])
def test_a_raising_callback_changes_nothing_and_is_reported_once(fn: Callable[..., Any]) -> None:
    """One warning, which names it; no error even where warnings are errors."""

    def bad(done: int, failed: int, total: int | None) -> None:
        raise ValueError("broken")

    with pytest.warns(GuardWarning, match=r"progress callback .*bad raised ValueError.*the batch goes on") as caught:
        assert run(map_limit(fn, range(3), on_progress=bad)) == [0, 1, 2]
    assert len(caught) == 1


def test_a_callback_may_cancel_the_batch() -> None:
    """It is under no lock: it may do what it likes, also end the batch it hears of."""
    token = CancelToken()
    seen: list[int] = []

    def on_progress(done: int, failed: int, total: int | None) -> None:
        seen.append(done)
        if done == 3:
            token.cancel("enough")

    for fn in (plain, in_task):
        token, seen[:] = CancelToken(), []
        with pytest.raises(Exception, match="enough"):
            run(map_limit(fn, range(10_000), errors="collect", on_progress=on_progress, cancel=token))
        assert 3 <= len(seen) < 100


def test_what_is_cancelled_is_not_reported() -> None:
    """Only what ended by itself counts as done."""
    calls: list[tuple[int, int, int | None]] = []

    async def fn(item: int) -> int:
        if item == 3:
            raise KeyError
        if item > 3:
            await asyncio.sleep(3600)
        return item

    with pytest.raises(KeyError):
        asyncio.run(map_limit(fn, range(100), on_progress=lambda *args: calls.append(args)))
    assert calls[-1] == (4, 1, 100)


def test_streams_report_too() -> None:
    """A plain one when it is read."""
    calls: list[tuple[int, int, int | None]] = []
    assert list(imap_limit(abs, range(5), on_progress=lambda *args: calls.append(args))) == list(range(5))
    assert calls[-1] == (5, 0, 5)


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make stderr a terminal; not by a fixture, since pytest sets stderr again when the test itself begins."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    return stream


@pytest.mark.parametrize("library", ["tqdm", "rich"])
@pytest.mark.parametrize("fn", [plain, in_task])
def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, library: str, fn: Any) -> None:
    """By the library that is installed: the name, the count and the failures are shown."""
    pytest.importorskip(library)
    stream = terminal(monkeypatch)
    monkeypatch.setattr(progress, "_KINDS", {library: progress._KINDS[library]})
    run(map_limit(fn, range(8), errors="collect", progress=True))
    shown = stream.getvalue()
    assert "map_limit" in shown
    assert "8/8" in shown
    assert "failed" in shown


def test_tqdm_comes_before_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where neither is installed there is no bar."""
    pytest.importorskip("tqdm")
    terminal(monkeypatch)
    assert isinstance(progress.open_bar("batch", None), progress.TqdmBar)
    monkeypatch.setattr(progress, "find_spec", lambda name: object() if name == "rich" else None)
    bar = progress.open_bar("batch", None)
    assert isinstance(bar, progress.RichBar)
    bar.close()
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    assert progress.open_bar("batch", 3) is None


def test_no_bar_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent into a file, and where there is no stderr at all."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    assert map_limit(abs, range(3), progress=True) == [0, 1, 2]
    assert stream.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", None)
    assert map_limit(abs, range(3), progress=True) == [0, 1, 2]


def test_a_broken_terminal_does_not_break_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar that cannot be drawn is reported like any callback."""

    class Broken:
        def step(self, failed: int) -> None:
            raise BrokenPipeError

        def close(self) -> None:
            raise BrokenPipeError

    terminal(monkeypatch)
    monkeypatch.setattr(progress, "_KINDS", {"tqdm": lambda what, total: Broken()})
    with pytest.warns(GuardWarning, match="BrokenPipeError"):
        assert map_limit(abs, range(3), progress=True) == [0, 1, 2]


def test_a_bar_is_closed_when_the_batch_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal is left to others in every way of ending."""
    closed: list[int] = []

    class Bar:
        def step(self, failed: int) -> None: ...

        def close(self) -> None:
            closed.append(1)

    terminal(monkeypatch)
    monkeypatch.setattr(progress, "_KINDS", {"rich": lambda what, total: Bar()})
    for fn in (plain, in_task):
        with pytest.raises(KeyError):
            run(map_limit(fn, range(8), progress=True))
    assert closed == [1, 1]
