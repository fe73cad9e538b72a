"""idempotent in one process: keys, joining, replays, errors, and what cancels what."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import freezegun
import pytest

import guarded
from guarded import (
    Cancelled,
    CancelToken,
    DeadlineExceeded,
    Deadlock,
    InProgress,
    KeyMismatch,
    StoreError,
    deadline,
    idempotent,
    registry,
)
from guarded.events import subscribe
from guarded.events.model import Event
from guarded.policies.idempotent import Idempotent, IdempotentOptions
from guarded.stores.memory import MemoryStore
from guarded.testing import capture, virtual_time


@contextmanager
def reached(name: str, count: int = 1) -> Iterator[threading.Event]:
    """An event that is set once `count` events of that name have come."""
    seen: list[Event] = []
    done = threading.Event()

    def sink(event: Event) -> None:
        if event.name == name:
            seen.append(event)
            if len(seen) >= count:
                done.set()

    with subscribe(sink, level="TRACE"):
        yield done


def counted(policy: Idempotent, body: Callable[..., Any] | None = None) -> tuple[Callable[..., Any], list[Any]]:
    """A guarded function of (key, other=0) and the list of the calls that ran it."""
    runs: list[Any] = []

    @policy
    def function(key: Any, other: Any = 0) -> Any:
        runs.append((key, other))
        return [key, other] if body is None else body(key, other)

    return function, runs


# Keys


def test_one_key_however_the_call_is_written() -> None:
    """Positional, by name, and by default are the same call."""
    runs = []

    @idempotent()
    def add(a: int = 1, *, b: int = 2) -> int:
        runs.append((a, b))
        return a + b

    assert [add(), add(1), add(a=1), add(b=2, a=1)] == [3] * 4
    assert runs == [(1, 2)]


def test_values_of_other_types_are_other_keys() -> None:
    """1, 1.0, True and "1" are four keys."""
    function, runs = counted(idempotent("key"))
    for key in (1, 1.0, True, "1"):
        function(key)
    assert len(runs) == 4


@pytest.mark.parametrize("key", ["key", "{key}:{other}", lambda key, other: (key, other)])
def test_kinds_of_key(key: Any) -> None:
    """A name, a template and a callable over bound arguments all tell calls apart and together."""
    function, runs = counted(idempotent(key))
    function("a")
    function("a", other=0)
    function("b")
    assert runs == [("a", 0), ("b", 0)]


def test_two_functions_do_not_share_keys() -> None:
    """The qualified name of the function is part of the key, also within one store."""
    policy = idempotent("key", store=MemoryStore())

    @policy
    def first(key: str) -> str:
        return "first"

    @policy
    def second(key: str) -> str:
        return "second"

    assert (first("k"), second("k"), first("k")) == ("first", "second", "first")


def test_instance_is_no_part_of_key_or_fingerprint() -> None:
    """A method names its key; calls on two instances are one."""
    runs = []

    class Service:
        @idempotent("order")
        def charge(self, order: str) -> str:
            runs.append(order)
            return order

        @idempotent("order")
        @classmethod
        def refund(cls, order: str) -> str:
            runs.append(order)
            return order

    assert Service().charge("o1") == Service().charge("o1")
    assert Service.refund("o1") == Service().refund("o1")
    assert runs == ["o1", "o1"]


def test_methods_must_name_their_key() -> None:
    """A method, class method or callable object without a key is refused where it is decorated."""

    def method(self: Any, a: int) -> int:
        return a

    class Callee:
        def __call__(self, a: int) -> int:
            return a

        def act(self, a: int) -> int:
            return a

        def named_otherwise(this, a: int) -> int:  # noqa: N805
            return a

    for target in (method, Callee(), Callee().act, functools.partial(Callee().act, 1), classmethod(method)):
        with pytest.raises(TypeError, match="name the key"):
            idempotent()(target)
    Callee.named_otherwise = idempotent()(Callee.named_otherwise)  # type: ignore[method-assign]
    with pytest.raises(TypeError, match="name the key"):
        Callee().named_otherwise(1)


def test_key_of_unknown_parameter_is_refused_at_decoration() -> None:
    """A misspelt key names what was meant."""
    with pytest.raises(ValueError, match="did you mean 'order_id'"):

        @idempotent("orderid")
        def charge(order_id: str) -> None: ...


def test_no_key_is_an_error_before_the_effect() -> None:
    """A key of None would make strangers share one result."""
    function, runs = counted(idempotent("key"))
    with pytest.raises(ValueError, match="key is None"):
        function(None)
    assert runs == []


def test_argument_without_value_is_refused_before_the_effect() -> None:
    """What has no canonical form cannot be compared, and the message says what to do."""
    function, runs = counted(idempotent("key"))
    with pytest.raises(TypeError, match=r"'other'.*fingerprint=False"):
        function("k", object())
    assert runs == []
    loose, runs = counted(idempotent("key", fingerprint=False))
    loose("k", object())
    assert len(runs) == 1


def test_generators_are_refused() -> None:
    """A stream has no result to replay."""
    with pytest.raises(TypeError, match="generator"):

        @idempotent()
        def numbers() -> Iterator[int]:
            yield 1

    with pytest.raises(TypeError, match="used up"):

        @idempotent()
        def reader() -> Iterator[int]:
            return iter([1])


def test_bad_options_are_named_all_at_once() -> None:
    """One ValueError holds every problem."""
    with pytest.raises(ValueError) as caught:
        idempotent(
            "a b",
            ttl=0,
            lease=-1,
            on_duplicate="wait",  # type: ignore[arg-type]
            on_abandoned="x",  # type: ignore[arg-type]
            fingerprint=1,  # type: ignore[arg-type]
            store_errors=(KeyboardInterrupt,),  # type: ignore[arg-type]
            store=5,  # type: ignore[arg-type]
        )
    for option in (
        "key=",
        "ttl=",
        "lease=",
        "on_duplicate=",
        "on_abandoned=",
        "fingerprint=",
        "store_errors=",
        "store=",
    ):
        assert option in str(caught.value)


def test_repr_and_options() -> None:
    """A policy shows what it is; options are plain, with times in seconds."""
    assert repr(idempotent("order_id", ttl="90m")) == "idempotent(key='order_id', ttl='1h30m')"
    assert idempotent(ttl="1m").options == IdempotentOptions(ttl=60.0)
    assert registry["pay"] is idempotent("k", name="pay") if idempotent("k", name="pay") else False


# Mismatch and duplicates


def test_other_arguments_mismatch_finished_and_running() -> None:
    """The same key with other arguments is an error in every state, and the first run is not harmed."""
    started, go = threading.Event(), threading.Event()

    def body(key: Any, other: Any) -> Any:
        started.set()
        go.wait(10)
        return other

    function, runs = counted(idempotent("key"), body)
    with ThreadPoolExecutor(1) as pool, capture() as events:
        first = pool.submit(function, "k", 1)
        started.wait(10)
        with pytest.raises(KeyMismatch, match="running"):
            function("k", 2)
        go.set()
        assert first.result(10) == 1
        with pytest.raises(KeyMismatch, match="finished"):
            function("k", 2)
    assert function("k", 1) == 1
    assert len(runs) == 1
    assert [event.state for event in events if event.name == "idempotent.mismatched"] == ["running", "finished"]


def test_fingerprint_off_ignores_other_arguments() -> None:
    """Without fingerprint the key alone decides."""
    function, runs = counted(idempotent("key", fingerprint=False))
    assert function("k", 1) == function("k", 2) == ["k", 1]
    assert len(runs) == 1


def test_reject_raises_in_progress() -> None:
    """With on_duplicate="reject" a duplicate in flight is refused at once, a finished one replayed."""
    started, go = threading.Event(), threading.Event()

    def body(key: Any, other: Any) -> Any:
        started.set()
        go.wait(10)
        return 5

    function, runs = counted(idempotent("key", on_duplicate="reject"), body)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(function, "k")
        started.wait(10)
        with pytest.raises(InProgress) as caught:
            function("k")
        assert caught.value.retry_after is None
        assert caught.value.layer == "idempotent"
        go.set()
        assert first.result(10) == 5
    assert function("k") == 5
    assert len(runs) == 1


# Replays


@pytest.mark.parametrize("value", [None, 0, False, "", [], (), {}, 0.0, b""])
def test_falsy_results_replay_as_themselves(value: Any) -> None:
    """No result is taken for the absence of one."""
    function, runs = counted(idempotent("key"), lambda key, other: value)
    function("k")
    again = function("k")
    assert again == value
    assert type(again) is type(value)
    assert len(runs) == 1


def test_replays_share_nothing() -> None:
    """Neither the first caller nor a replay can change what others get."""
    function, _ = counted(idempotent("key"), lambda key, other: {"items": [1]})
    own = function("k")
    own["items"].append(2)
    replay = function("k")
    replay["items"].append(3)
    assert function("k") == {"items": [1]}


def test_what_cannot_be_copied_is_not_run_again() -> None:
    """The caller has its result, later ones an error that says why, and an event tells of it."""
    function, runs = counted(idempotent("key"), lambda key, other: threading.Lock())
    with capture("WARNING") as events:
        assert function("k") is not None
    with pytest.raises(StoreError, match=r"_thread\.lock"):
        function("k")
    assert len(runs) == 1
    assert [event.name for event in events] == ["store.failed"]


def test_ttl_counts_from_completion_and_frozen_time_moves_it() -> None:
    """A result that took long lives its full ttl."""
    with freezegun.freeze_time("2026-01-01") as frozen:

        def body(key: Any, other: Any) -> Any:
            frozen.tick(50)
            return 1

        function, runs = counted(idempotent("key", ttl=60), body)
        function("k")
        frozen.tick(59)
        function("k")
        assert len(runs) == 1
        frozen.tick(1)
        function("k")
        assert len(runs) == 2


def test_events_tell_without_telling_the_key() -> None:
    """Stored and replayed, with a digest, and no trace of key, arguments or result."""
    function, _ = counted(idempotent("key"), lambda key, other: "result-canary")
    with capture() as events:
        function("key-canary", "argument-canary")
        function("key-canary", "argument-canary")
    assert [event.name for event in events if event.layer] == ["idempotent.stored", "idempotent.replayed"]
    assert "canary" not in " ".join(map(str, events))
    assert {event.key_digest for event in events if event.layer} != {None}


def test_full_memory_pushes_out_finished_never_running() -> None:
    """The oldest finished record goes; the mark of a run in flight stays."""
    store = MemoryStore(max_records=2)
    inner_runs: list[Any] = []

    @idempotent("key", store=store)
    def inner(key: int) -> int:
        inner_runs.append(key)
        return key

    @idempotent("key", store=store)
    def outer(key: str) -> int:
        for number in range(5):
            inner(number)
        assert store.snapshot()["running"] == 1
        return 1

    outer("k")
    assert store.snapshot() == {"running": 0, "finished": 2, "evicted": 4}
    inner(0)
    assert inner_runs == [0, 1, 2, 3, 4, 0]


def test_idempotency_key_is_derived_and_stable() -> None:
    """The body finds a key to pass downstream, the same for the same key, gone afterwards."""
    keys = []

    @idempotent("order", ttl=0.001)
    def charge(order: str) -> None:
        keys.append(guarded.idempotency_key())

    with freezegun.freeze_time() as frozen:
        for order in ("a", "a", "b"):
            charge(order)
            frozen.tick(1)
    assert keys[0] == keys[1] != keys[2]
    assert "a" != keys[0] is not None
    assert guarded.idempotency_key() is None


# Errors


def test_errors_are_not_stored_by_default() -> None:
    """The caller has its own exception object, and the next call runs again."""
    errors = [ValueError("first"), ValueError("second")]

    def body(key: Any, other: Any) -> Any:
        raise errors[len(runs) - 1]

    function, runs = counted(idempotent("key"), body)
    for error in errors:
        with pytest.raises(ValueError) as caught:
            function("k")
        assert caught.value is error
        assert error.__context__ is None
        assert error.__cause__ is None


class Declined(Exception):
    """An error whose constructor does not take its args."""

    def __init__(self, code: int, *, reasons: list[str]) -> None:
        super().__init__(f"declined with {code}")
        self.code = code
        self.reasons = reasons


def test_stored_errors_replay_as_fresh_equal_exceptions() -> None:
    """Same type, text and attributes; another object each time, with a traceback of its own."""

    def body(key: Any, other: Any) -> Any:
        raise Declined(7, reasons=["limit"])

    function, runs = counted(idempotent("key", store_errors=Declined), body)
    caught = []
    for _ in range(5):
        with pytest.raises(Declined) as info:
            function("k")
        caught.append(info.value)
    assert len(runs) == 1
    assert len({id(error) for error in caught}) == 5
    assert {str(error) for error in caught} == {"declined with 7"}
    assert [error.code for error in caught] == [7] * 5
    assert len({id(error.reasons) for error in caught}) == 5
    depths = {len(list(_frames(error))) for error in caught[1:]}
    assert len(depths) == 1


def _frames(error: BaseException) -> Iterator[Any]:
    trace = error.__traceback__
    while trace is not None:
        yield trace
        trace = trace.tb_next


def test_control_flow_is_never_stored() -> None:
    """KeyboardInterrupt passes, leaves no mark, and the next call runs."""

    def body(key: Any, other: Any) -> Any:
        if len(runs) == 1:
            raise KeyboardInterrupt
        return 1

    function, runs = counted(idempotent("key", store_errors=Exception), body)
    with pytest.raises(KeyboardInterrupt):
        function("k")
    assert function("k") == 1
    assert len(runs) == 2


def test_joiners_get_twins_of_an_error() -> None:
    """All in flight fail with equal exceptions, the first with its own; a later call runs again."""

    async def main() -> None:
        runs = []
        own = OSError(5, "broken")

        @idempotent("key")
        async def work(key: str) -> None:
            runs.append(key)
            await asyncio.sleep(0)
            raise own

        got = await asyncio.gather(*[work("k") for _ in range(3)], return_exceptions=True)
        assert got[0] is own
        assert [(type(error), str(error)) for error in got] == [(OSError, str(own))] * 3
        assert len({id(error) for error in got}) == 3
        assert got[1].__cause__ is own  # type: ignore[union-attr]
        await asyncio.gather(work("k"), return_exceptions=True)
        assert len(runs) == 2

    asyncio.run(main())


# Recursion


def test_recursion_raises_everywhere() -> None:
    """Calling oneself with the same key raises Deadlock: directly, in gathered tasks, in threads with the context."""

    @idempotent("key")
    def sync(key: str) -> Any:
        return sync(key)

    @idempotent("key")
    def threaded(key: str) -> Any:
        context = contextvars.copy_context()
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(context.run, threaded, key).result(10)

    @idempotent("key")
    async def gathered(key: str) -> Any:
        return await asyncio.gather(gathered(key), gathered(key))

    for call in (lambda: sync("k"), lambda: threaded("k"), lambda: asyncio.run(gathered("k"))):
        with pytest.raises(Deadlock, match="inside a run of the same key"):
            call()


def test_runs_that_would_wait_for_each_other_raise() -> None:
    """a wants b while b wants a: the second of them to ask gets Deadlock, and nobody hangs."""

    async def main() -> None:
        both = asyncio.Barrier(2)

        @idempotent("key")
        async def work(key: str) -> str:
            await both.wait()
            return key + await work("b" if key == "a" else "a")

        got = await asyncio.wait_for(asyncio.gather(work("a"), work("b"), return_exceptions=True), 10)
        assert [type(error) for error in got] == [Deadlock, Deadlock]  # the second, and the first that joined it

    asyncio.run(main())


def test_a_join_that_was_given_up_no_longer_counts() -> None:
    """a stopped waiting for b, so b may wait for a."""

    async def main() -> None:
        given_up, go = asyncio.Event(), asyncio.Event()

        @idempotent("key")
        async def work(key: str) -> str:
            if key == "a":
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(work("b"), 0.01)
                given_up.set()
                await go.wait()
                return key
            await given_up.wait()
            asked.set()
            return key + await work("a")

        asked = asyncio.Event()
        tasks = [asyncio.create_task(work(key)) for key in ("b", "a")]
        await asked.wait()
        go.set()
        assert await asyncio.gather(*tasks) == ["ba", "a"]

    asyncio.run(main())


def test_recursion_with_another_key_is_fine() -> None:
    """Only the same key waits for itself."""

    @idempotent("n")
    def factorial(n: int) -> int:
        return 1 if n < 2 else n * factorial(n - 1)

    assert factorial(5) == 120


def test_sync_join_on_a_loop_thread_raises() -> None:
    """A sync duplicate would freeze the event loop it is called on."""

    async def main() -> None:
        started, go = threading.Event(), threading.Event()

        def body(key: Any, other: Any) -> Any:
            started.set()
            go.wait(10)
            return 1

        function, _ = counted(idempotent("key"), body)
        first = asyncio.get_running_loop().run_in_executor(None, function, "k")
        await asyncio.get_running_loop().run_in_executor(None, started.wait, 10)
        with pytest.raises(Deadlock, match="event loop"):
            function("k")
        go.set()
        assert await first == 1
        assert function("k") == 1  # a replay does not wait

    asyncio.run(main())


# Cancelling


def test_cancelling_the_first_caller_harms_no_other() -> None:
    """The work belongs to no caller."""

    async def main() -> None:
        go = asyncio.Event()
        runs = []

        @idempotent("key")
        async def work(key: str) -> str:
            runs.append(key)
            await go.wait()
            return "done"

        tasks = [asyncio.create_task(work("k")) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.sleep(0)
        go.set()
        got = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(got[0], asyncio.CancelledError)
        assert got[1:] == ["done", "done"]
        assert len(runs) == 1

    asyncio.run(main())


def test_last_one_gone_cancels_the_work_and_waits_for_it() -> None:
    """The body has unwound when the cancelled call returns, and the key is free again."""

    async def main() -> None:
        trace: list[str] = []

        @idempotent("key")
        async def work(key: str) -> None:
            trace.append("started")
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                trace.append("unwound")

        tasks = [asyncio.create_task(work("k")) for _ in range(2)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.sleep(0)
        assert trace == ["started"]
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert trace == ["started", "unwound"]
        assert tasks[1].cancelling() == 1
        late = asyncio.create_task(work("k"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert trace[-1] == "started"
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)

    asyncio.run(main())


def test_a_call_that_is_too_late_to_start_leaves_nothing() -> None:
    """The run's task never comes to its first line; the key is free all the same."""

    async def main(time: Any) -> None:
        policy = idempotent("key")
        ran = []

        @policy
        async def work(key: str) -> None:
            ran.append(key)

        with pytest.raises(DeadlineExceeded):
            async with deadline("1s"):
                time.advance(2)
                await work("k")
        assert ran == []
        assert policy.snapshot()["running"] == 0
        await work("k")
        assert ran == ["k"]

    with virtual_time(auto=False) as time:
        asyncio.run(main(time))


