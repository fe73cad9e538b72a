"""Reload when a file changes (by time stamp, size and inode) or when a signal comes.

A reload that fails is told by its event and leaves the old policies in force; watching goes on. The signal
handler only puts a token into a reentrant queue: it takes no lock that the interrupted code might hold.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Protocol, TypeAlias

from guarded._core.place import complain
from guarded.errors import ConfigError
from guarded.events.redact import cause_of

Stamp: TypeAlias = tuple[int, int, int] | None


def stamp(path: str) -> Stamp:
    """What tells one version of a file from another; None while it is missing."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class Watcher:
    """A daemon thread that calls `reload` after a change.

    Args:
        paths: files to look at.
        reload: called without arguments; ConfigError from it is already reported, other errors are warned of.
        interval: seconds between two looks.
    """

    def __init__(self, paths: Iterable[str], reload: Callable[[], object], *, interval: float = 1.0) -> None:
        self._stamps = {path: stamp(path) for path in paths}
        self._reload = reload
        self._interval = interval
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="guarded-watch", daemon=True)

    def start(self) -> Watcher:
        """Begin to look; gives itself."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop looking and wait for the thread to end."""
        self._wake.put(False)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def is_alive(self) -> bool:
        """Whether it looks."""
        return self._thread.is_alive()

    def nudge(self) -> None:
        """Reload now, in the watcher's thread; may be called from a signal handler."""
        self._wake.put(True)

    def poll(self) -> bool:
        """Look once; reload and give True when something changed. A missing file is no change yet."""
        changed = False
        for path, known in self._stamps.items():
            found = stamp(path)
            # Editors replace files by rename: for a moment there is none.
            if found is not None and found != known:
                self._stamps[path] = found
                changed = True
        if changed:
            self._try()
        return changed

    def _try(self) -> None:
        try:
            self._reload()
        except ConfigError:
            pass  # the reload has told it as config.reload_failed
        except Exception as error:  # of a listener, or a warning that a filter has made an error
            complain(f"reload: {cause_of(error)}; {', '.join(self._stamps)} is still watched")

    def _run(self) -> None:
        while True:
            try:
                reload = self._wake.get(timeout=self._interval)
            except queue.Empty:
                self.poll()
                continue
            if not reload:
                return
            self._try()

    def __enter__(self) -> Watcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Watching(Protocol):
    """What `load` gives, see `guarded.config.loader.Loaded`."""

    @property
    def watcher(self) -> Watcher | None: ...


def reload_on_signal(loaded: Watching | Watcher, number: int | None = None) -> Callable[[], None]:
    """Reload when signal `number` comes (default SIGHUP); to be called in the main thread.

    Args:
        loaded: what ``load(…, watch=True)`` gave, or its watcher; ValueError when it does not watch.
        number: the signal.

    Returns:
        a function that puts the handler from before back.
    """
    watcher = loaded if isinstance(loaded, Watcher) else loaded.watcher
    if watcher is None:
        raise ValueError("loaded: does not watch its files; load them with watch=True")
    chosen = getattr(signal, "SIGHUP", None) if number is None else number
    if chosen is None:
        raise ValueError("number: this platform has no SIGHUP, name another signal")
    before = signal.signal(chosen, lambda received, frame: watcher.nudge())

    def restore() -> None:
        signal.signal(chosen, before)

    return restore
