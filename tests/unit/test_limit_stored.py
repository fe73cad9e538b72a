"""A limit whose permits live in a store, over a store of this process that fails and answers as it is told to."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from guarded import (
    Cancelled,
    CancelToken,
    DeadlineExceeded,
    Deadlock,
    LimitFull,
    asleep,
    checkpoint,
    deadline,
    limit,
    registry,
    sleep,
)
from guarded._core import clock, virtual
from guarded._core.call import Call, current
from guarded._core.virtual import VirtualTime
from guarded.policies._limit import lease, stored
from guarded.policies.limit import Limit
from guarded.stores.contract.limit import Full, Granted, LimitStore, Pledge
from guarded.stores.health import Health
from guarded.stores.upkeep import Upkeep
from guarded.testing import capture, virtual_time

MODES = ("sync", "async")


class Desk:
    """Lends permits by the clock, to all processes there might be.

    Attributes:
        lease: seconds for which a permit stays with its owner.
        broken: whether every step fails.
        loans: who holds how many of which pool, and until when.
        line: who waits for which pool.
    """

    name = "desk"

    def __init__(self) -> None:
        self.health = Health("desk", probe=0.001)
        self.limits: LimitStore = self
        self.lease = 6.0
        self.broken = False
        self.loans: dict[str, tuple[tuple[str, str], int, float]] = {}
        self.line: list[tuple[str, tuple[str, str]]] = []

    def _step(self) -> float:
        if self.broken:
            raise ConnectionError("no route to the store")
        now = clock.monotonic()
        self.loans = {owner: loan for owner, loan in self.loans.items() if loan[2] > now}
        return now

    def acquire(self, pledge: Pledge, keep: float) -> Granted | Full:
        now = self._step()
        place = pledge.owner, pledge.pool
        held, _ = self.look(pledge.pool)
        others = [each for each in self.line if each[1] == pledge.pool]
        if (not others or others[0] == place) and (held + pledge.permits <= pledge.limit or not held):
            self.loans[pledge.owner] = pledge.pool, pledge.permits, now + pledge.lease
            self._leave(place)
            return Granted(held + pledge.permits)
        if keep and place not in self.line:
            self.line.append(place)
        ends = [end for pool, _, end in self.loans.values() if pool == pledge.pool]
        return Full(held, min(ends) - now if ends else None)

    def renew(self, pledge: Pledge) -> bool:
        now = self._step()
        if pledge.owner not in self.loans:
            return False
        self.loans[pledge.owner] = pledge.pool, pledge.permits, now + pledge.lease
        return True

    def release(self, pledge: Pledge) -> bool:
        self._step()
        self._leave((pledge.owner, pledge.pool))
        return self.loans.pop(pledge.owner, None) is not None

    def look(self, pool: tuple[str, str]) -> tuple[int, int]:
        self._step()
        mine = [permits for whose, permits, _ in self.loans.values() if whose == pool]
        return sum(mine), sum(whose == pool for _, whose in self.line)

    def _leave(self, place: tuple[str, tuple[str, str]]) -> None:
        if place in self.line:
            self.line.remove(place)

    async def acquire_async(self, pledge: Pledge, keep: float) -> Granted | Full:
        return self.acquire(pledge, keep)

    async def release_async(self, pledge: Pledge) -> bool:
        return self.release(pledge)

    async def look_async(self, pool: tuple[str, str]) -> tuple[int, int]:
        return self.look(pool)

    @property
    def held(self) -> int:
        """Permits out."""
        return self.look(("db", ""))[0]


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualTime]:
    """Virtual time that moves as soon as everybody waits, also where a thread takes long to get there."""
    monkeypatch.setattr(virtual, "PATIENCE", 10.0)
    with virtual_time() as moved:
        yield moved


@pytest.fixture
def desk(time: VirtualTime, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A store of its own; what is done beside the calls is no other test's either."""
    upkeep = Upkeep()
    for module in (lease, stored):
        monkeypatch.setattr(module, "upkeep", upkeep)
    yield Desk()
    for _, _, chore in list(upkeep._heap):
        chore.cancel()


def process(desk: Desk, size: int = 1, **options: Any) -> Limit:
    """The limit of the desk as one more process has it."""
    with registry.isolated():
        return limit(size, name="db", store=desk, **options)


