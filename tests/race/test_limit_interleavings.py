"""Races around a limit: seeded interleavings, hand-over against every way of leaving, dead loops, finalizers.

Threads are simulated by the steps a waiting thread takes, so that every order can be forced; the stress tests at the
end use real ones.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from guarded import Cancelled, CancelToken, LimitFull, limit
from guarded._core.call import current, holds
from guarded._core.waiters import TaskWaiter, ThreadWaiter
from guarded.events.bus import bus
from guarded.policies._limit.core import Pool
from guarded.policies._limit.queue import Entry, State
from guarded.policies.limit import Limit, Permit
from guarded.testing import virtual_time


def pool_of(policy: Limit) -> Pool:
    """The permits of a limit without keys."""
    assert isinstance(policy._pools, Pool)
    return policy._pools


def assert_at_rest(policy: Limit) -> None:
    """Free + held = total, nothing held, nobody waits, the fast way is open, no loop is remembered."""
    pool = pool_of(policy)
    assert pool.held == 0
    assert len(pool.tokens) == pool.total <= pool.limit
    assert len(pool.queue) == 0
    assert not pool.slow
    assert not pool._loops


def spin(loop: asyncio.AbstractEventLoop, rounds: int = 1) -> None:
    """Run what is ready on the loop, so many times."""
    for _ in range(rounds):
        loop.call_soon(loop.stop)
        loop.run_forever()


@contextmanager
def new_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that is closed afterwards, if the test has not done it."""
    loop = asyncio.new_event_loop()
    try:
        yield loop
    finally:
        loop.close()


def start(loop: asyncio.AbstractEventLoop, policy: Limit, **options: int) -> asyncio.Task[Permit]:
    """A task that has begun to wait."""
    task = loop.create_task(policy.acquire_async(**options))
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    spin(loop)
    return task


def join(policy: Limit, weight: int = 1, priority: int = 0) -> Entry:
    """What a thread does up to its park."""
    entry = Entry(weight, priority, ThreadWaiter(), 0.0)
    assert pool_of(policy).join(entry) is None
    return entry


