"""A circuit whose state lives in a store, over a store of this process that fails and answers as it is told to."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pybreaker
import pytest

from guarded import CircuitOpen, StoreError, circuit, deadline, registry
from guarded._core import clock
from guarded._core.virtual import VirtualTime
from guarded.policies._circuit.core import CircuitCore
from guarded.policies._circuit.terms import Outcome, Permit, Refusal, Rules, State
from guarded.policies.circuit import Circuit
from guarded.stores.contract.circuit import Admission, CircuitStore, Figures, Let, Settlement
from guarded.stores.health import Health
from guarded.stores.upkeep import upkeep
from guarded.testing import capture, force, virtual_time

MODES = ("sync", "async")


class Fleet:
    """What all processes share: the machine of one circuit, and switches that cut steps off.

    Attributes:
        broken: steps that fail.
        asked: steps that were made.
        before_answer: what an async step awaits when it has been made, before it answers.
    """

    name = "fake"

    def __init__(self) -> None:
        self.health = Health("fake", probe=0.001)
        self.circuits: CircuitStore = self
        self.broken: set[str] = set()
        self.asked: list[str] = []
        self.before_answer: Callable[[], Awaitable[object]] | None = None
        self._core: CircuitCore | None = None

    def _step(self, step: str, rules: Rules) -> tuple[CircuitCore, int]:
        self.asked.append(step)
        if step in self.broken:
            raise ConnectionError("no route to the store")
        self._core = self._core or CircuitCore(rules)
        return self._core, clock.monotonic_ns()

    def _changes(self) -> list[Any]:
        assert self._core is not None
        changes, self._core.changes = self._core.changes, []
        return changes

    def admit(self, name: str, rules: Rules) -> Admission:
        core, now = self._step("admit", rules)
        answer = core.admit(now)
        told = answer if isinstance(answer, Refusal) else Let(answer.generation, answer.serial)
        return Admission(told, core.state, core.generation, self._changes())

    def settle(self, name: str, rules: Rules, let: Let, outcome: Outcome, slow: bool) -> Settlement:
        core, now = self._step("settle", rules)
        took = rules.slow_ns or 0 if slow else 0
        verdict = core.settle(Permit(let.generation, now - took, let.serial), outcome, now)
        return Settlement(verdict, core.state, core.generation, self._changes())

    def answered(self, name: str, rules: Rules, let: Let) -> bool:
        core, now = self._step("answered", rules)
        permit = Permit(let.generation, now, let.serial)
        core.answered(permit, now)
        return permit.settled

    def move(self, name: str, rules: Rules, state: State | None) -> Settlement:
        core, now = self._step("move", rules)
        if state is None:
            core.restart(now)
        else:
            core.move(state, now, "by hand")
        return Settlement("counted", core.state, core.generation, self._changes())

    def look(self, name: str, rules: Rules) -> Figures:
        core, now = self._step("look", rules)
        age = now - core.changed_at
        return Figures(
            state=core.state,
            age=age if core.generation else -1,
            failures=core.failures,
            calls=0 if core.window is None else core.window.calls,
            failure_rate=core.rates()[0],
            slow_rate=core.rates()[1],
            trials=len(core.trials),
            successes=core.successes,
            opened_by=core.opening.failures,
            retry_ns=core.open_ns - age if core.state == "open" else None,
        )

    async def _later(self, step: Callable[[], Any]) -> Any:
        reply = step()
        if self.before_answer is not None:
            await self.before_answer()
        return reply

    async def admit_async(self, *given: Any) -> Admission:
        return self.admit(*given)

    async def settle_async(self, *given: Any) -> Any:
        return await self._later(lambda: self.settle(*given))

    async def answered_async(self, *given: Any) -> Any:
        return await self._later(lambda: self.answered(*given))


@pytest.fixture
def time() -> Iterator[VirtualTime]:
    """Virtual time that moves only when told to."""
    with virtual_time(auto=False) as moved:
        yield moved


@pytest.fixture
def fleet(time: VirtualTime) -> Fleet:
    """A store of its own."""
    return Fleet()


@pytest.fixture
def aside(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], bool]]:
    """What is to be done beside the calls, for the test to do."""
    found: list[Callable[[], bool]] = []
    monkeypatch.setattr(upkeep, "every", lambda interval, action: found.append(action))
    return found


def process(fleet: Fleet, **options: Any) -> Circuit:
    """The circuit of the fleet as one more process has it."""
    with registry.isolated():
        return circuit("gateway", store=fleet, **options)


def state_of(policy: Circuit) -> str:
    """The state as that process knows it."""
    return policy.state


def runner(policy: Circuit, mode: str, runs: Callable[[], object] = lambda: None) -> Callable[..., Any]:
    """A guarded function that calls `runs`, then raises what it is given or returns; async in a loop of its own."""

    def body(error: BaseException | None = None) -> str:
        runs()
        if error is not None:
            raise error
        return "fine"

    if mode == "sync":
        return policy(body)

    @policy
    async def body_async(error: BaseException | None = None) -> str:
        return body(error)

    return lambda error=None: asyncio.run(body_async(error))


def fail(run: Callable[..., Any], times: int = 1, error: type[BaseException] = ConnectionError) -> None:
    """Let `run` fail so often."""
    for _ in range(times):
        with pytest.raises(error):
            run(error())


class Recorder(pybreaker.CircuitBreakerListener):
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def before_call(self, cb: Any, func: Any, *args: Any, **kwargs: Any) -> None:
        self.heard.append("before")

    def failure(self, cb: Any, exc: BaseException) -> None:
        self.heard.append(type(exc).__name__)

    def success(self, cb: Any) -> None:
        self.heard.append("success")

    def state_change(self, cb: Any, old_state: Any, new_state: Any) -> None:
        self.heard.append((old_state.name, new_state.name, cb.current_state))


@pytest.mark.parametrize("mode", MODES)
def test_one_state_for_all_processes(fleet: Fleet, time: VirtualTime, mode: str) -> None:
    """Failures of two processes open it for a third; each change is told once, by whose call brought it about."""
    one, two, three = (process(fleet, failures=2, reset_after=10) for _ in range(3))
    with capture() as events:
        fail(runner(one, mode))
        fail(runner(two, mode))
        with pytest.raises(CircuitOpen, match="after 2 failures in a row; try again in 10s") as caught:
            runner(three, mode)()
        assert caught.value.__cause__ is None  # it has seen none of the failures
        with pytest.raises(CircuitOpen, match="2 failures in a row, the last with ConnectionError"):
            runner(two, mode)()
        assert [each.state for each in (one, two, three)] == ["closed", "open", "open"]  # as the store said last
        time.advance(10)
        assert runner(three, mode)() == "fine"
    changes = [event.name for event in events if event.layer == "circuit" and event.name != "circuit.rejected"]
    assert changes == ["circuit.opened", "circuit.half_opened", "circuit.closed"]


@pytest.mark.parametrize("mode", MODES)
def test_a_neutral_trial_gives_its_place_back(fleet: Fleet, time: VirtualTime, mode: str) -> None:
    """And of a neutral call without a place the store is told nothing."""
    policy = process(fleet, failures=1, reset_after=1, ignore=KeyError)
    run = runner(policy, mode)
    fail(run, error=KeyError)
    assert fleet.asked == ["admit"]
    fail(run)
    time.advance(1)
    fail(run, error=KeyError)
    assert state_of(policy) == "half-open"
    assert run() == "fine"
    assert state_of(policy) == "closed"


@pytest.mark.parametrize("mode", MODES)
def test_what_a_predicate_raises_comes_out_and_the_place_comes_back(fleet: Fleet, time: VirtualTime, mode: str) -> None:
    """As with a circuit of this process."""

    def on(error: Exception) -> bool:
        raise ZeroDivisionError

    policy = process(fleet, failures=1, reset_after=1, on=on)
    policy.breaker.half_open()
    with pytest.raises(ZeroDivisionError):
        runner(policy, mode)(KeyError())
    assert policy.snapshot().trials == 0


@pytest.mark.parametrize("mode", MODES)
def test_a_late_result_is_told_and_not_counted(fleet: Fleet, mode: str) -> None:
    """The circuit has changed while the call ran."""
    policy, other = process(fleet, failures=1), process(fleet, failures=1)
    with capture() as events:
        fail(runner(policy, mode, runs=lambda: other.reset()))
    assert state_of(policy) == "closed"
    assert [event.name for event in events if event.layer == "circuit"] == ["circuit.late"]


@pytest.mark.parametrize("mode", MODES)
def test_listeners_hear_this_process(fleet: Fleet, time: VirtualTime, mode: str) -> None:
    """Its calls and results, and the changes that its calls bring about; they see the state they are told."""
    policy = process(fleet, failures=1, reset_after=1)
    recorder = Recorder()
    policy.breaker.add_listener(recorder)
    run = runner(policy, mode)
    run()
    fail(run)
    time.advance(1)
    run()
    assert recorder.heard == [
        *("before", "success", "before", "ConnectionError", ("closed", "open", "open")),
        *(("open", "half-open", "half-open"), "before", "success", ("half-open", "closed", "closed")),
    ]


def test_the_register_shows_the_store(fleet: Fleet, time: VirtualTime) -> None:
    """State and counters, and not those of the circuit that waits in this process for the store to fail."""
    policy = process(fleet, failures=2, reset_after=10, half_open=2)
    breaker, run = policy.breaker, runner(policy, "sync")
    fail(run)
    assert (breaker.current_state, breaker.fail_counter) == ("closed", 1)
    assert breaker._state_storage.opened_at is None
    fail(run)
    time.advance(4)
    assert (breaker.current_state, breaker.fail_counter) == ("open", 2)
    assert breaker._state_storage.opened_at is not None
    assert breaker._state_storage.opened_at.timestamp() == pytest.approx(clock.wall() - 4, abs=0.01)
    time.advance(6)
    run()
    assert (breaker.current_state, breaker.success_counter) == ("half-open", 1)
    fleet.broken = {"look"}
    assert breaker.fail_counter == 0  # nobody to ask but this process, in which nothing has failed


def test_calls_through_the_register_count_in_the_store(fleet: Fleet, time: VirtualTime) -> None:
    """Those of pybreaker's own ``call``; of this process alone while the store is gone."""
    policy = process(fleet, failures=2, reset_after=1)
    with pytest.raises(ZeroDivisionError):
        policy.breaker.call(lambda: 1 / 0)
    with pytest.raises(pybreaker.CircuitBreakerError):
        policy.breaker.call(lambda: 1 / 0)
    assert process(fleet, failures=2).snapshot().state == "open"
    policy.breaker.half_open()
    assert policy.breaker.call(lambda: "fine") == "fine"
    assert state_of(policy) == "closed"
    for broken, counted in (({"settle"}, 0), ({"admit"}, 1)):
        fleet.broken = broken
        policy.local.count(failed=True)
        assert policy.local._core.failures == counted
        time.advance(1)
    fleet.broken = set()
    policy.isolate()
    policy.local.count(failed=True)  # refused: there was no call
    assert policy.snapshot().state == "isolated"


