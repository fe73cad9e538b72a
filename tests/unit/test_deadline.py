"""deadline: options, sync in both modes, async, streams, scopes."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import pytest

import guarded
from guarded import Cancelled, CancelToken, DeadlineExceeded, Rejected, deadline, remaining
from guarded._core import clock, workers
from guarded._core.interrupt import Interrupt, timers_of
from guarded.testing import capture, virtual_time


@pytest.mark.parametrize(
    ("arguments", "say"),
    [
        ({"seconds": 0}, "seconds"),
        ({"seconds": -1}, "seconds"),
        ({"seconds": math.nan}, "seconds"),
        ({"seconds": math.inf}, "seconds"),
        ({"seconds": True}, "seconds"),
        ({"seconds": "10"}, "seconds"),
        ({"seconds": "soon"}, "seconds"),
        ({"seconds": None}, "seconds"),
        ({"seconds": 1, "mode": "process"}, "mode='process': must be 'thread' or 'cooperative'"),
        ({"seconds": 1, "late": "drop"}, "late='drop': must be 'return' or 'raise'"),
        ({"seconds": 1, "late": "raise"}, "needs mode='cooperative'"),
    ],
)
def test_bad_options_fail_when_built(arguments: dict[str, Any], say: str) -> None:
    """Each wrong value is named, with its option and the rule."""
    with pytest.raises(ValueError, match=say):
        deadline(**arguments)


def test_all_bad_options_are_named_at_once() -> None:
    """One error tells about every wrong option."""
    with pytest.raises(ValueError, match=r"seconds.*mode.*late") as error:
        deadline(0, mode="x", late="y")  # type: ignore[arg-type]
    assert str(error.value).startswith("deadline: ")


@pytest.mark.parametrize("given", [2, 2.0, "2s", "2000ms", timedelta(seconds=2)])
def test_durations_of_every_form(given: Any) -> None:
    """A number of seconds, a timedelta and a string mean the same."""
    assert deadline(given).options.seconds == 2.0


@pytest.mark.parametrize("mode", ["thread", "cooperative"])
def test_remaining_counts_down_and_is_restored(mode: Any) -> None:
    """Inside, `remaining` is what is left; outside it is infinite again."""
    with virtual_time():

        @deadline(10, mode=mode)
        def body() -> list[float]:
            seen = [remaining()]
            guarded.sleep(4)
            return [*seen, remaining()]

        assert body() == [10.0, 6.0]
        assert remaining() == math.inf


def test_thread_mode_returns_on_time_and_reports_the_late_result() -> None:
    """The caller leaves at the point; the worker sees no time left and a fired token; its result is dropped."""
    go_on, ended = threading.Event(), threading.Event()
    inside: dict[str, Any] = {}

    @deadline(5)
    def hangs() -> str:
        go_on.wait()  # a blocked call that nothing can interrupt
        inside["remaining"] = remaining()
        try:
            guarded.checkpoint()
        except Cancelled as error:
            inside["error"] = error
        return "too late"

    with virtual_time() as time, capture() as events, events_of(events, "deadline.late", ended):
        started = time.monotonic()
        with pytest.raises(DeadlineExceeded) as error:
            hangs()
        assert time.monotonic() - started == 5.0
        assert workers.workers.abandoned == 1
        go_on.set()
        assert ended.wait(5)
    assert error.value.during == "running"
    assert inside["remaining"] == 0.0
    assert inside["error"].reason == "the caller has left"
    assert workers.workers.abandoned == 0
    told = [(event.name, event.allowed) for event in events]
    assert told == [("deadline.abandoned", 5), ("deadline.exceeded", 5), ("call.failed", None), ("deadline.late", 5)]


class events_of:  # noqa: N801 - reads as a word in the with statement
    """Sets an Event of threading when an event of that name comes in."""

    def __init__(self, events: list[Any], name: str, signal: threading.Event) -> None:
        self.subscription = guarded.events.subscribe(lambda event: event.name == name and signal.set(), level="TRACE")

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc_info: object) -> None:
        self.subscription.close()


def test_thread_mode_refuses_when_swamped(monkeypatch: pytest.MonkeyPatch) -> None:
    """With too many bodies left behind, the next call is refused before it makes one more."""
    monkeypatch.setattr("guarded.policies._deadline.shells.MAX_ABANDONED", 2)
    go_on = threading.Event()
    fn = deadline(1, name="hanging")(go_on.wait)
    with virtual_time():
        for _ in range(2):
            with pytest.raises(DeadlineExceeded):
                fn()
        with pytest.raises(Rejected, match="2 bodies still running") as error:
            fn()
    go_on.set()
    assert (error.value.layer, error.value.policy) == ("deadline", "hanging")


def test_thread_mode_gives_results_errors_and_context() -> None:
    """The body sees the caller's context; its result and its very exception come back."""
    variable: ContextVar[str] = ContextVar("variable")
    variable.set("of the caller")
    raised = KeyError("from the body")

    @deadline(5)
    def body(fail: bool) -> tuple[str, str]:
        if fail:
            raise raised
        return variable.get(), threading.current_thread().name

    value, thread = body(False)
    assert value == "of the caller"
    assert thread != threading.current_thread().name
    with pytest.raises(KeyError) as error:
        body(True)
    assert error.value is raised
    assert raised.__context__ is None


