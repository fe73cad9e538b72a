"""hedge: another copy of a slow call; the first success wins and nobody is left behind."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import guarded
from guarded import Cancelled, CancelToken, DeadlineExceeded, GuardWarning, RetryBudget, deadline, hedge
from guarded._core.call import Call, current
from guarded._core.workers import workers
from guarded.policies._hedge.core import RESERVOIR, Latencies, Race, quantile_of, read_after
from guarded.policies._hedge.race import adopt
from guarded.policies.hedge import HedgeOptions
from guarded.testing import capture, virtual_time

# The core


def test_a_percentile_needs_enough_latencies() -> None:
    """Twenty for p95, a hundred for p99: with fewer there is no such rank."""
    latencies = Latencies()
    for number in range(1, 101):
        assert (latencies.quantile(0.95) is None) == (number <= 20)
        assert latencies.quantile(0.99) is None
        latencies.observe(number)
    assert latencies.quantile(0.99) == 99


def test_percentiles_are_nearest_ranks_of_the_latest() -> None:
    """Old latencies fall out of the reservoir."""
    latencies = Latencies()
    for _ in range(RESERVOIR):
        latencies.observe(100.0)
    for number in range(1, RESERVOIR + 1):
        latencies.observe(number)
    assert [latencies.quantile(q) for q in (0.5, 0.9, 0.95, 0.999)] == [500, 900, 950, 999]
    assert len(latencies) == RESERVOIR


def test_a_percentile_is_taken_anew_after_a_few_observations() -> None:
    """Sorting for every call would cost more than it tells."""
    latencies = Latencies()
    for _ in range(20):
        latencies.observe(1.0)
    assert latencies.quantile(0.5) == 1.0
    for _ in range(30):
        latencies.observe(9.0)
    assert latencies.quantile(0.5) == 9.0


def test_a_percentile_is_at_most_16_observations_old() -> None:
    """The sixteenth makes it anew, and those before it do not."""
    latencies = Latencies()
    for _ in range(20):
        latencies.observe(1.0)
    for slow in (9.0, 99.0):
        before = latencies.quantile(0.9)
        for _ in range(15):
            latencies.observe(slow)
        assert latencies.quantile(0.9) == before
        latencies.observe(slow)
        assert latencies.quantile(0.9) == slow


def test_copies_start_one_after_the_other() -> None:
    """Each `after` the one before; then none."""
    race = Race(2.0, 2)
    assert race.due == float("-inf")
    assert (race.start(10.0), race.due, race.why) == (0, 12.0, "slow")
    assert (race.start(12.5), race.due) == (1, 14.5)
    assert (race.start(14.5), race.due) == (2, float("inf"))


def test_a_failure_lets_the_next_copy_start_at_once() -> None:
    """And makes none up when all have started."""
    race = Race(2.0, 1)
    race.start(10.0)
    race.fail(10.5)
    assert (race.due, race.why) == (10.5, "failed")
    race.start(10.5)
    race.fail(11.0)
    assert race.due == float("inf")


def test_a_stopped_race_starts_no_more() -> None:
    """Not even after a failure."""
    race = Race(1.0, 5)
    race.start(0.0)
    race.stop()
    race.fail(0.5)
    assert race.due == float("inf")


@pytest.mark.parametrize("good", ["p50", "p95", "p99.9", 0, 0.2, "200ms"])
def test_after_is_a_percentile_or_a_duration(good: Any) -> None:
    """Read as given, or as seconds."""
    assert read_after(good) in (good, 0.2)


@pytest.mark.parametrize("bad", ["p", "p0", "p100", "p99.99", "95", "pfoo", -1, float("nan"), None, True])
def test_what_is_no_delay_is_refused(bad: Any) -> None:
    """The message names the option."""
    with pytest.raises(ValueError, match="after="):
        read_after(bad)


def test_bad_options_are_all_named() -> None:
    """One ValueError."""
    with pytest.raises(ValueError) as caught:
        hedge(-1, max_hedges=0, budget=3, idempotent=1)  # type: ignore[arg-type]
    for option in ("after=-1", "max_hedges=0", "budget=3", "idempotent=1"):
        assert option in str(caught.value)
    assert quantile_of("p95") == 0.95


# What may be hedged


def test_an_undeclared_stack_is_refused_at_the_first_call() -> None:
    """Not earlier, since an outer @idempotent comes after; the message says what to do."""
    calls: list[int] = []
    function = hedge(0)(lambda: calls.append(1))
    with pytest.raises(TypeError, match=r"hedge\(idempotent=True\)"):
        function()

    async def body() -> None:
        calls.append(1)

    with pytest.raises(TypeError, match="@idempotent"):
        asyncio.run(hedge(0)(body)())
    assert calls == []


def test_generators_are_refused_at_decoration() -> None:
    """The items of two copies cannot be told apart."""

    def pages() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="generator"):
        hedge(idempotent=True)(pages)


def test_one_shot_arguments_are_not_hedged() -> None:
    """The second copy would find the iterator empty."""
    runs: list[list[int]] = []

    @hedge(0, idempotent=True)
    def body(rows: Iterator[int]) -> None:
        runs.append(list(rows))

    @hedge(0, idempotent=True)
    async def body_async(rows: Iterator[int]) -> None:
        await asyncio.sleep(0)
        runs.append(list(rows))

    body(iter([1, 2]))
    asyncio.run(body_async(iter([3])))
    assert runs == [[1, 2], [3]]


def test_nothing_is_hedged_before_there_are_latencies() -> None:
    """A percentile of few calls says nothing: they run in the caller's own thread and task."""
    threads: list[int] = []

    @hedge("p95", idempotent=True)
    def body() -> None:
        threads.append(threading.get_ident())

    for _ in range(20):
        body()
    assert set(threads) == {threading.get_ident()}
    body()
    assert threads[-1] != threading.get_ident()


