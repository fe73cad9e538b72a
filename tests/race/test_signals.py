"""Signal handlers that raise, as Ctrl-C and the time limits of task queues do, at any moment of a decision."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from guarded import circuit, limit, rate
from guarded._core.monitor import Monitor

ALARMS = 300


class Alarm(Exception):
    """What the handler raises."""


@pytest.fixture(autouse=True)
def alarms() -> Iterator[None]:
    """SIGALRM raises into whatever the main thread is doing."""

    def handler(number: int, frame: FrameType | None) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, handler)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def call_until_alarm(call: Callable[[], object], after: float) -> None:
    """Call again and again; an alarm that hits a finalizer is swallowed there, so that another one follows."""
    try:
        signal.setitimer(signal.ITIMER_REAL, after, 0.005)
        while True:
            call()
    except Alarm:
        signal.setitimer(signal.ITIMER_REAL, 0)


def is_free(monitor: Monitor) -> bool:
    """Whether another thread gets the lock."""
    answers: list[bool] = []

    def probe() -> None:
        answers.append(monitor._lock.acquire(blocking=False))
        if answers[0]:
            monitor._lock.release()

    thread = threading.Thread(target=probe)
    thread.start()
    thread.join()
    return answers[0]


def keyed_limit() -> tuple[Callable[[], object], Monitor]:
    policy: Any = limit(3, key=lambda: "key")
    return policy(lambda: None), policy._pools


def rate_of(algorithm: Any, key: Any) -> tuple[Callable[[], object], Monitor]:
    policy: Any = rate(10**6, per="1s", algorithm=algorithm, key=key)
    return policy(lambda: None), policy.lines


def failing_circuit() -> tuple[Callable[[], object], Monitor]:
    policy: Any = circuit("gateway", failures=10**6)

    @policy
    def failing() -> None:
        raise ConnectionError

    def call() -> None:
        with pytest.raises(ConnectionError):
            failing()

    return call, policy.local


@pytest.mark.real_clock
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what hits a weak reference's callback
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(keyed_limit, id="limit"),
        pytest.param(lambda: rate_of("gcra", None), id="rate"),
        pytest.param(lambda: rate_of("sliding", lambda: "key"), id="keyed rate"),
        pytest.param(failing_circuit, id="circuit"),
    ],
)
def test_a_raising_handler_leaves_no_lock_behind(make: Callable[[], tuple[Callable[[], object], Monitor]]) -> None:
    """Before the interpreter itself released the lock, about one alarm in fifteen left it held for ever."""
    rng = random.Random(7)
    call, monitor = make()
    for _ in range(ALARMS):
        call_until_alarm(call, rng.uniform(20e-6, 300e-6))
        assert is_free(monitor)