# Streams


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_is_slow_by_its_first_item(fleet: Fleet, time: VirtualTime, mode: str) -> None:
    """However long it goes on; a slow one is counted once, and at once when others come."""
    policy = process(fleet, failures=1, slow_call=2)
    waits = iter([1, 2])

    def first() -> None:
        time.advance(next(waits))

    if mode == "sync":

        @policy
        def items() -> Iterator[int]:
            first()
            yield 1
            time.advance(60)
            yield 2

        def run() -> list[int]:
            return list(items())
    else:

        @policy
        async def items_async() -> AsyncIterator[int]:
            first()
            yield 1
            time.advance(60)
            yield 2

        async def collect() -> list[int]:
            return [item async for item in items_async()]

        def run() -> list[int]:
            return asyncio.run(collect())

    assert run() == [1, 2]
    assert state_of(policy) == "closed"
    assert fleet.asked == ["admit", "answered", "settle"]
    assert run() == [1, 2]
    assert state_of(policy) == "open"


def test_a_stream_counted_as_slow_while_it_ran_is_not_counted_again(fleet: Fleet, time: VirtualTime) -> None:
    """Another call has noticed."""
    policy = process(fleet, failures=2, slow_call=1)
    other = runner(policy, "sync")

    @policy
    def items() -> Iterator[int]:
        time.advance(1)
        other()
        yield 1

    with capture() as events:
        assert list(items()) == [1]
    assert fleet.asked == ["admit", "admit", "settle", "answered"]
    assert [event for event in events if event.layer == "circuit"] == []


