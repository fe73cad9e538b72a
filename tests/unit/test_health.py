"""What a policy does about a store that fails, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from guarded import DeadlineExceeded, StoreError
from guarded import testing as kit
from guarded._core import clock
from guarded._core.call import Call, Deadline
from guarded.stores.health import Access, Health, Shortened


class Named:
    """What the bus needs of a policy."""

    label, kind = "api", "rate"


POLICY = Named()


def broken() -> str:
    """A step on a store that is gone."""
    raise ConnectionError("password=hunter2")


def access(mode: str = "local") -> Access:
    """The steps of a policy on a store of its own."""
    return Access(POLICY, Health("redis://h", probe=1.0), mode)


def test_one_failure_one_recovery_and_probes_between() -> None:
    """However often it is asked."""
    with kit.virtual_time() as time, kit.capture() as events:
        way, asked = access(), []

        def step() -> str:
            asked.append(clock.monotonic())
            return broken()

        for _ in range(35):
            assert way.ask(Call(), step) is None
            time.advance(0.1)
        assert len(asked) == 4  # at once, and then once a second
        time.advance(1.0)
        assert way.ask(Call(), lambda: "answer") == "answer"
        assert way.ask(Call(), lambda: "answer") == "answer"
    assert [event.name for event in events] == ["store.failed", "store.recovered"]
    assert (events[0].mode, events[0].store, events[0].policy) == ("local", "redis://h", "api")
    assert "hunter2" not in str(events[0])
    assert events[1].duration == pytest.approx(4.5)


def test_policies_on_one_store_share_its_health() -> None:
    """What one has found out, the other need not."""
    with kit.virtual_time(), kit.capture() as events:
        health = Health("s")
        one, two = Access(POLICY, health, "local"), Access(POLICY, health, "closed")
        assert one.ask(Call(), broken) is None
        with pytest.raises(StoreError, match="'s' of rate 'api' cannot be used"):
            two.ask(Call(), lambda: pytest.fail("asked"))
        assert one.tell(lambda: pytest.fail("asked")) is None
    assert len(events) == 1


def test_answers_from_before_say_nothing_about_now() -> None:
    """A step that began while the store worked neither recovers nor fails it afterwards."""
    with kit.virtual_time() as time, kit.capture() as events:
        health = Health("s")
        early = health.may_ask()
        later = health.may_ask()
        assert early is not None
        assert later is not None
        health.failed(later, None, POLICY, OSError(), "local")
        health.worked(early, None, POLICY)
        assert health.since is not None
        time.advance(1.0)
        probe = health.may_ask()
        assert probe is not None
        assert health.may_ask() is None
        health.worked(probe, None, POLICY)
        health.failed(early, None, POLICY, OSError(), "local")
        assert health.since is None
    assert [event.name for event in events] == ["store.failed", "store.recovered"]


def test_little_time_is_no_proof() -> None:
    """One step that was cut short means nothing; three in a row do; an answer between them starts over."""
    with kit.virtual_time(), kit.capture() as events:
        way = access()

        def cut() -> str:
            raise Shortened

        for _ in range(2):
            assert way.ask(Call(), cut) is None
        assert way.ask(Call(), lambda: "answer") == "answer"
        for _ in range(2):
            assert way.ask(Call(), cut) is None
        assert events == []
        assert way.ask(Call(), cut) is None
    assert [event.name for event in events] == ["store.failed"]


def test_a_call_without_time_is_not_answered_by_the_twin() -> None:
    """The deadline passed while the store was asked, or before."""
    with kit.virtual_time() as time:
        way, call = access(), Call()
        call.deadline = Deadline(clock.monotonic() + 0.1)

        def slow() -> str:
            time.advance(0.1)
            raise Shortened

        with pytest.raises(DeadlineExceeded, match="waiting for store"):
            way.ask(call, slow)
        with pytest.raises(DeadlineExceeded, match="waiting for store"):
            way.ask(call, lambda: pytest.fail("asked"))


def test_async_steps_do_the_same() -> None:
    """Asked and told."""

    async def main() -> None:
        way, closed = access(), access("closed")

        async def step() -> str:
            return broken()

        async def fine() -> str:
            return "answer"

        assert await way.ask_async(Call(), fine) == "answer"
        assert await way.tell_async(fine) == "answer"
        assert await way.tell_async(step) is None
        assert await way.tell_async(fine) is None
        assert await way.ask_async(Call(), fine) is None
        with pytest.raises(StoreError):
            await closed.ask_async(Call(), step)

    with kit.capture() as events:
        asyncio.run(main())
    assert len(events) == 2


def test_what_is_no_exception_passes(capsys: Any) -> None:
    """A cancellation is not a failing store."""

    def interrupted() -> str:
        raise KeyboardInterrupt

    with kit.capture() as events:
        way = access()
        with pytest.raises(KeyboardInterrupt):
            way.ask(Call(), interrupted)
        assert way.ask(Call(), lambda: "answer") == "answer"
    assert events == []
