"""limit: options, admission, queueing, scopes, streams, keys, weights and priorities."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from guarded import Cancelled, CancelToken, DeadlineExceeded, Deadlock, LimitFull, deadline, limit, registry
from guarded._core.call import current
from guarded.events.bus import bus
from guarded.policies.limit import Limit, LimitSnapshot, adaptive
from guarded.testing import capture, virtual_time


def at_rest(policy: Limit) -> bool:
    """Whether nothing is held and nobody waits."""
    state = policy.snapshot()
    return (state.held, state.queued, state.oldest_wait) == (0, 0, 0.0)


# Options


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"max_concurrent": 0}, ["max_concurrent=0"]),
        ({"max_concurrent": -3}, ["max_concurrent=-3"]),
        ({"max_concurrent": True}, ["max_concurrent=True"]),
        ({"max_concurrent": 2.0}, ["max_concurrent=2.0"]),
        ({"max_concurrent": float("nan")}, ["max_concurrent=nan"]),
        ({"max_concurrent": "5"}, ["max_concurrent='5'"]),
        ({"max_concurrent": 5, "max_queue": -1}, ["max_queue=-1"]),
        ({"max_concurrent": 5, "max_queue": True}, ["max_queue=True"]),
        ({"max_concurrent": 5, "max_queue": 1.5}, ["max_queue=1.5"]),
        ({"max_concurrent": 5, "max_wait": -1}, ["max_wait=-1"]),
        ({"max_concurrent": 5, "max_wait": float("nan")}, ["max_wait=nan"]),
        ({"max_concurrent": 5, "max_wait": "soon"}, ["max_wait='soon'"]),
        ({"max_concurrent": 5, "max_wait": True}, ["max_wait=True"]),
        ({"max_concurrent": 5, "weight": 0}, ["weight=0"]),
        ({"max_concurrent": 5, "weight": True}, ["weight=True"]),
        ({"max_concurrent": 5, "weight": 1.5}, ["weight=1.5"]),
        ({"max_concurrent": 5, "weight": 6}, ["weight=6", "capacity of 5"]),
        ({"max_concurrent": 5, "weight": "{"}, ["weight='{'"]),
        ({"max_concurrent": 5, "weight": "{rows}0"}, ["weight='{rows}0'", "one field and nothing else"]),
        ({"max_concurrent": 5, "priority": "{a}:{b}"}, ["priority='{a}:{b}'", "one field and nothing else"]),
        ({"max_concurrent": 5, "priority": 1.5}, ["priority=1.5"]),
        ({"max_concurrent": 5, "priority": False}, ["priority=False"]),
        ({"max_concurrent": 5, "priority": "not a name"}, ["priority='not a name'"]),
        ({"max_concurrent": 5, "key": 3}, ["key=3"]),
        ({"max_concurrent": 5, "key": "{}"}, ["key='{}'"]),
        ({"max_concurrent": adaptive(max_limit=30), "weight": 31}, ["weight=31", "capacity of 30"]),
        ({"max_concurrent": adaptive(), "key": "tenant"}, ["key='tenant'", "adaptive"]),
        ({"max_concurrent": adaptive(), "store": "redis://x"}, ["store='redis://x'", "adaptive"]),
        (
            {"max_concurrent": 0, "max_queue": -1, "max_wait": -2, "weight": 0, "key": 1, "priority": 0.5},
            ["max_concurrent=0", "max_queue=-1", "max_wait=-2", "weight=0", "key=1", "priority=0.5"],
        ),
    ],
)
def test_bad_options_fail_at_construction_all_at_once(options: dict[str, Any], names: list[str]) -> None:
    """One ValueError names every wrong option with its value."""
    with pytest.raises(ValueError) as caught:
        limit(**options)
    for name in names:
        assert name in str(caught.value)


def test_an_option_that_names_no_parameter_fails_at_decoration() -> None:
    """A typo in a key, weight or priority does not wait for the first call."""
    for option in ("key", "weight", "priority"):
        with pytest.raises(ValueError, match=f"{option}='tenent'.*tenant"):
            limit(5, **{option: "tenent"})(lambda tenant: tenant)


def test_durations_are_read_and_equal_options_share_the_budget() -> None:
    """``"1s"`` and 1 are the same wait, so the same name is the same object."""
    assert limit(3, name="db", max_wait="1s") is limit(3, name="db", max_wait=1)
    assert registry["db"].options.max_wait == 1.0  # type: ignore[attr-defined]


def test_repr_shows_what_was_given() -> None:
    """The repr is the call, with the options that say something."""
    assert repr(limit(3)) == "limit(3)"
    assert repr(limit(3, max_queue=0, key="tenant", name="db")) == "limit(3, max_queue=0, key='tenant', name='db')"
    assert repr(limit(adaptive("aimd"))).startswith("limit(adaptive('aimd', initial=20")


def test_a_named_limit_travels_by_name() -> None:
    """Unpickled in the same process it is the same budget."""
    policy = limit(3, name="db")
    assert pickle.loads(pickle.dumps(policy)) is policy


# Admission


def test_a_sync_call_holds_one_permit_and_returns_it_whatever_happens() -> None:
    """Inside one is held; after a result or an error none is."""
    policy = limit(2)

    @policy
    def work(fail: bool) -> int:
        if fail:
            raise KeyError("x")
        return policy.snapshot().held

    assert work(False) == 1
    with pytest.raises(KeyError) as caught:
        work(True)
    assert caught.value.__context__ is None
    assert at_rest(policy)


def test_an_async_call_holds_one_permit_and_returns_it_whatever_happens() -> None:
    """The same for coroutine functions."""
    policy = limit(2)

    @policy
    async def work(fail: bool) -> int:
        await asyncio.sleep(0)
        if fail:
            raise KeyError("x")
        return policy.snapshot().held

    assert asyncio.run(work(False)) == 1
    with pytest.raises(KeyError) as caught:
        asyncio.run(work(True))
    assert caught.value.__context__ is None
    assert at_rest(policy)


def test_a_sync_function_that_returns_an_awaitable_is_guarded_while_it_runs() -> None:
    """The permit is held for the await, not for the call that made it."""
    policy = limit(1)

    async def inner() -> int:
        return policy.snapshot().held

    work = policy(lambda: inner())

    async def main() -> list[int]:
        return [await work(), await work()]

    assert asyncio.run(main()) == [1, 1]
    assert at_rest(policy)


def test_call_guards_a_single_call() -> None:
    """`call` runs a function once under the limit, sync or async."""
    policy = limit(1)

    async def gentle(n: int) -> int:
        await asyncio.sleep(0)
        return n * policy.snapshot().held

    async def main() -> list[int]:
        return await asyncio.gather(*(policy.call(gentle, n) for n in range(4)))

    assert policy.call(lambda: policy.snapshot().held) == 1
    assert asyncio.run(main()) == [0, 1, 2, 3]
    assert at_rest(policy)


def test_call_makes_an_instance_of_a_class() -> None:
    """A class is a callable like any other where one call is made: nothing is left on it."""
    policy = limit(1)

    class Client:
        def __init__(self, host: str) -> None:
            self.host, self.held = host, policy.snapshot().held

    made = policy.call(Client, host="db")
    assert type(made) is Client
    assert (made.host, made.held) == ("db", 1)
    assert policy.call(int, "3") == 3
    assert at_rest(policy)
    with pytest.raises(TypeError, match="cannot guard the class"):
        policy(Client)
    with pytest.raises(TypeError, match=r"write \.call\(function"):
        policy(len, [])  # type: ignore[call-arg]


def test_tasks_never_exceed_the_limit_and_come_in_order() -> None:
    """Fifty tasks on a limit of 3: three at once, first come first served."""
    policy = limit(3)
    running: list[int] = []
    order: list[int] = []
    peak = 0

    @policy
    async def work(n: int) -> None:
        nonlocal peak
        order.append(n)
        running.append(n)
        peak = max(peak, len(running))
        await asyncio.sleep(0)
        running.remove(n)

    async def main() -> None:
        await asyncio.gather(*(work(n) for n in range(50)))

    asyncio.run(main())
    assert peak == 3
    assert order == list(range(50))
    assert at_rest(policy)


def test_one_policy_survives_many_event_loops() -> None:
    """Nothing binds to a loop: a module-level limit is contended in one asyncio.run after the other."""
    policy = limit(1)

    @policy
    async def work() -> None:
        await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(work() for _ in range(5)))

    for _ in range(20):
        asyncio.run(main())
    assert at_rest(policy)


def test_ten_thousand_waiters_one_wake_up_each() -> None:
    """A long queue is served completely, in order, with one resumption per waiter."""
    policy = limit(1)
    served: list[int] = []

    async def work(n: int) -> None:
        async with policy:
            served.append(n)

    async def main() -> None:
        permit = policy.acquire()
        tasks = [asyncio.create_task(work(n)) for n in range(10_000)]
        await asyncio.sleep(0)
        assert policy.snapshot().queued == 10_000
        permit.release()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert served == list(range(10_000))
    assert at_rest(policy)


# Refusals


def test_no_queue_refuses_at_once_sync_and_async() -> None:
    """``max_queue=0``: a full limit answers immediately, with a fresh error that says what to do."""
    policy = limit(1, max_queue=0, name="db")
    work = policy(lambda: None)

    async def main() -> None:
        async with policy:
            pass

    with policy.acquire():
        with pytest.raises(LimitFull, match=r"'db' is full.*1 of 1 permits held") as caught:
            work()
        assert (caught.value.reason, caught.value.policy, caught.value.layer) == ("queue_full", "db", "limit")
        assert caught.value.retry_after is None
        assert caught.value.__context__ is None
        with pytest.raises(LimitFull) as again:
            asyncio.run(main())
        assert again.value is not caught.value
    assert at_rest(policy)


def test_no_wait_refuses_at_once() -> None:
    """``max_wait=0`` and ``timeout=0`` queue nobody."""
    policy, patient = limit(1, max_wait=0), limit(1)
    with policy.acquire(), patient.acquire():
        with pytest.raises(LimitFull) as caught:
            policy(lambda: None)()
        with pytest.raises(LimitFull):
            patient.acquire(timeout=0)
    assert caught.value.reason == "timeout"
    assert at_rest(policy)


def test_a_wait_ends_after_max_wait() -> None:
    """In virtual time: five seconds, then LimitFull, and the queue is empty again; sync and async."""
    policy = limit(1, max_wait="5s")

    async def main() -> None:
        async with policy:
            pass

    with virtual_time() as time, policy.acquire():
        begin = time.monotonic()
        with pytest.raises(LimitFull, match="within 5s") as caught:
            policy(lambda: None)()
        assert time.monotonic() - begin == pytest.approx(5)
        with pytest.raises(LimitFull):
            asyncio.run(main())
        assert time.monotonic() - begin == pytest.approx(10)
    assert caught.value.reason == "timeout"
    assert at_rest(policy)


def test_the_queue_bound_counts_live_waiters_only() -> None:
    """Whoever was cancelled makes room for another."""
    policy = limit(1, max_queue=1)

    async def work() -> None:
        async with policy:
            pass

    async def main() -> None:
        permit = policy.acquire()
        first = asyncio.create_task(work())
        await asyncio.sleep(0)
        with pytest.raises(LimitFull, match="max_queue=1"):
            await work()
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.create_task(work())
        await asyncio.sleep(0)
        assert policy.snapshot().queued == 1
        permit.release()
        await second

    asyncio.run(main())
    assert at_rest(policy)


def test_the_deadline_ends_a_wait_and_says_what_for() -> None:
    """The queue obeys the enclosing deadline; `during` names the limit."""
    policy = limit(1, name="db")

    @deadline("2s", mode="cooperative")
    @policy
    def work() -> None:
        raise AssertionError("must not run")

    @deadline("2s")
    @policy
    async def work_async() -> None:
        raise AssertionError("must not run")

    with virtual_time(), policy.acquire():
        with pytest.raises(DeadlineExceeded) as caught:
            work()
        assert caught.value.during == "queued for limit 'db'"
        with pytest.raises(DeadlineExceeded) as caught:
            asyncio.run(work_async())
        assert caught.value.during == "queued for limit 'db'"
    assert at_rest(policy)


def test_with_no_time_left_nothing_is_queued() -> None:
    """A spent deadline does not even join the queue."""
    policy = limit(1)

    @deadline("1s", mode="cooperative")
    def outer() -> None:
        time.advance(2)
        policy.call(lambda: None)

    with virtual_time(auto=False) as time, capture() as events, policy.acquire(), pytest.raises(DeadlineExceeded):
        outer()
    assert "limit.queued" not in [event.name for event in events]
    assert at_rest(policy)


def test_a_token_ends_a_wait() -> None:
    """A fired CancelToken ends the queueing of a thread and of a task with Cancelled."""
    policy = limit(1)
    token = CancelToken()
    caught: list[BaseException] = []
    queued = threading.Event()

    def wait() -> None:
        try:
            with token, policy:
                pass
        except Cancelled as error:
            caught.append(error)

    async def wait_async() -> None:
        with token:
            async with policy:
                pass

    with policy.acquire():
        with bus.subscribe(lambda event: queued.set(), level="INFO"):
            thread = threading.Thread(target=wait)
            thread.start()
            assert queued.wait(10)
        token.cancel("enough")
        thread.join(10)
        assert not thread.is_alive()
        assert [str(error) for error in caught] == ["cancelled while queued for limit '" + repr(policy) + "': enough"]
        with pytest.raises(Cancelled):
            asyncio.run(wait_async())
    assert at_rest(policy)


def test_a_blocking_wait_on_a_loop_thread_raises() -> None:
    """A sync acquire in async code works while a permit is free, and raises instead of freezing the loop."""
    policy = limit(1)

    async def main() -> None:
        with policy:
            pass
        async with policy:
            await asyncio.create_task(other())

    async def other() -> None:
        pass

    async def blocked() -> None:
        permit = await policy.acquire_async()
        with permit, pytest.raises(Deadlock, match="event loop"):
            policy.call(lambda: None)

    asyncio.run(main())
    asyncio.run(blocked())
    assert at_rest(policy)


# Nesting


def test_taking_a_limit_inside_itself_raises_only_when_it_would_wait() -> None:
    """Two levels fit into a limit of 2; the third raises."""
    policy = limit(2)

    @policy
    def nest(levels: int) -> int:
        return nest(levels - 1) + 1 if levels else 0

    assert nest(1) == 1
    with pytest.raises(Deadlock, match="inside itself"):
        nest(2)
    assert at_rest(policy)


def test_nesting_is_seen_through_gathered_tasks_threads_and_with_blocks() -> None:
    """Whatever inherits the context inherits the knowledge."""
    policy = limit(1)

    async def inner() -> None:
        async with policy:
            pass

    async def gathered() -> None:
        async with policy:
            await asyncio.gather(inner())

    async def threaded() -> None:
        async with policy:
            await asyncio.to_thread(policy.call, lambda: None)

    @policy
    async def decorated() -> None:
        await asyncio.create_task(inner())

    for nested in (gathered, threaded, decorated):
        with pytest.raises(Deadlock):
            asyncio.run(nested())
        assert at_rest(policy)


def test_nesting_is_forgotten_when_the_outer_use_is_over() -> None:
    """A task started inside and waiting after the block was left waits its turn like anybody."""
    policy = limit(1)

    async def main() -> str:
        go = asyncio.Event()

        async def late() -> str:
            await go.wait()
            async with policy:
                return "served"

        async with policy:
            task = asyncio.create_task(late())
            await asyncio.sleep(0)
        other = await policy.acquire_async()
        go.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert policy.snapshot().queued == 1
        other.release()
        return await task

    assert asyncio.run(main()) == "served"


def test_blocks_that_are_not_left_in_order_restore_the_context() -> None:
    """Whatever order two blocks end in, the next use sees neither."""
    first, second = limit(1), limit(1)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert first.snapshot().held == 0
    with pytest.raises(Deadlock):
        second.call(lambda: None)
    second.__exit__(None, None, None)
    assert current.get() is None
    assert at_rest(first)
    assert at_rest(second)


def test_a_block_left_in_another_context_returns_its_permit() -> None:
    """Entered in one task and left in another, as exit stacks in fixtures do."""
    policy = limit(1)

    async def main() -> None:
        await asyncio.create_task(enter())
        assert policy.snapshot().held == 1
        await asyncio.create_task(leave())
        assert policy.snapshot().held == 0
        await policy.__aenter__()
        await asyncio.create_task(leave())
        assert at_rest(policy)

    async def enter() -> None:
        await policy.__aenter__()

    async def leave() -> None:
        await policy.__aexit__(None, None, None)

    asyncio.run(main())


def test_concurrent_blocks_do_not_disturb_each_other() -> None:
    """Recursion and interleaved tasks each see their own blocks."""
    policy = limit(10)

    async def work(depth: int) -> None:
        async with policy:
            await asyncio.sleep(0)
            if depth:
                await work(depth - 1)

    async def main() -> None:
        await asyncio.gather(*(work(2) for _ in range(3)))

    asyncio.run(main())
    assert at_rest(policy)


# Streams


def test_a_generator_holds_from_the_first_next_to_the_end() -> None:
    """Exhaustion, close and error all return the permit; not starting takes none."""
    policy = limit(1)

    @policy
    def count(fail: bool = False) -> Iterator[int]:
        yield 1
        if fail:
            raise KeyError
        yield 2

    stream = count()
    assert policy.snapshot().held == 0
    assert next(stream) == 1
    assert policy.snapshot().held == 1
    assert list(stream) == [2]
    assert policy.snapshot().held == 0
    stream = count()
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert policy.snapshot().held == 0
    with pytest.raises(KeyError):
        list(count(fail=True))
    never_started = count()
    del never_started
    assert at_rest(policy)


def test_an_async_generator_holds_from_the_first_item_to_the_end() -> None:
    """The same for async generators, and one without items."""
    policy = limit(1)

    @policy
    async def count(n: int) -> AsyncIterator[int]:
        for each in range(n):
            yield each

    async def main() -> None:
        stream = count(2)
        assert await anext(stream) == 0
        assert policy.snapshot().held == 1
        assert [each async for each in stream] == [1]
        assert policy.snapshot().held == 0
        stream = count(2)
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        assert [each async for each in count(0)] == []

    asyncio.run(main())
    assert at_rest(policy)


# Keys


def test_each_key_has_its_budget_and_lives_only_while_in_use() -> None:
    """One key's holders do not delay another's, and nothing stays behind."""
    policy = limit(1, key="tenant", max_queue=0)

    @policy
    def work(tenant: object, inner: object = None) -> LimitSnapshot:
        return policy.snapshot() if inner is None else work(inner)

    assert work("a", inner="b") == LimitSnapshot(1, 2, 0, 0.0, 2)
    with pytest.raises(LimitFull):
        work("a", inner="a")
    assert work(1, inner="1").keys == 2
    assert policy.snapshot() == LimitSnapshot(1, 0, 0, 0.0, 0)


def test_one_keys_wait_does_not_delay_another() -> None:
    """A queue on one key, while another key goes through; the waiters' entry dies with them."""
    policy = limit(1, key="tenant")
    order: list[str] = []

    @policy
    async def work(tenant: str, hold: asyncio.Event | None) -> None:
        order.append(tenant)
        if hold is not None:
            await hold.wait()

    async def main() -> None:
        hold = asyncio.Event()
        tasks = [asyncio.create_task(work("a", hold)), asyncio.create_task(work("a", hold))]
        await asyncio.sleep(0)
        await work("b", None)
        assert policy.snapshot().queued == 1
        assert order == ["a", "b"]
        tasks[1].cancel()
        hold.set()
        await asyncio.wait(tasks)

    asyncio.run(main())
    assert policy.snapshot().keys == 0