# Async


class Copies:
    """An async body whose copies each do what their number says; keeps what became of them."""

    def __init__(self, *steps: Callable[[], Any]) -> None:
        self.steps = list(steps)
        self.started = 0
        self.cancelled: list[int] = []
        self.elapsed = 0.0

    async def __call__(self) -> Any:
        number = self.started
        self.started += 1
        try:
            return await self.steps[number]()
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise


async def hang() -> None:
    """Never ends by itself."""
    await asyncio.get_running_loop().create_future()


def slow(seconds: float, result: object) -> Callable[[], Any]:
    """Takes `seconds` of virtual time."""

    async def step() -> object:
        await guarded.asleep(seconds)
        return result

    return step


def fails(error: BaseException) -> Callable[[], Any]:
    """Fails at once."""

    async def step() -> None:
        raise error

    return step


def run(copies: Copies, *policies: Any) -> Any:
    """Call the copies under policies, innermost first, in virtual time; no task may be left."""

    async def main() -> Any:
        async def body() -> Any:
            return await copies()

        function: Any = body
        for policy in policies:
            function = policy(function)
        try:
            return await function()
        finally:
            assert asyncio.all_tasks() == {asyncio.current_task()}

    with virtual_time() as time:
        started = time.monotonic()
        try:
            return asyncio.run(main())
        finally:
            copies.elapsed = time.monotonic() - started


def test_a_quick_call_has_no_second_copy() -> None:
    """Nothing is launched before `after`."""
    copies = Copies(slow(0.1, "quick"))
    with capture("INFO") as events:
        assert run(copies, hedge(1, idempotent=True)) == "quick"
    assert (copies.started, events) == (1, [])


def test_the_second_copy_wins_and_the_first_is_cancelled() -> None:
    """The loser is cancelled and awaited before the answer is given."""
    copies = Copies(hang, slow(0.1, "second"))
    with capture("INFO") as events:
        assert run(copies, hedge(1, idempotent=True)) == "second"
    assert copies.cancelled == [0]
    assert [(event.name, event.reason) for event in events] == [("hedge.launched", "slow"), ("hedge.won", None)]
    assert events[0].delay == pytest.approx(1)
    assert events[1].duration == pytest.approx(1.1)


def test_the_first_copy_may_still_win() -> None:
    """The first success counts, whoever has it; that is no hedge.won."""
    copies = Copies(slow(1.5, "first"), hang)
    with capture("INFO") as events:
        assert run(copies, hedge(1, idempotent=True)) == "first"
    assert copies.cancelled == [1]
    assert [event.name for event in events] == ["hedge.launched"]


