"""Tokens, sleep, asleep, checkpoint."""

from __future__ import annotations

import asyncio
import gc
import math
import signal
import threading
import time
import weakref
from typing import Any

import pytest

from guarded import (
    Cancelled,
    CancelToken,
    DeadlineExceeded,
    Deadlock,
    asleep,
    checkpoint,
    deadline,
    limit,
    remaining,
    retry,
    sleep,
)
from guarded._core.call import current
from guarded.testing import virtual_time


def test_a_token_fires_once_with_its_first_reason() -> None:
    """`cancel` says whether it was this call that did it."""
    token = CancelToken()
    assert not token.cancelled
    assert token.reason is None
    token.checkpoint()
    assert token.cancel("first")
    assert not token.cancel("second")
    assert token.cancelled
    assert token.reason == "first"
    with pytest.raises(Cancelled, match="cancelled while running: first") as caught:
        token.checkpoint()
    assert caught.value.reason == "first"
    assert repr(token) == "<CancelToken: cancelled, reason='first'>"
    assert repr(CancelToken()) == "<CancelToken: not cancelled>"


def test_each_error_is_fresh() -> None:
    """Two checkpoints raise two objects, so that no traceback grows."""
    token = CancelToken()
    token.cancel()
    errors = []
    for _ in range(2):
        with pytest.raises(Cancelled) as caught:
            token.checkpoint()
        errors.append(caught.value)
    assert errors[0] is not errors[1]


def test_one_of_many_threads_fires() -> None:
    """The callbacks run once, whoever wins."""
    for _ in range(50):
        token, calls, barrier, won = CancelToken(), [], threading.Barrier(4), []
        token.on_cancel(lambda calls=calls: calls.append(1))  # type: ignore[misc]

        def fire(token: CancelToken = token, barrier: Any = barrier, won: list[int] = won) -> None:
            barrier.wait()
            if token.cancel():
                won.append(1)

        threads = [threading.Thread(target=fire) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(calls), len(won)) == (1, 1)