def together(policy: Limit, mode: str, *bodies: Callable[[], Any]) -> list[Any]:
    """Run bodies under the policy, begun one after the other; gives what became of them."""
    if mode == "sync":
        return together_in_threads(policy, *bodies)

    async def one(body: Callable[[], Any]) -> Any:
        @policy
        async def call() -> Any:
            result = body()
            return await result if asyncio.iscoroutine(result) else result

        return await call()

    async def main() -> list[Any]:
        return await asyncio.gather(*map(one, bodies), return_exceptions=True)

    return asyncio.run(main())


def together_in_threads(policy: Limit, *bodies: Callable[[], Any]) -> list[Any]:
    """The same; time stands still until all of them wait or have ended."""
    outcomes: list[Any] = [None] * len(bodies)

    def run(at: int, body: Callable[[], Any]) -> None:
        try:
            outcomes[at] = policy(lambda: body())()
        except BaseException as error:
            outcomes[at] = error

    time = cast("VirtualTime", clock.installed())
    time._auto = False
    threads = [threading.Thread(target=run, args=each) for each in enumerate(bodies)]
    for thread in threads:
        thread.start()
        while thread.is_alive() and thread.ident not in time._parked:
            threading.Event().wait(0.001)
    time._auto = True
    for thread in threads:
        thread.join()
    return outcomes


def pause(mode: str, seconds: float) -> Callable[[], Any]:
    """A body that takes so long."""
    return lambda: sleep(seconds) if mode == "sync" else asleep(seconds)


@pytest.mark.parametrize("mode", MODES)
def test_closing_refuses_all_that_wait_the_first_in_line_too(desk: Desk, mode: str) -> None:
    """The first in line asks the store by itself; it does not get in either when the holder goes right after."""
    policy = process(desk)

    async def close_and_go() -> str:
        await asleep(1)
        policy.close()
        return "done"

    def close() -> str:
        sleep(1)
        policy.close()
        return "done"

    ran: list[int] = []
    outcomes = together(
        policy, mode, close if mode == "sync" else close_and_go, lambda: ran.append(1), lambda: ran.append(2)
    )
    assert outcomes[0] == "done"
    assert [(type(each), each.reason) for each in outcomes[1:]] == [(LimitFull, "closed")] * 2
    assert not ran
    with pytest.raises(LimitFull, match="closed"):
        policy.acquire()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cut", ["deadline", "cancelled"])
def test_a_wait_that_is_cut_off_is_told(desk: Desk, mode: str, cut: str) -> None:
    """Of the first in line, which asks the store, and of those behind it."""
    policy = process(desk)
    within: Any = deadline("2s", mode="cooperative") if cut == "deadline" else CancelToken.after("2s")
    with capture("WARNING") as events:
        if mode == "sync":
            with policy.acquire(), ThreadPoolExecutor(2) as pool:

                def wait() -> None:
                    with within:
                        policy.call(checkpoint)

                ends: list[Any] = [each.exception() for each in [pool.submit(wait), pool.submit(wait)]]
        else:

            async def wait_async() -> None:
                with within:
                    await policy.call(asleep, 0)

            async def main() -> list[Any]:
                async with policy:
                    tasks = [contextvars.Context().run(asyncio.create_task, wait_async()) for _ in range(2)]
                    return await asyncio.gather(*tasks, return_exceptions=True)

            ends = asyncio.run(main())
    assert [type(end) for end in ends] == [DeadlineExceeded if cut == "deadline" else Cancelled] * 2
    told = [(event.reason, event.wait) for event in events if event.name == "limit.rejected"]
    assert told == [(cut, pytest.approx(2, abs=0.1))] * 2


@pytest.mark.parametrize("mode", MODES)
def test_nobody_waits_with_max_queue_0(desk: Desk, mode: str) -> None:
    """Full is refused at once, whoever holds."""
    policy = process(desk, max_queue=0)
    outcomes = together(policy, mode, pause(mode, 1), lambda: "in")
    assert isinstance(outcomes[1], LimitFull)
    assert outcomes[1].reason == "queue_full"