def test_a_body_that_answers_its_cancellation_is_heard() -> None:
    """As without guarded: swallowing the cancel returns the value, and it is stored."""

    async def main() -> None:
        runs = []

        @idempotent("key")
        async def work(key: str) -> str:
            runs.append(key)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "rescued"
            return "never"

        task = asyncio.create_task(work("k"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        assert await task == "rescued"
        assert await work("k") == "rescued"
        assert len(runs) == 1

    asyncio.run(main())


def test_a_newcomer_waits_for_a_cancelled_run_to_unwind() -> None:
    """Two bodies of one key never overlap, not even in a cancelled one's cleanup."""

    async def main() -> None:
        active = peak = 0
        cleanup = asyncio.Event()

        @idempotent("key")
        async def work(key: str, *, quick: bool = False) -> str:
            nonlocal active, peak
            active += 1
            peak = max(peak, active)
            try:
                if len(calls) == 1:
                    await asyncio.Event().wait()
                return "second"
            finally:
                await cleanup.wait()
                active -= 1

        calls = [asyncio.create_task(work("k"))]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        calls[0].cancel()
        await asyncio.sleep(0)
        calls.append(asyncio.create_task(work("k")))
        await asyncio.sleep(0)
        cleanup.set()
        got = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(got[0], asyncio.CancelledError)
        assert got[1] == "second"
        assert peak == 1

    asyncio.run(main())


def test_a_token_ends_a_join() -> None:
    """A parked duplicate obeys its token and leaves the run alone."""
    token = CancelToken()
    started, go = threading.Event(), threading.Event()

    def body(key: Any, other: Any) -> Any:
        started.set()
        go.wait(10)
        return 1

    function, _ = counted(idempotent("key"), body)

    def follow() -> Any:
        with token:
            return function("k")

    with ThreadPoolExecutor(2) as pool, reached("idempotent.joined") as joined:
        first = pool.submit(function, "k")
        started.wait(10)
        second = pool.submit(follow)
        joined.wait(10)
        token.cancel("enough")
        with pytest.raises(Cancelled, match="joining"):
            second.result(10)
        go.set()
        assert first.result(10) == 1


# Deadlines


def test_a_join_obeys_the_deadline() -> None:
    """The wait of a duplicate ends at its own deadline, and says what it waited for."""

    async def main() -> None:
        @idempotent("key")
        async def work(key: str) -> str:
            await guarded.asleep(10)
            return "done"

        async def hurried() -> str:
            async with deadline("1s"):
                return await work("k")

        first = asyncio.create_task(work("k"))
        await asyncio.sleep(0)
        with pytest.raises(DeadlineExceeded) as caught:
            await hurried()
        assert caught.value.during == "joining an earlier run of the same key"
        assert await first == "done"

    with virtual_time():
        asyncio.run(main())


def test_the_first_caller_s_deadline_does_not_cut_the_work_of_others() -> None:
    """It leaves on time, told what the body was doing; whoever has more time gets the result."""

    async def main() -> None:
        runs = []

        @idempotent("key")
        async def work(key: str) -> str:
            runs.append(guarded.remaining())
            await guarded.asleep(0.5)
            await guarded.asleep(10)
            return "done"

        async def hurried() -> str:
            async with deadline("1s"):
                return await work("k")

        first = asyncio.create_task(hurried())
        await asyncio.sleep(0)
        second = asyncio.create_task(work("k"))
        with pytest.raises(DeadlineExceeded):
            await first
        assert await second == "done"
        assert runs == [1.0]

    with virtual_time():
        asyncio.run(main())


def test_a_body_sees_and_obeys_the_deadline_around_its_only_caller() -> None:
    """The deadline reaches through: waits inside end, and the caller has its answer on time."""

    async def main(time: Any) -> None:
        @idempotent("key")
        async def work(key: str) -> None:
            assert guarded.remaining() == pytest.approx(1.0)
            await guarded.asleep(10)

        began = time.monotonic_ns()
        with pytest.raises(DeadlineExceeded):
            async with deadline("1s"):
                await work("k")
        assert time.monotonic_ns() - began == pytest.approx(1e9)

    with virtual_time() as time:
        asyncio.run(main(time))


def test_a_sync_run_cut_by_its_caller_s_deadline_is_taken_over() -> None:
    """The first caller's time is up in the middle; a duplicate with more time runs the function."""
    started = threading.Event()

    def body(key: Any, other: Any) -> Any:
        if len(runs) == 1:
            started.set()
            go.wait(10)
            guarded.checkpoint()
        return "done"

    go = threading.Event()
    function, runs = counted(idempotent("key"), body)
    with virtual_time(auto=False) as time, ThreadPoolExecutor(2) as pool, reached("idempotent.joined") as joined:

        def hurried() -> Any:
            with deadline("1s"):
                return function("k")

        first = pool.submit(hurried)
        started.wait(10)
        second = pool.submit(function, "k")
        joined.wait(10)
        time.advance(2)
        go.set()
        with pytest.raises(DeadlineExceeded):
            first.result(10)
        assert second.result(10) == "done"
    assert len(runs) == 2


# Contexts, kinds of callables


def test_async_body_shares_its_caller_s_context_both_ways() -> None:
    """It sees the caller's variables, and what it sets stays visible to the caller who ran it."""
    seen: contextvars.ContextVar[str] = contextvars.ContextVar("seen", default="nothing")

    async def main() -> None:
        @idempotent("key")
        async def work(key: str) -> str:
            before = seen.get()
            seen.set("body")
            return before

        seen.set("caller")
        assert await work("k") == "caller"
        assert seen.get() == "body"
        seen.set("caller again")
        assert await work("k") == "caller"
        assert seen.get() == "caller again"  # a replay runs nothing

    asyncio.run(main())


def test_a_sync_function_that_returns_an_awaitable_runs_once() -> None:
    """It turns async at its first call, without the key being taken by the attempt to run it as sync."""
    runs = []

    async def inner(key: str) -> str:
        runs.append(key)
        await asyncio.sleep(0)
        return key

    @idempotent("key")
    def outer(key: str) -> Any:
        return inner(key)

    async def main() -> list[str]:
        return await asyncio.gather(outer("k"), outer("k"), outer("j"))

    assert asyncio.run(main()) == ["k", "k", "j"]
    assert sorted(runs) == ["j", "k"]


def test_a_sync_function_that_says_it_returns_an_awaitable_is_an_async_one() -> None:
    """The awaitable itself could not be replayed; what it gives can."""
    runs = []

    async def inner(key: str) -> list[str]:
        runs.append(key)
        return [key]

    @idempotent("key")
    def outer(key: str) -> Awaitable[list[str]]:
        return inner(key)

    async def main() -> list[list[str]]:
        return [await outer("k"), await outer("k")]

    assert asyncio.run(main()) == [["k"], ["k"]]
    assert runs == ["k"]


def test_one_policy_serves_many_loops() -> None:
    """A module-level policy outlives each asyncio.run, and a result is replayed in the next."""
    runs = []

    @idempotent("key")
    async def work(key: str) -> int:
        runs.append(key)
        return len(runs)

    assert [asyncio.run(work("k")) for _ in range(3)] == [1, 1, 1]  # type: ignore[arg-type]


def test_no_task_is_left_behind_and_nothing_is_reported() -> None:
    """Success, failure and cancellation leave only the caller's task, and no exception unretrieved."""
    reports: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))

        @idempotent("key")
        async def work(key: str) -> str:
            await asyncio.sleep(0)
            if key == "bad":
                raise ValueError(key)
            if key == "hang":
                await asyncio.Event().wait()
            return key

        await asyncio.gather(work("good"), work("bad"), work("bad"), return_exceptions=True)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(work("hang"), 0.01)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        gc.collect()

    asyncio.run(main())
    assert reports == []


