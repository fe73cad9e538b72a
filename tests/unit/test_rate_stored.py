"""A rate whose budget lives in a store, over a store of this process that fails and answers as it is told to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from guarded import Cancelled, CancelToken, RateExceeded, StoreError, asleep, limit, rate, registry, sleep
from guarded._core import clock, virtual
from guarded._core.virtual import VirtualTime
from guarded.policies._rate.lines import Lines, Refusal
from guarded.policies._rate.meters import make_meter
from guarded.policies.rate import Rate
from guarded.stores.contract.rate import Booked, Budget, Passed, RateRule, RateStore, Refused
from guarded.stores.health import Health
from guarded.testing import capture, virtual_time

MODES = ("sync", "async")


class Desk:
    """Counts for all processes there might be.

    Attributes:
        broken: steps that fail.
    """

    name = "desk"

    def __init__(self) -> None:
        self.health = Health("desk", probe=0.001)
        self.rates: RateStore = self
        self.broken: set[str] = set()
        self._lines: Lines | None = None
        self._tickets: dict[str, Any] = {}

    def _step(self, step: str, rule: RateRule) -> Lines:
        if step in self.broken or "all" in self.broken:
            raise ConnectionError("no route to the store")
        self._lines = self._lines or Lines(partial(make_meter, rule.algorithm, rule.quotas, rule.burst), keyed=False)
        return self._lines

    def take(self, rule: RateRule, budget: Budget, cost: int, patience: float) -> Passed | Booked | Refused:
        lines = self._step("take", rule)
        ticket = lines.begin(None, cost, None, patience, float("inf"))
        if isinstance(ticket, Refusal):
            return Refused(ticket.retry_after)
        mark = str(len(self._tickets))
        self._tickets[mark] = ticket
        return Passed(mark) if ticket.done else Booked(mark, lines.due(ticket)[1])

    def confirm(self, rule: RateRule, budget: Budget, cost: int, mark: str) -> Passed | Booked:
        delay = self._step("confirm", rule).due(self._tickets[mark])[1]
        return Booked(mark, delay) if delay > 0 else Passed(mark)

    def correct(self, rule: RateRule, budget: Budget, mark: str, cost: int, units: int) -> None:
        lines, ticket = self._step("correct", rule), self._tickets.get(mark)
        if ticket is not None and ticket.mark is None:
            lines.withdraw(ticket)
        else:
            lines.correct(None, ticket and ticket.mark, units)

    def look(self, rule: RateRule, budget: Budget, cost: int) -> tuple[int, float]:
        free, delay, _ = self._step("look", rule).look(None, cost)
        return free, delay

    def pause(self, rule: RateRule, rate: str, seconds: float) -> None:
        self._step("pause", rule).pause(seconds)

    async def take_async(self, *given: Any) -> Passed | Booked | Refused:
        return self.take(*given)

    async def confirm_async(self, *given: Any) -> Passed | Booked:
        return self.confirm(*given)

    async def correct_async(self, *given: Any) -> None:
        self.correct(*given)

    async def look_async(self, *given: Any) -> tuple[int, float]:
        return self.look(*given)

    async def pause_async(self, *given: Any) -> None:
        self.pause(*given)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualTime]:
    """Virtual time that moves as soon as everybody waits, also where a thread takes long to get there."""
    monkeypatch.setattr(virtual, "PATIENCE", 10.0)
    with virtual_time() as moved:
        yield moved


@pytest.fixture
def desk(time: VirtualTime) -> Desk:
    """A store of its own."""
    return Desk()


def process(desk: Desk, spec: str = "1/10s", **options: Any) -> Rate:
    """The rate of the desk as one more process has it."""
    with registry.isolated():
        return rate(spec, name="api", store=desk, **options)


def under(policies: list[Any], mode: str) -> Callable[[], float]:
    """Something that tells when it ran, under these policies, outermost first."""

    def body() -> float:
        return clock.monotonic() - 1000.0

    async def body_async() -> float:
        return body()

    call: Any = body if mode == "sync" else body_async
    for policy in reversed(policies):
        call = policy(call)
    return call if mode == "sync" else lambda: asyncio.run(call())


@contextmanager
def meanwhile(seconds: float, act: Callable[[], object]) -> Iterator[None]:
    """Do something in another thread once so much time has passed."""

    def later() -> None:
        sleep(seconds)
        act()

    thread = threading.Thread(target=later)
    thread.start()
    yield
    thread.join()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("turns", [False, True], ids=["alone", "in a limit"])
def test_a_due_time_that_moves_while_it_is_waited_for(desk: Desk, mode: str, turns: bool) -> None:
    """Another process pauses the rate: the caller sleeps on, and the wait is told once."""
    policy, other = process(desk), process(desk)
    call = under([limit(1), policy] if turns else [policy], mode)
    call()
    with capture() as events, meanwhile(2, lambda: other.pause(13)):
        assert call() == 15.0
    assert [event.delay for event in events if event.name == "rate.delayed"] == [10.0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("turns", [False, True], ids=["alone", "in a limit"])
def test_a_due_time_that_moves_past_what_the_caller_has(desk: Desk, mode: str, turns: bool) -> None:
    """It is refused, and what was booked for it is free for others."""
    policy, other = process(desk, max_wait=12), process(desk)
    call = under([limit(1), policy] if turns else [policy], mode)
    call()
    with meanwhile(2, lambda: other.pause(13)), pytest.raises(RateExceeded) as caught:
        call()
    assert caught.value.retry_after == 5.0
    sleep(5)
    assert other.try_acquire()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("turns", [False, True], ids=["alone", "in a limit"])
@pytest.mark.parametrize("when_store_fails", ["local", "open", "closed"])
@pytest.mark.parametrize("at", ["take", "confirm"])
def test_a_store_that_fails(desk: Desk, mode: str, turns: bool, when_store_fails: str, at: str) -> None:
    """At the first question, or while a caller waits for its due time."""
    policy = process(desk, when_store_fails=when_store_fails)
    call = under([limit(1), policy] if turns else [policy], mode)
    before = [call()] if at == "confirm" else []
    desk.broken = {at}
    if when_store_fails == "closed":
        with pytest.raises(StoreError):
            call()
        return
    times = [*before, call(), call()]
    if when_store_fails == "local":
        assert times == ([0.0, 10.0] if at == "take" else [0.0, 10.0, 20.0])
    else:
        assert times == ([0.0, 0.0] if at == "take" else [0.0, 10.0, 10.0])


@pytest.mark.parametrize("mode", MODES)
def test_a_store_that_is_back_while_a_caller_waits_without_it(desk: Desk, mode: str) -> None:
    """It goes on in the line of this process where it stands, and its permit was free meanwhile."""
    permits, policy = limit(1), process(desk)
    call = under([permits, policy], mode)
    desk.broken = {"all"}
    assert call() == 0.0

    def recover() -> None:
        held.append(permits.snapshot().held)
        desk.broken.clear()

    held: list[int] = []
    with meanwhile(2, recover):
        assert call() == 10.0
    assert held == [0]


@pytest.mark.parametrize("mode", MODES)
def test_what_is_booked_is_free_for_others_while_the_permit_is_waited_for(desk: Desk, mode: str) -> None:
    """Its due time has come, but the limit is full: another process may have the unit, and it books anew."""
    permits, policy, other = limit(1), process(desk), process(desk)
    call = under([permits, policy], mode)
    call()

    def hold() -> None:
        with permits:
            sleep(10)  # over the due time at 10
            passed.append(other.try_acquire())

    passed: list[bool] = []
    with meanwhile(5, hold):
        assert call() == 25.0
    assert passed == [True]


@pytest.mark.parametrize("mode", MODES)
def test_a_caller_that_gives_up_frees_what_was_booked(desk: Desk, mode: str) -> None:
    """For those who come after it."""
    policy = process(desk)
    call = under([limit(1), policy], mode)
    call()
    token = CancelToken.after("3s")
    with token, pytest.raises(Cancelled):
        call()
    eventually(lambda: policy.peek().delay == 7.0)


def eventually(holds: Callable[[], bool]) -> None:
    """The thread that talks to the store beside the calls does it in its own time."""
    for _ in range(200):
        if holds():
            return
        threading.Event().wait(0.005)
    assert holds()


def test_looking_without_the_store(desk: Desk) -> None:
    """Peek and try_acquire go by the lines of this process, or by nothing."""
    local, free = process(desk), process(desk, when_store_fails="open")
    desk.broken = {"all"}
    assert local.peek().free == 1
    assert [local.try_acquire(), local.try_acquire()] == [True, False]
    assert local.peek().delay == 10.0
    assert [free.try_acquire(), free.try_acquire()] == [True, True]


def test_corrections_from_async_code_do_not_hold_up_the_loop(desk: Desk) -> None:
    """They are made beside it; so is a pause."""
    policy = process(desk, "3/10s")

    async def main() -> None:
        admission = await policy.acquire_async()
        admission.refund()
        policy.pause(4)
        await asleep(0.5)

    asyncio.run(main())
    eventually(lambda: policy.peek().delay == 3.5)
    sleep(4)
    assert policy.peek().free == 3


@pytest.mark.parametrize("mode", MODES)
def test_the_store_refuses_by_what_the_caller_would_wait(desk: Desk, mode: str) -> None:
    """It decides, and nothing stays booked."""
    policy = process(desk, max_wait=3)
    call = under([policy], mode)
    call()
    with pytest.raises(RateExceeded) as caught:
        call()
    assert caught.value.retry_after == 10.0
    assert policy.peek().delay == 10.0


@pytest.mark.parametrize("algorithm", ["sliding", "gcra"])
def test_corrections_of_what_was_counted_elsewhere(desk: Desk, algorithm: Any) -> None:
    """Nothing was counted while the store was away, and what a store has counted is no business of what follows it."""
    policy = process(desk, "3/10s", when_store_fails="open", algorithm=algorithm)
    desk.broken = {"all"}
    uncounted = policy.acquire()
    desk.broken = set()
    sleep(1)
    stored = policy.acquire(2)
    uncounted.refund()
    assert policy.peek().free == 1
    policy.reconfigure(rate("3/10s", algorithm=algorithm).options)
    local = policy.acquire(2)
    stored.settle(1)
    uncounted.settle(3)
    assert policy.peek().free == 1
    local.refund()
    assert policy.peek().free == 3