def test_cooperative_mode_stays_in_the_callers_thread() -> None:
    """Thread-locals and sessions stay the caller's own."""
    assert deadline(5, mode="cooperative")(threading.get_ident)() == threading.get_ident()


def test_cooperative_mode_returns_late_results_or_raises() -> None:
    """A late result is the caller's with an event, or an error where that was asked for."""
    with virtual_time() as time, capture() as events:

        def body() -> str:
            time.advance(6)
            return "late"

        assert deadline(5, mode="cooperative")(body)() == "late"
        assert [event.name for event in events] == ["deadline.late", "call.succeeded"]
        assert (events[0].duration, events[0].allowed) == (pytest.approx(6), 5)
        with pytest.raises(DeadlineExceeded):
            deadline(5, mode="cooperative", late="raise")(body)()


def test_checkpoint_raises_when_time_is_up() -> None:
    """`checkpoint` is where a cooperative body leaves."""
    with virtual_time() as time:

        @deadline(5, mode="cooperative")
        def body() -> None:
            guarded.checkpoint()
            time.advance(5)
            guarded.checkpoint()
            raise AssertionError("not reached")

        with pytest.raises(DeadlineExceeded, match="allow more time"):
            body()


@pytest.mark.parametrize("mode", ["thread", "cooperative"])
def test_nested_the_earliest_wins(mode: Any) -> None:
    """An inner deadline that ends later changes nothing; one that ends earlier holds for its own call only."""
    with virtual_time():
        seen: list[float] = []
        note: Callable[[], None] = lambda: seen.append(remaining())  # noqa: E731
        longer, shorter = deadline(20, mode=mode)(note), deadline(3, mode=mode)(note)

        @deadline(10, mode=mode)
        def body() -> None:
            longer()
            shorter()
            note()

        body()
        assert seen == [10.0, 3.0, 10.0]


def test_spent_means_not_called() -> None:
    """With no time left the function does not run."""
    calls: list[int] = []

    @deadline(lambda budget: budget)
    def sync(budget: float) -> None:
        calls.append(1)

    @deadline(lambda budget: budget)
    async def asynchronous(budget: float) -> None:
        calls.append(2)

    for budget in (0, -1.5):
        with pytest.raises(DeadlineExceeded) as error:
            sync(budget)
        assert error.value.during == "starting"
        with pytest.raises(DeadlineExceeded):
            asyncio.run(asynchronous(budget))
    assert calls == []
    sync(5)
    assert calls == [1]


@pytest.mark.parametrize("answer", [math.nan, math.inf, True, None, "x"])
def test_a_callable_must_answer_with_a_duration(answer: Any) -> None:
    """What a callable gives is checked at the call."""
    with pytest.raises(ValueError, match="seconds"):
        deadline(lambda: answer)(lambda: None)()


def test_a_callable_over_the_arguments() -> None:
    """The seconds may depend on the arguments, in every form of duration."""

    @deadline(lambda size: f"{size}s")
    def strings(size: int) -> float:
        return remaining()

    @deadline(lambda size: timedelta(seconds=size))
    def deltas(size: int) -> float:
        return remaining()

    with virtual_time():
        assert strings(3) == 3.0
        assert deltas(size=4) == 4.0


def test_async_body_is_cancelled_at_the_point() -> None:
    """A body that hangs is cancelled in its own task, and the task is left as it was."""

    async def main() -> None:
        @deadline(5)
        async def hangs() -> None:
            await asyncio.get_running_loop().create_future()

        with pytest.raises(DeadlineExceeded) as error:
            await hangs()
        assert error.value.during == "running"
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await guarded.asleep(1)  # nothing is left behind that would cancel this

    with virtual_time() as time:
        started = time.monotonic()
        asyncio.run(main())
        assert time.monotonic() - started == 6.0


def test_async_says_what_was_waited_for() -> None:
    """The error names the wait that the deadline cut."""

    @deadline(5)
    async def sleeps() -> None:
        await guarded.asleep(60)

    with virtual_time(), pytest.raises(DeadlineExceeded, match="while sleeping") as error:
        asyncio.run(sleeps())
    assert error.value.during == "sleeping"


