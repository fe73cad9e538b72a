"""Telling how far a batch is: to a callback of the program, and as a bar on a terminal.

Both are told from the thread or task that drives the batch, one item at a time, never under a lock. What they raise
does not reach the batch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from guarded._core.place import complain
from guarded.events.redact import cause_of

OnProgress = Callable[[int, int, int | None], object]


class Bar(Protocol):
    """What is shown on the terminal."""

    def step(self, failed: int) -> None: ...

    def close(self) -> None: ...


class Reports:
    """Counts the items of one batch that have ended by themselves, and tells about each.

    Attributes:
        wanted: whether anybody wants to know.
    """

    __slots__ = ("_bar", "_complained", "_done", "_failed", "_on_progress", "_total", "wanted")

    def __init__(self, on_progress: OnProgress | None, progress: bool, what: str, total: int | None) -> None:
        self._on_progress = on_progress
        self._bar = open_bar(what, total) if progress else None
        self._total = total
        self._done = self._failed = 0
        self._complained = False
        self.wanted = on_progress is not None or self._bar is not None

    def tell(self, ok: bool) -> None:
        """One more item has ended."""
        self._done += 1
        self._failed += not ok
        if self._on_progress is not None:
            self._call(self._on_progress, self._done, self._failed, self._total)
        if self._bar is not None:
            self._call(self._bar.step, self._failed)

    def close(self) -> None:
        """The batch is over: leave the terminal to others."""
        bar, self._bar = self._bar, None
        if bar is not None:
            self._call(bar.close)

    def _call(self, listener: Callable[..., object], *args: object) -> None:
        try:
            listener(*args)
        except Exception as error:
            if not self._complained:
                self._complained = True
                name = getattr(listener, "__qualname__", type(listener).__qualname__)
                complain(f"progress callback {name} raised {cause_of(error)}; the batch goes on")


class TqdmBar:
    """A bar of tqdm."""

    def __init__(self, what: str, total: int | None) -> None:
        tqdm: Any = import_module("tqdm").tqdm  # optional, and without types
        self._bar = tqdm(total=total, desc=what, unit="", leave=True)
        self._failed = 0

    def step(self, failed: int) -> None:
        """One more item."""
        if failed != self._failed:
            self._failed = failed
            self._bar.set_postfix(failed=failed, refresh=False)
        self._bar.update(1)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()


class RichBar:
    """A bar of rich."""

    def __init__(self, what: str, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[failed]}"),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task(what, total=total, failed="")
        self._bar.start()

    def step(self, failed: int) -> None:
        """One more item."""
        self._bar.update(self._task, advance=1, failed=f"{failed} failed" if failed else "")

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.stop()


_KINDS: dict[str, Callable[[str, int | None], Bar]] = {"tqdm": TqdmBar, "rich": RichBar}


def open_bar(what: str, total: int | None) -> Bar | None:
    """A bar on stderr; None where that is no terminal, or neither tqdm nor rich is installed."""
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    for library, make in _KINDS.items():
        if find_spec(library) is not None:
            return make(what, total)
    return None
