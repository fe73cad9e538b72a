"""idempotent against independent models: who may own a record, and how often a body may run."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import guarded
from guarded import KeyMismatch, idempotent
from guarded._core import clock
from guarded._core.virtual import VirtualTime
from guarded.stores.contract.idempotent import Abandoned, Claim, Finished, Mismatch, Running, Started
from guarded.stores.memory import MemoryStore
from guarded.testing import virtual_time

TTL = 50.0
OWNERS = st.sampled_from(["a", "b", "c"])


class Model(RuleBasedStateMachine):
    """A memory store beside a few plain variables: one key, three owners, time that passes."""

    @initialize()
    def begin_empty(self) -> None:
        """Virtual time, nothing stored."""
        self.time = VirtualTime(auto=False)
        self.previous = clock.install(self.time)
        self.store = MemoryStore()
        self.now = 0.0
        self.state = "absent"
        self.owner = ""
        self.mark = ""
        self.ends = 0.0
        self.payload: int | None = None
        self.payloads = 0

    def teardown(self) -> None:
        """Back to real time."""
        if hasattr(self, "time"):
            clock.install(self.previous)

    def _age(self) -> None:
        if self.state == "finished" and self.now >= self.ends:
            self.state = "absent"
        if self.state == "running" and self.now >= self.ends + TTL:
            self.state = "absent"

    @rule(seconds=st.sampled_from([1, 4, 5, 6, 49, 50, 51, 120]))
    def pass_time(self, seconds: int) -> None:
        """Whole seconds, so that both sides meet the bounds exactly."""
        self.now += seconds
        self.time.advance(seconds)

    @rule(owner=OWNERS, mark=st.sampled_from(["x", "y"]), take_over=st.booleans())
    def claim(self, owner: str, mark: str, take_over: bool) -> None:
        """The answer is the model's, in every state."""
        self._age()
        reply = self.store.begin("key", Claim(owner, mark, 5.0, TTL, take_over))
        if self.state != "absent" and mark != self.mark:
            assert reply == Mismatch(running=self.state == "running")
        elif self.state == "finished":
            assert isinstance(reply, Finished)
            assert reply.payload == self.payload
        elif self.state == "running" and owner != self.owner and self.now < self.ends:
            assert isinstance(reply, Running)
            assert reply.left <= self.ends - self.now + 1e-6
        elif self.state == "running" and owner != self.owner and not take_over:
            assert isinstance(reply, Abandoned)
        else:
            assert isinstance(reply, Started)
            assert (reply.abandoned_for is not None) == (self.state == "running" and owner != self.owner)
            self.state, self.owner, self.mark, self.ends = "running", owner, mark, self.now + 5.0

    @rule(owner=OWNERS)
    def complete(self, owner: str) -> None:
        """Only the owner finishes a record, and nobody overwrites a finished one."""
        self._age()
        self.payloads += 1
        mark = self.mark if self.state == "running" else "x"
        taken = self.store.complete("key", Claim(owner, mark, 5.0, TTL), self.payloads)
        assert taken == (self.state == "absent" or (self.state == "running" and owner == self.owner))
        if taken:
            self.state, self.mark, self.payload, self.ends = "finished", mark, self.payloads, self.now + TTL

    @rule(owner=OWNERS)
    def renew(self, owner: str) -> None:
        """Only the owner prolongs its lease, also after it ran out, as long as nobody took over."""
        self._age()
        held = self.store.renew("key", Claim(owner, None, 5.0, TTL))
        assert held == (self.state == "running" and owner == self.owner)
        if held:
            self.ends = self.now + 5.0

    @rule(owner=OWNERS)
    def release(self, owner: str) -> None:
        """Only the owner lets go."""
        self._age()
        released = self.store.release("key", Claim(owner, None, 5.0, TTL))
        assert released == (self.state == "running" and owner == self.owner)
        if released:
            self.state = "absent"

    @invariant()
    def numbers_agree(self) -> None:
        """The store counts what is there."""
        if hasattr(self, "store"):
            self._age()
            assert self.store.snapshot()["finished"] == (self.state == "finished")


Model.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestRecords = Model.TestCase


class Caller(NamedTuple):
    """One call in a schedule: when it comes, when it is cancelled, what it asks."""

    comes: int
    cancelled: int | None
    key: str
    other: int


callers = st.builds(
    Caller,
    comes=st.integers(0, 20),
    cancelled=st.none() | st.integers(0, 25),
    key=st.sampled_from(["k", "l"]),
    other=st.sampled_from([0, 0, 0, 1]),
)
bodies = st.lists(st.sampled_from(["fast", "slow", "fails"]), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(st.lists(callers, min_size=1, max_size=8), bodies)
def test_at_most_one_run(schedule: list[Caller], kinds: list[str]) -> None:
    """Never two bodies of a key at once; after a success none; each answer is that of a run, or a cancel."""

    async def main() -> None:
        active: set[str] = set()
        succeeded: set[str] = set()
        started = 0

        @idempotent("key")
        async def work(key: str, other: int) -> list[Any]:
            nonlocal started
            kind = kinds[started % len(kinds)]
            started += 1
            assert key not in active
            assert key not in succeeded
            active.add(key)
            try:
                await guarded.asleep({"fast": 1, "slow": 7, "fails": 3}[kind])
                if kind == "fails":
                    raise OSError(kind)
                succeeded.add(key)
                return [key, other]
            finally:
                active.discard(key)

        async def call(caller: Caller) -> Any:
            await guarded.asleep(caller.comes)
            return await work(caller.key, caller.other)

        async def cancel(caller: Caller, task: asyncio.Task[Any]) -> None:
            if caller.cancelled is not None:
                await guarded.asleep(caller.cancelled)
                task.cancel()

        tasks = [asyncio.create_task(call(caller)) for caller in schedule]
        await asyncio.gather(*[cancel(*pair) for pair in zip(schedule, tasks, strict=True)])
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        for caller, answer in zip(schedule, answers, strict=True):
            if isinstance(answer, asyncio.CancelledError):
                assert caller.cancelled is not None
            elif not isinstance(answer, (KeyMismatch, OSError)):
                assert answer == [caller.key, caller.other]
        assert len({id(answer) for answer in answers}) == len(answers)
        assert not active

    with virtual_time():
        asyncio.run(main())