def test_an_outer_cancellation_wins() -> None:
    """When somebody else cancels the task too, the cancellation goes through as one."""

    async def main() -> None:
        @deadline(5)
        async def hangs() -> None:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                task.cancel("from outside")

        task = asyncio.ensure_future(hangs())
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    with virtual_time():
        asyncio.run(main())


def test_the_callees_own_timeout_stays_its_own() -> None:
    """A TimeoutError of the body is not relabelled."""
    own = TimeoutError("mine")

    @deadline(5)
    async def body() -> None:
        raise own

    with pytest.raises(TimeoutError) as error:
        asyncio.run(body())
    assert error.value is own


def test_an_error_made_of_the_cancellation_wins() -> None:
    """A body that turns the cancellation into its own error is heard; the task is not left cancelled."""

    async def main() -> None:
        @deadline(5)
        async def body() -> None:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                raise KeyError("instead") from None

        with pytest.raises(KeyError):
            await body()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    with virtual_time():
        asyncio.run(main())


def test_a_swallowed_cancellation_returns_late_with_an_event() -> None:
    """A body that swallows the cancel and returns has its value returned, and the event tells."""

    async def main() -> str:
        @deadline(5)
        async def body() -> str:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                return "late"
            raise AssertionError

        value: str = await body()
        await asyncio.sleep(0)
        return value

    with virtual_time(), capture() as events:
        assert asyncio.run(main()) == "late"
    assert [event.name for event in events] == ["deadline.late", "call.succeeded"]


def test_async_nested_deadlines_cut_by_the_inner_and_the_outer() -> None:
    """Each deadline converts its own cancellation only."""

    async def main() -> list[float]:
        points: list[float] = []

        @deadline(2)
        async def inner() -> None:
            await asyncio.get_running_loop().create_future()

        @deadline(5)
        async def outer() -> None:
            for _ in range(3):
                with pytest.raises(DeadlineExceeded):
                    await inner()
                points.append(clock.monotonic())

        started = clock.monotonic()
        with pytest.raises(DeadlineExceeded):
            await outer()
        points.append(clock.monotonic())
        return [point - started for point in points]

    with virtual_time():
        assert asyncio.run(main()) == [2.0, 4.0, 5.0]


def test_a_generators_time_counts_only_inside() -> None:
    """A slow consumer costs the generator nothing; slow steps do."""
    with virtual_time() as time:

        @deadline(5)
        def numbers() -> Iterator[float]:
            while True:
                yield remaining()
                time.advance(2)

        items = []
        with pytest.raises(DeadlineExceeded):
            for item in numbers():
                items.append(item)
                guarded.sleep(100)
        assert items == [5.0, 3.0, 1.0, 0.0]  # the last one came late: it is returned, as late="return" says


def test_an_async_generators_time_counts_only_inside() -> None:
    """No timer is held across a yield, and a step that hangs is cancelled."""

    async def main() -> list[float]:
        @deadline(5)
        async def numbers() -> AsyncIterator[float]:
            while True:
                yield remaining()
                await guarded.asleep(2)

        items = []
        with pytest.raises(DeadlineExceeded):
            async for item in numbers():
                items.append(item)
                await guarded.asleep(100)
        return items

    with virtual_time():
        assert asyncio.run(main()) == [5.0, 3.0, 1.0]


def test_scopes() -> None:
    """`with` and `async with` open a deadline around a block."""
    with virtual_time() as time:
        five = deadline(5)
        with five:
            assert remaining() == 5.0
            time.advance(1)
            with five:
                assert remaining() == 4.0
            with pytest.raises(DeadlineExceeded):
                guarded.sleep(10)
            assert remaining() == 0.0
        assert remaining() == math.inf

        async def main() -> None:
            with pytest.raises(DeadlineExceeded):
                async with five:
                    await asyncio.get_running_loop().create_future()
            assert remaining() == math.inf

        asyncio.run(main())
    with pytest.raises(TypeError, match="with statement"), deadline(lambda: 5):
        pass


def test_a_cooperative_scope_that_ends_late() -> None:
    """A block that overran its time is told of, or raises where that was asked for."""
    with virtual_time() as time, capture() as events:
        with deadline(5):
            time.advance(6)
        assert [(event.name, event.duration, event.allowed) for event in events] == [
            ("deadline.late", pytest.approx(6), 5)
        ]
        with pytest.raises(DeadlineExceeded), deadline(5, mode="cooperative", late="raise"):
            time.advance(6)