def test_a_stream_that_is_a_trial_keeps_its_place_to_the_end(fleet: Fleet, time: VirtualTime) -> None:
    """Its first item is no news to the store, even where the store could not be asked meanwhile."""
    policy = process(fleet, failures=1, slow_call=60, reset_after=1)
    run = runner(policy, "sync")
    fail(run)
    time.advance(1)

    @policy
    def items() -> Iterator[int]:
        fleet.broken = {"admit"}
        run()  # answered by this process
        fleet.broken = set()
        time.advance(1)
        yield 1

    assert list(items()) == [1]
    assert state_of(policy) == "closed"


def test_a_stream_cancelled_at_its_first_item_is_watched_no_more(fleet: Fleet) -> None:
    """Else the store would take it for one that is slow still."""
    policy = process(fleet, failures=1, slow_call=1)

    @policy
    async def items() -> AsyncIterator[int]:
        yield 1

    async def main() -> None:
        async def cancelled() -> None:
            fleet.before_answer = None
            raise asyncio.CancelledError

        fleet.before_answer = cancelled
        with pytest.raises(asyncio.CancelledError):
            await anext(items())

    asyncio.run(main())
    assert fleet._core is not None
    assert not fleet._core.running


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_let_through_by_this_process_is_counted_here(fleet: Fleet, mode: str) -> None:
    """While the store is gone."""
    policy = process(fleet, failures=1)
    fleet.broken = {"admit"}

    if mode == "sync":

        @policy
        def items() -> Iterator[int]:
            yield 1
            raise ConnectionError

        with pytest.raises(ConnectionError):
            list(items())
    else:

        @policy
        async def items_async() -> AsyncIterator[int]:
            yield 1
            raise ConnectionError

        async def collect() -> list[int]:
            return [item async for item in items_async()]

        with pytest.raises(ConnectionError):
            asyncio.run(collect())
    assert state_of(policy) == "open"
    assert set(fleet.asked) == {"admit"}