def test_a_failed_call_leaves_no_cycle() -> None:
    """The exception, its frames and the run go with the last reference, without the garbage collector."""

    class Loud(Exception):
        pass

    def body(key: Any, other: Any) -> Any:
        raise Loud

    function, _ = counted(idempotent("key"), body)
    function_async = idempotent("key")(_raise_async)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(Loud):
            function("k")
        assert not [found for found in gc.get_objects() if type(found) is Loud]

        async def main() -> None:
            with pytest.raises(Quiet):
                await function_async("k")

        asyncio.run(main())
        assert not [found for found in gc.get_objects() if type(found) is Quiet]
    finally:
        gc.enable()


def test_a_finished_run_leaves_no_cycle() -> None:
    """A run led by a task refers to the task, and the task's context to the run: no work for the garbage collector."""

    @idempotent("key")
    async def work(key: int) -> int:
        await asyncio.sleep(0)
        return key

    async def main() -> int:
        await work(-1)
        gc.collect()
        for key in range(10):
            assert await work(key) == key
        return gc.collect()

    gc.disable()
    try:
        assert asyncio.run(main()) == 0
    finally:
        gc.enable()


class Quiet(Exception):
    """What `_raise_async` raises."""


async def _raise_async(key: str) -> None:
    raise Quiet


def test_reconfigured_policy_keeps_what_it_knows() -> None:
    """New options in place, as a reload does: finished results stay."""
    policy = idempotent("key", ttl="1h", name="pay")
    function, runs = counted(policy)
    function("k")
    policy.reconfigure(IdempotentOptions(key="key", ttl=60.0))
    registry.changed()
    assert function("k") == ["k", 0]
    assert len(runs) == 1
    assert policy.snapshot() == {"running": 0, "finished": 1, "evicted": 0}
