"""retry: which failures are repeated, when, and what the caller gets. Every case runs sync and async."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
import traceback
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from math import inf
from typing import Any

import pytest

import guarded
from guarded import (
    Cancelled,
    CancelToken,
    DeadlineExceeded,
    Done,
    GuardWarning,
    RateExceeded,
    attempt,
    deadline,
    retry,
)
from guarded.events.model import Event
from guarded.policies.retry import Retry, RetryOptions
from guarded.testing import capture, virtual_time

Body = Callable[..., Any]
Drive = Callable[..., Any]


@pytest.fixture(params=["sync", "async"])
def drive(request: pytest.FixtureRequest) -> Drive:
    """Call a plain body under policies (innermost first), itself or as a coroutine function."""

    def run(body: Body, *policies: Any, args: tuple[Any, ...] = (), **kwargs: Any) -> Any:
        async def body_async(*args: Any, **kwargs: Any) -> Any:
            return body(*args, **kwargs)

        guarded: Any = body if request.param == "sync" else body_async
        for policy in policies:
            guarded = policy(guarded)
        return guarded(*args, **kwargs) if request.param == "sync" else asyncio.run(guarded(*args, **kwargs))

    run.mode = request.param  # type: ignore[attr-defined]
    return run


class Script:
    """A body that does one step per attempt: raises exceptions, returns the rest; keeps times and attempts."""

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)
        self.attempts: list[int] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.attempts.append(attempt())
        step = self.steps.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step


def down(count: int) -> list[Exception]:
    """Different transient errors."""
    return [ConnectionError(f"failure {number}") for number in range(1, count + 1)]


def named(events: list[Event], name: str) -> list[Event]:
    """The events of one name."""
    return [event for event in events if event.name == name]


# Options


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"retries": 3, "attempts": 4}, "give one of them"),
        ({"retries": -1}, "retries=-1"),
        ({"retries": True}, "retries=True"),
        ({"retries": 1.0}, "retries=1.0"),
        ({"attempts": 0}, "attempts=0: must be a whole number of at least 1"),
        ({"base": -1}, "base=-1"),
        ({"base": float("nan")}, "base=nan"),
        ({"base": True}, "base=True"),
        ({"base": 10}, "base=10: must not be above max_delay=5"),
        ({"max_delay": inf}, "max_delay=inf"),
        ({"max_retry_after": "x"}, "max_retry_after='x'"),
        ({"factor": 0.5}, "factor=0.5"),
        ({"jitter": "some"}, "jitter='some'"),
        ({"backoff": iter([1])}, "iterator"),
        ({"retry_after": 3}, "retry_after=3"),
        ({"budget": 0.2}, "budget=0.2"),
        ({"on": 503}, "on=503"),
        ({"on": int}, "on=int: must be an exception type"),
        ({"on": BaseException}, "on=BaseException: must derive from Exception"),
        ({"on": (ValueError, asyncio.CancelledError)}, "on=CancelledError"),
        ({"unless": "x"}, "unless='x'"),
        ({"on_result": 1}, "on_result=1"),
        ({"before_retry": "x"}, "before_retry='x'"),
    ],
)
def test_a_bad_option_fails_when_built(options: dict[str, Any], rule: str) -> None:
    """The ValueError names the option, the value and the rule."""
    with pytest.raises(ValueError) as caught:
        retry(**options)
    assert rule in str(caught.value)


def test_all_bad_options_are_told_at_once() -> None:
    """One error, not one per try."""
    with pytest.raises(ValueError) as caught:
        retry(retries=-1, on=3, factor=0, jitter="no", base=-1, budget=3)  # type: ignore[arg-type]
    for option in ("retries=-1", "on=3", "factor=0", "jitter='no'", "base=-1", "budget=3"):
        assert option in str(caught.value)
    with pytest.raises(ValueError, match=r"retries=-1: .*base=5: must not be above max_delay=1"):
        retry(retries=-1, base=5, max_delay=1)


def test_async_predicates_are_refused() -> None:
    """A coroutine is always true: it would retry everything."""

    async def predicate(error: object) -> bool:
        return False

    for option in ("on", "unless", "on_result"):
        with pytest.raises(ValueError, match=option):
            retry(**{option: predicate})  # type: ignore[call-overload]


def test_retries_and_attempts_say_the_same() -> None:
    """Attempts are retries plus one; equal options under one name are one policy."""
    first = retry(retries=3, name="thrice")
    assert retry(attempts=4, name="thrice") is first
    assert retry(3).options == first.options == RetryOptions()
    with pytest.raises(guarded.PolicyConflict):
        retry(attempts=3, name="thrice")


def test_lists_and_durations_are_normalised() -> None:
    """Options are frozen, hashable where users' values are, and picklable."""
    policy = retry(on=[ValueError, KeyError], base="100ms", backoff=[1, "2s"])  # type: ignore[arg-type]
    assert policy.options.on == (ValueError, KeyError)
    assert policy.options.base == 0.1
    assert policy.options.backoff == (1.0, 2.0)
    assert pickle.loads(pickle.dumps(policy)).options == policy.options


