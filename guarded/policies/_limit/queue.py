"""Who waits for permits, in the order of service: higher priority first, arrival order inside one priority.

Every operation is O(1) in the number of waiters, removal from the middle included, so that the length counts live
waiters only. Times are monotonic seconds. Not thread-safe: it lives under the lock of its owner.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from enum import Enum, auto

from guarded._core.waiters import TaskWaiter, ThreadWaiter


class State(Enum):
    """What became of an entry; all but the first three are final."""

    NEW = auto()  # not in the queue yet
    WAITING = auto()
    GRANTED = auto()  # handed its permits, not resumed yet
    TAKEN = auto()  # resumed: the permits are the caller's to release
    GONE = auto()  # left, or lost with its loop; it holds nothing
    CLOSED = auto()  # refused, because the limit was closed


NEW, WAITING, GRANTED, TAKEN, GONE, CLOSED = State  # read often, and a member of an Enum is slow to look up


class Entry:
    """One caller in the queue.

    Args:
        weight: permits it needs.
        priority: higher goes first.
        waiter: what it parks on.
        since: when it began to wait.
    """

    __slots__ = ("priority", "since", "state", "waiter", "weight")

    def __init__(self, weight: int, priority: int, waiter: ThreadWaiter | TaskWaiter, since: float) -> None:
        self.weight = weight
        self.priority = priority
        self.waiter = waiter
        self.since = since
        self.state = NEW


class WaitQueue:
    """Entries by priority and arrival; its length is the number of live waiters.

    A signal handler may raise wherever Python code calls something, so what belongs together happens without a call
    between.
    """

    __slots__ = ("_lanes", "_length")

    def __init__(self) -> None:
        self._lanes: dict[int, OrderedDict[Entry, None]] = {}  # linked lists: O(1) at the head and in the middle
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Entry]:
        """All waiters in the order of service."""
        for priority in sorted(self._lanes, reverse=True):
            yield from self._lanes[priority]

    def add(self, entry: Entry) -> None:
        """Put `entry` behind those of its priority."""
        lane = self._lanes.get(entry.priority)
        if lane is None:
            self._lanes[entry.priority] = OrderedDict.fromkeys((entry,))
        else:
            lane[entry] = None
        self._length += 1
        entry.state = WAITING

    def remove(self, entry: Entry) -> None:
        """Take a waiting entry out, wherever it stands."""
        lane = self._lanes[entry.priority]
        del lane[entry]
        self._length -= 1
        if not lane:
            del self._lanes[entry.priority]

    def head(self) -> Entry | None:
        """Who is served next."""
        return next(iter(self._lanes[max(self._lanes)])) if self._lanes else None

    def goes_first(self, priority: int) -> bool:
        """Whether a newcomer of that priority would be the head."""
        return not self._lanes or priority > max(self._lanes)

    def oldest(self) -> float | None:
        """When the one who has waited longest began; None when nobody waits."""
        return min((next(iter(lane)).since for lane in self._lanes.values()), default=None)