def test_a_fast_failure_starts_the_next_copy_at_once() -> None:
    """It does not wait for `after`, and the failure is forgotten."""
    copies = Copies(fails(ConnectionError("down")), slow(0, "second"))
    with capture("INFO") as events:
        assert run(copies, hedge(100, idempotent=True)) == "second"
    assert copies.elapsed == 0
    assert (events[0].reason, str(events[0].cause)) == ("failed", "ConnectionError: down")


def test_a_failure_while_another_copy_runs_is_waited_out() -> None:
    """First *success*, not first end."""
    copies = Copies(slow(3, "first"), fails(ConnectionError()))
    assert run(copies, hedge(1, idempotent=True)) == "first"


def test_all_failing_raises_the_first_error_with_the_others_as_notes() -> None:
    """The same object, with a clean chain."""
    first = ConnectionError("one")
    copies = Copies(fails(first), fails(ValueError("two")), fails(KeyError("three")))
    with pytest.raises(ConnectionError) as caught:
        run(copies, hedge(1, max_hedges=2, idempotent=True))
    assert caught.value is first
    assert first.__context__ is None
    assert [note.partition(": ")[2] for note in first.__notes__] == ["ValueError: two", "KeyError: 'three'"]


def test_max_hedges_bounds_the_copies() -> None:
    """One after the other, each `after` the one before."""
    copies = Copies(hang, hang, slow(1, "third"))
    assert run(copies, hedge(2, max_hedges=2, idempotent=True)) == "third"
    assert (copies.started, sorted(copies.cancelled)) == (3, [0, 1])
    assert copies.elapsed == pytest.approx(5)


@pytest.mark.parametrize("is_async", [True, False])
def test_no_copy_starts_when_the_time_is_up(is_async: bool) -> None:
    """A copy that fails because of the deadline around the hedge is not followed by one that cannot end in time."""
    started: list[float] = []

    def body() -> None:
        started.append(time.monotonic())
        time.advance(1)
        guarded.checkpoint()

    async def async_body() -> None:
        body()

    policy = hedge(5, idempotent=True)
    with virtual_time() as time, capture() as events, pytest.raises(DeadlineExceeded):
        if is_async:
            asyncio.run(deadline(1)(policy(async_body))())
        else:
            deadline(1, mode="cooperative")(policy(body))()
    assert len(started) == 1
    assert "hedge.launched" not in [event.name for event in events]


def test_the_budget_bounds_the_share_of_copies() -> None:
    """Spent: the call goes on without another copy."""
    budget = RetryBudget(0, 0.1)
    policy = hedge(1, budget=budget, idempotent=True)
    first, second = Copies(hang, slow(0, 1)), Copies(slow(5, 2))

    async def main() -> tuple[Any, Any]:
        @policy
        async def body(copies: Copies) -> Any:
            return await copies()

        return await body(first), await body(second)

    with virtual_time():
        assert asyncio.run(main()) == (1, 2)
        assert budget.live_state() == {"calls": 2, "retries": 1, "balance": 0}
    assert (first.started, second.started) == (2, 1)


def test_cancelling_the_caller_cancels_all_copies() -> None:
    """They are awaited, and the cancellation comes out."""
    copies = Copies(hang, hang)

    async def main() -> None:
        @hedge(0, idempotent=True)
        async def body() -> Any:
            return await copies()

        task = asyncio.create_task(body())
        while copies.started < 2:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert sorted(copies.cancelled) == [0, 1]


def test_a_second_cancellation_ends_the_wait_for_a_stubborn_loser() -> None:
    """Its error is retrieved all the same: nothing is ever reported as never retrieved."""
    release = asyncio.Event()
    complaints: list[dict[str, Any]] = []

    async def stubborn() -> None:
        try:
            await hang()
        except asyncio.CancelledError:
            await release.wait()
            raise ConnectionError("late") from None

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        body = hedge(0, idempotent=True)(stubborn)
        task = asyncio.create_task(body())
        for _ in range(5):
            await asyncio.sleep(0)
        for _ in range(2):
            task.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
        assert task.done()
        release.set()
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert complaints == []


def test_the_deadline_cuts_all_copies() -> None:
    """It is one for all of them, and the caller sees it as such."""
    copies = Copies(hang, hang)
    with pytest.raises(DeadlineExceeded):
        run(copies, hedge(1, idempotent=True), deadline("5s"))
    assert sorted(copies.cancelled) == [0, 1]