def test_the_repr_says_what_was_set() -> None:
    """Events and errors call an unnamed policy by it."""
    assert repr(retry(attempts=2, on=(ValueError, KeyError), jitter=0.2)) == (
        "retry(retries=1, on=(ValueError, KeyError), jitter=0.2)"
    )


def test_bare_and_called_decorators() -> None:
    """``@retry`` and ``@retry()`` both work, on functions, methods, static and class methods."""

    @retry
    def bare() -> int:
        return attempt()

    @retry()
    def called() -> int:
        return attempt()

    class Service:
        @retry
        def method(self) -> int:
            return attempt()

        @retry
        @classmethod
        def on_class(cls) -> str:
            return cls.__name__

        @staticmethod
        @retry
        def static() -> int:
            return attempt()

    assert (bare(), called(), Service().method(), Service.on_class(), Service.static()) == (1, 1, 1, "Service", 1)
    assert [layer.kind for layer in bare.layers] == ["retry"]  # type: ignore[attr-defined]


# How often, and what comes out


def test_success_at_once_is_one_call(drive: Drive) -> None:
    """Nothing to retry: nothing is told above TRACE."""
    body = Script("page")
    with capture("DEBUG") as events:
        assert drive(body, retry()) == "page"
    assert body.attempts == [1]
    assert events == []


def test_transient_errors_are_repeated(drive: Drive) -> None:
    """The second and third attempt follow; `attempt()` numbers them."""
    body = Script(*down(2), "page")
    with virtual_time(), capture() as events:
        assert drive(body, retry()) == "page"
    assert body.attempts == [1, 2, 3]
    assert [(event.attempt, str(event.cause)) for event in named(events, "retry.scheduled")] == [
        (1, "ConnectionError: failure 1"),
        (2, "ConnectionError: failure 2"),
    ]
    (recovered,) = named(events, "retry.recovered")
    assert recovered.attempts == 3


def test_exhausted_raises_the_last_error_itself(drive: Drive) -> None:
    """The same object, with nothing chained to it."""
    errors = down(3)
    with virtual_time(), capture() as events, pytest.raises(ConnectionError) as caught:
        drive(Script(*errors), retry(retries=2))
    assert caught.value is errors[2]
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None
    (exhausted,) = named(events, "retry.exhausted")
    assert (exhausted.attempts, exhausted.retries, str(exhausted.cause)) == (3, 2, "ConnectionError: failure 3")


@pytest.mark.parametrize("options", [{"retries": 0}, {"attempts": 1}])
def test_no_retries_is_one_call(drive: Drive, options: dict[str, int]) -> None:
    """retries=0 calls once."""
    body = Script(*down(1))
    with pytest.raises(ConnectionError):
        drive(body, retry(**options))  # type: ignore[call-overload]
    assert body.attempts == [1]


def test_other_errors_are_raised_at_once_and_say_how_to_include_them(drive: Drive) -> None:
    """A programming error is not repeated; the event tells what to write."""
    error = KeyError("oops")
    with capture() as events, pytest.raises(KeyError) as caught:
        drive(Script(error), retry())
    assert caught.value is error
    (gave_up,) = named(events, "retry.gave_up")
    assert gave_up.reason == "not matched"
    assert gave_up.hint == "add it: on=(transient, KeyError)"


def test_delays_follow_the_law(drive: Drive) -> None:
    """Without jitter the attempts start exactly at their times."""
    starts: list[float] = []
    with virtual_time() as time:

        def body() -> None:
            starts.append(time.monotonic())
            raise ConnectionError

        with pytest.raises(ConnectionError):
            drive(body, retry(retries=4, base=1, factor=3, max_delay=5, jitter="none"))
    assert [start - starts[0] for start in starts] == pytest.approx([0, 1, 4, 9, 14])


