"""The sync shell of `idempotent`: each run goes on in the thread of its first caller, and others park until it ends."""

from __future__ import annotations

from math import inf
from typing import Any

from guarded._core import clock, waiters
from guarded._core.call import Call
from guarded._core.policy import Args, Fn, Kwargs, SyncNext
from guarded._core.waiters import ThreadWaiter
from guarded.policies._idempotent.core import AGAIN, JOINING, Conduct, is_own, polls
from guarded.policies._idempotent.inflight import Entry, Phase, Run, Step
from guarded.policies._idempotent.outcomes import Cut, Failed, Outcome, Returned
from guarded.stores.contract.idempotent import Running


class SyncShell:
    """Drives runs in the threads of their first callers."""

    def __init__(self, conduct: Conduct, proceed: SyncNext) -> None:
        self._conduct = conduct
        self._proceed = proceed

    def __call__(self, call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        conduct = self._conduct
        key, claim = conduct.identity.of(fn, args, kwargs)
        while (result := self._attend(Run(key, claim), call, fn, args, kwargs)) is AGAIN:
            pass
        return result

    def _attend(self, mine: Run, call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        """The outcome of `mine`, or of the run of its key that there is; AGAIN when that is none for this caller."""
        conduct = self._conduct
        entry: Entry | None = None
        try:
            entry = conduct.runs.enter(mine, call, join=conduct.joins, make=ThreadWaiter)
            step, leads = entry.step, entry.step is Step.LEAD
            if leads:
                self._lead(mine, call, fn, args, kwargs)
            elif isinstance(entry.waiter, ThreadWaiter):
                if step is Step.JOIN:
                    conduct.joined(entry.run, call)
                waiters.wait(call, entry.waiter, inf, JOINING)
                if step is Step.WATCH:
                    return AGAIN
            elif step is not Step.TAKE:
                conduct.refuse(entry, call)
            return conduct.deliver(entry.run, call, leads)
        except BaseException:
            if entry is not None and entry.waiter is not None:
                conduct.runs.leave(entry.run, entry.waiter)
            conduct.withdraw(mine, call)
            raise
        finally:
            del mine  # an exception in flight has this frame in its traceback
            entry = None

    def _lead(self, run: Run, call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> None:
        """Bring the run to its outcome; only what is no Exception leaves here, and leaves it without."""
        conduct = self._conduct
        try:
            outcome = self._ask(run, call)
            if outcome is None:
                conduct.runs.advance(run, Phase.GOING)
                outcome = self._run(run, call, fn, args, kwargs)
        except Exception as error:
            outcome = Cut(error) if is_own(run, call, error) else Failed(error)
        if run.phase is not Phase.OVER:
            conduct.release(run)
            conduct.runs.settle(run, outcome)
        del outcome

    def _ask(self, run: Run, call: Call) -> Outcome | None:
        conduct = self._conduct
        for pause in polls():
            verdict = conduct.begin(run, call)
            if not isinstance(verdict, Running):
                return verdict
            waiters.refuse_on_loop_thread(f"{call.function}: {JOINING}", conduct.policy.label)
            conduct.runs.advance(run, Phase.GOING)
            # no mere sleep: the run of another process is waited for
            waiters.wait(call, ThreadWaiter(), clock.monotonic() + min(pause, verdict.left), JOINING)
        raise AssertionError("polls never end")

    def _run(self, run: Run, call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Outcome:
        conduct = self._conduct
        held, outer_key = call.held, call.key
        call.held, call.key = (run, held), run.key
        started = clock.monotonic()
        outcome: Returned | Failed | Cut
        try:
            value = self._proceed(call, fn, args, kwargs)
        except Exception as error:
            outcome = conduct.raised(run, call, error)
        else:
            outcome = conduct.returned(run, call, value)
        finally:
            call.held, call.key = held, outer_key
        try:
            if not isinstance(outcome, Cut) and outcome.payload is not None:
                conduct.save(run, call, outcome, started)
            return outcome
        finally:
            del outcome  # the traceback of a failure has this frame: no cycle through its outcome