def test_control_flow_of_a_copy_goes_to_the_caller() -> None:
    """No other copy is started for it."""
    copies = Copies(fails(asyncio.CancelledError()), hang)
    with pytest.raises(asyncio.CancelledError):
        run(copies, hedge(1, idempotent=True))
    assert copies.started == 1


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def test_context_variables_of_the_winner_stay_visible() -> None:
    """As if it had run in place; those of the losers do not, and the body sees the caller's."""

    async def loses() -> None:
        variable.set("loser")
        await hang()

    async def wins() -> str:
        seen = variable.get()
        variable.set("winner")
        return seen

    async def main() -> tuple[str, str]:
        variable.set("caller")
        copies = Copies(loses, wins)

        @hedge(0, idempotent=True)
        async def body() -> Any:
            return await copies()

        return await body(), variable.get()

    assert asyncio.run(main()) == ("caller", "winner")


def test_the_call_a_winner_ran_under_is_not_given_back() -> None:
    """The caller's own call stays the current one."""

    def scenario() -> tuple[str, Call | None]:
        context = contextvars.copy_context()
        context.run(current.set, Call())
        context.run(variable.set, "winner")
        adopt(context)
        return variable.get(), current.get()

    assert contextvars.copy_context().run(scenario) == ("winner", None)


def test_every_copy_takes_its_own_permits_below() -> None:
    """The layers inside run once per copy."""
    seen: list[int] = []
    copies = Copies(hang, slow(0, 1))

    async def main() -> None:
        @hedge(0, idempotent=True)
        @guarded.retry(retries=0)
        async def body() -> Any:
            seen.append(guarded.attempt())
            return await copies()

        await body()

    asyncio.run(main())
    assert seen == [1, 1]


def test_latencies_of_cut_losers_count_with_the_time_they_had() -> None:
    """Else every hedge that wins would make the next one start earlier."""
    policy = hedge(2, idempotent=True, name="observed")
    run(Copies(hang, slow(1, "second")), policy)
    assert sorted(policy._latencies._ring) == pytest.approx([1, 3])
    assert policy.live_state() == {"after": 2.0, "observed": 2}


# Sync


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What hung bodies wait for; opened at the end, so that their threads end."""
    event = threading.Event()
    yield event
    event.set()
    for _ in range(1000):
        if workers.abandoned == 0:
            return
        threading.Event().wait(0.002)
    raise AssertionError("an abandoned worker did not come back")


class ThreadCopies:
    """A plain body whose copies each do what their number says."""

    def __init__(self, *steps: Callable[[], Any]) -> None:
        self.steps = list(steps)
        self._lock = threading.Lock()
        self.started = 0

    def __call__(self) -> Any:
        with self._lock:
            number = self.started
            self.started += 1
        return self.steps[number]()


def failing(error: BaseException) -> Callable[[], Any]:
    """Fails at once."""

    def step() -> None:
        raise error

    return step


def test_a_second_thread_wins_over_a_hung_one(gate: threading.Event) -> None:
    """The caller goes on; the loser's worker is counted until it comes back."""
    copies = ThreadCopies(gate.wait, lambda: "second")
    with virtual_time(), capture("INFO") as events:
        assert hedge(1, idempotent=True)(copies)() == "second"
    assert workers.abandoned == 1
    assert [event.name for event in events] == ["hedge.launched", "hedge.won"]


def test_a_loser_that_ends_late_counts_once(gate: threading.Event) -> None:
    """With the time it had run when it lost."""
    policy = hedge(0, idempotent=True)
    ended = threading.Event()

    def loser() -> None:
        gate.wait()
        ended.set()

    assert policy(ThreadCopies(loser, lambda: 2))() == 2
    gate.set()
    assert ended.wait(5)
    while workers.abandoned:
        threading.Event().wait(0.001)
    assert policy.live_state()["observed"] == 2


def test_a_losers_waits_end_as_cancelled(gate: threading.Event) -> None:
    """It cannot be interrupted, but it can notice."""
    noticed: list[str] = []
    noted = threading.Event()

    def loser() -> None:
        gate.wait()
        try:
            guarded.checkpoint()
        except Cancelled as error:
            noticed.append(str(error))
        noted.set()

    assert hedge(0, idempotent=True)(ThreadCopies(loser, lambda: 2))() == 2
    gate.set()
    assert noted.wait(5)
    assert "nobody waits" in noticed[0]


