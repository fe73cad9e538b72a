"""The course of one batch: what each end of an item means for all of it. Pure: no locks, no waiting, no user code.

The drivers serialise access, stop their bodies when told that the batch has to end, and let the reader have the rest.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from guarded._batch.settled import Settled, cut_off, leave_behind
from guarded._batch.window import Window
from guarded.errors import Cancelled, DeadlineExceeded

R = TypeVar("R")

WAITING = "waiting for a batch"
NOBODY = "nobody waits for the batch any more"


class Course(Generic[R]):
    """Where a batch stands.

    Attributes:
        window: which items are running or unread.
        stopped: whether nothing may start any more.
        reason: why what still ran was cancelled.
        error: what the reader gets after the outcomes.
    """

    __slots__ = ("_by_item", "_name", "_note", "_raises", "_until", "error", "reason", "stopped", "window")

    def __init__(self, name: str, raises: bool, window: Window[R], until: float) -> None:
        self._name = name
        self._until = until  # the deadline of whoever waits for the batch
        self._raises = raises
        self._by_item = False
        self._note: str | None = None
        self.window = window
        self.stopped = False
        self.reason: str | None = None
        self.error: BaseException | None = None

    def item_ended(self, settled: Settled[R]) -> bool:
        """Take an outcome in; True when it ends the batch."""
        raises = self._raises and not settled.ok
        self.window.finish(settled, readable=not raises)
        if not raises or self.error is not None:
            return False
        self._by_item = not (settled.cancelled or self._out_of_time(settled.error))
        self._note = f"{self._name}: raised for item {settled.index}"
        return self._end(settled.error, "another item failed")

    def _out_of_time(self, error: BaseException | None) -> bool:
        """Whether an item met the deadline of the whole batch, a moment before the reader did."""
        return isinstance(error, DeadlineExceeded) and error.until is not None and error.until >= self._until

    def item_crashed(self, index: int, error: BaseException) -> bool:
        """An item raised what is no Exception, and so no outcome; True when that ends the batch."""
        self.window.finish(cut_off(index, None), readable=not self._raises)
        return self._end(error, "the program is ending")

    def source_failed(self, error: Exception) -> bool:
        """The source has raised instead of giving an item; True when what runs is to be cancelled."""
        raises = self._raises and self.error is None
        self.close_failed(error)
        return raises and self._end(error, "the source of the items failed")

    def close_failed(self, error: Exception) -> None:
        """The source has raised, and all that it had to give is there: what runs may finish."""
        if self.error is None:
            self.error = error
            self._note = f"{self._name}: raised by the source of its items, after {self.window.started} of them"

    def interrupted(self, error: BaseException) -> bool:
        """The reader stops waiting; True when the batch had not been stopped before."""
        self.error, self._note, self._by_item = error, None, False
        if self.stopped:
            return False
        self.stopped = True
        self.reason = error.reason if isinstance(error, Cancelled) else NOBODY
        return True

    def _end(self, error: BaseException | None, reason: str | None) -> bool:
        if self.error is None or not isinstance(error, Exception):
            self.error = error
        if self.stopped:
            return False
        self.stopped, self.reason = True, reason
        return True

    def farewell(self) -> BaseException | None:
        """What to raise in the end: with its note, and with the outcomes that it cuts short. Everything has ended."""
        error = self.error
        self.error = None  # else error → traceback → frame → batch → error would be a cycle
        if error is None or isinstance(error, GeneratorExit):
            return error
        if self._note is not None and self._note not in getattr(error, "__notes__", ()):
            error.add_note(self._note)
        if not self._by_item:
            leave_behind(error, self.window.rest(self.reason))
        return error