# The store is gone


@pytest.mark.parametrize("mode", MODES)
def test_what_decides_while_the_store_is_gone(fleet: Fleet, time: VirtualTime, mode: str) -> None:
    """This process by default, and then it is its state that is shown; or nobody; or there is no call."""
    local, opened, closed = (process(fleet, failures=1, when_store_fails=how) for how in ("local", "open", "closed"))
    run = runner(local, mode)
    run()
    fleet.broken = {"admit"}
    fail(run)
    assert state_of(local) == "open"
    with pytest.raises(CircuitOpen, match="after a failure with ConnectionError"):
        run()
    fail(runner(opened, mode), 3)
    with pytest.raises(StoreError, match="store 'fake' of circuit 'gateway' cannot be used"):
        runner(closed, mode)()
    fleet.broken = set()
    time.advance(1)
    assert run() == "fine"
    assert state_of(local) == "closed"


@pytest.mark.parametrize(("state", "met"), [("isolated", "isolated by hand"), ("open", "said so")])
def test_this_process_goes_on_from_what_the_store_said_last(fleet: Fleet, state: Any, met: str) -> None:
    """A circuit that somebody has isolated lets no calls through because the store has gone too; nobody is told."""
    policy = process(fleet)
    process(fleet).local.move(state)
    run = runner(policy, "sync")
    with pytest.raises(CircuitOpen):
        run()
    fleet.broken = {"admit"}
    with capture() as events, pytest.raises(CircuitOpen, match=met):
        run()
    assert [event.name for event in events] == ["store.failed", "circuit.rejected", "call.failed"]
    assert state_of(policy) == state


