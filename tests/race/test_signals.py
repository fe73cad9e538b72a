"""Signal handlers that raise, as Ctrl-C and the time limits of task queues do, at any moment of a decision."""

from __future__ import annotations

import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from guarded import CancelToken, DeadlineExceeded, Rejected, RetryBudget, circuit, deadline, hedge, limit, rate, retry
from guarded._core import chain, clock
from guarded._core.call import current
from guarded._core.monitor import Monitor
from guarded._core.workers import workers
from guarded.events.bus import bus
from guarded.events.model import event_maker
from guarded.testing import capture

ALARMS = 300
BUDGET = RetryBudget()
HEDGE = hedge("p95", idempotent=True)


class Alarm(Exception):
    """What the handler raises."""


@pytest.fixture(autouse=True)
def alarms(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """SIGALRM raises into whatever the main thread is doing; what nobody could catch then is passed over."""
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    monkeypatch.setattr(warnings, "showwarning", lambda *args, **kwargs: None)  # of a sink that an alarm hit

    def handler(number: int, frame: FrameType | None) -> None:
        raise Alarm

    event_maker()  # else made in the midst of the first call that something is told of
    before = signal.signal(signal.SIGALRM, handler)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def call_until_alarm(call: Callable[[], object], after: float) -> None:
    """Call again and again; an alarm that hits a finalizer is swallowed there, so that another one follows."""
    with suppress(Alarm):
        try:
            signal.setitimer(signal.ITIMER_REAL, after, 0.005)
            while True:
                call()
        finally:
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


@pytest.mark.real_clock
@pytest.mark.parametrize("streams", [False, True])
def test_a_raising_handler_leaves_no_call_published(streams: bool) -> None:
    """What follows in the same thread is not taken for a part of the call that was cut off."""
    rng = random.Random(7)
    kept: list[Any] = []  # a stream that is cut off is closed here, not while alarms go off

    def numbers() -> Iterator[int]:
        yield 1

    body: Any = deadline(60, mode="cooperative")(numbers if streams else lambda: ())

    def call() -> None:
        kept[:] = [body()]
        for _ in kept[0]:
            pass

    for _ in range(ALARMS):
        call_until_alarm(call, rng.uniform(20e-6, 300e-6))
        assert current.get() is None
        kept.clear()


@pytest.mark.real_clock
def test_a_raising_handler_leaves_no_thread_without_events() -> None:
    """Telling of an event is over when it is cut off: the next one is told too."""
    rng = random.Random(7)
    policy = retry(retries=0)

    def tell() -> None:
        bus.emit("retry.recovered", None, policy)

    with capture() as events:
        for _ in range(ALARMS):
            call_until_alarm(tell, rng.uniform(20e-6, 300e-6))
            events.clear()
            tell()
            assert len(events) == 1


@pytest.mark.real_clock
def test_a_raising_handler_leaves_no_worker_counted() -> None:
    """A caller that is cut off while it leaves its worker behind counts it once, and the worker takes it back."""
    rng = random.Random(7)
    late: Any = deadline(50e-6)(lambda: clock.pause(100e-6))

    def call() -> None:
        with suppress(DeadlineExceeded, Rejected, KeyError):  # the last where Thread.start was cut off
            late()

    for _ in range(ALARMS):
        call_until_alarm(call, rng.uniform(20e-6, 2e-3))
    for _ in range(1000):
        if workers.abandoned == 0:
            break
        clock.pause(0.001)
    assert workers.abandoned == 0


@pytest.mark.real_clock
def test_a_token_that_a_raising_handler_cut_short_can_be_cancelled_again() -> None:
    """It has fired or it has not: never is it used up without having fired."""
    rng = random.Random(7)
    token = CancelToken()

    def fire() -> None:
        nonlocal token
        token = CancelToken()
        token.cancel("enough")

    for _ in range(ALARMS):
        call_until_alarm(fire, rng.uniform(20e-6, 300e-6))
        token.cancel("enough")
        assert token.reason == "enough"


@pytest.mark.parametrize(
    ("lock", "use"),
    [
        pytest.param(lambda: chain._chains_lock, lambda: retry(retries=0).call(lambda: None), id="table of callables"),
        pytest.param(lambda: BUDGET._lock, lambda: retry(budget=BUDGET).call(lambda: None), id="retry budget"),
        pytest.param(lambda: HEDGE._lock, lambda: HEDGE.call(lambda: None), id="latencies of a hedge"),
    ],
)
def test_a_call_in_the_middle_of_another_does_not_wait_for_itself(
    lock: Callable[[], Any], use: Callable[[], object]
) -> None:
    """Signal handlers and finalizers run in a thread that may hold any lock of ours."""
    done = threading.Event()

    def interrupted() -> None:
        with lock():
            use()
        done.set()

    threading.Thread(target=interrupted, daemon=True).start()
    assert done.wait(5)
