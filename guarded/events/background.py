"""A slow sink behind a bounded queue: the guarded call only puts the event there, a daemon thread hands it on.

What does not fit is dropped and counted, since an event is worth less than the call it tells of. The order is kept.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Final

from guarded._core.fork import after_fork
from guarded._core.place import complain
from guarded.events.bus import Sink, inside_sink, title_of
from guarded.events.model import Event
from guarded.events.redact import cause_of

SIZE: Final = 10_000


class Background:
    """A sink that hands its events to another one, in a thread of its own; made by `in_background`.

    Attributes:
        dropped: events lost because the queue was full.
        failures: how often the other sink raised.
    """

    def __init__(self, sink: Sink, size: int) -> None:
        self._sink = sink
        self._size = size
        self._begin()
        after_fork(self, Background._begin)  # in the child the thread is gone, and what it had to do is the parent's

    def _begin(self) -> None:
        self.dropped: int = 0
        self.failures: int = 0
        self._queue: SimpleQueue[Event | threading.Event] = SimpleQueue()  # reentrant: a finalizer may emit too
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Put an event into the queue, or drop it."""
        if self._queue.qsize() >= self._size:
            self.dropped += 1
            return
        self._queue.put(event)
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        if self._start_lock.acquire(blocking=False):  # else another thread is starting it
            try:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, args=(self._queue,), name="guarded-sink", daemon=True)
                    thread.start()
                    self._thread = thread
            finally:
                self._start_lock.release()

    def _run(self, queue: SimpleQueue[Event | threading.Event]) -> None:
        inside_sink()
        while True:
            found = _next_event(queue)
            if isinstance(found, threading.Event):
                found.set()
                continue
            try:
                self._sink(found)
            except Exception as error:
                self.failures += 1
                if self.failures == 1:
                    complain(f"event sink {title_of(self._sink)} raised {cause_of(error)}; more failures are counted")

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait, `timeout` real seconds at most, until all that came before has been handed on; whether it has.

        False at once when no thread can be started for it.
        """
        if self._thread is None and not self._queue.qsize():
            return True
        done = threading.Event()
        self._queue.put(done)
        if self._thread is None:
            try:
                self._start()
            except RuntimeError:
                return False
        return done.wait(timeout)

    def __repr__(self) -> str:
        return f"<Background of {title_of(self._sink)}: {self.dropped} dropped, {self.failures} failures>"


def _next_event(queue: SimpleQueue[Event | threading.Event]) -> Event | threading.Event:
    return queue.get()  # in a function of its own, by which virtual time knows a thread that does nothing


def in_background(sink: Sink, *, size: int = SIZE) -> Background:
    """A sink that never makes a call wait for `sink`, however slow that is.

    Args:
        sink: what gets the events, one at a time, in order, in a daemon thread.
        size: events that may wait, at least 1 (else ValueError); further ones are dropped, and counted in `dropped`.

    Example:
        >>> from guarded import events
        >>> lines = []
        >>> slow = events.in_background(lines.append)
        >>> with events.subscribe(slow, "WARNING"):
        ...     pass
        >>> slow.flush()
        True
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"size={size!r}: must be an int of at least 1")
    return Background(sink, size)
