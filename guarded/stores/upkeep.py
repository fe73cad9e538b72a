"""Work beside the calls: renewing leases, and telling a store again what it could not take at once.

One daemon thread for the process, there only while there is something to do. It serves async runs too, so that a
busy event loop loses no lease. Where no thread can be started, what a call relies on is refused, and all else is done
in the caller's. Chores run outside the lock; times are monotonic seconds.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable

from guarded._core import clock
from guarded._core.fork import after_fork


class Chore:
    """Something done again and again, until it says that it is done, or is cancelled."""

    __slots__ = ("_upkeep", "action", "interval")

    def __init__(self, upkeep: Upkeep, interval: float, action: Callable[[], bool]) -> None:
        self._upkeep = upkeep
        self.interval: float = interval
        self.action: Callable[[], bool] | None = action

    def cancel(self) -> None:
        """Do it no more; it may just be running for the last time. Never blocks."""
        self.action = None
        self._upkeep.tidy()


class Upkeep:
    """The chores of this process."""

    def __init__(self) -> None:
        self._order = itertools.count()
        self._reset()
        after_fork(self, Upkeep._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._heap: list[tuple[float, int, Chore]] = []
        self._gate: threading.Lock | None = None
        self._alive = False

    def tidy(self) -> None:
        """Let the thread go if the next chore was cancelled and none is left behind it."""
        if not self._lock.acquire(blocking=False):
            return  # perhaps a finalizer in the middle of another step; the thread finds out when the chore is due
        try:
            self._drop_cancelled()
            gate = None
            if not self._heap:
                gate, self._gate = self._gate, None
        finally:
            self._lock.release()
        if gate is not None:
            gate.release()

    def every(self, interval: float, action: Callable[[], bool]) -> Chore:
        """Call `action` each `interval` seconds, first after one, for as long as it answers True.

        What it raises ends it, and goes to ``threading.excepthook``. RuntimeError when no thread can be started; then
        `action` is not called.
        """
        chore = Chore(self, interval, action)
        self._add(chore)
        try:
            self._see_to_thread()
        except BaseException:
            chore.action = None
            with self._lock:
                self._heap = [entry for entry in self._heap if entry[2] is not chore]
                heapq.heapify(self._heap)
            raise
        return chore

    def beside(self, interval: float, action: Callable[[], bool]) -> None:
        """The same for what no call relies on: where no thread can be started, it is done once at once.

        Should it answer True then, it goes on when there is a thread for another chore.
        """
        try:
            self.every(interval, action)
        except RuntimeError:
            if action():
                self._add(Chore(self, interval, action))

    def _add(self, chore: Chore) -> None:
        due = clock.monotonic() + chore.interval
        with self._lock:
            self._drop_cancelled()
            heapq.heappush(self._heap, (due, next(self._order), chore))
            gate = None
            if self._heap[0][2] is chore:
                gate, self._gate = self._gate, None
        if gate is not None:
            gate.release()

    def _see_to_thread(self) -> None:
        """Start the thread if there is work and nobody to do it."""
        start = False
        try:
            with self._lock:
                start = not self._alive and bool(self._heap)
                self._alive = self._alive or start
            if start:
                threading.Thread(target=self._run, name="guarded-upkeep", daemon=True).start()
        except BaseException:  # of a signal handler too: a second thread would do no harm, none at all would
            if start:
                self._alive = False
            raise

    def _run(self) -> None:
        while True:
            gate = threading.Lock()
            gate.acquire()
            with self._lock:
                self._drop_cancelled()
                if not self._heap:
                    self._alive = False
                    return
                due = self._heap[0][0]
                chore = heapq.heappop(self._heap)[2] if due <= clock.monotonic() else None
                self._gate = gate if chore is None else None
            if chore is None:
                clock.park(gate, due)
            else:
                self._do(chore)

    def _drop_cancelled(self) -> None:
        while self._heap and self._heap[0][2].action is None:
            heapq.heappop(self._heap)

    def _do(self, chore: Chore) -> None:
        action = chore.action
        try:
            again = action is not None and action()
        except BaseException as error:  # a sink that raises SystemExit too: the other chores need the thread
            again = False
            threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, None)))
        if again and chore.action is not None:
            self._add(chore)


upkeep = Upkeep()
