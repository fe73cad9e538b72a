"""The runs in flight of one idempotent policy: who leads each, who joined it, and how it ended.

A run is led by a thread, which runs the body itself, or by a task of its own, which belongs to no caller. Under the
table's lock each caller learns what to do; whoever has to wait gets a waiter, woken outside the lock.

Invariants: one run per key; a run leaves the table with its outcome; a run led by a task is told to end when its
last caller is gone, and not before. Times are monotonic seconds.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import TypeAlias

from guarded._core.call import Call, Deadline
from guarded._core.fork import after_fork
from guarded._core.monitor import Monitor
from guarded._core.token import Token
from guarded._core.waiters import TaskWaiter, ThreadWaiter
from guarded.policies._idempotent.outcomes import Neutral, Outcome
from guarded.stores.contract.idempotent import Claim

Waiter: TypeAlias = ThreadWaiter | TaskWaiter


def held_by(call: Call | None) -> Iterator[object]:
    """What a call and the calls around it hold."""
    while call is not None:
        node = call.held
        while node is not None:
            yield node[0]
            node = node[1]
        call = call.parent


class Phase(Enum):
    """Where a run is."""

    ASKING = auto()  # the store has not answered yet: it may turn out to be a replay
    GOING = auto()  # the body runs, here or in another process
    SAVING = auto()  # the body has ended: nothing may cut it any more
    ENDING = auto()  # its last caller is gone, the body is being cancelled
    OVER = auto()  # its outcome is there


class Step(Enum):
    """What a caller is to do."""

    LEAD = auto()
    JOIN = auto()  # wait for the outcome
    WATCH = auto()  # wait until the run is in another phase, then ask again
    TAKE = auto()  # the outcome is there
    MISMATCH = auto()
    REJECT = auto()
    RECURSION = auto()
    FREEZE = auto()  # waiting would freeze the event loop of this thread


class Run:
    """One execution of a key.

    Attributes:
        claim: what its leader brings to the store.
        phase, outcome: how far it is.
        task: what leads it; None for a thread.
        deadline: the deadline of the body led by a task: that of the caller who can wait longest.
        token: tells a body led by a task that nobody waits any more; None where no caller had one.
        untils: deadlines of callers that the body may have been cut by.
        claimed: whether the store has it as running by us.
    """

    def __init__(self, key: str, claim: Claim) -> None:
        self.key = key
        self.claim = claim
        self.phase = Phase.ASKING
        self.outcome: Outcome | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.task: asyncio.Task[None] | None = None
        self.deadline: Deadline | None = None
        self.untils: set[float] = set()
        self.token: Token | None = None
        self.claimed = False
        self.on_end: Callable[[], object] | None = None  # undoes what goes on beside the run (lease renewal)
        self.joined: dict[Waiter, Call] = {}
        self.waits_for: list[Run] = []  # what calls from inside this run have joined
        self.watching: list[Waiter] = []

    @property
    def is_lost(self) -> bool:
        """Whether the loop that ran it is closed, so that it will never end."""
        return self.phase is not Phase.OVER and self.loop is not None and self.loop.is_closed()


@dataclass(frozen=True, slots=True)
class Entry:
    """What `Runs.enter` says: the step, the run, and a waiter where the step is to wait."""

    step: Step
    run: Run
    waiter: Waiter | None = None


class Runs(Monitor):
    """All runs in flight of one policy, by key."""

    def __init__(self) -> None:
        super().__init__()
        self._runs: dict[str, Run] = {}
        after_fork(self, Runs._forget)

    def __len__(self) -> int:
        return len(self._runs)

    def enter(self, mine: Run, call: Call, *, join: bool, make: type[Waiter]) -> Entry:
        """Lead `mine`, or say what to do about the run of its key that there is."""
        with self, self._lock:
            run = self._runs.get(mine.key)
            if run is None:
                entry = self._lead(mine, call, make)
            elif run.is_lost:
                entry = Entry(Step.TAKE, run)
            else:
                entry = self._follow(run, mine.claim, call, join, make)
        if entry.run.is_lost:
            self.settle(entry.run, Neutral(lost=True))
        if entry.waiter is not None and entry.step is not Step.LEAD:
            self._watch_loop(entry.run, entry.waiter)
        return entry

    def _lead(self, run: Run, call: Call, make: type[Waiter]) -> Entry:
        self._runs[run.key] = run
        run.untils.add(call.until)
        waiter = None
        if make is TaskWaiter:
            waiter = TaskWaiter()
            run.loop = waiter.loop
            run.joined[waiter] = call
            if call.deadline is not None:
                run.deadline = Deadline(call.until, call.deadline.policy)
        return Entry(Step.LEAD, run, waiter)

    def _follow(self, run: Run, claim: Claim, call: Call, join: bool, make: type[Waiter]) -> Entry:
        around = [each for each in held_by(call) if isinstance(each, Run)]
        if around and _leads_to(run, around):
            return Entry(Step.RECURSION, run)
        if run.phase is Phase.OVER:
            return Entry(Step.TAKE if _same(run.claim, claim) else Step.MISMATCH, run)
        here = asyncio._get_running_loop() if make is ThreadWaiter else None
        if run.phase is Phase.ENDING or (
            run.phase is Phase.ASKING and (not join or here is not None or not _same(run.claim, claim))
        ):
            if here is not None and run.loop is here:
                return Entry(Step.FREEZE, run)
            waiter = make()
            run.watching.append(waiter)
            return Entry(Step.WATCH, run, waiter)
        if not _same(run.claim, claim):
            return Entry(Step.MISMATCH, run)
        if not join:
            return Entry(Step.REJECT, run)
        if here is not None:
            return Entry(Step.FREEZE, run)
        waiter = make()
        run.joined[waiter] = call
        for each in around:
            each.waits_for = [run, *[other for other in each.waits_for if other.phase is not Phase.OVER]]
        if run.deadline is not None:
            run.deadline.until = max(run.deadline.until, call.until)
            run.untils.add(call.until)
        return Entry(Step.JOIN, run, waiter)

    def advance(self, run: Run, phase: Phase) -> None:
        """Go on to `phase`; a run that is ending or over stays so."""
        with self, self._lock:
            if run.phase is Phase.OVER or (run.phase is Phase.ENDING and phase is not Phase.SAVING):
                return
            run.phase = phase
            self._wake(run.watching)
            run.watching = []

    def settle(self, run: Run, outcome: Outcome, *, keep: bool = False) -> None:
        """End a run, once; with `keep` it stays in the table until `drop`, so that nobody runs the key meanwhile."""
        with self, self._lock:
            self._settle(run, outcome, keep)

    def _settle(self, run: Run, outcome: Outcome, keep: bool) -> None:
        if run.phase is Phase.OVER:
            return
        run.phase = Phase.OVER
        run.outcome = outcome
        if not keep and self._runs.get(run.key) is run:
            del self._runs[run.key]
        on_end, run.on_end = run.on_end, None
        if on_end is not None:
            self._outgoing.append(on_end)
        self._wake((*run.joined, *run.watching))
        run.watching = []

    def spend(self, run: Run) -> None:
        """The first caller has its outcome: let go of it if nobody else is to get it."""
        alone = len(run.joined) <= (run.loop is not None)  # a caller of a task joined it
        if alone and self._runs.get(run.key) is not run:
            run.outcome = None

    def drop(self, run: Run) -> None:
        """Take out a run that was kept."""
        with self, self._lock:
            if self._runs.get(run.key) is run:
                del self._runs[run.key]

    def leave(self, run: Run, waiter: Waiter) -> None:
        """A caller is gone; the last one of a run led by a task has the task cancelled."""
        with self, self._lock:
            self._handle((run, waiter))

    def vanish(self, run: Run, waiter: Waiter) -> None:
        """Like `leave`, from a finalizer: never blocks."""
        self.post((run, waiter))

    def _handle(self, message: tuple[Run, Waiter | Neutral]) -> None:
        run, waiter = message
        if isinstance(waiter, Neutral):
            self._settle(run, waiter, keep=False)
            return
        call = run.joined.pop(waiter, None)
        if call is None:
            return  # it only watched
        for each in held_by(call):
            if isinstance(each, Run) and run in each.waits_for:
                each.waits_for.remove(run)
        if run.joined:
            if run.deadline is not None:
                run.deadline.until = max(other.until for other in run.joined.values())
        elif run.loop is not None and run.phase in (Phase.ASKING, Phase.GOING):
            run.phase = Phase.ENDING
            self._outgoing.append(partial(self._stop, run))

    def _stop(self, run: Run) -> None:
        """Cancel the task of a run, from any thread."""
        loop, task = run.loop, run.task
        if loop is None or task is None:
            return
        if loop is asyncio._get_running_loop():
            task.cancel()
        else:
            try:
                loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:
                self.post((run, Neutral(lost=True)))
        if run.token is not None:
            run.token.cancel("nobody waits for this run any more")

    def _wake(self, waiters: Iterable[Waiter]) -> None:
        self._outgoing.extend(waiter.wake for waiter in waiters)

    def _carry_out(self, decision: Callable[[], object]) -> None:
        decision()

    def _watch_loop(self, run: Run, waiter: Waiter) -> None:
        """Have a run settled when its loop dies, for callers of other loops and threads, who would wait for ever."""
        loop = run.loop
        if loop is not None and loop is not asyncio._get_running_loop():
            try:
                loop.call_soon_threadsafe(_Sentinel(self, run))
            except RuntimeError:
                self.settle(run, Neutral(lost=True))
                waiter.wake()

    def _forget(self) -> None:
        Monitor.__init__(self)
        self._runs = {}


def _leads_to(run: Run, targets: list[Run]) -> bool:
    """Whether `run` is one of the targets, or waits for one through runs that wait for each other."""
    found, ahead = {run}, [run]
    while ahead:
        here = ahead.pop()
        if here in targets:
            return True
        for other in here.waits_for:
            if other not in found and other.phase is not Phase.OVER:
                found.add(other)
                ahead.append(other)
    return False


def _same(mine: Claim, theirs: Claim) -> bool:
    return mine.fingerprint == theirs.fingerprint


class _Sentinel:
    """Sits in a loop for as long as a run does; a loop that closes drops its handles, and with them this object."""

    __slots__ = ("_run", "_runs")

    INTERVAL = 3600.0  # seconds of the loop's own clock, for nothing but to stay in its heap

    def __init__(self, runs: Runs, run: Run) -> None:
        self._runs = runs
        self._run = run

    def __call__(self) -> None:
        run = self._run
        if run.phase is not Phase.OVER and run.loop is not None and run.task is not None:
            # Weakly: the run, which others hold, would keep the handle through its task, and with it this object.
            handle = weakref.ref(run.loop.call_later(self.INTERVAL, self))
            run.task.add_done_callback(lambda task: _cancel(handle()))

    def __del__(self) -> None:
        if self._run.is_lost:
            self._runs.post((self._run, Neutral(lost=True)))


def _cancel(handle: asyncio.TimerHandle | None) -> None:
    if handle is not None:
        handle.cancel()