def test_resizing_and_reconfiguring_reach_every_key() -> None:
    """Keys in use and keys to come have the new size and the new queue."""
    policy = limit(1, key="tenant", max_queue=0)
    permits = [policy.acquire(key="a"), policy.acquire(key="b")]
    policy.resize(2)
    permits += [policy.acquire(key=key) for key in "abcc"]
    assert policy.snapshot() == LimitSnapshot(2, 6, 0, 0.0, 3)
    policy.reconfigure(limit(3, key="tenant", max_queue=1, max_wait=0).options)
    permits += [policy.acquire(key="a"), *(policy.acquire(key="d") for _ in range(3))]
    with pytest.raises(LimitFull) as caught:
        policy.acquire(key="a")
    assert caught.value.reason == "timeout"  # there is a queue now, but no time
    for permit in permits:
        permit.release()
    assert policy.snapshot() == LimitSnapshot(3, 0, 0, 0.0, 0)


def test_a_failing_key_or_weight_leaves_nothing_behind() -> None:
    """What a user's function raises surfaces as itself, before anything is taken."""
    policy = limit(5, key=lambda tenant: tenant["id"], weight=lambda n: n)
    work = policy(lambda tenant, n: None)
    with pytest.raises(KeyError):
        work({}, 1)
    with pytest.raises(ValueError, match="weight"):
        work({"id": "a"}, 0)
    assert policy.snapshot() == LimitSnapshot(5, 0, 0, 0.0, 0)