@pytest.mark.parametrize("mode", MODES)
def test_a_result_the_store_cannot_be_told_is_lost(fleet: Fleet, mode: str) -> None:
    """The caller has its own; the circuit hears of one failure less."""
    policy = process(fleet, failures=1)
    fleet.broken = {"settle"}
    fail(runner(policy, mode))
    assert state_of(policy) == "closed"


def test_nothing_is_enforced_in_shadow(fleet: Fleet) -> None:
    """What would be rejected runs, and is counted nowhere."""
    policy = process(fleet, failures=1, enforce=False)
    for mode in MODES:
        fail(runner(policy, mode), 2)
    assert state_of(policy) == "open"
    assert fleet.asked.count("settle") == 1


# Beside the calls


def test_who_has_no_time_left_does_not_wait_for_the_store(
    fleet: Fleet, time: VirtualTime, aside: list[Callable[[], bool]]
) -> None:
    """The length of the call is that at its end, however late the store hears of it."""
    policy = process(fleet, failures=1, slow_call=20)
    run = deadline(10, mode="cooperative")(runner(policy, "sync", runs=lambda: time.advance(10)))
    assert run() == "fine"

    @deadline(10)
    @policy
    async def work() -> str:
        time.advance(10)
        return "fine"

    assert asyncio.run(work()) == "fine"
    assert fleet.asked == ["admit", "admit"]
    time.advance(60)
    for action in aside:
        assert not action()
    assert fleet.asked[2:] == ["settle", "settle"]
    assert state_of(policy) == "closed"


def test_a_plain_function_on_an_event_loop_does_not_block_it_twice(
    fleet: Fleet, aside: list[Callable[[], bool]]
) -> None:
    """Nor does the end of a block: the store is told from another thread."""
    policy = process(fleet, failures=1)
    run = runner(policy, "sync")

    async def main() -> None:
        run()
        async with policy:
            pass
        with pytest.raises(ConnectionError):
            async with policy:
                raise ConnectionError

    asyncio.run(main())
    assert fleet.asked == ["admit"] * 3
    for action in aside:
        action()
    assert state_of(policy) == "open"


def test_a_coroutine_that_is_thrown_away_tells_the_store_aside(fleet: Fleet, aside: list[Callable[[], bool]]) -> None:
    """It can await nothing any more."""
    policy = process(fleet, failures=1)
    policy.breaker.half_open()

    @policy
    async def work() -> None:
        await asyncio.sleep(3600)

    async def main() -> None:
        coroutine = work()
        coroutine.send(None)
        coroutine.close()

    asyncio.run(main())
    assert policy.snapshot().trials == 1
    for action in aside:
        action()
    assert policy.snapshot().trials == 0


@pytest.mark.parametrize("slow_call", [None, 60])
def test_cancelled_while_the_store_is_told(
    fleet: Fleet, aside: list[Callable[[], bool]], slow_call: float | None
) -> None:
    """The store has heard it already: telling it again would count a failure twice, unless it knows the call."""
    policy = process(fleet, failures=2, slow_call=slow_call)

    @policy
    async def work() -> None:
        raise ConnectionError

    async def main() -> None:
        task = asyncio.ensure_future(work())

        async def cancelled() -> None:
            task.cancel()
            await asyncio.sleep(0)

        fleet.before_answer = cancelled
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert len(aside) == (slow_call is not None)
    for action in aside:
        action()
    assert policy.snapshot().failures == 1


# By hand


def test_acts_by_hand_are_for_all_and_told_once(fleet: Fleet) -> None:
    """Also those of a process that has made no call yet, and does not know the state."""
    with capture() as events:
        process(fleet).isolate()
        with pytest.raises(CircuitOpen, match="isolated by hand") as caught:
            runner(process(fleet), "sync")()
        assert caught.value.__cause__ is None
        process(fleet).breaker.close()
        process(fleet).disable()
        process(fleet).enable()
        assert process(fleet).snapshot().state == "closed"
        process(fleet).enable()
    moves = [event.name for event in events if event.name.startswith("circuit.") and event.name != "circuit.rejected"]
    assert moves == ["circuit.isolated", "circuit.closed"]
    assert fleet.asked.count("move") == 4