class World:
    """Callers of one limit that arrive, resume, leave, release and resize in a random order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seed: int) -> None:
        self.rng = random.Random(seed)
        self.loop = loop
        self.policy = limit(self.rng.randint(1, 3))
        self.pool = pool_of(self.policy)
        self.weights = self.rng.choice([(1,), (1, 1, self.policy.options.largest)])
        self.priorities = self.rng.choice([(0,), (0, 0, 1)])
        self.waiting: list[Entry] = []  # simulated threads
        self.held: list[int] = []  # their permits
        self.tasks: list[asyncio.Task[Permit]] = []
        self.permits: list[Permit] = []  # of tasks

    def draw(self) -> tuple[int, int]:
        return self.rng.choice(self.weights), self.rng.choice(self.priorities)

    def thread_arrives(self) -> None:
        entry = Entry(*self.draw(), ThreadWaiter(), 0.0)
        if self.pool.take(entry.weight, entry.priority):
            self.held.append(entry.weight)
            return
        assert self.pool.join(entry) is None
        self.settle(entry)

    def settle(self, entry: Entry) -> None:
        if entry.state is State.TAKEN:
            self.held.append(entry.weight)
        else:
            self.waiting.append(entry)

    def thread_resumes(self, *, only_granted: bool = True) -> None:
        """Woken by its grant; or, with any entry, by its time-out, whatever the grant did meanwhile."""
        choices = [e for e in self.waiting if not only_granted or e.state is State.GRANTED]
        if choices:
            entry = self.rng.choice(choices)
            self.waiting.remove(entry)
            granted = entry.state is State.GRANTED
            assert self.pool.resume(entry) is (State.TAKEN if granted else State.GONE)
            if granted:
                self.held.append(entry.weight)

    def thread_times_out(self) -> None:
        self.thread_resumes(only_granted=False)

    def thread_is_cancelled(self) -> None:
        if self.waiting:
            self.pool.abandon(self.waiting.pop(self.rng.randrange(len(self.waiting))))

    def task_arrives(self) -> None:
        weight, priority = self.draw()
        self.tasks.append(self.loop.create_task(self.policy.acquire_async(weight=weight, priority=priority)))

    def task_is_cancelled(self) -> None:
        if self.tasks:
            self.rng.choice(self.tasks).cancel()

    def loop_runs(self) -> None:
        spin(self.loop)
        for task in [task for task in self.tasks if task.done()]:
            self.tasks.remove(task)
            if not task.cancelled():
                self.permits.append(task.result())

    def thread_releases(self) -> None:
        if self.held:
            self.pool.give_back(self.held.pop(self.rng.randrange(len(self.held))))

    def task_releases(self) -> None:
        if self.permits:
            self.permits.pop(self.rng.randrange(len(self.permits))).release()

    def resize(self) -> None:
        self.policy.resize(self.rng.randint(0, 4))

    def check(self, before: int) -> None:
        """Nobody waits who could be served, and nothing was handed out above the limit."""
        pool, head = self.pool, self.pool.queue.head()
        if head is not None:
            assert pool.held + head.weight > pool.limit
            assert pool.held > 0 or pool.limit == 0
        assert pool.held <= max(pool.limit, before, max(self.weights) if pool.limit else 0)
        assert pool.held >= sum(self.held) + sum(permit._weight for permit in self.permits)

    def run(self, steps: int) -> None:
        actions = [
            self.thread_arrives,
            self.thread_arrives,
            self.task_arrives,
            self.task_arrives,
            self.loop_runs,
            self.loop_runs,
            self.thread_resumes,
            self.thread_times_out,
            self.thread_is_cancelled,
            self.task_is_cancelled,
            self.thread_releases,
            self.thread_releases,
            self.task_releases,
            self.resize,
        ]
        for _ in range(steps):
            before = self.pool.held
            self.rng.choice(actions)()
            self.check(before)

    def anybody(self) -> bool:
        return bool(self.waiting or self.tasks or self.held or self.permits)

    def finish(self) -> None:
        """Everybody who still waits is served, once the limit is open and permits come back."""
        self.policy.resize(3)
        for _ in range(200):
            if not self.anybody():
                break
            self.thread_resumes()
            self.loop_runs()
            self.thread_releases()
            self.task_releases()
        assert not self.anybody()
        spin(self.loop)
        assert_at_rest(self.policy)


@pytest.mark.parametrize("block", range(10))
def test_ten_thousand_random_interleavings_end_at_rest(block: int) -> None:
    """Arrive, resume, time out, cancel, release and resize in 10 000 seeded orders: no permit lost, none made up."""
    with new_loop() as loop:
        for seed in range(block * 1000, block * 1000 + 1000):
            world = World(loop, seed)
            try:
                world.run(24)
                world.finish()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}") from error


# Hand-over against leaving, in both orders


def test_handed_over_then_cancelled() -> None:
    """A task that was granted and is cancelled before it runs passes the permit on."""
    policy = limit(1)
    with new_loop() as loop:
        permit = policy.acquire()
        first, second = start(loop, policy), start(loop, policy)
        permit.release()
        first.cancel()
        spin(loop, 4)
        assert first.cancelled()
        second.result().release()
        spin(loop)
    assert_at_rest(policy)


def test_cancelled_then_handed_over() -> None:
    """A task that is cancelled, and granted before it has run, passes the permit on as well."""
    policy = limit(1)
    with new_loop() as loop:
        permit = policy.acquire()
        first, second = start(loop, policy), start(loop, policy)
        first.cancel()
        permit.release()
        spin(loop, 4)
        assert first.cancelled()
        second.result().release()
        spin(loop)
    assert_at_rest(policy)


def test_handed_over_then_timed_out() -> None:
    """A thread whose time is up keeps the permit it was handed meanwhile."""
    policy = limit(1)
    permit = policy.acquire()
    first, second = join(policy), join(policy)
    permit.release()
    assert pool_of(policy).resume(first) is State.TAKEN
    assert second.state is State.WAITING
    pool_of(policy).give_back(1)
    assert pool_of(policy).resume(second) is State.TAKEN
    pool_of(policy).give_back(1)
    assert_at_rest(policy)


def test_timed_out_then_handed_over() -> None:
    """A thread that left after its time-out gets nothing; the one behind it does."""
    policy = limit(1)
    permit = policy.acquire()
    first, second = join(policy), join(policy)
    assert pool_of(policy).resume(first) is State.GONE
    permit.release()
    assert second.state is State.GRANTED
    pool_of(policy).resume(second)
    pool_of(policy).give_back(1)
    assert_at_rest(policy)


@pytest.mark.parametrize("grant_first", [True, False])
def test_a_tasks_time_out_and_its_grant_at_the_same_moment(grant_first: bool) -> None:
    """Granted as the time runs out: served if the grant came first, else LimitFull; never both, never lost."""
    policy = limit(1, max_wait=5)
    with new_loop() as loop, virtual_time(auto=False) as time:
        permit = policy.acquire()
        task = start(loop, policy)
        if grant_first:
            permit.release()
            time.advance(6)
        else:
            time.advance(6)
            spin(loop, 4)
            permit.release()
        spin(loop, 4)
        if grant_first:
            task.result().release()
        else:
            assert isinstance(task.exception(), LimitFull)
        spin(loop)
    assert_at_rest(policy)


@pytest.mark.parametrize("grant_first", [True, False])
def test_a_token_and_a_grant_at_the_same_moment(grant_first: bool) -> None:
    """A fired token wins over a grant that was not resumed yet; the permit goes to the next."""
    policy, token = limit(1), CancelToken()

    async def wait() -> Permit:
        with token:
            return await policy.acquire_async()

    with new_loop() as loop:
        permit = policy.acquire()
        first = loop.create_task(wait())
        spin(loop)
        second = start(loop, policy)
        for step in (permit.release, token.cancel)[:: 1 if grant_first else -1]:
            step()
        spin(loop, 5)
        assert isinstance(first.exception(), Cancelled)
        second.result().release()
        spin(loop)
    assert_at_rest(policy)


@pytest.mark.parametrize("leave", ["abandon", "resume"])
def test_a_leaving_head_does_not_hide_a_live_waiter(leave: str) -> None:
    """The head needs more than is free; when it leaves, those behind it go at once, without any release."""
    policy = limit(3)
    permit = policy.acquire(weight=2)
    heavy, light = join(policy, weight=3), join(policy)
    assert light.state is State.WAITING
    getattr(pool_of(policy), leave)(heavy)
    assert light.state is State.GRANTED
    pool_of(policy).resume(light)
    pool_of(policy).give_back(1)
    permit.release()
    assert_at_rest(policy)


def test_no_barging_between_release_and_wake_up() -> None:
    """A nowait acquire after the release and before the waiter runs gets nothing."""
    policy = limit(1)
    with new_loop() as loop:
        permit = policy.acquire()
        task = start(loop, policy)
        permit.release()
        with pytest.raises(LimitFull):
            policy.acquire(timeout=0)
        spin(loop, 2)
        task.result().release()
        spin(loop)
    assert_at_rest(policy)


def test_a_permit_returned_before_the_waiter_looks_again_is_not_lost() -> None:
    """The release falls between the failed attempt and the joining of the queue."""
    policy = limit(1)
    pool = pool_of(policy)
    permit = policy.acquire()
    assert not pool.take(1, 0)
    permit.release()
    entry = join(policy)
    assert entry.state is State.TAKEN
    pool.give_back(1)
    assert_at_rest(policy)


class Preempted(list[bool]):
    """Permits that let something happen at the moment that a look finds none, as another thread would."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: list[Callable[[], object]] = []

    def __len__(self) -> int:
        found = super().__len__()
        if not found and self.meanwhile:
            self.meanwhile.pop()()
        return found