def test_a_fast_failure_in_a_thread_starts_the_next() -> None:
    """Like in async code."""
    assert hedge(100, idempotent=True)(ThreadCopies(failing(ConnectionError()), lambda: 2))() == 2


def test_the_budget_bounds_threads_too() -> None:
    """Spent: the failure of the only copy comes out."""
    budget = RetryBudget(0, 0.1)
    policy = hedge(100, budget=budget, idempotent=True)
    assert policy(ThreadCopies(failing(ConnectionError()), lambda: 2))() == 2
    copies = ThreadCopies(failing(ConnectionError()), lambda: 2)
    with pytest.raises(ConnectionError):
        policy(copies)()
    assert copies.started == 1


def test_all_threads_failing_raises_the_first_error() -> None:
    """With the others as notes, once, also when one instance is raised each time."""
    first, second = ConnectionError("one"), ValueError("two")
    policy = hedge(100, idempotent=True)
    for _ in range(2):
        with pytest.raises(ConnectionError) as caught:
            policy(ThreadCopies(failing(first), failing(second)))()
    assert caught.value is first
    assert first.__notes__ == ["another copy of the call failed too: ValueError: two"]
    assert first.__context__ is None


def test_control_flow_in_a_thread_goes_to_the_caller() -> None:
    """SystemExit is no failure to hedge."""
    copies = ThreadCopies(failing(SystemExit(3)), lambda: 2)
    with pytest.raises(SystemExit):
        hedge(100, idempotent=True)(copies)()
    assert copies.started == 1


def test_the_deadline_ends_the_wait_for_threads(gate: threading.Event) -> None:
    """Even one that only cooperates: the caller waits here, and this wait obeys."""
    copies = ThreadCopies(gate.wait, gate.wait)
    policy = hedge(1, idempotent=True)
    with virtual_time(), pytest.raises(DeadlineExceeded):
        deadline("5s", mode="cooperative")(policy(copies))()
    assert copies.started == 2


def test_a_token_ends_the_wait_for_threads(gate: threading.Event) -> None:
    """And reaches the copies."""
    token = CancelToken()

    def cancels() -> None:
        token.cancel("shutting down")
        gate.wait()

    with token, pytest.raises(Cancelled, match="shutting down"):
        hedge(100, idempotent=True)(ThreadCopies(cancels))()


def test_threads_see_and_give_back_context_variables() -> None:
    """The body sees the caller's, and what it sets stays visible."""

    def body() -> str:
        seen = variable.get()
        variable.set("set in the worker")
        return seen

    def scenario() -> tuple[str, str]:
        variable.set("caller")
        return hedge(100, idempotent=True)(body)(), variable.get()

    assert contextvars.copy_context().run(scenario) == ("caller", "set in the worker")


def test_with_too_many_hung_workers_nothing_is_hedged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded: the body then runs in place."""
    monkeypatch.setattr("guarded.policies.hedge.MAX_ABANDONED", 0)
    assert hedge(0, idempotent=True)(threading.get_ident)() == threading.get_ident()


def test_a_plain_function_on_a_loops_thread_runs_in_place_and_warns_once() -> None:
    """Waiting for a worker there would freeze the loop."""
    function = hedge(0, idempotent=True)(threading.get_ident)

    async def main() -> None:
        with pytest.warns(GuardWarning, match="not hedged"):
            assert function() == threading.get_ident()
        assert function() == threading.get_ident()

    asyncio.run(main())


def test_a_plain_function_that_returns_an_awaitable_is_hedged_as_async() -> None:
    """Seen at the first call."""
    copies = Copies(hang, slow(0, "second"))

    @hedge(0, idempotent=True)
    def ask() -> Any:
        return copies()

    async def main() -> Any:
        return await ask()

    assert asyncio.run(main()) == "second"


def test_the_policy_says_what_it_is() -> None:
    """Its repr, its options under a name, and its worst case."""
    policy = hedge("p99", max_hedges=2, idempotent=True, name="reads")
    assert repr(policy) == "hedge('p99', max_hedges=2, idempotent=True, name='reads')"
    assert hedge("p99", max_hedges=2, idempotent=True, name="reads") is policy
    assert policy.options == HedgeOptions("p99", 2, None, True)
    assert policy.worst_case(1, 2.0, None) == (3, 6.0)  # type: ignore[arg-type]
    assert repr(hedge("200ms")) == "hedge(0.2)"
