"""rate: options, what each algorithm decides, refusals, and state that can be looked at."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import freezegun
import pytest

from guarded import RateExceeded, deadline, rate, registry
from guarded._core import clock
from guarded.errors import Deadlock, PolicyConflict
from guarded.policies.rate import Rate, RateOptions
from guarded.testing import VirtualTime, capture, virtual_time

ALGORITHMS = ("sliding", "gcra", "leaky", "fixed")


@pytest.fixture
def time() -> Iterator[VirtualTime]:
    """Virtual time that jumps when everybody waits."""
    with virtual_time() as time:
        yield time


@pytest.fixture
def still() -> Iterator[VirtualTime]:
    """Virtual time that moves by hand only."""
    with virtual_time(auto=False) as time:
        yield time


def admitted(limited: Rate, at_most: int = 100) -> int:
    """How many calls are let through at this moment."""
    return sum(limited.try_acquire() for _ in range(at_most))


@pytest.mark.parametrize(
    ("given", "option", "rule"),
    [
        ({"spec": "0/s"}, "spec='0/s'", "whole numbers from 1 up"),
        ({"spec": "-5/s"}, "spec='-5/s'", "whole numbers from 1 up"),
        ({"spec": "5"}, "spec='5'", "count per length"),
        ({"spec": 100}, "spec=100", "needs a window"),
        ({"spec": 0, "per": "1s"}, "spec=0", "from 1 up"),
        ({"spec": 10**15, "per": "1s"}, "spec=1000000000000000", "at most 999_999_999_999_999"),
        ({"spec": True, "per": "1s"}, "spec=True", "from 1 up"),
        ({"spec": "5/s", "per": "1s"}, "spec='5/s'", "where `per` gives the window"),
        ({"spec": 5, "per": "-1s"}, "per='-1s'", "negative"),
        ({"spec": "5/s; 9/1s"}, "spec='5/s; 9/1s'", "same window"),
        ({"spec": "5/s", "algorithm": "window"}, "algorithm='window'", "one of sliding, gcra, leaky, fixed"),
        ({"spec": "5/s", "burst": 0, "algorithm": "gcra"}, "burst=0", "from 1 up"),
        ({"spec": "5/s", "burst": True, "algorithm": "gcra"}, "burst=True", "from 1 up"),
        ({"spec": "5/s", "burst": 9}, "burst=9", "gcra"),
        ({"spec": "5/s; 9/m", "burst": 9, "algorithm": "gcra"}, "burst=9", "one window"),
        ({"spec": "5/s", "max_wait": -1}, "max_wait=-1", "negative"),
        ({"spec": "5/s", "max_wait": float("nan")}, "max_wait=nan", "finite"),
        ({"spec": "5/s", "cost": 0}, "cost=0", "from 1 up"),
        ({"spec": "5/s", "cost": -1}, "cost=-1", "from 1 up"),
        ({"spec": "5/s", "cost": True}, "cost=True", "from 1 up"),
        ({"spec": "9/s; 5/h", "cost": 6}, "cost=6", "capacity of 5"),
        ({"spec": "5/s", "cost": "{rows}{pages}"}, "cost='{rows}{pages}'", "one field and nothing else"),
        ({"spec": "5/s", "cost": 3, "burst": 2, "algorithm": "gcra"}, "cost=3", "capacity of 2"),
        ({"spec": "5/s", "key": 7}, "key=7", "parameter name"),
    ],
)
def test_bad_options_are_named(given: dict[str, Any], option: str, rule: str) -> None:
    """Every wrong option fails at construction, with its name, its value and the rule."""
    with pytest.raises(ValueError, match=r"^rate: ") as caught:
        rate(**given)
    assert option in str(caught.value)
    assert rule in str(caught.value)


def test_all_problems_are_told_at_once() -> None:
    """One error holds every wrong option."""
    with pytest.raises(ValueError) as caught:
        rate("x", algorithm="window", burst=-1, max_wait="soon", key=1, cost=0)  # type: ignore[arg-type]
    for option in ("spec=", "algorithm=", "burst=", "max_wait=", "key=", "cost="):
        assert option in str(caught.value)
    with pytest.raises(ValueError, match=r"key=1: .*cost=9: must not be above the capacity of 5"):
        rate("5/s", key=1, cost=9)  # type: ignore[arg-type]


def test_spellings_of_one_rate_are_equal() -> None:
    """However a quota is written, equal quotas make the same named rate."""
    first = rate("100/minute", name="api")
    assert rate(100, per="1m", name="api") is first
    assert rate(100, per=timedelta(minutes=1), name="api") is first
    assert rate("100 per 60s", name="api") is first
    with pytest.raises(PolicyConflict, match="algorithm='gcra'"):
        rate(100, per=60, algorithm="gcra", name="api")
    both = rate("100/m; 5/s", name="both")
    assert rate("5/s; 100/m", name="both") is both
    assert both.options.spec == "5/1s; 100/1m"


@pytest.mark.parametrize("spec", ["3/17473ns", "5/250ms", "7/1500ms; 100/1h30m", "1/1d"])
def test_windows_survive_the_canonical_spelling(spec: str) -> None:
    """The one spelling in the options means exactly the quotas that were given."""
    options = rate(spec).options
    assert (
        RateOptions.checked(
            options.spec, None, None, burst=None, algorithm="sliding", key=None, cost=1, store=None
        ).quotas
        == rate(spec).options.quotas
    )
    assert rate(3, per="17473ns").options.quotas == ((3, 17473),)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_repr_says_which_promise_it_makes(algorithm: Any) -> None:
    """The algorithm stands in the repr, default or not."""
    assert f"algorithm={algorithm!r}" in repr(rate("5/s; 100/m", algorithm=algorithm))


def test_pickle_gives_the_shared_one() -> None:
    """A named rate is pickled by its name and options, never with its counts."""
    limited = rate("5/s", name="api")
    assert pickle.loads(pickle.dumps(limited)) is limited


def test_sliding_counts_any_window(still: VirtualTime) -> None:
    """The quota holds in every window; exactly one window later an event no longer counts."""
    limited = rate("3/s")
    assert limited.try_acquire()
    still.advance(0.9)
    assert admitted(limited) == 2
    still.advance(0.1 - 1e-9)
    assert admitted(limited) == 0
    still.advance(1e-9)
    assert admitted(limited) == 1


def test_gcra_refills_smoothly(still: VirtualTime) -> None:
    """A burst at once, then one each window / quota; after exactly one window the whole burst again."""
    limited = rate("3/s", algorithm="gcra")
    assert admitted(limited) == 3
    still.advance(0.4)
    assert admitted(limited) == 1
    still.advance(0.6)
    assert admitted(limited) == 2


def test_gcra_after_one_exact_window(still: VirtualTime) -> None:
    """A third of a second is not rounded: three of them are a second."""
    limited = rate("3/s", algorithm="gcra")
    assert admitted(limited) == 3
    still.advance(1.0)
    assert admitted(limited) == 3


def test_gcra_burst_is_an_own_number(still: VirtualTime) -> None:
    """The burst may be smaller or larger than the quota."""
    assert admitted(rate("10/s", algorithm="gcra", burst=2)) == 2
    assert admitted(rate("10/s", algorithm="gcra", burst=30)) == 30


def test_leaky_paces(still: VirtualTime) -> None:
    """Never two at once; a call of several units takes the time of several."""
    limited = rate("10/s", algorithm="leaky")
    assert admitted(limited) == 1
    still.advance(0.1)
    assert limited.try_acquire(5)
    still.advance(0.4)
    assert admitted(limited) == 0
    still.advance(0.1)
    assert admitted(limited) == 1


def test_fixed_is_aligned_to_utc() -> None:
    """A daily quota starts again at midnight UTC, whatever the hour of the first call."""
    with freezegun.freeze_time("2026-03-28 23:59:59.5") as frozen:
        limited = rate("2/day", algorithm="fixed")
        assert admitted(limited) == 2
        assert limited.peek().delay == pytest.approx(0.5, abs=1e-3)
        frozen.tick(0.5)
        assert admitted(limited) == 2
        assert limited.peek().delay == pytest.approx(86400, abs=1e-3)
        frozen.tick(86399)
        assert admitted(limited) == 0
        frozen.tick(1)
        assert admitted(limited) == 2


def test_fixed_windows_survive_a_clock_that_is_a_little_behind(
    still: VirtualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the wall clock lags at a boundary, that makes no window of some milliseconds with a quota of its own."""
    lag = [0.0]
    monkeypatch.setattr(clock, "wall", lambda: still.monotonic() - lag[0])
    limited = rate("2/10s", algorithm="fixed")
    admitted(limited)
    still.advance(limited.peek().delay)
    lag[0] = 0.05
    assert admitted(limited) == 2
    still.advance(0.06)
    assert admitted(limited) == 0
    assert limited.peek().delay == pytest.approx(9.99, abs=1e-6)