def preempted(limit: int) -> tuple[Pool, Preempted]:
    """A pool all of whose permits are held."""
    pool, tokens = Pool(limit, None), Preempted()
    pool.tokens = tokens
    assert pool.take(limit, 0)
    return pool, tokens


def test_a_permit_returned_right_after_the_last_look_is_not_lost() -> None:
    """The waiter has just found nothing when the release comes, whose thread must see that somebody waits."""
    pool, tokens = preempted(1)
    entry = Entry(1, 0, ThreadWaiter(), 0.0)
    tokens.meanwhile.append(lambda: pool.give_back(1))
    assert pool.join(entry) is None
    assert not tokens.meanwhile
    assert entry.state in (State.GRANTED, State.TAKEN)


def test_a_permit_returned_right_after_a_shrink_looked_for_it_is_destroyed() -> None:
    """The same for a limit that shrinks: what comes back later must not be taken by anybody."""
    pool, tokens = preempted(1)
    tokens.meanwhile.append(lambda: pool.give_back(1))
    pool.resize(0)
    assert not tokens.meanwhile
    assert not pool.quick()
    assert pool.total == 0


class Counted(ThreadWaiter):
    """Counts its wake-ups."""

    def __init__(self) -> None:
        super().__init__()
        self.wakes = 0

    def wake(self) -> bool:
        self.wakes += 1
        return super().wake()