def test_a_token_ends_a_call_in_a_worker() -> None:
    """A caller that waits for its worker is let go by its token, from another thread."""
    go_on, started = threading.Event(), threading.Event()
    token = CancelToken()

    @deadline(60)
    def hangs() -> None:
        started.set()
        go_on.wait()

    def cancel() -> None:
        started.wait()
        token.cancel("enough")

    thread = threading.Thread(target=cancel)
    thread.start()
    with token, pytest.raises(Cancelled, match="enough"):
        hangs()
    go_on.set()
    thread.join()


def test_the_time_of_a_token_ends_a_call_in_a_worker() -> None:
    """A token that fires by itself calls nobody back: the caller has to know its time."""
    go_on = threading.Event()
    with virtual_time() as time:
        started = time.monotonic()
        with CancelToken.after(1), pytest.raises(Cancelled, match="1 s have passed"):
            deadline(60)(go_on.wait)(10)
        assert time.monotonic() - started == 1.0
    go_on.set()


@pytest.mark.parametrize("scope", [True, False])
def test_each_call_below_an_earlier_deadline_gets_a_worker(scope: bool) -> None:
    """That one call under a cooperative deadline ran in a worker does not mean that the next one does."""
    go_on = threading.Event()
    bounded = deadline(60)(lambda hangs: go_on.wait(10) if hangs else None)

    def two_calls() -> None:
        bounded(False)
        with pytest.raises(DeadlineExceeded):
            bounded(True)

    with virtual_time() as time:
        started = time.monotonic()
        if scope:
            with deadline(5):
                two_calls()
        else:
            deadline(5, mode="cooperative")(two_calls)()
        assert time.monotonic() - started == 5.0
    go_on.set()


def test_one_loop_timer_serves_many_deadlines() -> None:
    """Calls that end in time leave no timer of the loop behind, and dead entries are swept."""

    async def main() -> int:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        interrupts = [Interrupt(task) for _ in range(1000)]
        for number, interrupt in enumerate(interrupts):
            interrupt.at(clock.monotonic() + 100 + number)
        for interrupt in interrupts[1:]:
            interrupt.close()
        Interrupt(task).at(clock.monotonic() + 100)
        assert len([handle for handle in loop._scheduled if not handle.cancelled()]) == 1  # type: ignore[attr-defined]
        return len(timers_of(loop)._heap)

    assert asyncio.run(main()) == 2


def test_a_deadline_that_is_far_away_keeps_no_task_alive() -> None:
    """Its entry waits to be swept; the task and its result do not."""

    @deadline(3600)
    async def soon() -> None:
        await asyncio.sleep(0)

    async def main() -> weakref.ref[Any]:
        task = asyncio.create_task(soon())
        await task
        return weakref.ref(task)

    async def both() -> bool:
        task = await main()
        await asyncio.sleep(0)
        gc.collect()
        return task() is None

    assert asyncio.run(both())


def test_a_cancellation_that_raises_keeps_no_other_deadline_from_being_met() -> None:
    """Whatever a task waits for is asked to cancel itself, and may answer with an error."""

    class Stubborn(asyncio.Future[None]):
        def cancel(self, msg: Any = None) -> bool:
            raise RuntimeError("not now")

    async def waits_for(future: asyncio.Future[None]) -> None:
        await future

    async def main() -> None:
        told: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))
        stubborn = Stubborn()
        first = asyncio.create_task(deadline(1)(waits_for)(stubborn))  # type: ignore[arg-type]
        second = asyncio.create_task(deadline(2)(asyncio.sleep)(3600))  # type: ignore[arg-type]
        await asyncio.wait([second], timeout=10)
        assert isinstance(second.exception(), DeadlineExceeded)
        assert [str(error) for error in told] == ["not now"]
        stubborn.set_result(None)
        await first

    with virtual_time():
        asyncio.run(main())


def test_repr_says_what_matters() -> None:
    """The repr shows options that differ from the default, and the name."""
    assert repr(deadline(5)) == "deadline(5)"
    assert repr(deadline("1.5s", mode="cooperative", late="raise", name="d")) == (
        "deadline(1.5, mode='cooperative', late='raise', name='d')"
    )


@pytest.mark.parametrize("late", [False, True])
def test_what_is_awaited_need_not_be_a_coroutine(late: bool) -> None:
    """A future, and an object with an ``__await__`` of its own, that a plain async callable gives."""

    class Later:
        def __init__(self, value: int) -> None:
            self.value = value

        def __await__(self) -> Iterator[Any]:
            if late:
                yield from asyncio.sleep(0).__await__()
            return self.value

    async def main() -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        loop.call_soon(future.set_result, 7)
        assert await deadline(5)(lambda: future)() == 7  # type: ignore[misc]
        assert await deadline(5)(lambda: Later(3))() == 3  # type: ignore[misc]

    asyncio.run(main())
