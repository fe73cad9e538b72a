"""freezegun moves every policy: ``frozen.tick()`` is time passing, and asyncio's own timers stay real."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import freezegun
import pytest

import guarded
from guarded import (
    Cancelled,
    CancelToken,
    CircuitOpen,
    DeadlineExceeded,
    RateExceeded,
    RetryBudget,
    adaptive,
    circuit,
    deadline,
    fallback,
    hedge,
    idempotent,
    limit,
    rate,
    retry,
)
from guarded.policies._hedge.core import FEWEST


def frozen_time(test: Callable[..., None]) -> Callable[..., None]:
    """Give a test frozen time as its first argument; asyncio goes on in real time, and so does pytest."""

    @functools.wraps(test)
    def run(**given: Any) -> None:
        with freezegun.freeze_time("2026-03-01 12:00", real_asyncio=True) as frozen:
            test(frozen, **given)

    signature = inspect.signature(test)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])  # type: ignore[attr-defined]
    return run


def _plain(fn: Callable[[], Any]) -> Callable[[], Any]:
    return fn


def _as_async(fn: Callable[[], Any]) -> Callable[[], Any]:
    async def coroutine() -> Any:
        return fn()

    return coroutine


def _called(call: Any) -> Any:
    result = call()
    return asyncio.run(result) if asyncio.iscoroutine(result) else result


def _from_further_down(call: Callable[[], Any], frames: int = 5) -> None:
    """Call from so many frames down: freezegun gives real time within five frames of the module threading."""
    _from_further_down(call, frames - 1) if frames else call()


modes = pytest.mark.parametrize("shape", [_plain, _as_async], ids=["sync", "async"])


@modes
@pytest.mark.parametrize("algorithm", ["sliding", "gcra", "leaky", "fixed"])
@frozen_time
def test_rate(frozen: Any, shape: Any, algorithm: Any) -> None:
    """Used up, until a window has been ticked away."""
    call = rate("1/m", algorithm=algorithm, max_wait=0)(shape(lambda: "ran"))
    assert _called(call) == "ran"
    with pytest.raises(RateExceeded) as refused:
        _called(call)
    frozen.tick(refused.value.retry_after)
    assert _called(call) == "ran"


@modes
@frozen_time
def test_circuit(frozen: Any, shape: Any) -> None:
    """Open for exactly as long as it says."""
    gateway = circuit("gateway", failures=1, reset_after=30)
    answers: list[Any] = [ConnectionError(), "ran"]

    def body() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    call = gateway(shape(body))
    with pytest.raises(ConnectionError):
        _called(call)
    frozen.tick(29.9)
    with pytest.raises(CircuitOpen) as refused:
        _called(call)
    frozen.tick(refused.value.retry_after)
    assert _called(call) == "ran"
    assert gateway.state == "closed"


@modes
@frozen_time
def test_slow_calls_of_a_circuit(frozen: Any, shape: Any) -> None:
    """A body that ticks for longer than `slow_call` was slow."""
    gateway = circuit("gateway", failures=1, slow_call="2s")
    _called(gateway(shape(lambda: frozen.tick(2.5))))
    assert gateway.state == "open"


@modes
@frozen_time
def test_idempotent_time_to_live(frozen: Any, shape: Any) -> None:
    """A result is replayed until its time is ticked away."""
    runs: list[int] = []
    call = idempotent(ttl="1h")(shape(lambda: runs.append(1)))
    for seconds in (0, 3599):
        frozen.tick(seconds)
        _called(call)
    assert len(runs) == 1
    frozen.tick(2)
    _called(call)
    assert len(runs) == 2


@modes
@frozen_time
def test_retry_decides_by_the_deadline(frozen: Any, shape: Any) -> None:
    """Attempts go on while the next one can start in time, and not a tick longer."""
    attempts: list[int] = []

    def body() -> None:
        attempts.append(guarded.attempt())
        frozen.tick(4)
        raise ConnectionError

    call = deadline("10s", mode="cooperative")(retry(retries=9, base="1ms", jitter="none")(shape(body)))
    with pytest.raises(ConnectionError):
        _called(call)
    assert attempts == [1, 2, 3]


@frozen_time
def test_retry_budget(frozen: Any) -> None:
    """What is spent counts for the last ten seconds only."""
    budget = RetryBudget(ratio=0, min_per_second=0.1)
    attempts: list[int] = []

    @retry(retries=5, base="1ms", budget=budget)
    def body() -> None:
        attempts.append(guarded.attempt())
        raise ConnectionError

    for expected in ([1, 2], [1], [1, 2]):
        attempts.clear()
        with pytest.raises(ConnectionError):
            body()
        assert attempts == expected
        frozen.tick(1 if expected == [1, 2] else 10)


@modes
@frozen_time
def test_deadline(frozen: Any, shape: Any) -> None:
    """What is left follows the ticks, down to nothing, and every checkpoint obeys."""
    left: list[float] = []

    def body() -> None:
        for _ in range(3):
            left.append(guarded.remaining())
            frozen.tick(4)
        guarded.checkpoint()

    with pytest.raises(DeadlineExceeded):
        _called(deadline("10s", mode="cooperative")(shape(body)))
    assert left == pytest.approx([10, 6, 2])


@frozen_time
def test_a_token_fires_by_ticks(frozen: Any) -> None:
    """`CancelToken.after` is a time like any other."""
    token = CancelToken.after("5s")
    with token:
        frozen.tick(4.9)
        guarded.checkpoint()
        frozen.tick(0.2)
        with pytest.raises(Cancelled):
            guarded.checkpoint()


@frozen_time
def test_limit(frozen: Any) -> None:
    """How long somebody has waited follows the ticks, and so does what an adaptive limit learns."""
    once = limit(1)
    served = threading.Event()

    @once
    def body() -> None:
        served.set()

    with once:
        thread = threading.Thread(target=_from_further_down, args=(body,))
        thread.start()
        while once.snapshot().queued == 0:
            served.wait(0.001)
        frozen.tick(30)
        assert once.snapshot().oldest_wait == pytest.approx(30)
    thread.join(10)
    assert served.is_set()
    learning = limit(adaptive("aimd", initial=10, slow="1s"))
    learning.call(lambda: frozen.tick(2))
    assert learning.snapshot().limit == 9


@modes
@frozen_time
def test_hedge_and_fallback(frozen: Any, shape: Any) -> None:
    """A percentile is made of what was ticked; a fallback answers for as long as the circuit below it is open."""
    hedged = hedge("p50", idempotent=True)
    call = hedged(shape(lambda: frozen.tick(2)))
    for _ in range(FEWEST):
        _called(call)
    assert hedged._delay()() == pytest.approx(2)

    opens = circuit("fallback-ticks", failures=1, reset_after="30s")
    answer = fallback("instead")(opens(shape(lambda: "itself")))
    opens.breaker.open()
    assert _called(answer) == "instead"
    frozen.tick(30)
    assert _called(answer) == "itself"


@frozen_time
def test_asyncio_timers_stay_real(frozen: Any) -> None:
    """A real sleep under a guarded deadline ends by itself; a tick past the deadline ends the body soon after."""

    @deadline("20ms")
    async def body(tick: float) -> str:
        await asyncio.sleep(0.03)  # longer than the deadline, for which no time has passed
        frozen.tick(tick)
        await asyncio.sleep(5)
        return "never"

    async def main() -> None:
        started = asyncio.get_running_loop().time()
        with pytest.raises(DeadlineExceeded):
            await body(1)
        assert asyncio.get_running_loop().time() - started < 4

    asyncio.run(main())


@frozen_time
def test_guarded_waits_under_frozen_time_take_real_time(frozen: Any) -> None:
    """Nobody hangs: waits end by the real clock while the frozen one stands still."""
    assert guarded.sleep("10ms") is None

    async def main() -> None:
        await guarded.asleep("10ms")

    asyncio.run(main())
