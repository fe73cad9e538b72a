"""The lock that finalizers may meet."""

from __future__ import annotations

import threading

import pytest

from guarded._core.monitor import Monitor
from guarded.errors import Deadlock


class Log(Monitor):
    """Notes what is handled, and carries out what was decided."""

    def __init__(self) -> None:
        super().__init__()
        self.handled: list[object] = []
        self.carried_out: list[object] = []
        self.depth = 0

    def decide(self, *decisions: object) -> None:
        with self, self._lock:
            self._outgoing.extend(decisions)

    def _handle(self, message: object) -> None:
        assert self._owned()
        self.handled.append(message)

    def _carry_out(self, decision: object) -> None:
        assert not self._owned()
        self.depth += 1
        assert self.depth == 1
        self.carried_out.append(decision)
        if isinstance(decision, int) and decision:
            self._outgoing.append(decision - 1)
            self.post(f"after {decision}")
        self.depth -= 1


def test_post_is_handled_at_once_when_the_lock_is_free() -> None:
    """A message needs nobody else."""
    log = Log()
    log.post("a")
    assert log.handled == ["a"]


def test_post_under_the_lock_waits_for_the_holder_to_leave() -> None:
    """A finalizer that runs in the thread that holds the lock does not block, and its message is not lost."""
    log = Log()
    with log, log._lock:
        log.post("a")
        assert log.handled == []
    assert log.handled == ["a"]


def test_post_from_another_thread_never_blocks() -> None:
    """The poster goes on although the lock is held; the holder handles the message on leaving."""
    log = Log()
    with log, log._lock:
        thread = threading.Thread(target=log.post, args=("a",))
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
    assert log.handled == ["a"]


def test_entering_again_raises_instead_of_hanging() -> None:
    """A guarded call made by a finalizer in the middle of a decision cannot be answered."""
    log = Log()
    with log, log._lock, pytest.raises(Deadlock, match="finalizer"):
        log.decide("never")
    log.decide("later")
    assert log.carried_out == ["later"]


def test_carrying_out_does_not_nest_however_much_comes_of_it() -> None:
    """What a decision brings about is done by the outermost frame: ten thousand steps need no deep stack."""
    log = Log()
    log.decide(10_000)
    assert len(log.carried_out) == 10_001
    assert len(log.handled) == 10_000


def test_an_exception_leaves_the_lock_free() -> None:
    """The block may fail; the next one gets in."""
    log = Log()
    with pytest.raises(ZeroDivisionError), log, log._lock:
        raise ZeroDivisionError
    log.decide("a")
    assert log.carried_out == ["a"]
