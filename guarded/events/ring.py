"""Keeps the latest events in memory: bounded, and lock-free, since a signal handler may emit while another reads."""

from __future__ import annotations

from collections import deque

from guarded.events.model import Event


class Ring:
    """A sink that remembers the latest `size` events.

    Args:
        size: how many, at least 1; ValueError otherwise.
    """

    __slots__ = ("_events",)

    def __init__(self, size: int) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"size={size!r}: must be an int of at least 1")
        self._events: deque[Event] = deque(maxlen=size)

    @property
    def size(self) -> int:
        """How many events it keeps."""
        return self._events.maxlen or 0

    def __call__(self, event: Event) -> None:
        """Take one event, dropping the oldest when full."""
        self._events.append(event)

    def recent(self, n: int | None = None) -> list[Event]:
        """The latest `n` events (None: all that are kept), oldest first."""
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 0):
            raise ValueError(f"n={n!r}: must be an int of at least 0, or None")
        while True:
            try:
                events = list(self._events)
                break
            except RuntimeError:  # another thread appended meanwhile
                continue
        return events if n is None else events[max(0, len(events) - n) :]

    def clear(self) -> None:
        """Forget all."""
        self._events.clear()

    def __len__(self) -> int:
        return len(self._events)

    def __repr__(self) -> str:
        return f"<Ring: {len(self)} of {self.size} events>"