@pytest.mark.parametrize("mode", MODES)
def test_max_queue_counts_the_one_that_asks_the_store(desk: Desk, mode: str) -> None:
    """With max_queue=1 one waits, and the next is refused; with nobody waiting there is room again."""
    policy = process(desk, max_queue=1)
    for _ in range(2):
        outcomes = together(policy, mode, pause(mode, 1), lambda: "in", lambda: "in too")
        assert outcomes[1] == "in"
        assert isinstance(outcomes[2], LimitFull)
        assert outcomes[2].reason == "queue_full"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize(
    ("size", "options", "expected"),
    [(1, {}, Deadlock), (2, {}, str), (1, {"max_wait": 0}, LimitFull), (1, {"max_queue": 0}, LimitFull)],
)
def test_taken_again_inside_itself(
    desk: Desk, mode: str, broken: bool, size: int, options: dict[str, Any], expected: type
) -> None:
    """Where the wait would never end, an error says so, also without the store; who would not wait is just refused."""
    policy = process(desk, size, **options)
    desk.broken = broken
    inner = policy(lambda: "in")

    @policy
    async def inner_async() -> str:
        return "in"

    (outcome,) = together(policy, mode, inner if mode == "sync" else inner_async)
    assert type(outcome) is expected
    desk.broken = False
    assert desk.held == 0
    assert policy.local_pools.snapshot(0.0).held == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["ended", "unreachable"])
def test_a_body_learns_that_its_lease_has_ended(desk: Desk, mode: str, how: str) -> None:
    """At its next wait or checkpoint; what it gives back then is not another's permit."""
    policy = process(desk)

    def lose() -> None:
        desk.loans.clear()
        if how == "unreachable":
            desk.broken = True
        else:
            assert isinstance(desk.acquire(Pledge("other", ("db", ""), 1, 1, 1000.0), 0.0), Granted)

    async def body_async() -> None:
        lose()
        await asleep(20)

    def body() -> None:
        lose()
        sleep(20)

    with capture() as events:
        (outcome,) = together(policy, mode, body if mode == "sync" else body_async)
    assert isinstance(outcome, Cancelled)
    assert "lease" in str(outcome)
    lost = [event for event in events if event.name == "limit.lost"]
    assert len(lost) == 1
    desk.broken = False
    assert list(desk.loans) == ([] if how == "unreachable" else ["other"])
    assert policy.snapshot().held == 0


def test_the_token_of_a_lease_ends_with_it(desk: Desk) -> None:
    """What follows is not cancelled by a lease that is not its own."""
    policy = process(desk)
    with policy:
        desk.loans.clear()
        with pytest.raises(Cancelled):
            sleep(20)
        with pytest.raises(Cancelled):
            checkpoint()
    checkpoint()


@pytest.mark.parametrize("mode", MODES)
def test_without_the_store_callers_wait_in_the_pool_of_this_process(desk: Desk, mode: str) -> None:
    """Each wait is told once, with the figures of that pool."""
    policy = process(desk)
    desk.broken = True
    with capture() as events:
        outcomes = together(policy, mode, pause(mode, 1), lambda: "second")
    assert outcomes[1] == "second"
    queued = [event for event in events if event.name == "limit.queued"]
    assert [(event.active, event.queued, event.limit) for event in queued] == [(1, 1, 1)]
    assert policy.local_pools.snapshot(0.0).held == 0


@pytest.mark.parametrize("broken", [False, True])
def test_a_block_left_where_its_context_cannot_be_seen(desk: Desk, broken: bool) -> None:
    """As fixtures of frameworks do, entered in one context and left in another: all its permits come back."""
    policy = process(desk, 3, weight=3)
    desk.broken = broken
    for _ in range(2):
        contextvars.Context().run(policy.__enter__)
        with pytest.raises(LimitFull):
            policy.acquire(timeout=0)
        policy.__exit__(None, None, None)
        assert policy.local_pools.snapshot(0.0).held == 0
        assert policy.snapshot().held == 0
    policy.__exit__(None, None, None)  # once too often: nothing is left to give back
    assert policy.local_pools.snapshot(0.0).held == 0


@pytest.mark.parametrize("broken", [False, True])
def test_a_coroutine_thrown_away_in_its_body_gives_its_permit_back(desk: Desk, broken: bool) -> None:
    """Its frame is closed outside every loop, where nothing can be awaited."""
    policy = process(desk)
    desk.broken = broken

    @policy
    async def body() -> None:
        await asyncio.Future()

    async def begin() -> Any:
        running = body()
        running.send(None)
        return running

    running = asyncio.run(begin())
    assert policy.local_pools.snapshot(0.0).held == broken
    running.close()
    del running
    gc.collect()
    desk.broken = False
    assert desk.held == 0
    assert policy.local_pools.snapshot(0.0).held == 0
    assert policy.snapshot().held == 0


def test_permits_taken_by_hand_are_given_back_in_any_order(desk: Desk) -> None:
    """Hand over hand, the call does not gather the tokens of leases that it has no more."""
    policy = process(desk, 3)

    @policy
    def work() -> None:
        held = policy.acquire()
        token = cast("Call", current.get()).token
        for _ in range(50):
            following = policy.acquire()
            held.release()
            held = following
        assert cast("Call", current.get()).token is token
        held.release()

    work()
    assert desk.held == 0