def test_by_hand_a_key_must_be_given() -> None:
    """``with`` cannot know the key; `acquire` takes it."""
    policy = limit(1, key="tenant", max_queue=0)
    with pytest.raises(TypeError, match="each key"), policy:
        pass
    with policy.acquire(key="a"):
        with pytest.raises(LimitFull):
            policy(lambda tenant: None)("a")
        policy(lambda tenant: None)("b")
    with pytest.raises(TypeError, match="no keys"):
        limit(1).acquire(key="a")
    assert policy.snapshot().keys == 0


# Weights and priorities


def test_a_weight_takes_so_many_permits() -> None:
    """A number, a parameter's value or a callable over the arguments."""
    for weight in (3, "n", lambda n: n):
        policy = limit(5, weight=weight)
        assert policy(lambda n: policy.snapshot().held)(3) == 3  # noqa: B023
        assert at_rest(policy)


def test_an_impossible_weight_is_an_error_at_the_call() -> None:
    """A call that could never run raises ValueError, and so does what is no amount."""
    policy = limit(5, weight="n")
    work = policy(lambda n: None)
    for wrong in (6, 0, -1, 1.5, "3", True):
        with pytest.raises(ValueError, match="weight"):
            work(wrong)
    assert at_rest(policy)


def test_a_heavy_head_is_not_overtaken() -> None:
    """Later light calls wait behind it, though they would fit; when it leaves, they go at once."""
    policy = limit(3, weight="n")
    order: list[str] = []

    @policy
    async def work(name: str, n: int) -> None:
        order.append(name)

    async def main(cancel: bool) -> None:
        permit = policy.acquire(weight=2)
        heavy = asyncio.create_task(work("heavy", 3))
        await asyncio.sleep(0)
        light = asyncio.create_task(work("light", 1))
        for _ in range(3):
            await asyncio.sleep(0)
        assert order == []
        if cancel:
            heavy.cancel()
            await light
            assert order == ["light"]
        permit.release()
        await asyncio.wait([heavy, light])

    asyncio.run(main(cancel=True))
    order.clear()
    asyncio.run(main(cancel=False))
    assert order == ["heavy", "light"]
    assert at_rest(policy)