def test_one_wake_up_per_grant_and_none_for_who_does_not_park() -> None:
    """Served on arrival: no wake-up; granted: one; timed out: none."""
    pool = Pool(1, None)
    waiters = [Counted() for _ in range(3)]
    entries = [Entry(1, 0, waiter, 0.0) for waiter in waiters]
    for entry in entries:
        pool.join(entry)
    pool.resume(entries[1])
    pool.give_back(1)
    assert [waiter.wakes for waiter in waiters] == [0, 0, 1]
    assert [entry.state for entry in entries] == [State.TAKEN, State.GONE, State.GRANTED]


def test_a_decorated_call_grants_those_who_came_meanwhile() -> None:
    """The quick way out looks for waiters, sync and async."""
    policy = limit(1)
    entries: list[Entry] = []

    async def work_async() -> None:
        entries.append(join(policy))

    policy(lambda: entries.append(join(policy)))()
    pool_of(policy).resume(entries[0])
    pool_of(policy).give_back(1)
    asyncio.run(policy(work_async)())
    assert entries[1].state is State.GRANTED
    pool_of(policy).resume(entries[1])
    pool_of(policy).give_back(1)
    assert_at_rest(policy)


def test_what_outlives_the_call_does_not_seem_to_hold_its_permit() -> None:
    """A worker that a deadline left behind runs in a fork of the call, and may take the limit like anybody."""
    policy, forks = limit(1), []

    def work() -> None:
        fork = current.get().fork()  # type: ignore[union-attr]
        assert holds(fork, pool_of(policy))
        forks.append(fork)

    async def work_async() -> None:
        work()

    def stream() -> Iterator[None]:
        work()
        yield
        work()

    policy(work)()
    asyncio.run(policy(work_async)())
    list(policy(stream)())
    assert len(forks) == 4
    for fork in forks:
        assert not holds(fork, pool_of(policy))


def test_shrinking_while_a_permit_is_on_its_way() -> None:
    """Resized to nothing between hand-over and resumption: the waiter is served, nobody after it."""
    policy = limit(1)
    permit = policy.acquire()
    first, second = join(policy), join(policy)
    permit.release()
    policy.resize(0)
    assert pool_of(policy).resume(first) is State.TAKEN
    pool_of(policy).give_back(1)
    assert second.state is State.WAITING
    policy.resize(1)
    assert pool_of(policy).resume(second) is State.TAKEN
    pool_of(policy).give_back(1)
    assert_at_rest(policy)


def test_closed_or_filled_up_between_the_attempt_and_the_queue() -> None:
    """What happened since the failed attempt decides."""
    for closing in (True, False):
        policy = limit(1, max_queue=1)
        pool = pool_of(policy)
        permit = policy.acquire()
        assert not pool.take(1, 0)
        if closing:
            policy.close()
        else:
            join(policy)
        entry = Entry(1, 0, ThreadWaiter(), 0.0)
        assert pool.join(entry) == ("closed" if closing else "queue_full")
        permit.release()
        assert entry.state is (State.CLOSED if closing else State.GONE)


def test_closing_and_abandoning_in_both_orders() -> None:
    """A refused waiter that is cancelled as well counts once."""
    for close_first in (True, False):
        policy = limit(1)
        permit = policy.acquire()
        entry = join(policy)
        steps = [policy.close, lambda entry=entry, policy=policy: pool_of(policy).abandon(entry)]
        for step in steps[:: 1 if close_first else -1]:
            step()
        assert pool_of(policy).resume(entry) is (State.CLOSED if close_first else State.GONE)
        permit.release()
        assert (policy.snapshot().held, policy.snapshot().queued) == (0, 0)


# Dead loops


def test_a_loop_closed_while_its_task_waits() -> None:
    """The wake-up cannot be delivered (call_soon_threadsafe raises): the next waiter is served instead."""
    policy = limit(1)
    permit = policy.acquire()
    with new_loop() as loop:
        stranded = start(loop, policy)
    live = join(policy)
    permit.release()
    assert live.state is State.GRANTED
    pool_of(policy).resume(live)
    pool_of(policy).give_back(1)
    del stranded
    assert_at_rest(policy)


def test_a_loop_closed_between_hand_over_and_delivery() -> None:
    """The wake-up was accepted by the loop and never ran."""
    policy = limit(1)
    permit = policy.acquire()
    with new_loop() as loop:
        stranded = start(loop, policy)
        live = join(policy)
        permit.release()
        assert live.state is State.WAITING
    assert live.state is State.GRANTED
    pool_of(policy).resume(live)
    pool_of(policy).give_back(1)
    del stranded
    assert_at_rest(policy)