def test_callbacks_run_in_order_and_all_of_them() -> None:
    """One that raises keeps none of the others from running; its error comes out of `cancel`."""
    token, calls = CancelToken(), []
    token.on_cancel(lambda: calls.append("a"))
    token.on_cancel(lambda: 1 // 0)
    token.on_cancel(lambda: calls.append("b"))
    with pytest.raises(ZeroDivisionError):
        token.cancel()
    assert calls == ["a", "b"]
    assert token.cancelled


def test_a_callback_can_be_taken_off() -> None:
    """By `close`, or by the end of its block."""
    token, calls = CancelToken(), []
    registration = token.on_cancel(lambda: calls.append("closed"))
    registration.close()
    registration.close()
    with token.on_cancel(lambda: calls.append("block")):
        pass
    token.on_cancel(lambda: calls.append("stays"))
    token.cancel()
    assert calls == ["stays"]


def test_a_callback_on_a_fired_token_runs_at_once() -> None:
    """Also when the token has fired by its time."""
    token, calls = CancelToken(), []
    token.cancel()
    token.on_cancel(lambda: calls.append("fired"))
    with virtual_time() as virtual:
        timed = CancelToken.after(1)
        virtual.advance(2)
        timed.on_cancel(lambda: calls.append("timed"))
        timed.cancel()
    assert calls == ["fired", "timed"]


def test_callbacks_may_use_the_token() -> None:
    """No lock is held: a callback may register, take off, ask and cancel."""
    token, calls = CancelToken(), []
    other = token.on_cancel(lambda: calls.append("other"))

    def callback() -> None:
        assert not token.cancel()
        token.on_cancel(lambda: calls.append("nested"))
        other.close()

    token.on_cancel(callback)
    token.cancel()
    assert calls == ["other", "nested"]


def test_a_signal_handler_may_cancel_in_the_middle_of_anything() -> None:
    """Ctrl-C handlers do: a lock would hang the process when the main thread holds it."""
    fired = 0

    def handler(number: int, frame: Any) -> None:
        token.cancel("Ctrl-C")

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for _ in range(30):
            token = CancelToken()
            signal.setitimer(signal.ITIMER_REAL, 0.0005)
            calls: list[int] = []
            count = 0
            while not calls:  # register and take off until the signal comes, at whatever instruction
                with token.on_cancel(lambda calls=calls: calls.append(1)):  # type: ignore[misc]
                    count += 1
                if count % 1000 == 0:
                    time.sleep(0)  # CPython may overlook a signal until a thread takes the GIL again
                if token.cancelled:
                    token.on_cancel(lambda calls=calls: calls.append(1))  # type: ignore[misc]
            fired += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert fired == 30


def test_after_fires_by_itself() -> None:
    """At its time, with a reason that says so; later `cancel` changes nothing of that."""
    with virtual_time() as virtual:
        token = CancelToken.after("10s")
        assert token.reason is None
        virtual.advance(9.999)
        assert not token.cancelled
        virtual.advance(0.001)
        assert token.cancelled
        assert token.reason == "10 s have passed"
        assert not token.cancel("later")
        assert token.reason == "10 s have passed"
        early = CancelToken.after(10)
        assert early.cancel("early")
        assert early.reason == "early"


@pytest.mark.parametrize("duration", [0, -1, "soon", "10", None, True, float("nan")])
def test_after_takes_a_duration(duration: Any) -> None:
    """Bad ones name the option, the value and the rule."""
    with pytest.raises(ValueError, match="duration"):
        CancelToken.after(duration)


def test_any_fires_with_the_first() -> None:
    """With its reason; and cancelling the combined one leaves the sources alone."""
    a, b = CancelToken(), CancelToken()
    both = CancelToken.any(a, b)
    b.cancel("b says")
    assert both.cancelled
    assert both.reason == "b says"
    assert not a.cancelled
    other = CancelToken.any(a)
    other.cancel()
    assert not a.cancelled
    fired = CancelToken.any(a, b)
    assert fired.reason == "b says"
    assert not CancelToken.any().cancelled


def test_any_of_times_takes_the_earliest() -> None:
    """Nobody has to call anything."""
    with virtual_time() as virtual:
        both = CancelToken.any(CancelToken.after(5), CancelToken.after(3))
        virtual.advance(3)
        assert both.reason == "3 s have passed"


def test_any_does_not_burden_a_source_that_lives_long() -> None:
    """A combined token that nobody has any more is forgotten by its sources."""
    source = CancelToken()
    refs = [weakref.ref(CancelToken.any(source)) for _ in range(100)]
    gc.collect()
    assert all(ref() is None for ref in refs)
    assert not source._registrations


def test_waits_end_in_the_block_and_threads_that_inherit_it() -> None:
    """A token cancelled from another thread ends a sleep that would last an hour."""
    token, waiting = CancelToken(), threading.Event()

    def cancel() -> None:
        waiting.wait(10)
        token.cancel("enough")

    thread = threading.Thread(target=cancel)
    thread.start()
    with token, pytest.raises(Cancelled, match="cancelled while sleeping: enough"):
        waiting.set()
        sleep("1h")
    thread.join()
    sleep(0)
    checkpoint()  # outside the block it means nothing


def test_async_waits_and_guarded_bodies_end() -> None:
    """A guarded coroutine is cancelled wherever it stands; its caller gets Cancelled and is not cancelled itself."""

    @retry(retries=3, on=Exception)
    async def body() -> None:
        await asyncio.sleep(3600)

    async def main() -> None:
        for wait in (body, lambda: asleep("1h")):
            token = CancelToken()
            threading.Timer(0.01, token.cancel, args=("enough",)).start()
            with token, pytest.raises(Cancelled, match="enough"):
                await wait()
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0

    asyncio.run(main())


def test_nested_blocks_obey_both_tokens() -> None:
    """The outer one reaches in, the inner one does not reach out."""
    outer, inner = CancelToken(), CancelToken()
    with outer:
        with inner:
            outer.cancel("outer")
            with pytest.raises(Cancelled, match="outer"):
                checkpoint()
        with pytest.raises(Cancelled):
            checkpoint()
    outer, inner = CancelToken(), CancelToken()
    with outer:
        with inner, outer:
            inner.cancel("inner")
            with pytest.raises(Cancelled, match="inner"):
                checkpoint()
        checkpoint()


def test_a_block_restores_what_was_before_on_errors() -> None:
    """And leaves a deadline around it alone."""
    with deadline(10, mode="cooperative"):
        with pytest.raises(KeyError), CancelToken():
            assert 9 < remaining() <= 10
            raise KeyError
        assert 9 < remaining() <= 10
        checkpoint()


def test_one_token_in_several_tasks() -> None:
    """Each block keeps its own place; firing ends all of them."""

    async def main() -> None:
        token = CancelToken()

        async def waits() -> str:
            try:
                with token:
                    await asleep(3600)
            except Cancelled:
                checkpoint()
                return "ended"
            return "never"

        tasks = [asyncio.create_task(waits()) for _ in range(10)]
        await asyncio.sleep(0)
        token.cancel()
        assert await asyncio.gather(*tasks) == ["ended"] * 10

    asyncio.run(main())


def test_leaving_a_block_elsewhere_is_an_error() -> None:
    """A token's block belongs to the context it was entered in."""
    token = CancelToken()
    with pytest.raises(RuntimeError, match="another context"):
        token.__exit__(None, None, None)


def test_a_block_that_was_cut_off_ends_with_the_one_around_it() -> None:
    """A signal handler that raises between entering and the body leaves nobody who would leave the block."""
    token = CancelToken()
    with deadline(10):
        with token:
            deadline(5).__enter__()
            CancelToken().__enter__()
        assert 9 < remaining() <= 10
        token.__enter__()
    assert remaining() == math.inf
    assert current.get() is None


def test_a_cancel_that_was_cut_off_is_completed_by_the_next() -> None:
    """Callbacks that the first one has not come to are called."""
    token = CancelToken()
    told: list[str] = []
    token.on_cancel(lambda: told.append("late"))
    token._firing["first"] = ["first"]  # fired, and then a signal handler raised
    assert not token.cancel("second")
    assert (told, token.reason) == (["late"], "first")


def test_sleep_and_asleep_last_as_said() -> None:
    """In every form of a duration; 0 only looks whether to go on."""
    with virtual_time() as virtual:
        started = virtual.monotonic()
        sleep("1m")
        asyncio.run(asleep(30))
        assert virtual.monotonic() - started == pytest.approx(90)
    for bad in (-1, "soon", None):
        with pytest.raises(ValueError, match="duration"):
            sleep(bad)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="duration"):
            asyncio.run(asleep(bad))  # type: ignore[arg-type]