def test_higher_priority_goes_first() -> None:
    """Arrival order inside one priority; a number larger than the others overtakes only those who wait."""
    policy = limit(1, priority="rank")
    order: list[str] = []

    @policy
    async def work(name: str, rank: int) -> None:
        order.append(name)

    async def main() -> None:
        permit = policy.acquire()
        calls = [("a", 0), ("b", -1), ("c", 7), ("d", 7), ("e", 0)]
        tasks = [asyncio.create_task(work(*call)) for call in calls]
        await asyncio.sleep(0)
        permit.release()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert order == ["c", "d", "a", "e", "b"]


def test_a_newcomer_of_higher_priority_may_pass_a_blocked_head() -> None:
    """The head waits for two permits; one is free, and a call of higher priority takes it without waiting."""
    policy = limit(2)

    async def main() -> None:
        permit = policy.acquire()
        heavy = asyncio.create_task(policy.acquire_async(weight=2))
        await asyncio.sleep(0)
        with pytest.raises(LimitFull):
            policy.acquire(timeout=0)
        policy.acquire(timeout=0, priority=1).release()
        permit.release()
        (await heavy).release()

    asyncio.run(main())
    assert at_rest(policy)


def test_a_priority_that_is_no_number_is_an_error() -> None:
    """It surfaces where it matters, and no permit is lost."""
    policy = limit(1, priority=lambda: "high")
    work = policy(lambda: None)
    with policy.acquire(), pytest.raises(ValueError, match="priority"):
        work()
    assert at_rest(policy)