def test_a_loop_closed_between_delivery_and_the_tasks_step() -> None:
    """The wake-up ran, the task did not, and somebody keeps the task alive."""
    policy = limit(1)
    with new_loop() as loop:
        permit = policy.acquire()
        stranded = start(loop, policy)
        live = join(policy)

        def release_and_stop() -> None:
            permit.release()
            loop.stop()

        loop.call_soon(release_and_stop)
        loop.run_forever()
        assert live.state is State.WAITING
    assert live.state is State.GRANTED
    pool_of(policy).resume(live)
    pool_of(policy).give_back(1)
    assert not stranded.done()
    assert_at_rest(policy)


def test_a_newcomer_looks_for_dead_loops_before_it_waits() -> None:
    """Even where no wake-up was lost on the way, as with a loop that keeps its dropped handles."""
    policy = limit(1)
    kept: list[object] = []
    permit = policy.acquire()
    with new_loop() as loop:
        stranded = start(loop, policy)
        permit.release()
        kept.extend(loop._ready)  # type: ignore[attr-defined]
    assert pool_of(policy).held == 1
    policy.acquire(timeout=0).release()
    del stranded
    assert_at_rest(policy)
    kept.clear()
    assert_at_rest(policy)


def test_ten_thousand_waiters_of_a_dead_loop_are_skipped_without_deep_recursion() -> None:
    """One release finds the live waiter behind them all."""
    policy = limit(1)
    permit = policy.acquire()
    with new_loop() as loop:
        tasks = [loop.create_task(policy.acquire_async()) for _ in range(10_000)]
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        spin(loop)
    assert policy.snapshot().queued == 10_000
    live = join_without_looking(policy)
    permit.release()
    assert live.state is State.GRANTED
    pool_of(policy).resume(live)
    pool_of(policy).give_back(1)
    assert policy.snapshot().queued == 0


def join_without_looking(policy: Limit) -> Entry:
    """A waiter that was there before the loop died."""
    pool = pool_of(policy)
    loops, pool._loops = pool._loops, {}
    entry = join(policy)
    pool._loops = loops
    return entry


def test_granted_waiters_of_a_loop_that_closes_during_delivery() -> None:
    """A thousand grants whose wake-ups all fail: every permit comes back, without deep recursion."""
    policy = limit(1)
    permit = policy.acquire()

    class Closing(asyncio.SelectorEventLoop):
        alive = True

        def call_soon_threadsafe(self, *args: object, **kwargs: object) -> asyncio.Handle:
            if self.alive:
                return super().call_soon_threadsafe(*args, **kwargs)  # type: ignore[arg-type]
            raise RuntimeError("Event loop is closed")

    loop = Closing()
    tasks = [loop.create_task(policy.acquire_async()) for _ in range(5000)]
    spin(loop)
    loop.alive = False
    policy.resize(3000)
    permit.release()
    assert pool_of(policy).held == 0
    loop.alive = True
    for task in tasks:
        task.cancel()
    spin(loop, 2)
    loop.close()
    assert_at_rest(policy)


# Finalizers


def test_a_collected_waiter_gives_way_in_whatever_thread() -> None:
    """A waiting coroutine that is dropped leaves the queue; one that was granted passes the permit on."""
    policy = limit(1)
    pool = pool_of(policy)
    for granted in (False, True):
        permit = policy.acquire()
        loop = asyncio.new_event_loop()
        asyncio._set_running_loop(loop)
        try:
            waiting = policy.acquire_async()
            waiting.send(None)
        finally:
            asyncio._set_running_loop(None)
        if granted:
            permit.release()
            assert pool.held == 1
        with pool, pool._lock:  # the collector runs in the thread that holds the lock
            del waiting
            gc.collect()
        permit.release()
        spin(loop)
        loop.close()
        assert_at_rest(policy)


def test_a_permit_returned_by_a_finalizer_under_the_lock() -> None:
    """The release does not block, and the waiter is granted as soon as the lock is left."""
    policy = limit(1)
    pool = pool_of(policy)
    permit = policy.acquire()
    entry = join(policy)
    with pool, pool._lock:
        permit.release()
        assert entry.state is State.WAITING
    assert entry.state is State.GRANTED
    pool.resume(entry)
    pool.give_back(1)
    assert_at_rest(policy)


def test_keyed_entries_survive_a_finalizer_under_the_lock() -> None:
    """The last use of a key may end in a finalizer."""
    policy = limit(1, key="k")
    permit = policy.acquire(key="a")
    with policy._pools, policy._pools._lock:
        permit.release()
    assert policy.snapshot().keys == 0


