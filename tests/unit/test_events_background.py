"""A sink behind a queue."""

from __future__ import annotations

import os
import threading
import time
import warnings

import pytest

import guarded
from guarded import GuardWarning, events, limit
from guarded.events.bus import bus
from guarded.events.model import Event
from guarded.testing import virtual_time


class Slow:
    """A sink that takes until it is told to go on."""

    def __init__(self) -> None:
        self.seen: list[Event] = []
        self.go_on = threading.Event()

    def __call__(self, event: Event) -> None:
        """Take one event."""
        self.go_on.wait(10)
        self.seen.append(event)


def test_a_slow_sink_does_not_hold_up_calls() -> None:
    """Calls return while it still sits on the first event; in the end it gets all, in order."""
    slow = Slow()
    background = events.in_background(slow)
    work = limit(1)(lambda: "done")
    with events.subscribe(background, "TRACE"):
        assert [work() for _ in range(100)] == ["done"] * 100
        assert slow.seen == []
    slow.go_on.set()
    assert background.flush()
    assert [event.name for event in slow.seen] == ["limit.acquired", "call.succeeded"] * 100
    assert (background.dropped, background.failures) == (0, 0)


def test_what_does_not_fit_is_dropped_and_counted() -> None:
    """The queue is bounded; the oldest stay."""
    slow = Slow()
    background = events.in_background(slow, size=3)
    with events.subscribe(background, "TRACE"):
        bus.emit("limit.queued", None, None, queued=0)
        give_up = time.monotonic() + 10
        while background._queue.qsize():  # until the thread holds the first
            assert time.monotonic() < give_up
        for number in range(1, 6):
            bus.emit("limit.queued", None, None, queued=number)
    assert background.dropped == 2
    slow.go_on.set()
    assert background.flush()
    assert [event.queued for event in slow.seen] == [0, 1, 2, 3]


def test_a_raising_sink_is_warned_of_once() -> None:
    """It gets the next event all the same, and the call notices nothing."""
    seen: list[Event] = []

    def broken(event: Event) -> None:
        seen.append(event)
        raise OSError("disk full, password=canary")

    background = events.in_background(broken)
    with warnings.catch_warnings(record=True) as caught, events.subscribe(background, "TRACE"):
        warnings.simplefilter("always")
        limit(1)(lambda: None)()
        assert background.flush()
    assert [event.name for event in seen] == ["limit.acquired", "call.succeeded"]
    assert background.failures == 2
    [warning] = [entry for entry in caught if entry.category is GuardWarning]
    assert "raised OSError: disk full, password=***" in str(warning.message)


def test_guarded_calls_of_the_sink_are_not_told() -> None:
    """Else it would feed itself for ever."""
    inner, outer = (limit(1, name=name)(lambda: None) for name in ("inner", "outer"))
    seen: list[str | None] = []

    def write(event: Event) -> None:
        seen.append(event.policy)
        inner()

    background = events.in_background(write)
    with events.subscribe(background, "TRACE"):
        outer()
        assert background.flush()
    assert seen == ["outer", None]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_works_on_in_a_forked_process() -> None:
    """The thread is not forked; the child starts its own."""
    seen: list[Event] = []
    background = events.in_background(seen.append)
    with events.subscribe(background, "TRACE"):
        bus.emit("limit.queued", None, None)
        assert background.flush()
        child = os.fork()
        if child == 0:
            bus.emit("limit.queued", None, None)
            os._exit(0 if background.flush() and len(seen) == 2 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_virtual_time_does_not_wait_for_its_thread() -> None:
    """A thread that waits for events looks idle, so time jumps on quickly."""
    background = events.in_background(lambda event: None)
    with events.subscribe(background, "TRACE"):
        bus.emit("limit.queued", None, None)
        assert background.flush()
        started = time.monotonic()
        with virtual_time():
            for _ in range(5):
                guarded.sleep(60)
        assert time.monotonic() - started < 1.0


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_a_wrong_size_is_refused(size: object) -> None:
    """The error names the option, the value and the rule."""
    with pytest.raises(ValueError, match=f"size={size!r}: must be an int of at least 1"):
        events.in_background(print, size=size)  # type: ignore[arg-type]


def test_nothing_to_flush() -> None:
    """Before the first event there is no thread."""
    background = events.in_background(print)
    assert background.flush(0)
    assert background._thread is None
    assert repr(background) == "<Background of builtins.print: 0 dropped, 0 failures>"