# Resize, close, permits by hand


def test_resize_compares_with_what_is_held() -> None:
    """Shrinking lets holders finish and returns nothing twice; growing serves all it can; 0 pauses."""
    policy = limit(3, max_queue=0)
    permits = [policy.acquire() for _ in range(3)]
    policy.resize(1)
    assert policy.snapshot() == LimitSnapshot(1, 3, 0, 0.0)
    permits.pop().release()
    permits.pop().release()
    with pytest.raises(LimitFull):
        policy.acquire()
    policy.resize(2)
    policy.acquire().release()
    policy.resize(0)
    permits.pop().release()
    with pytest.raises(LimitFull):
        policy.acquire()
    policy.resize(2)
    permits = [policy.acquire() for _ in range(2)]
    with pytest.raises(LimitFull):
        policy.acquire()
    for permit in permits:
        permit.release()
    for wrong in (-1, 1.5, True, None):
        with pytest.raises(ValueError, match="limit="):
            policy.resize(wrong)  # type: ignore[arg-type]
    assert at_rest(policy)


def test_growing_serves_waiters_at_once() -> None:
    """Two of three waiters fit after the resize, in order."""
    policy = limit(1)

    async def main() -> None:
        permit = policy.acquire()
        waiters = [asyncio.create_task(policy.acquire_async()) for _ in range(3)]
        await asyncio.sleep(0)
        policy.resize(3)
        first, second = [await waiter for waiter in waiters[:2]]
        assert not waiters[2].done()
        assert policy.snapshot().held == 3
        for each in (permit, first, second):
            each.release()
        (await waiters[2]).release()

    asyncio.run(main())
    assert at_rest(policy)