# Real threads and loops


class Crowd:
    """Counts who is inside."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = 0
        self.peak = 0

    def __enter__(self) -> None:
        with self.lock:
            self.inside += 1
            self.peak = max(self.peak, self.inside)

    def __exit__(self, *exc_info: object) -> None:
        with self.lock:
            self.inside -= 1


class Caller:
    """One who takes the limit, tells that it was served, and leaves when told."""

    def __init__(self, policy: Limit, n: int, served: threading.Semaphore, order: list[int]) -> None:
        self.policy, self.n, self.served, self.order = policy, n, served, order
        self.leave = threading.Event()

    def came(self) -> None:
        self.order.append(self.n)
        self.served.release()

    def thread_body(self) -> None:
        with self.policy:
            self.came()
            self.leave.wait(30)

    async def task_body(self) -> None:
        async with self.policy:
            self.came()
            await asyncio.to_thread(self.leave.wait, 30)


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


def test_eight_threads_and_two_loops_are_served_in_order_of_arrival() -> None:
    """They queue one after the other on a full limit(5) and come in that order, whatever they are."""
    policy = limit(5)
    order: list[int] = []
    queued, served = threading.Semaphore(0), threading.Semaphore(0)
    callers = [Caller(policy, n, served, order) for n in range(16)]
    permits = [policy.acquire() for _ in range(5)]
    leave = [permit.release for permit in permits] + [caller.leave.set for caller in callers]
    with running_loop() as first, running_loop() as second:
        threads, futures = [], []
        with bus.subscribe(lambda event: queued.release(), level="INFO"):
            for caller in callers:  # threads and both loops take turns
                if caller.n % 2:
                    loop = first if caller.n % 4 == 1 else second
                    futures.append(asyncio.run_coroutine_threadsafe(caller.task_body(), loop))
                else:
                    threads.append(threading.Thread(target=caller.thread_body))
                    threads[-1].start()
                assert queued.acquire(timeout=30)
        for turn, leaves in enumerate(leave):
            leaves()
            if turn < 16:
                assert served.acquire(timeout=30)
                assert policy.snapshot().held == 5
        for thread in threads:
            thread.join(30)
        for future in futures:
            future.result(30)
    assert order == list(range(16))
    assert_at_rest(policy)


def test_threads_and_loops_hammering_one_limit_never_exceed_it() -> None:
    """Eight threads and two loops of eight tasks, with a tiny switch interval, resizes and cancellations between."""
    policy, crowd = limit(5), Crowd()
    rounds = 80
    failures: list[BaseException] = []

    def thread_body(n: int) -> None:
        try:
            for turn in range(rounds):
                if turn % 7 == n % 7:
                    try:
                        with policy.acquire(timeout=0), crowd:
                            pass
                    except LimitFull:
                        pass
                with policy, crowd:
                    pass
                decorated()
        except BaseException as error:
            failures.append(error)

    @policy
    def decorated() -> None:
        with crowd:
            pass

    @policy
    async def decorated_async() -> None:
        with crowd:
            await asyncio.sleep(0)

    async def task_body(n: int) -> None:
        for turn in range(rounds):
            if turn % 10 == n:
                impatient = asyncio.create_task(visit())
                await asyncio.sleep(0)
                impatient.cancel()
                await asyncio.wait([impatient])
            await visit()
            await decorated_async()

    async def visit() -> None:
        async with policy:
            with crowd:
                await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(task_body(n) for n in range(8)))

    def run_loop() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=thread_body, args=(n,)) for n in range(8)]
        threads += [threading.Thread(target=run_loop) for _ in range(2)]
        for thread in threads:
            thread.start()
        for size in (2, 5, 1, 4, 0, 5) * 5:
            policy.resize(size)
        for thread in threads:
            thread.join(120)
    finally:
        sys.setswitchinterval(interval)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []
    assert 1 <= crowd.peak <= 5
    assert_at_rest(policy)


def test_a_task_waiter_knows_its_loop() -> None:
    """Entries of tasks are remembered by loop until they resume, and no longer."""
    policy = limit(1)
    with new_loop() as loop:
        permit = policy.acquire()
        task = start(loop, policy)
        (entry,) = pool_of(policy).queue
        assert isinstance(entry.waiter, TaskWaiter)
        assert pool_of(policy)._loops == {loop: {entry}}
        permit.release()
        spin(loop, 2)
        task.result().release()
    assert_at_rest(policy)