def test_a_lost_permit_cancels_no_more_once_it_is_given_back(desk: Desk) -> None:
    """Also where it was taken before one that the call keeps; of that one it still learns."""
    policy = process(desk, 3)

    def lose(owners: set[str]) -> None:
        for owner in owners:
            del desk.loans[owner]
        with pytest.raises(Cancelled):
            sleep(20)

    @policy
    def work() -> None:
        before = set(desk.loans)
        first = policy.acquire()
        mine = set(desk.loans) - before
        second = policy.acquire()
        others = set(desk.loans) - before - mine
        lose(mine)
        first.release()
        sleep(20)
        lose(others)
        second.release()
        sleep(20)

    work()
    assert desk.held == 0


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("changed", [{"max_queue": 5}, {"max_concurrent": 3}, {"key": "tenant"}])
def test_a_reload_does_not_open_a_closed_limit(desk: Desk, stored: bool, changed: dict[str, Any]) -> None:
    """Whatever it changes, in a store or not."""
    policy = process(desk) if stored else limit(1)
    policy.close()
    given = {"max_concurrent": 1, "store": desk if stored else None, **changed}
    with registry.isolated():
        policy.reconfigure(limit(name="db", **given).options)
    with pytest.raises(LimitFull, match="closed"):
        policy.acquire(key="a" if "key" in changed else None)


@pytest.mark.parametrize("mode", MODES)
def test_whoever_waits_is_seen(desk: Desk, mode: str) -> None:
    """The first in line, who asks the store, and those behind it; in the events as in the snapshot."""
    policy = process(desk)
    seen: list[tuple[int, int]] = []

    def look(body: Callable[[], Any]) -> Callable[[], Any]:
        def looking() -> Any:
            snapshot = policy.snapshot()
            seen.append((snapshot.held, snapshot.queued))
            return body()

        return looking

    with capture("INFO") as events:
        together(policy, mode, pause(mode, 1), *[look(pause(mode, 1))] * 3)
    assert seen == [(1, 2), (1, 1), (1, 0)]
    assert [event.queued for event in events if event.name == "limit.queued"] == [1, 2, 3]
    assert policy.snapshot().queued == 0


@pytest.mark.parametrize("changed", [{}, {"max_queue": 5}, {"max_wait": 90}])
def test_a_reload_keeps_who_holds_and_who_waits(desk: Desk, changed: dict[str, Any]) -> None:
    """One process goes on with one place in the queue of the store; and closing still reaches them."""
    policy = process(desk, max_queue=7)

    def body() -> tuple[int, int, float]:
        sleep(1)
        with registry.isolated():
            policy.reconfigure(limit(1, name="db", store=desk, **changed).options)
        snapshot = policy.snapshot()
        policy.close()
        return snapshot.held, snapshot.queued, snapshot.oldest_wait

    first, *others = together(policy, "sync", body, lambda: None, lambda: None)
    assert first == (1, 2, pytest.approx(1, abs=0.1))
    assert [type(each) for each in others] == [LimitFull, LimitFull]


def test_a_reload_lets_more_or_fewer_wait_and_in(desk: Desk) -> None:
    """At once, in the process that was reloaded."""
    policy = process(desk, max_queue=0)

    def reload(size: int, max_queue: int) -> None:
        with registry.isolated():
            policy.reconfigure(limit(size, name="db", store=desk, max_queue=max_queue).options)

    def body() -> None:
        with pytest.raises(LimitFull):
            policy.call(lambda: None)
        reload(1, 1)
        sleep(5)

    outcomes = together(policy, "sync", body, lambda: "waited", lambda: None)
    assert outcomes[1] == "waited"
    assert isinstance(outcomes[2], LimitFull)
    with policy.acquire():
        reload(2, 0)
        assert policy.call(lambda: "in") == "in"


def test_a_reload_that_takes_another_store_begins_anew_there(desk: Desk) -> None:
    """Who holds goes on in the store where the permit is from."""
    policy, other = process(desk), Desk()
    with policy.acquire():
        with registry.isolated():
            policy.reconfigure(limit(1, name="db", store=other).options)
        assert policy.snapshot().held == 0
        with policy.acquire():
            assert (desk.held, other.held) == (1, 1)
    assert (desk.held, other.held) == (0, 0)
