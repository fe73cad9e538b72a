"""all_of, all_settled, race, any_of: of awaitables, of async callables, of plain ones in threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

import guarded
from guarded import (
    Cancelled,
    CancelToken,
    DeadlineExceeded,
    Settled,
    all_of,
    all_settled,
    any_of,
    asleep,
    checkpoint,
    deadline,
    limit,
    race,
    sleep,
)
from guarded._core.workers import _Worker, workers
from guarded.batch import settled_of
from guarded.testing import virtual_time

place: ContextVar[str] = ContextVar("place", default="nowhere")
COMBINATORS: list[Any] = [all_of, all_settled, race, any_of]


class Expected(Exception):
    """What a call raises on purpose."""


class Log:
    """What became of calls that take for ever."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running = 0
        self.ended: list[str] = []

    async def hangs(self) -> str:
        self.running += 1
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            self.ended.append("cancelled")
            raise
        finally:
            self.running -= 1
        return "never"

    def hangs_in_a_thread(self) -> str:
        with self.lock:
            self.running += 1
        try:
            sleep(3600)
        except Cancelled:
            self.ended.append("cancelled")
            raise
        finally:
            with self.lock:
                self.running -= 1
        return "never"


async def gives(value: Any, rounds: int = 0) -> Any:
    for _ in range(rounds):
        await asyncio.sleep(0)
    return value


async def fails(error: Exception, rounds: int = 0) -> Any:
    await gives(None, rounds)
    raise error


def raises(error: Exception) -> Any:
    raise error


def on_loop(make: Callable[[], Any]) -> Any:
    """The answer of what `make` builds inside a running loop, which must be left empty."""

    async def main() -> Any:
        try:
            return await make()
        finally:
            assert len(asyncio.all_tasks()) == 1

    return asyncio.run(main())


def test_all_of_gives_results_in_order() -> None:
    """Awaitables, async callables and plain ones mixed."""
    assert on_loop(lambda: all_of(gives(1, 3), lambda: gives(2), gives_three, lambda: 4)) == [1, 2, 3, 4]
    assert all_of(lambda: 1, lambda: 2) == [1, 2]
    assert asyncio.run(all_of(gives(1), gives(2))) == [1, 2]


async def gives_three() -> int:
    return 3


def test_all_of_cancels_and_awaits_the_rest_at_the_first_error() -> None:
    """Unlike `asyncio.gather`; the error is the very object."""
    log, error = Log(), Expected()
    with pytest.raises(Expected) as caught:
        on_loop(lambda: all_of(log.hangs(), fails(error, 3), log.hangs, fails(Expected(), 9)))
    assert caught.value is error
    assert log.ended == ["cancelled"] * 2
    assert log.running == 0
    with pytest.raises(Expected) as caught:
        all_of(log.hangs_in_a_thread, lambda: raises(error))
    assert caught.value is error
    assert log.ended == ["cancelled"] * 3
    assert log.running == 0


def test_all_of_threads_waits_for_bodies_that_cannot_stop() -> None:
    """Nothing of it runs when it raises, however long that takes."""
    ended, go_on = [], threading.Event()

    def stubborn() -> None:
        go_on.wait(10)
        ended.append(True)

    def breaks() -> None:
        threading.Timer(0.15, go_on.set).start()
        raise Expected

    with pytest.raises(Expected):
        all_of(stubborn, breaks)
    assert ended == [True]