def test_a_weight_that_a_shrunk_limit_cannot_hold_runs_alone() -> None:
    """It neither fails nor blocks the queue for ever."""
    policy = limit(5, weight=4)

    async def main() -> None:
        light = policy.acquire(weight=1)
        heavy = asyncio.create_task(policy.acquire_async())
        policy.resize(2)
        await asyncio.sleep(0)
        assert not heavy.done()
        light.release()
        permit = await heavy
        with pytest.raises(LimitFull):
            policy.acquire(weight=1, timeout=0)
        permit.release()
        policy.acquire(weight=2).release()

    asyncio.run(main())
    assert policy.snapshot() == LimitSnapshot(2, 0, 0, 0.0)


def test_close_refuses_new_calls_and_waiters() -> None:
    """Holders finish, waiters fail at once, and so does whoever comes later; keys included."""
    policy, keyed = limit(1), limit(1, key="k")

    async def main() -> None:
        permit = policy.acquire()
        waiter = asyncio.create_task(policy.acquire_async())
        await asyncio.sleep(0)
        policy.close()
        with pytest.raises(LimitFull, match="closed") as caught:
            await waiter
        assert caught.value.reason == "closed"
        permit.release()

    asyncio.run(main())
    with pytest.raises(LimitFull, match="closed"):
        policy(lambda: None)()
    keyed.close()
    with pytest.raises(LimitFull, match="closed"):
        keyed.acquire(key="a")
    assert at_rest(policy)
    assert keyed.snapshot().keys == 0


def test_a_permit_is_returned_once() -> None:
    """Releasing twice, or by hand inside ``with``, gives nothing away."""
    policy = limit(1)
    permit = policy.acquire()
    assert not permit.released
    permit.release()
    permit.release()
    assert permit.released
    with policy.acquire(weight=1) as permit:
        permit.release()
    assert policy.snapshot().held == 0
    with pytest.raises(ValueError, match="weight=0"):
        policy.acquire(weight=0)
    with pytest.raises(ValueError, match="capacity"):
        policy.acquire(weight=2)
    with pytest.raises(TypeError, match="give a weight"):
        limit(2, weight="n").acquire()


