"""A lock with a mailbox, for state that finalizers change too.

The garbage collector runs finalizers (a dropped coroutine's ``finally``, the lost wake-up of a closed loop) in any
thread, also in one that holds the lock: blocking there would hang for ever. So what needs no answer is posted:
whoever holds the lock handles it on leaving. What was decided under the lock is carried out after it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any

from guarded.errors import Deadlock


def entered_again() -> Deadlock:
    """The error for a thread that would wait for itself."""
    return Deadlock(
        "a finalizer or signal handler made a guarded call in the middle of a decision about the same policy; "
        "hand the work to a thread or a queue instead"
    )


class Monitor:
    """``with self, self._lock:`` holds the lock; subclasses `_handle` what was posted, `_carry_out` what was decided.

    The lock is taken and released by the interpreter itself, since a signal handler may raise wherever Python code
    runs: in an ``__exit__`` written in Python, before it has released anything. What is left in the mailbox then is
    found by the next one who leaves.
    """

    __slots__ = ("_carrying", "_inbox", "_lock", "_outgoing", "_owned")

    def __init__(self) -> None:
        self._lock = threading.RLock()  # not to be taken twice, but to know whose it is
        self._owned: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]  # as Condition does
        self._inbox: deque[Any] = deque()  # posted, to be handled under the lock
        self._outgoing: deque[Any] = deque()  # decided under the lock, to be carried out without it
        self._carrying: set[int] = set()  # threads that are carrying out

    def __enter__(self) -> None:
        if self._owned():
            raise entered_again()

    def __exit__(self, *exc_info: object) -> None:
        if self._outgoing or self._inbox:
            self._flush()

    def post(self, message: Any) -> None:
        """Have `message` handled under the lock, now or by whoever holds it; never blocks."""
        try:
            self._inbox.append(message)
        finally:
            self._flush()

    def _flush(self) -> None:
        """Carry out and handle until nothing is left, or somebody else holds the lock and will go on with it."""
        try:
            self._empty()
        except BaseException:  # of a signal handler: others wait for what is left
            self._empty()
            raise

    def _empty(self) -> None:
        me = get_ident()
        while me not in self._carrying:  # else a frame of this thread further out goes on, so that nothing nests
            if self._outgoing:
                try:
                    self._carrying.add(me)
                    while self._outgoing:
                        self._carry_out_next()
                finally:
                    self._carrying.discard(me)
            if not self._inbox or self._owned():
                return
            try:
                if not self._lock.acquire(blocking=False):
                    return
                while self._inbox:
                    self._handle(self._inbox.popleft())
            except BaseException:  # not ``finally``: there a handler could raise before the release, here only after it
                if self._owned():
                    self._lock.release()
                raise
            self._lock.release()

    def _carry_out_next(self) -> None:
        try:
            decision = self._outgoing.popleft()
        except IndexError:
            return  # another thread was faster
        self._carry_out(decision)

    def _handle(self, message: Any) -> None:
        """Act on a posted message, under the lock."""
        raise NotImplementedError

    def _carry_out(self, decision: Any) -> None:
        """Act on what was put into `_outgoing`, without the lock."""
        raise NotImplementedError