@pytest.mark.parametrize("combine", COMBINATORS)
def test_no_thread_to_be_had_is_an_error_and_no_hang(combine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's own error comes out, when what did start has ended."""
    log, started, start = Log(), [], _Worker.start
    monkeypatch.setattr(workers, "_idle", [])

    def limited(worker: _Worker) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(worker)
        start(worker)

    monkeypatch.setattr(_Worker, "start", limited)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        combine(log.hangs_in_a_thread, log.hangs_in_a_thread, log.hangs_in_a_thread)
    assert (log.running, log.ended) == (0, ["cancelled"])


def test_all_settled_raises_nothing() -> None:
    """Each outcome, in order; what was cancelled by others is marked so."""

    async def cancels_itself() -> None:
        raise asyncio.CancelledError

    error = Expected()
    outcomes: list[Settled[Any]] = on_loop(
        lambda: all_settled(gives("a", 5), fails(error), cancels_itself(), lambda: raises(error))
    )
    assert [settled.index for settled in outcomes] == [0, 1, 2, 3]
    assert [settled.value for settled in outcomes] == ["a", None, None, None]
    assert outcomes[1].error is outcomes[3].error is error
    assert outcomes[2].cancelled
    plain = all_settled(lambda: 1, lambda: raises(error))
    assert [settled.ok for settled in plain] == [True, False]


def test_race_is_for_the_first_to_end() -> None:
    """A result or an error; losers are cancelled and awaited."""
    log, error = Log(), Expected()
    assert on_loop(lambda: race(log.hangs(), gives("first", 2))) == "first"
    with pytest.raises(Expected) as caught:
        on_loop(lambda: race(log.hangs(), fails(error, 2), gives("later", 9)))
    assert caught.value is error
    assert log.ended == ["cancelled"] * 2
    assert race(log.hangs_in_a_thread, lambda: "first") == "first"
    with pytest.raises(Expected):
        race(log.hangs_in_a_thread, lambda: raises(error))
    assert log.running == 0


def test_any_of_is_for_the_first_success() -> None:
    """Failures do not count while there is hope."""
    log = Log()
    assert on_loop(lambda: any_of(fails(Expected()), log.hangs(), gives("good", 5))) == "good"
    assert log.ended == ["cancelled"]
    assert any_of(lambda: raises(Expected()), log.hangs_in_a_thread, lambda: "good") == "good"
    assert log.running == 0


def test_any_of_with_no_success() -> None:
    """One group, in the order of the arguments, not of the ends."""
    errors = [Expected("a"), Expected("b"), Expected("c")]
    with pytest.raises(ExceptionGroup, match="any_of: all 3 failed") as caught:
        on_loop(lambda: any_of(fails(errors[0], 9), fails(errors[1], 3), fails(errors[2])))
    assert list(caught.value.exceptions) == errors
    with pytest.raises(ExceptionGroup) as caught:
        any_of(*(lambda error=error: raises(error) for error in errors))  # type: ignore[misc]
    assert list(caught.value.exceptions) == errors


def test_the_first_of_nothing_is_an_error() -> None:
    """It would hang for ever; all of nothing is nothing."""
    for combinator in (race, any_of):
        with pytest.raises(ValueError, match="of nothing there is no first"):
            combinator()
    assert all_of() == []
    assert all_settled() == []
    assert on_loop(lambda: all_of()) == []


@pytest.mark.parametrize("combinator", COMBINATORS)
def test_arguments_of_no_use_are_refused(combinator: Any) -> None:
    """Coroutines beside them do not complain that nobody awaited them."""
    with pytest.raises(TypeError, match=r"argument 0 is list: give awaitables or callables; unpack it with \*$"):
        combinator([])
    with pytest.raises(TypeError, match="argument 1 is int: give awaitables or callables"):
        combinator(gives(1), 3)


@pytest.mark.parametrize("combinator", COMBINATORS)
def test_an_outer_cancellation_cancels_and_awaits_all(combinator: Any) -> None:
    """And goes on its way, with the outcomes so far."""
    log = Log()

    async def main() -> None:
        task = asyncio.create_task(combinator(log.hangs(), log.hangs, log.hangs_in_a_thread))
        while log.running < 3:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert log.running == 0
        assert log.ended == ["cancelled"] * 3
        assert [settled.cancelled for settled in settled_of(caught.value)] == [True] * 3

    asyncio.run(main())


@pytest.mark.parametrize("combinator", COMBINATORS)
def test_a_token_and_a_deadline_end_the_wait(combinator: Any) -> None:
    """In tasks and in threads."""
    with virtual_time():
        token = CancelToken.after(5)

        async def main() -> None:
            with token:
                await combinator(asleep(100), asleep(200))

        with pytest.raises(Cancelled):
            asyncio.run(main())
        with CancelToken.after(5), pytest.raises(Cancelled):
            combinator(lambda: sleep(100), lambda: sleep(200))
        with deadline(5, mode="cooperative"), pytest.raises(DeadlineExceeded):
            combinator(lambda: sleep(100), lambda: sleep(200))


def test_a_token_from_another_thread_ends_threads() -> None:
    """Their guarded waits, and with them the call."""
    log, token = Log(), CancelToken()

    def cancel() -> None:
        while log.running < 2:
            time.sleep(0.001)
        token.cancel("from elsewhere")

    thread = threading.Thread(target=cancel)
    thread.start()
    with token, pytest.raises(Cancelled, match="from elsewhere"):
        race(log.hangs_in_a_thread, log.hangs_in_a_thread)
    thread.join()
    assert log.running == 0


@pytest.mark.real_clock
def test_a_race_leaves_a_stuck_thread_behind() -> None:
    """After a grace of 0.1 s, counted as abandoned until it ends; the caller has its answer."""
    go_on, seen = threading.Event(), []

    def stuck() -> None:
        go_on.wait(10)
        try:
            checkpoint()
        except Cancelled as error:
            seen.append(error.reason)

    started = time.monotonic()
    assert race(stuck, lambda: "first") == "first"
    assert on_loop(lambda: race(stuck, gives("first", 2))) == "first"
    assert time.monotonic() - started < 2
    assert workers.abandoned == 2
    go_on.set()
    while workers.abandoned:
        time.sleep(0.001)
    assert seen == ["the outcome is decided"] * 2


def test_one_awaitable_in_two_places() -> None:
    """It runs once, and stands for both; equal callables run each for themselves."""
    calls: list[int] = []

    async def counted() -> int:
        calls.append(1)
        return len(calls)

    async def main() -> None:
        coroutine, task = counted(), asyncio.ensure_future(counted())
        assert await all_of(coroutine, task, coroutine, task) == [2, 1, 2, 1]
        assert sorted(await all_of(counted, counted)) == [3, 4]

    asyncio.run(main())


def test_a_future_of_another_loop_is_refused_cleanly() -> None:
    """What had been started is cancelled, what had not does not complain."""
    log, other = Log(), asyncio.new_event_loop()
    foreign = other.create_future()

    async def main() -> None:
        with pytest.raises(ValueError, match="loop"):
            await all_of(log.hangs(), foreign, gives(1))
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    other.close()


def test_a_task_given_to_a_race_is_cancelled_when_it_loses() -> None:
    """It is an entrant like others."""

    async def main() -> None:
        task = asyncio.ensure_future(Log().hangs())
        assert await race(task, gives(1, 1)) == 1
        assert task.cancelled()

    asyncio.run(main())


def test_a_cancelled_entrant_is_not_the_callers_cancellation() -> None:
    """Somebody cancels a task that stands in `all_of`: its caller gets Cancelled, and is not cancelled itself."""

    async def main() -> None:
        task = asyncio.ensure_future(Log().hangs())
        asyncio.get_running_loop().call_soon(task.cancel)
        with pytest.raises(Cancelled, match="call 1 was cancelled"):
            await all_of(gives(1), task)
        me = asyncio.current_task()
        assert me is not None
        assert me.cancelling() == 0

    asyncio.run(main())


def test_losers_errors_are_retrieved() -> None:
    """No message that an exception was never retrieved, whatever a loser raises while it is cancelled."""
    complaints: list[dict[str, Any]] = []

    async def bad_loser() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise Expected from None

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        assert await race(bad_loser(), gives(1, 3)) == 1
        assert await any_of(bad_loser(), gives(1, 3), fails(Expected())) == 1
        with pytest.raises(KeyError):
            await all_of(bad_loser(), fails(KeyError(), 3))
        await asyncio.sleep(0)

    asyncio.run(main())
    import gc

    gc.collect()
    assert complaints == []


def test_exits_go_through() -> None:
    """SystemExit out of a call is no outcome."""

    def leaves() -> None:
        raise SystemExit(4)

    async def leaves_async() -> None:
        raise SystemExit(5)

    for combinator in COMBINATORS:
        with pytest.raises(SystemExit, match="4"):
            combinator(leaves, lambda: sleep(1000))
        with pytest.raises(SystemExit, match="5"):
            asyncio.run(combinator(leaves_async(), asyncio.sleep(1000)))


def test_permits_of_losers_are_back() -> None:
    """A guarded loser gives its slot back before the winner's answer is there."""
    db = limit(3, name="db")

    @db
    async def slow() -> None:
        await asyncio.sleep(3600)

    @db
    def slow_thread() -> None:
        sleep(3600)

    async def main() -> None:
        async def wins() -> str:
            while db.snapshot().held < 3:
                await asyncio.sleep(0)
            return "won"

        assert await any_of(slow(), slow, slow_thread, wins()) == "won"
        assert db.snapshot().held == 0

    asyncio.run(main())


def test_plain_calls_see_the_callers_context() -> None:
    """In a copy, in threads as in tasks."""
    token = place.set("caller")
    try:
        assert all_of(place.get, place.get) == ["caller"] * 2
        assert on_loop(lambda: all_of(place.get, lambda: place.set("mine"), place.get))[::2] == ["caller"] * 2
    finally:
        place.reset(token)


def test_a_plain_call_that_gives_a_coroutine() -> None:
    """It is awaited on a loop, and refused in plain code."""
    assert on_loop(lambda: any_of(lambda: gives(3))) == 3
    with pytest.raises(TypeError, match="no event loop is running"):
        all_of(lambda: gives(3), lambda: 1)  # type: ignore[unused-coroutine]
    assert guarded.race(lambda: 1) == 1


def test_stop_iteration_of_a_plain_call() -> None:
    """In plain code it is raised, or kept, like any other error; a coroutine cannot raise it: there it is the cause."""
    raised = StopIteration("empty")

    def fn() -> int:
        raise raised

    for combinator in (all_of, race):
        with pytest.raises(StopIteration) as stop:
            combinator(fn)
        assert stop.value is raised
    assert all_settled(fn, lambda: 1)[0].error is raised
    with pytest.raises(ExceptionGroup) as group:
        any_of(fn)
    assert group.value.exceptions == (raised,)
    with pytest.raises(RuntimeError, match=r"fn at .* raised StopIteration") as wrapped:
        on_loop(lambda: all_of(fn))
    assert wrapped.value.__cause__ is raised