def test_snapshot_tells_the_oldest_wait() -> None:
    """Seconds of the longest waiter; the registry shows the same."""
    policy = limit(1, name="db")

    async def main() -> None:
        permit = policy.acquire()
        waiter = asyncio.create_task(policy.acquire_async())
        await asyncio.sleep(0)
        time.advance(3)
        assert policy.snapshot() == LimitSnapshot(1, 1, 1, 3.0)
        permit.release()
        (await waiter).release()

    with virtual_time(auto=False) as time:
        asyncio.run(main())
    assert registry.snapshot()["db"] == {
        "kind": "limit",
        "limit": 1,
        "held": 0,
        "queued": 0,
        "oldest_wait": 0.0,
        "keys": None,
    }


def test_reconfigure_keeps_holders_and_waiters() -> None:
    """A reload resizes in place; a limit that gets keys starts over without losing permits of the old one."""
    policy = limit(1, max_queue=0)
    work = policy(lambda: policy.snapshot().held)
    permit = policy.acquire()
    policy.reconfigure(limit(2, max_queue=0).options)
    registry.changed()
    assert work() == 2
    policy.reconfigure(limit(1, max_queue=3, key=lambda: "k").options)
    registry.changed()
    assert work() == 1
    permit.release()
    assert at_rest(policy)


def test_worst_case_adds_the_wait() -> None:
    """`explain` can bound a call only where the wait is bounded."""
    site: Any = None
    assert limit(1, max_wait=5).worst_case(2, 1.0, site) == (2, 6.0)
    assert limit(1, max_queue=0).worst_case(2, 1.0, site) == (2, 1.0)
    assert limit(1).worst_case(1, 1.0, site)[1] == float("inf")


# Events


def test_events_tell_the_story_of_a_wait() -> None:
    """Queued, acquired with its wait, rejected with its reason, resized with both sizes."""
    policy = limit(1, name="db", max_queue=1, max_wait=9)

    async def main() -> None:
        permit = policy.acquire()
        waiter = asyncio.create_task(policy.acquire_async())
        await asyncio.sleep(0)
        with pytest.raises(LimitFull):
            await policy.acquire_async()
        time.advance(2)
        permit.release()
        (await waiter).release()
        policy.resize(4)

    with virtual_time(auto=False) as time, capture() as events:
        asyncio.run(main())
    told = [(event.name, event.wait, event.active, event.queued, event.limit) for event in events]
    assert told == [
        ("limit.acquired", 0.0, 1, 0, 1),
        ("limit.queued", None, 1, 1, 1),
        ("limit.rejected", 0.0, 1, 1, 1),
        ("limit.acquired", 2.0, 1, 0, 1),
        ("limit.resized", None, 0, 0, 4),
    ]
    assert [event.reason for event in events] == [None, None, "queue_full", None, "resized"]
    assert events[-1].previous == 1
    assert {(event.policy, event.layer) for event in events} == {("db", "limit")}


def test_every_way_in_tells_of_it() -> None:
    """TRACE has one `limit.acquired` for a plain call, a keyed one, a stream, a block and a permit; sync and async."""
    plain, keyed = limit(5), limit(5, key="n")

    async def main() -> None:
        await plain(gentle)(1)
        await keyed(gentle)(1)
        async with plain:
            pass
        (await plain.acquire_async()).release()

    async def gentle(n: int) -> None:
        pass

    def stream(n: int) -> Iterator[int]:
        yield n

    with capture("TRACE") as events:
        plain(lambda n: n)(1)
        keyed(lambda n: n)(1)
        list(plain(stream)(1))
        with plain:
            pass
        with limit(2, weight=2):
            pass
        plain.acquire().release()
        asyncio.run(main())
    told = [event for event in events if event.name == "limit.acquired"]
    assert len(told) == 10
    assert {(event.wait, event.queued) for event in told} == {(0.0, 0)}
    assert [event.active for event in told] == [1, 1, 1, 1, 2, 1, 1, 1, 1, 1]


def test_a_sink_may_use_the_limit_it_hears_about() -> None:
    """No event is told under a lock."""
    policy = limit(2)
    seen: list[int] = []

    def sink(event: object) -> None:
        with policy:
            seen.append(policy.snapshot().held)

    with bus.subscribe(sink, level="TRACE"):
        policy.call(lambda: None)
    assert seen
    assert at_rest(policy)


# Adaptive


def test_an_adaptive_limit_shrinks_when_calls_fail_and_grows_when_it_is_used() -> None:
    """AIMD from outcomes: connection errors cut, good calls near the limit add one, other errors teach nothing."""
    policy = limit(adaptive("aimd", initial=10, max_limit=11))

    @policy
    def work(error: BaseException | None) -> None:
        if error is not None:
            raise error

    def run(error: BaseException | None) -> int:
        if error is None:
            work(None)
        else:
            with pytest.raises(type(error)):
                work(error)
        return policy.snapshot().limit

    assert run(ConnectionError()) == 9
    assert run(ValueError()) == 9
    assert run(KeyboardInterrupt()) == 9
    assert run(LimitFull("inner", reason="timeout")) == 9
    assert run(None) == 9
    permits = [policy.acquire() for _ in range(5)]
    assert run(None) == 10
    for permit in permits:
        permit.release()
    assert at_rest(policy)


