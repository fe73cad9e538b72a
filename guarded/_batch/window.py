"""What a batch decides: whether another item may start, and which outcome is read next.

No locks and no waiting: the drivers, one for tasks and one for threads, serialise all access. Of `size` items at most
are neither unstarted nor read; `at_once` of them at most have not ended.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, TypeVar

from guarded._batch.settled import Settled, cut_off

R = TypeVar("R")


class Window(Generic[R]):
    """The base of the three ways to read outcomes.

    Attributes:
        started: items taken from the source so far; the index of the next one.
    """

    __slots__ = ("_at_once", "_hidden", "_open", "_size", "started")

    def __init__(self, at_once: int, size: int) -> None:
        self._at_once = at_once
        self._size = size
        self._open: set[int] = set()  # indexes that have not ended
        self._hidden: list[Settled[R]] = []  # not to be read: how items ended in a batch that is ending itself
        self.started = 0

    @property
    def outstanding(self) -> int:
        """Items that have not ended."""
        return len(self._open)

    @property
    def unread(self) -> int:
        """Outcomes that wait to be read and count against the window."""
        return 0

    @property
    def ready(self) -> bool:
        """Whether `take` would give something."""
        return False

    def has_room(self) -> bool:
        """Whether another item may be taken from the source."""
        outstanding = len(self._open)
        return outstanding < self._at_once and outstanding + self.unread < self._size

    def start(self) -> int:
        """Count another item in; gives its index."""
        index = self.started
        self.started = index + 1
        self._open.add(index)
        return index

    def finish(self, settled: Settled[R], readable: bool = True) -> None:
        """An item has ended; an outcome that is not `readable` ends the batch in another way."""
        self._open.discard(settled.index)
        if readable:
            self._shelve(settled)
        else:
            self._hidden.append(settled)

    def _shelve(self, settled: Settled[R]) -> None:
        raise NotImplementedError

    def take(self) -> Settled[R] | None:
        """The next outcome to read, if it is there."""
        raise NotImplementedError

    def _kept(self) -> list[Settled[R]]:
        raise NotImplementedError

    def rest(self, reason: str | None) -> list[Settled[Any]]:
        """All that was not read, in input order; what has not ended is marked as cancelled."""
        marked = [cut_off(index, reason) for index in self._open]
        return sorted([*self._kept(), *self._hidden, *marked], key=lambda settled: settled.index)


class AtTheEnd(Window[R]):
    """Outcomes are kept, in input order, and read all at once: nothing is ever unread."""

    __slots__ = ("_outcomes",)

    def __init__(self, at_once: int, size: int) -> None:
        super().__init__(at_once, size)
        self._outcomes: list[Settled[R] | None] = []

    def start(self) -> int:
        """Count another item in; gives its index."""
        self._outcomes.append(None)
        return super().start()

    def _shelve(self, settled: Settled[R]) -> None:
        self._outcomes[settled.index] = settled

    def take(self) -> Settled[R] | None:
        """Nothing, before the end."""
        return None

    def _kept(self) -> list[Settled[R]]:
        return self.outcomes()

    def outcomes(self) -> list[Settled[R]]:
        """All outcomes so far, in input order."""
        return [settled for settled in self._outcomes if settled is not None]


class InOrder(Window[R]):
    """Outcomes are read in input order; those behind a slow one wait."""

    __slots__ = ("_next", "_waiting")

    def __init__(self, at_once: int, size: int) -> None:
        super().__init__(at_once, size)
        self._waiting: dict[int, Settled[R]] = {}
        self._next = 0

    @property
    def unread(self) -> int:
        """Outcomes that wait to be read."""
        return len(self._waiting)

    @property
    def ready(self) -> bool:
        """Whether the next one in input order is there."""
        return self._next in self._waiting

    def _shelve(self, settled: Settled[R]) -> None:
        self._waiting[settled.index] = settled

    def take(self) -> Settled[R] | None:
        """The next outcome in input order, if it is there."""
        settled = self._waiting.pop(self._next, None)
        if settled is not None:
            self._next += 1
        return settled

    def _kept(self) -> list[Settled[R]]:
        return list(self._waiting.values())


class AsCompleted(Window[R]):
    """Outcomes are read in the order in which they come in."""

    __slots__ = ("_waiting",)

    def __init__(self, at_once: int, size: int) -> None:
        super().__init__(at_once, size)
        self._waiting: deque[Settled[R]] = deque()

    @property
    def unread(self) -> int:
        """Outcomes that wait to be read."""
        return len(self._waiting)

    @property
    def ready(self) -> bool:
        """Whether any is there."""
        return bool(self._waiting)

    def _shelve(self, settled: Settled[R]) -> None:
        self._waiting.append(settled)

    def take(self) -> Settled[R] | None:
        """The outcome that has waited longest, if any."""
        return self._waiting.popleft() if self._waiting else None

    def _kept(self) -> list[Settled[R]]:
        return list(self._waiting)