def test_zero_is_a_checkpoint() -> None:
    """In both kinds."""
    token = CancelToken()
    token.cancel()
    with token:
        with pytest.raises(Cancelled):
            sleep(0)
        with pytest.raises(Cancelled):
            asyncio.run(asleep(0))
    sleep(0)
    asyncio.run(asleep(0))


def test_asleep_zero_lets_others_run() -> None:
    """Like `asyncio.sleep(0)`."""
    log: list[str] = []

    async def main() -> None:
        asyncio.get_running_loop().call_soon(log.append, "other")
        await asleep(0)
        log.append("me")

    asyncio.run(main())
    assert log == ["other", "me"]


def test_sleep_refuses_to_freeze_a_loop() -> None:
    """The error says what to use."""

    async def main() -> None:
        with pytest.raises(Deadlock, match=r"guarded\.sleep would block"):
            sleep(1)

    asyncio.run(main())


def test_sleeps_and_checkpoints_obey_the_deadline() -> None:
    """A sleep ends at the point, and none starts after it."""
    with virtual_time() as virtual:
        with deadline(5, mode="cooperative"):
            with pytest.raises(DeadlineExceeded) as caught:
                sleep(100)
            assert caught.value.during == "sleeping"
            for late in (checkpoint, lambda: sleep(0), lambda: sleep(1)):
                with pytest.raises(DeadlineExceeded):
                    late()
        started = virtual.monotonic()
        with deadline(5, mode="cooperative"), pytest.raises(DeadlineExceeded):
            asyncio.run(asleep(100))
        assert virtual.monotonic() - started == pytest.approx(5)


def test_a_fired_token_keeps_guarded_calls_from_starting() -> None:
    """An async body does not run at all; a queue is not joined."""
    calls: list[int] = []
    db = limit(1, name="db")

    @db
    async def body() -> None:
        calls.append(1)

    @db
    def queued() -> None:
        calls.append(2)

    token = CancelToken()
    token.cancel("shutdown")

    async def main() -> None:
        with token, pytest.raises(Cancelled, match="cancelled while starting: shutdown"):
            await body()

    asyncio.run(main())
    db.resize(0)
    with token, pytest.raises(Cancelled, match="queued for limit 'db'"):
        queued()
    assert calls == []
    assert db.snapshot().queued == 0


def test_what_is_no_callback_or_token_is_refused_at_once() -> None:
    """Not only when the token fires, in whoever cancels."""
    token = CancelToken()
    with pytest.raises(TypeError, match="callback=None is not callable"):
        token.on_cancel(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="give tokens, not 'stop'"):
        CancelToken.any(token, "stop")  # type: ignore[arg-type]
    assert token.cancel()