def test_a_call_cut_by_its_deadline_counts_as_overload_and_our_own_queue_does_not() -> None:
    """A hung dependency shrinks the limit; waiting for another limit inside says nothing about it."""
    policy = limit(adaptive("aimd", initial=10))
    other = limit(1)

    @deadline("1s")
    @policy
    async def hung() -> None:
        await asyncio.Event().wait()

    @deadline("1s")
    @policy
    async def queued() -> None:
        async with other:
            pass

    with virtual_time():
        with pytest.raises(DeadlineExceeded):
            asyncio.run(hung())
        assert policy.snapshot().limit == 9
        with other.acquire(), pytest.raises(DeadlineExceeded):
            asyncio.run(queued())
        assert policy.snapshot().limit == 9


def test_a_deadline_inside_counts_as_overload_when_the_body_ran_into_it() -> None:
    """Time spent running does; time spent queueing for something of ours does not."""
    policy = limit(adaptive("aimd", initial=10))
    other = limit(1)
    inside = deadline("1s", mode="cooperative", late="raise")
    slow = policy(inside(lambda: time.advance(2)))
    queued = policy(inside(other(lambda: None)))

    with virtual_time() as time, other.acquire():
        with pytest.raises(DeadlineExceeded):
            slow()
        assert policy.snapshot().limit == 9
        with pytest.raises(DeadlineExceeded):
            queued()
        assert policy.snapshot().limit == 9


def test_latency_leaves_out_the_wait_and_drives_gradient2() -> None:
    """With a clock that only the body moves, slow calls shrink the limit; ``with`` blocks teach as well."""
    policy = limit(adaptive(initial=10, max_limit=50))
    with virtual_time(auto=False) as time, capture("DEBUG") as events:

        def run(seconds: float) -> None:
            permits = [policy.acquire() for _ in range(policy.snapshot().limit - 1)]
            with policy:
                time.advance(seconds)
            for permit in permits:
                permit.release()

        for _ in range(30):
            run(0.1)
        grown = policy.snapshot().limit
        assert grown > 10
        for _ in range(30):
            run(10)
    assert policy.snapshot().limit < grown
    assert {event.name for event in events} == {"limit.resized"}
    assert {event.reason for event in events} == {"adapted"}


def test_resizing_an_adaptive_limit_by_hand_goes_on_from_there() -> None:
    """0 pauses and stops learning; another size starts over."""
    policy = limit(adaptive("aimd", initial=10))
    work = policy(lambda: None)
    with policy:
        policy.resize(0)
    assert policy.snapshot().limit == 0
    policy.resize(2)
    with policy.acquire():
        work()
    assert policy.snapshot().limit == 3


def test_a_sample_that_comes_in_while_it_learns_is_let_go() -> None:
    """No call waits for the arithmetic of another."""
    policy = limit(adaptive("aimd", initial=2))
    work = policy(lambda: None)
    assert policy.learner is not None
    with policy.learner._busy:
        work()
    assert policy.snapshot().limit == 2
    work()
    assert policy.snapshot().limit == 3


def test_reconfiguring_other_options_keeps_what_was_learned() -> None:
    """Only another `max_concurrent` starts over."""
    spec = adaptive("aimd", initial=2)
    policy = limit(spec)
    work = policy(lambda: None)
    work()
    policy.reconfigure(limit(spec, max_wait=3).options)
    assert policy.snapshot().limit == 3
    work()
    assert policy.snapshot().limit == 3  # one of three in flight proves nothing
    policy.reconfigure(limit(adaptive("aimd", initial=7)).options)
    assert policy.snapshot().limit == 7


def test_an_adaptive_stream_learns_from_its_first_item() -> None:
    """The consumer's pace is not the dependency's."""
    policy = limit(adaptive("aimd", initial=10, slow=1))

    @policy
    def items(wait: float) -> Iterator[int]:
        time.advance(wait)
        yield 1

    with virtual_time(auto=False) as time:
        stream = items(0)
        next(stream)
        time.advance(60)
        assert list(stream) == []
        assert policy.snapshot().limit == 10
        list(items(2))
        assert policy.snapshot().limit == 9
    assert at_rest(policy)


@pytest.mark.parametrize(
    "wrong", [{"weight": "w"}, {"weight": 0}, {"weight": True}, {"priority": "p"}, {"priority": 0.5}]
)
def test_a_permit_by_hand_takes_whole_numbers(wrong: dict[str, Any]) -> None:
    """There are no arguments to take a weight or a priority from, nor is it noticed only once the limit is full."""
    policy = limit(2)
    with pytest.raises(ValueError, match=r"(weight|priority)=.*: must be a whole number"):
        policy.acquire(**wrong)
    assert at_rest(policy)