def test_decorrelated_jitter_grows_from_the_last_delay(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each delay is drawn from base to three times the one before."""
    monkeypatch.setattr("random.random", lambda: 1.0)
    policy = retry(retries=3, base=1, max_delay=100, jitter="decorrelated")
    with virtual_time() as time:
        started = time.monotonic()
        with pytest.raises(ConnectionError):
            drive(Script(*down(4)), policy)
        assert time.monotonic() - started == pytest.approx(3 + 9 + 27)


def test_a_backoff_sequence_shared_by_two_calls_starts_over(drive: Drive) -> None:
    """Delays belong to the call, not to the policy."""
    policy = retry(retries=2, backoff=[1, 2])
    with virtual_time() as time:
        started = time.monotonic()
        for _ in range(2):
            with pytest.raises(ConnectionError):
                drive(Script(*down(3)), policy)
        assert time.monotonic() - started == pytest.approx(6)


# What is retried


def test_on_takes_types_predicates_and_both(drive: Drive) -> None:
    """A tuple matches when any part does."""
    on = (KeyError, lambda error: "again" in str(error))
    with virtual_time():
        assert drive(Script(KeyError("k"), ValueError("again"), 1), retry(on=on)) == 1
        with pytest.raises(ValueError):
            drive(Script(ValueError("no")), retry(on=on))


def test_unless_wins_over_on(drive: Drive) -> None:
    """An excluded type is not repeated, and the event says so."""
    body = Script(BrokenPipeError())
    with capture() as events, pytest.raises(BrokenPipeError):
        drive(body, retry(on=OSError, unless=ConnectionError))
    assert body.attempts == [1]
    assert named(events, "retry.gave_up")[0].reason == "excluded"


def test_a_group_matches_by_types_only_when_all_leaves_do(drive: Drive) -> None:
    """Nested or not; an excluded leaf excludes the group."""
    good = ExceptionGroup("all", [ConnectionError(), ExceptionGroup("in", [ConnectionResetError()])])
    mixed = ExceptionGroup("mixed", [ConnectionError(), KeyError()])
    with virtual_time():
        assert drive(Script(good, 1), retry(on=ConnectionError)) == 1
        assert drive(Script(mixed, 1), retry(on=ExceptionGroup)) == 1
        with pytest.raises(ExceptionGroup):
            drive(Script(mixed), retry(on=ConnectionError))
        with pytest.raises(ExceptionGroup):
            drive(Script(good), retry(on=ConnectionError, unless=ConnectionResetError))


def test_a_group_with_a_cancellation_in_it_is_never_retried(drive: Drive) -> None:
    """Nor does a predicate see it."""
    group = ExceptionGroup("stopped", [ConnectionError(), Cancelled("stop")])
    body = Script(group, group)
    for on in (Exception, ExceptionGroup, lambda error: pytest.fail("no predicate sees a cancellation")):
        with pytest.raises(ExceptionGroup):
            drive(body, retry(on=on))
        assert len(body.attempts) == 1
        body.steps.append(group)
        body.attempts.clear()


def test_unless_takes_a_predicate(drive: Drive) -> None:
    """True means no retry."""
    body = Script(ConnectionError("for good"))
    with pytest.raises(ConnectionError):
        drive(body, retry(unless=lambda error: "for good" in str(error)))
    assert body.attempts == [1]


def test_a_predicate_gets_the_group_itself(drive: Drive) -> None:
    """It may look into it as it likes."""
    seen: list[Exception] = []

    def predicate(error: Exception) -> bool:
        seen.append(error)
        return True

    group = ExceptionGroup("mixed", [KeyError(), ValueError()])
    with virtual_time():
        assert drive(Script(group, 1), retry(on=predicate)) == 1
    assert seen == [group]


@pytest.mark.parametrize(
    "control",
    [
        KeyboardInterrupt(),
        SystemExit(3),
        GeneratorExit(),
        BaseExceptionGroup("cancelled", [asyncio.CancelledError(), ConnectionError()]),
    ],
)
def test_control_flow_passes_and_no_predicate_sees_it(control: BaseException) -> None:
    """Whatever a predicate would say."""
    seen: list[object] = []
    body = Script(control)
    with capture() as events, pytest.raises(type(control)) as caught:
        retry(on=lambda error: seen.append(error) or True, before_retry=lambda *_: seen.append(0))(body)()
    assert caught.value is control
    assert (seen, body.attempts) == ([], [1])
    assert [event.name for event in events] == ["call.failed"]


def test_cancelling_the_task_is_never_retried() -> None:
    """Neither while the body runs nor while it backs off."""
    seen: list[object] = []
    body = Script(ConnectionError())

    @retry(on=lambda error: seen.append(error) or True, base=5, jitter="none")
    async def fails() -> None:
        body()

    @retry(on=lambda error: seen.append(error) or True)
    async def hangs() -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        for function in (fails, hangs):
            task = asyncio.create_task(function())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert len(seen) == 1
    assert body.attempts == [1]


def test_a_raising_predicate_surfaces_chained_to_the_attempts_error(drive: Drive) -> None:
    """A bug in a predicate is seen, and so is what it judged."""
    error = ConnectionError("down")

    def predicate(error: Exception) -> bool:
        raise TypeError("bug in the predicate")

    for option in ("on", "unless"):
        with pytest.raises(TypeError, match="bug") as caught:
            drive(Script(error), retry(**{"on": ConnectionError, option: predicate}))  # type: ignore[call-overload]
        assert caught.value.__context__ is error


def test_a_bad_delay_from_a_function_surfaces_chained(drive: Drive) -> None:
    """NaN is no delay; the attempt's error is in the chain."""
    error = ConnectionError("down")
    with pytest.raises(ValueError, match=r"backoff\(1\)=nan") as caught:
        drive(Script(error), retry(backoff=lambda failed: float("nan")))
    assert caught.value.__context__ is error


def test_a_result_may_ask_for_a_retry(drive: Drive) -> None:
    """on_result true means retry; exhausted, the last result is the answer."""
    with virtual_time(), capture() as events:
        assert drive(Script(None, None, "page"), retry(on_result=lambda page: page is None)) == "page"
        assert drive(Script(0, 0), retry(retries=1, on_result=lambda count: count == 0)) == 0
    assert [event.reason for event in named(events, "retry.scheduled")] == ["result"] * 3
    assert named(events, "retry.exhausted")[0].reason == "result"


def test_a_raising_on_result_surfaces(drive: Drive) -> None:
    """As itself, without another attempt."""
    body = Script("page", "page")
    with pytest.raises(ZeroDivisionError):
        drive(body, retry(on_result=lambda page: 1 / 0))
    assert body.attempts == [1]


def test_errors_and_results_may_take_turns(drive: Drive) -> None:
    """The last outcome decides how the call ends."""
    policy = retry(retries=1, on_result=lambda page: page is None)
    last = ConnectionError()
    with virtual_time():
        assert drive(Script(ConnectionError(), None), policy) is None
        with pytest.raises(ConnectionError) as caught:
            drive(Script(None, last), policy)
    assert caught.value is last


def test_one_shot_arguments_are_not_replayed(drive: Drive) -> None:
    """The second attempt would find the iterator empty."""
    body = Script(*down(1))
    with capture() as events, pytest.raises(ConnectionError):
        drive(body, retry(), args=(iter([1, 2]),))
    assert body.attempts == [1]
    (gave_up,) = named(events, "retry.gave_up")
    assert gave_up.reason == "one-shot argument"
    assert "positional argument 1" in (gave_up.hint or "")
    with virtual_time():
        assert drive(Script(*down(1), 1), retry(), args=([1, 2],)) == 1


# retry_after


class Throttled(Exception):
    """An error that carries what a server asks for."""

    status_code = 429

    def __init__(self, retry_after: float | None = None) -> None:
        super().__init__("slow down")
        self.retry_after = retry_after


class Answer:
    """A response with headers."""

    def __init__(self, status_code: int, retry_after: str) -> None:
        self.status_code = status_code
        self.headers = {"Retry-After": retry_after}


class HTTPError(Exception):
    """An error with a response, as HTTP clients raise it."""

    def __init__(self, response: Answer) -> None:
        super().__init__(response.status_code)
        self.response = response


def waited(drive: Drive, body: Body, policy: Any) -> float:
    """Seconds that a call takes."""
    with virtual_time() as time:
        started = time.monotonic()
        drive(body, policy)
        return time.monotonic() - started


def test_retry_after_is_a_floor_under_the_own_delay(drive: Drive) -> None:
    """Longer than max_delay, too; a longer own delay stays."""
    policy = retry(base=2, max_delay=4, jitter="none")
    assert waited(drive, Script(Throttled(7), 1), policy) == pytest.approx(7)
    assert waited(drive, Script(Throttled(1), 1), policy) == pytest.approx(2)
    assert waited(drive, Script(HTTPError(Answer(503, "9")), 1), policy) == pytest.approx(9)
    assert waited(drive, Script(RateExceeded("", retry_after=5), 1), policy) == pytest.approx(5)


def test_retry_after_may_be_ignored(drive: Drive) -> None:
    """With retry_after=False the own delay is all."""
    assert waited(drive, Script(Throttled(7), 1), retry(base=2, jitter="none", retry_after=False)) == pytest.approx(2)


def test_a_result_may_carry_retry_after(drive: Drive) -> None:
    """A response is asked like an error."""
    policy = retry(base=0, on_result=lambda answer: answer != 1)
    assert waited(drive, Script(Answer(503, "3"), 1), policy) == pytest.approx(3)


@pytest.mark.parametrize(
    "policies", [(retry(max_retry_after=60),), (retry(max_retry_after=600), deadline("100s", mode="cooperative"))]
)
def test_a_retry_after_that_is_too_long_stops_at_once(drive: Drive, policies: tuple[Any, ...]) -> None:
    """Above max_retry_after or the deadline there is no wait, and the value stays on the error."""
    body = Script(HTTPError(Answer(503, "120")))
    with virtual_time() as time, capture() as events, pytest.raises(HTTPError) as caught:
        started = time.monotonic()
        drive(body, *policies)
    assert time.monotonic() == started
    assert caught.value.retry_after == 120  # type: ignore[attr-defined]
    (gave_up,) = named(events, "retry.gave_up")
    assert gave_up.retry_after == 120


def test_an_error_with_slots_keeps_nothing_and_breaks_nothing(drive: Drive) -> None:
    """The value cannot be left on it; the error comes out all the same."""

    class Tight(HTTPError):
        __slots__ = ()

        def __setattr__(self, name: str, value: object) -> None:
            if name == "retry_after":
                raise AttributeError(name)
            super().__setattr__(name, value)

    with pytest.raises(Tight):
        drive(Script(Tight(Answer(503, "120"))), retry())


# Deadlines and tokens


def test_no_wait_is_begun_that_the_deadline_cuts_off(drive: Drive) -> None:
    """The next attempt cannot start in time: the error comes at once, before the first sleep too."""
    error = ConnectionError("down")
    with virtual_time() as time, capture() as events, pytest.raises(ConnectionError) as caught:
        started = time.monotonic()
        drive(Script(error), retry(base=2, jitter="none"), deadline("2s", mode="cooperative"))
    assert caught.value is error
    assert time.monotonic() == started
    assert named(events, "retry.gave_up")[0].reason == "no time left"


def test_no_attempt_starts_after_the_deadline(drive: Drive) -> None:
    """Over a function that always fails, the caller has its answer within the deadline."""
    starts: list[float] = []
    with virtual_time() as time:
        started = time.monotonic()

        def body() -> None:
            starts.append(time.monotonic() - started)
            raise ConnectionError

        with pytest.raises(ConnectionError):
            drive(body, retry(retries=50, base="100ms", factor=1, jitter="none"), deadline("1s", mode="cooperative"))
        assert time.monotonic() - started < 1
    assert len(starts) == 10
    assert max(starts) < 1


def test_a_deadline_around_the_retry_is_not_retried(drive: Drive) -> None:
    """Whatever `on` says: no attempt can change that its time is over."""
    attempts: list[int] = []
    with virtual_time() as time:

        def body() -> None:
            attempts.append(attempt())
            time.advance(10)
            guarded.checkpoint()

        with pytest.raises(DeadlineExceeded):
            drive(body, retry(on=lambda error: True), deadline("5s", mode="cooperative"))
    assert attempts == [1]


def test_a_deadline_around_the_retry_that_is_told_early_is_not_retried(drive: Drive) -> None:
    """A queue that knows it cannot serve in time says so at once; asking again changes nothing."""
    body_runs: list[int] = []

    def body() -> None:
        body_runs.append(attempt())
        raise DeadlineExceeded("cannot make it", until=point[-1])

    point: list[float] = []

    def remember() -> float:
        point.append(guarded._core.clock.monotonic() + 5)  # type: ignore[attr-defined]
        return 5

    with virtual_time(), pytest.raises(DeadlineExceeded):
        drive(body, retry(on=lambda error: True, base=0), deadline(remember, mode="cooperative"))
    assert body_runs == [1]


def test_a_deadline_inside_the_retry_is_retried(drive: Drive) -> None:
    """One attempt was too slow; the next may be quick."""
    attempts: list[int] = []
    with virtual_time() as time:

        def body() -> str:
            attempts.append(attempt())
            if len(attempts) == 1:
                time.advance(2)
                guarded.checkpoint()
            return "page"

        policies = (deadline("1s", mode="cooperative"), retry(), deadline("30s", mode="cooperative"))
        assert drive(body, *policies) == "page"
    assert attempts == [1, 2]


def test_a_token_ends_the_wait(drive: Drive) -> None:
    """With Cancelled, which names the wait and is chained to the error it waited for; a cancellation is not retried."""
    token = CancelToken()
    error = ConnectionError("down")
    body = Script(error)

    def cancels() -> None:
        token.cancel("shutting down")
        body()

    with token, virtual_time(), pytest.raises(Cancelled, match="shutting down") as caught:
        drive(cancels, retry(on=Exception, base=0))
    assert body.attempts == [1]
    if drive.mode == "sync":  # type: ignore[attr-defined]
        assert "backing off before attempt 2" in str(caught.value)
        assert caught.value.__context__ is error
    inner = Script(Cancelled("inner"))
    with capture() as events, pytest.raises(Cancelled):
        drive(inner, retry(on=Exception, unless=lambda error: pytest.fail("no predicate sees a cancellation")))
    assert inner.attempts == [1]
    assert [event.name for event in events] == ["call.failed"]


def test_a_hook_that_takes_too_long_starts_no_attempt(drive: Drive) -> None:
    """The deadline passed while it looked at the world: the last error comes out."""
    error = ConnectionError("down")
    body = Script(error)
    with virtual_time() as time, capture() as events:
        token = deadline("5s", mode="cooperative")

        def hook(error: object, number: int) -> None:
            time.advance(10)

        if drive.mode == "sync":  # type: ignore[attr-defined]
            with pytest.raises(ConnectionError) as caught:
                drive(body, retry(before_retry=hook), token)
            assert caught.value is error
            assert caught.value.__context__ is None
            assert named(events, "retry.gave_up")[0].reason == "no time left"
        else:
            with pytest.raises((ConnectionError, DeadlineExceeded)):
                drive(body, retry(before_retry=hook), token)
    assert body.attempts == [1]


def test_a_slow_backoff_function_starts_no_attempt(drive: Drive) -> None:
    """The deadline passed while it was thinking: the last error comes out, on a result the result."""
    error = ConnectionError("down")

    def called(body: Script) -> Any:
        with virtual_time() as time, deadline("5s", mode="cooperative"):

            def slow(failed: int) -> float:
                time.advance(10)
                return 1

            return drive(body, retry(backoff=slow, on_result=lambda page: page is None))

    with capture() as events:
        with pytest.raises(ConnectionError) as caught:
            called(Script(error))
        assert called(Script(None)) is None
    assert caught.value is error
    assert [event.reason for event in named(events, "retry.gave_up")] == ["no time left"] * 2


# before_retry


def test_before_retry_sees_the_error_and_the_attempt(drive: Drive) -> None:
    """Called once per retry; what it returns otherwise does not matter."""
    errors = down(2)
    seen: list[tuple[object, int]] = []
    with virtual_time():
        assert drive(Script(*errors, 1), retry(before_retry=lambda *given: seen.append(given) or True)) == 1
    assert seen == [(errors[0], 1), (errors[1], 2)]


def test_before_retry_may_end_the_call_as_done(drive: Drive) -> None:
    """The order had got through after all, also with None as the answer."""
    for value in ("receipt", None):
        body = Script(*down(1))
        with virtual_time(), capture() as events:
            assert drive(body, retry(before_retry=lambda error, number, value=value: Done(value))) is value
        assert body.attempts == [1]
        assert named(events, "retry.recovered")[0].reason == "before_retry"


def test_before_retry_gets_none_for_a_refused_result(drive: Drive) -> None:
    """There is no error then."""
    seen: list[object] = []
    policy = retry(on_result=lambda page: page is None, before_retry=lambda error, number: seen.append(error))
    with virtual_time():
        assert drive(Script(None, 1), policy) == 1
    assert seen == [None]


def test_a_raising_hook_surfaces_chained(drive: Drive) -> None:
    """It decides, so like a predicate its error is seen; raising the error it got ends the call with that."""
    error = ConnectionError("down")

    def breaks(error: object, number: int) -> None:
        raise LookupError("no such table")

    def gives_up(error: Exception, number: int) -> None:
        raise error

    def breaks_twice(error: object, number: int) -> None:
        try:
            breaks(error, number)
        except LookupError:
            raise RuntimeError("no database")  # noqa: B904 - its own context is the point

    with virtual_time():
        with pytest.raises(RuntimeError) as deep:
            drive(Script(error), retry(before_retry=breaks_twice))
        assert isinstance(deep.value.__context__, LookupError)
        assert deep.value.__context__.__context__ is error
        with pytest.raises(LookupError) as caught:
            drive(Script(error), retry(before_retry=breaks))
        assert caught.value.__context__ is error
        with pytest.raises(ConnectionError) as same:
            drive(Script(error), retry(before_retry=gives_up))
        assert same.value is error
        assert error.__context__ is None


def test_an_async_hook_is_awaited_and_refused_on_plain_functions() -> None:
    """Nobody could await it there."""

    async def hook(error: Exception, number: int) -> Done[str]:
        await asyncio.sleep(0)
        return Done("receipt")

    @retry(before_retry=hook, base=0)
    async def charge() -> str:
        raise ConnectionError

    assert asyncio.run(charge()) == "receipt"
    with pytest.raises(TypeError, match=r"before_retry=.*hook is async"):
        retry(before_retry=hook)(lambda: None)

    @retry(before_retry=lambda *given: hook(*given), base=0)
    def plain() -> None:
        raise ConnectionError

    with pytest.warns(RuntimeWarning, match="never awaited"), pytest.raises(TypeError, match="is async"):
        plain()


# Exceptions stay clean


def depth(error: BaseException) -> int:
    """Number of frames in a traceback."""
    return len(traceback.extract_tb(error.__traceback__))


def test_one_instance_raised_again_and_again_does_not_grow(drive: Drive) -> None:
    """A cached exception has the traceback of one attempt, however many there were."""

    def depth_after(retries: int) -> int:
        cached = ConnectionError("cached")

        def body() -> None:
            raise cached

        with virtual_time(), pytest.raises(ConnectionError) as caught:
            drive(body, retry(retries=retries, base=0))
        return depth(caught.value)

    assert depth_after(20) == depth_after(0)


def test_frames_of_earlier_attempts_are_let_go(drive: Drive) -> None:
    """What the first attempt had in hand is free while the second runs, without the garbage collector."""

    class Bulk:
        pass

    alive: list[int] = []
    references: list[weakref.ref[Bulk]] = []

    def body() -> None:
        alive.append(sum(reference() is not None for reference in references))
        bulk = Bulk()
        references.append(weakref.ref(bulk))
        raise ConnectionError

    gc.disable()
    try:
        with virtual_time(), pytest.raises(ConnectionError):
            drive(body, retry(retries=3, base=0))
    finally:
        gc.enable()
    assert alive == [0, 0, 0, 0]


def test_the_callers_own_exception_is_not_mixed_in() -> None:
    """An error raised late keeps its own context, whatever the caller is handling."""
    cause = KeyError("inner")

    def body() -> None:
        try:
            raise cause
        except KeyError:
            raise ConnectionError("down")  # noqa: B904 - the context is the point

    with virtual_time() as time:
        policy = retry(base=1, jitter="none", before_retry=lambda *_: time.advance(10))
        guarded_body = deadline("5s", mode="cooperative")(policy(body))
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            with pytest.raises(ConnectionError) as caught:
                guarded_body()
    assert caught.value.__context__ is cause


# attempt()


def test_attempt_is_right_under_threads_and_tasks() -> None:
    """Each call counts for itself."""

    def counts(fail: int) -> list[int]:
        seen: list[int] = []

        @retry(retries=9, base=0)
        def body() -> list[int]:
            seen.append(attempt())
            if len(seen) <= fail:
                raise ConnectionError
            return seen

        return body()

    found: dict[int, list[int]] = {}
    threads = [threading.Thread(target=lambda n=n: found.__setitem__(n, counts(n))) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: list(range(1, n + 2)) for n in range(6)}

    @retry(retries=9, base=0)
    async def body(seen: list[int], fail: int) -> list[int]:
        seen.append(attempt())
        await asyncio.sleep(0)
        assert attempt() == seen[-1]
        if len(seen) <= fail:
            raise ConnectionError
        return seen

    async def main() -> list[list[int]]:
        return await asyncio.gather(*(body([], n) for n in range(6)))

    assert asyncio.run(main()) == [list(range(1, n + 2)) for n in range(6)]


def test_attempt_is_right_in_recursion() -> None:
    """The inner call counts from 1 and the outer one goes on where it was."""
    seen: list[tuple[int, int]] = []

    @retry(retries=2, base=0)
    def body(level: int) -> None:
        if level:
            inner_failed = False
            try:
                body(level - 1)
            except ConnectionError:
                inner_failed = True
            seen.append((level, attempt()))
            assert inner_failed
        else:
            seen.append((level, attempt()))
        raise ConnectionError

    with pytest.raises(ConnectionError):
        body(1)
    assert seen == [(0, 1), (0, 2), (0, 3), (1, 1), (0, 1), (0, 2), (0, 3), (1, 2), (0, 1), (0, 2), (0, 3), (1, 3)]
    assert attempt() == 1


def test_attempt_below_another_guarded_call_is_that_of_the_nearest_retry() -> None:
    """A helper without a retry of its own sees its caller's."""
    seen: list[int] = []

    @deadline("1m", mode="cooperative")
    def helper() -> None:
        seen.append(attempt())

    @retry(base=0)
    def body() -> None:
        helper()
        if len(seen) < 3:
            raise ConnectionError

    body()
    assert seen == [1, 2, 3]


# Nesting, streams, loops


def test_nested_retries_are_told_at_run_time(drive: Drive) -> None:
    """Attempts multiply, which nobody sees at decoration when the inner retry is in another function."""

    @retry(retries=1, base=0)
    def inner() -> None:
        raise ConnectionError

    with capture("WARNING") as events, pytest.raises(ConnectionError):
        drive(inner, retry(retries=1, base=0)) if drive.mode == "async" else drive(lambda: inner(), retry(1, base=0))  # type: ignore[attr-defined]
    assert len(named(events, "retry.nested")) == 2


def test_two_retries_on_one_function_are_told_at_run_time_too(drive: Drive) -> None:
    """The attempts of the inner one multiply by those of the outer one."""
    body = Script(*down(4))
    with capture("WARNING") as events, pytest.raises(ConnectionError), pytest.warns(GuardWarning):
        drive(body, retry(retries=1, base=0), retry(retries=1, base=0))
    assert body.attempts == [1, 2, 1, 2]
    assert len(named(events, "retry.nested")) == 2


def test_visible_nesting_warns_at_decoration() -> None:
    """Two retries on one function."""
    with pytest.warns(GuardWarning, match="retry inside retry"):
        retry(retries=1)(retry(retries=1)(lambda: None))


def test_a_generator_is_retried_until_its_first_item() -> None:
    """Before it nothing has gone out; after it the consumer would see items twice."""
    starts: list[int] = []

    @retry(base=0, on_result=lambda result: True)
    def pages() -> Iterator[int]:
        starts.append(attempt())
        if len(starts) < 3:
            raise ConnectionError
        yield attempt()
        yield attempt()
        raise ConnectionError

    got: list[int] = []
    with pytest.raises(ConnectionError):
        got.extend(pages())
    assert (starts, got) == ([1, 2, 3], [3, 3])


def test_an_async_generator_is_retried_until_its_first_item() -> None:
    """Like its plain sibling."""
    starts: list[int] = []

    @retry(base=0)
    async def pages() -> AsyncIterator[int]:
        starts.append(attempt())
        if len(starts) < 3:
            raise ConnectionError
        yield attempt()
        yield attempt()
        raise ConnectionError

    async def main() -> list[int]:
        got: list[int] = []
        with pytest.raises(ConnectionError):
            got.extend([page async for page in pages()])  # the list is never complete
        stream = pages()
        got.append(await anext(stream))
        await stream.aclose()
        return got

    assert asyncio.run(main()) == [1]
    assert starts == [1, 2, 3, 1]


def test_a_plain_function_that_returns_an_awaitable_is_retried() -> None:
    """The attempt is what the awaitable does."""
    body = Script(*down(2), "page")

    async def later() -> Any:
        return body()

    @retry(base=0)
    def ask() -> Any:
        return later()

    async def main() -> Any:
        return await ask()

    assert asyncio.run(main()) == "page"
    assert body.attempts == [1, 2, 3]


def test_a_plain_function_that_sleeps_on_a_loops_thread_warns_once() -> None:
    """Its backoff freezes the loop."""
    body = Script(*down(2), 1, *down(1), 2)
    call = retry(backoff=[0.001])(body)

    async def main() -> None:
        with pytest.warns(GuardWarning, match="freezes the event loop"):
            call()
        call()  # warnings are errors here: a second one would fail

    asyncio.run(main())


def test_a_policy_takes_new_options_in_place(drive: Drive) -> None:
    """Reloading a file changes what later calls do."""
    policy = retry(retries=1, base=0, name="reloaded")
    policy.reconfigure(RetryOptions(retries=3, base=0.0))
    body = Script(*down(3), 1)
    assert drive(body, policy) == 1


def test_more_retries_than_a_list_could_hold_may_have_a_sequence() -> None:
    """Only as many delays are read as there are."""
    assert retry(retries=10**30, backoff=[1, 2]).options.backoff == (1, 2)


def test_worst_case_counts_attempts_and_the_longest_delays() -> None:
    """For explain(): a server may ask for max_retry_after each time."""

    def worst(policy: Retry) -> tuple[float, float]:
        return policy.worst_case(1, 2, None)  # type: ignore[arg-type]

    assert worst(retry(retries=3, retry_after=False)) == (4, 8 + 0.25 + 0.5 + 1)
    assert worst(retry(retries=2, max_retry_after=10)) == (3, 6 + 20)
    assert worst(retry(retries=1, backoff=lambda failed: 1)) == (2, inf)
    endless = retry(retries=10**15, base=1, max_delay=2, retry_after=False)  # told at once, too
    assert worst(endless) == (10**15 + 1, 2 * (10**15 + 1) + 2 * 10**15 - 1)


def test_no_policy_needs_a_loop_when_built() -> None:
    """One module-level policy serves several loops and threads."""
    policy = retry(base=0)

    @policy
    async def body(script: Script) -> Any:
        return script()

    for _ in range(3):
        assert asyncio.run(body(Script(*down(1), 1))) == 1