def test_an_act_that_the_store_does_not_hear_of_is_an_error(fleet: Fleet, time: VirtualTime) -> None:
    """It holds in this process while the store is gone, and says that it holds nowhere else."""
    policy = process(fleet)
    run = runner(policy, "sync")
    run()
    fleet.broken = {"admit", "move"}
    words = "circuit 'gateway' is isolated in this process only: store 'fake', .* cannot be told"
    with pytest.raises(StoreError, match=words):
        policy.isolate()
    assert state_of(policy) == "isolated"
    with pytest.raises(CircuitOpen):
        run()
    fleet.broken = set()
    time.advance(1)
    assert run() == "fine"
    assert state_of(policy) == "closed"


@pytest.mark.parametrize("mode", MODES)
def test_forced_this_process_decides_alone(fleet: Fleet, mode: str) -> None:
    """The fleet notices nothing, and after the block the store decides again."""
    policy, other = process(fleet, failures=1), process(fleet, failures=1)
    run = runner(policy, mode)
    fail(runner(other, "sync"))
    asked = len(fleet.asked)
    with force(policy, "closed"):
        assert run() == "fine"
        fail(run)
        with pytest.raises(CircuitOpen):
            run()
        policy.isolate()
        assert (policy.state, policy.snapshot().state) == ("isolated", "isolated")
        assert policy.breaker.fail_counter == 0
        policy.local.count(failed=True)
    assert len(fleet.asked) == asked
    with pytest.raises(CircuitOpen):
        run()
    other.reset()
    assert run() == "fine"
    with force(policy, "open"), pytest.raises(CircuitOpen):
        run()
    assert runner(other, mode)() == "fine"


def test_the_register_goes_along_into_another_store(fleet: Fleet) -> None:
    """Listeners hear the circuit that has taken the place of theirs, and their breaker acts on it."""
    policy = circuit("gateway", failures=1)
    recorder = Recorder()
    breaker = policy.breaker
    breaker.add_listener(recorder)
    policy.reconfigure(process(fleet, failures=1).options)
    assert policy.breaker is breaker
    fail(runner(policy, "sync"))
    assert recorder.heard == ["before", "ConnectionError", ("closed", "open", "open")]
    breaker.close()
    assert process(fleet, failures=1).snapshot().state == "closed"


# What is kept


def test_a_closed_circuit_keeps_no_failure_alive(fleet: Fleet) -> None:
    """An exception keeps the frames it went through."""
    policy = process(fleet, failures=2)
    run = runner(policy, "sync")

    class Failure(Exception):
        """Of a class that can be referred to weakly."""

    error = Failure()
    kept = weakref.ref(error)
    with pytest.raises(Failure):
        run(error)
    del error
    run()
    gc.collect()
    assert kept() is None


def test_failures_met_while_handling_rejections_do_not_chain_up(fleet: Fleet, time: VirtualTime) -> None:
    """A fallback that fails with the circuit's own dependency would keep every failure ever since."""
    policy = process(fleet, failures=1, reset_after=1)
    run = runner(policy, "sync")
    fail(run)
    for _ in range(5):
        try:
            run()
        except CircuitOpen:
            time.advance(1)
            fail(run)
    with pytest.raises(CircuitOpen) as caught:
        run()
    depth, link = 0, caught.value.__cause__
    while link is not None:
        depth, link = depth + 1, link.__cause__ or link.__context__
    assert depth <= 2


def test_an_answer_overtaken_by_another_is_not_the_state(fleet: Fleet) -> None:
    """Answers to several threads come in any order."""
    policy = process(fleet, failures=1)
    fail(runner(policy, "sync"))
    policy.local._heard_of(None, Settlement("counted", "closed", 0, []))  # type: ignore[attr-defined]
    assert state_of(policy) == "open"