def test_fixed_follows_a_clock_that_was_set(still: VirtualTime, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the wall clock was set by hand, windows are aligned again, none shorter than a half."""
    shift = [0.0]
    monkeypatch.setattr(clock, "wall", lambda: still.monotonic() + shift[0])
    limited = rate("2/10s", algorithm="fixed")
    admitted(limited)
    still.advance(limited.peek().delay)
    shift[0] = 3.0
    assert admitted(limited) == 2
    assert limited.peek().delay == pytest.approx(7.0, abs=1e-6)
    still.advance(7.0)
    assert admitted(limited) == 2
    assert limited.peek().delay == pytest.approx(10.0, abs=1e-6)


def test_several_windows_are_all_or_nothing(still: VirtualTime) -> None:
    """A call that the longer window refuses spends nothing of the shorter one."""
    limited = rate("2/s; 3/m")
    assert admitted(limited) == 2
    still.advance(1)
    assert admitted(limited) == 1
    before = limited.lines._single.meter.state(clock.monotonic_ns())
    assert admitted(limited) == 0
    assert limited.lines._single.meter.state(clock.monotonic_ns()) == before
    assert limited.peek().delay == pytest.approx(59)


def test_costs_are_units(still: VirtualTime) -> None:
    """A call of cost 3 uses three units, and one above the capacity is an error instead of a wait without end."""
    limited = rate("10/s")
    assert limited.try_acquire(7)
    assert not limited.try_acquire(4)
    assert limited.try_acquire(3)
    with pytest.raises(ValueError, match="11 is above the capacity"):
        limited.try_acquire(11)
    for cost in (0, -1, True, 1.5):
        with pytest.raises(ValueError, match="from 1 up"):
            limited.try_acquire(cost)  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_clock_that_goes_back_passes_no_time(algorithm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the clock has gone back nobody gets more than before, and from there on time passes as usual."""
    now = [10**18]
    monkeypatch.setattr(clock, "monotonic_ns", lambda: now[0])
    monkeypatch.setattr(clock, "wall", lambda: 0.0)
    limited = rate("2/s", algorithm=algorithm, max_wait=0)
    admitted(limited)
    now[0] -= 10**17
    assert not limited.try_acquire()
    delay = limited.peek().delay
    assert 0 < delay <= 1.0
    now[0] += int(delay * 1e9)
    assert limited.try_acquire()


def test_peek_changes_nothing(still: VirtualTime) -> None:
    """It tells what a call would meet, for any cost, and counts for nothing."""
    limited = rate("5/s")
    assert limited.peek() == (peek := limited.peek())
    assert (peek.free, peek.delay, peek.queued) == (5, 0.0, 0)
    limited.try_acquire(4)
    still.advance(0.25)
    assert limited.peek().delay == 0.0
    assert limited.peek(2).delay == pytest.approx(0.75)
    assert limited.peek().free == 1


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_refusal_says_when(algorithm: Any, still: VirtualTime) -> None:
    """The error names the rate and the time after which the call is admitted, which is true to the nanosecond."""
    limited = rate("2/s; 7/m", name="api", algorithm=algorithm, max_wait=0)
    admitted(limited)
    with pytest.raises(RateExceeded, match=r"rate 'api' of 2/1s; 7/1m \(\w+\) is used up.*admitted again in") as caught:
        limited.acquire()
    error = caught.value
    assert (error.policy, error.layer) == ("api", "rate")
    assert error.retry_after is not None
    still.advance(error.retry_after)
    limited.acquire()


def test_each_refusal_is_a_fresh_error(still: VirtualTime) -> None:
    """A thousand refusals share nothing and have the same shallow traceback."""
    limited = rate("1/s", max_wait=0)
    limited.acquire()
    depths, errors = set(), []
    for _ in range(1000):
        with pytest.raises(RateExceeded) as caught:
            limited.acquire()
        depth, trace = 0, caught.value.__traceback__
        while trace is not None:
            depth, trace = depth + 1, trace.tb_next
        depths.add(depth)
        errors.append(caught.value)
        assert caught.value.__context__ is None
    assert len(depths) == 1
    assert len({id(error) for error in errors}) == 1000


def test_max_wait_decides_at_once(still: VirtualTime) -> None:
    """Who would be due later than `max_wait` is refused without waiting, exactly at it is not."""
    limited = rate("1/s", max_wait=1.0)
    limited.acquire()
    reservation = limited.reserve()
    assert reservation.delay == pytest.approx(1.0)
    with pytest.raises(RateExceeded) as caught:
        limited.acquire()
    assert caught.value.retry_after == pytest.approx(2.0)


def test_deadline_decides_at_once(still: VirtualTime) -> None:
    """Who would be due at the deadline or later is refused at once, and nothing is counted."""
    limited = rate("1/s")
    calls = []

    @deadline(1.0, mode="cooperative")
    @limited
    def call() -> None:
        calls.append(clock.monotonic())

    call()
    with pytest.raises(RateExceeded):
        call()
    assert len(calls) == 1
    assert limited.peek().queued == 0
    still.advance(1.0)
    call()


def test_default_waits_and_zero_does_not(time: VirtualTime) -> None:
    """`max_wait=None` waits as long as it takes, 0 refuses at once, and `timeout` overrides both."""
    patient, strict = rate("1/m"), rate("1/m", max_wait=0)
    started = clock.monotonic()
    patient.acquire()
    patient.acquire()
    assert clock.monotonic() - started == pytest.approx(60)
    strict.acquire()
    with pytest.raises(RateExceeded):
        strict.acquire()
    with pytest.raises(RateExceeded):
        patient.acquire(timeout=0)
    strict.acquire(timeout="2m")


def test_events(time: VirtualTime) -> None:
    """Delays, refusals and pauses are events; an admission at once is none."""
    limited = rate("1/s", name="api")

    @limited
    def call() -> None: ...

    with capture("DEBUG") as events:
        call()
        call()
        with pytest.raises(RateExceeded):
            limited.acquire(timeout=0.5)
        limited.pause("2s")
    named = {event.name: event for event in events}
    assert [event.name for event in events] == ["rate.delayed", "rate.rejected", "rate.paused"]
    assert (named["rate.delayed"].level, named["rate.delayed"].policy) == (20, "api")
    assert named["rate.delayed"].delay == pytest.approx(1)
    assert named["rate.rejected"].level == 30
    assert named["rate.rejected"].retry_after == pytest.approx(1)
    assert named["rate.paused"].delay == 2


def test_snapshot_in_the_registry(still: VirtualTime) -> None:
    """The registry tells what is free, who waits and how long a pause lasts."""
    limited = rate("5/s", name="api")
    limited.acquire(5)
    limited.reserve()
    limited.pause(3)
    state = registry.snapshot()["api"]
    assert state["kind"] == "rate"
    assert (state["spec"], state["algorithm"], state["free"], state["queued"]) == ("5/1s", "sliding", 0, 1)
    assert state["paused"] == pytest.approx(3)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_reconfigure_keeps_the_counts(algorithm: Any, still: VirtualTime) -> None:
    """A larger quota for the same window goes on from what was counted; other windows start anew."""
    limited = rate("4/m", algorithm=algorithm)
    still.advance(60 - still.wall() % 60 if algorithm == "fixed" else 0)
    admitted(limited)
    limited.reconfigure(rate("8/m", algorithm=algorithm).options)
    assert admitted(limited) == {"sliding": 4, "gcra": 4, "leaky": 0, "fixed": 4}[algorithm]
    limited.reconfigure(rate("8/h", algorithm=algorithm).options)
    assert limited.try_acquire()


def test_a_dropped_task_frees_its_place(time: VirtualTime) -> None:
    """A waiter whose loop dies without cancelling it holds nobody up."""
    limited = rate("1/s")

    async def stranded() -> None:
        await limited.acquire_async()

    loop = asyncio.new_event_loop()
    limited.acquire()
    coroutine = stranded()
    task = loop.create_task(coroutine)
    loop.run_until_complete(_one_round())
    assert limited.peek().queued == 1
    loop.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    started = clock.monotonic()
    limited.acquire()
    assert clock.monotonic() - started <= 2.001
    del task
    coroutine.close()
    gc.collect()
    assert limited.peek().queued == 0


async def _one_round() -> None:
    await asyncio.sleep(0)


def test_messages_do_not_show_internal_units() -> None:
    """Durations in messages are for people."""
    with virtual_time(auto=False):
        limited = rate("1/90s", max_wait=0)
        limited.acquire()
        with pytest.raises(RateExceeded) as caught:
            limited.acquire()
    assert re.search(r"1/1m30s .*admitted again in 1m30s", str(caught.value))


@pytest.mark.parametrize("algorithm", ["sliding", "gcra", "fixed"])
def test_a_decision_inside_a_decision_is_an_error(
    algorithm: Any, still: VirtualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler or finalizer that calls into the rate in mid-decision gets an error instead of hanging."""
    limited = rate("5/s", name="api", algorithm=algorithm)
    now, inside = clock.monotonic_ns, []

    def interrupted() -> int:
        if not inside:
            inside.append(1)
            for again in (limited.try_acquire, limited.reserve, limited.peek):
                with pytest.raises(Deadlock, match="signal handler"):
                    again()
        return now()

    monkeypatch.setattr(clock, "monotonic_ns", interrupted)
    assert limited.try_acquire()
    inside.clear()
    assert limited.peek().free == 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_starts_without_the_parents_waiters() -> None:
    """In a child nobody waits, the lock is free, and what was counted still counts."""
    script = """
import os, threading, time, warnings
from guarded import rate
warnings.simplefilter("ignore")
limited = rate("1/h")
limited.acquire()
threading.Thread(target=limited.acquire, daemon=True).start()
while not limited.peek().queued:
    time.sleep(0.001)
limited.lines._lock.acquire()
child = os.fork()
if child:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os._exit(0 if limited.peek().queued == 0 and not limited.try_acquire() else 3)
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("cost", ["cost", "{cost}", 0, True, 1.5, len])
def test_a_cost_by_hand_is_a_whole_number(cost: Any) -> None:
    """There are no arguments to take it from."""
    policy = rate("5/s")
    for take in (policy.acquire, policy.try_acquire, policy.reserve, policy.peek):
        with pytest.raises(ValueError, match=r"cost=.*: must be a whole number from 1 up"):
            take(cost)
    assert policy.peek().free == 5


@pytest.mark.parametrize("timeout", [-1, True, "soon", float("nan")])
@pytest.mark.parametrize("take", ["acquire", "reserve"])
def test_a_timeout_by_hand_is_a_duration(take: str, timeout: Any) -> None:
    """Also where the caller need not wait: a mistake shows at once, not on the day that the rate is used up."""
    limited = rate("3/m")
    with pytest.raises(ValueError, match="timeout="):
        getattr(limited, take)(timeout=timeout)
    with pytest.raises(ValueError, match="timeout="):
        asyncio.run(limited.acquire_async(timeout=timeout))
    assert limited.peek().free == 3
