"""What idempotence means for the calls of one callable; the shells in `idempotent` only drive it.

A run goes: ask the store, run the body, keep its result, tell the store, hand out the outcome. Nothing a store or
a copy does after the body has run changes what its caller gets. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from guarded import errors
from guarded._core import clock, waiters
from guarded._core.call import Call
from guarded._core.policy import Policy, Site
from guarded.errors import Cancelled, DeadlineExceeded, Deadlock, InProgress, KeyMismatch, StoreError
from guarded.events.bus import bus
from guarded.events.model import TRACE
from guarded.policies._idempotent.identity import Identity
from guarded.policies._idempotent.inflight import Entry, Phase, Run, Runs, Step
from guarded.policies._idempotent.options import IdempotentOptions
from guarded.policies._idempotent.outcomes import Cut, Failed, Neutral, Outcome, Replay, Returned
from guarded.policies._idempotent.results import Form, keeper_for, twin_of
from guarded.stores.contract.idempotent import Finished, IdempotentStore, Mismatch, Reply, Running, Started
from guarded.stores.health import Reported
from guarded.stores.upkeep import upkeep

JOINING = "joining an earlier run of the same key"
AGAIN: Any = object()  # the outcome is no answer for this caller: enter again
_RETRY_STORE = 5.0  # seconds between attempts to tell a store what it missed, at most
_FIRST_POLL, _LAST_POLL = 0.05, 1.0


def polls() -> Iterator[float]:
    """Seconds between questions about a run in another process."""
    pause = _FIRST_POLL
    while True:
        yield pause
        pause = min(_LAST_POLL, pause * 2)


class Conduct:
    """How the runs of one callable go; shared by its sync and async shell."""

    def __init__(self, policy: Policy[IdempotentOptions], store: IdempotentStore[Any], runs: Runs, site: Site) -> None:
        self.policy = policy
        self.runs = runs
        self.store = store
        self.keeper = keeper_for(store.durable, policy.options.store_errors)
        self.identity = Identity(policy, store.durable, site)
        self.joins = policy.options.on_duplicate == "join"
        self._reruns = policy.options.on_abandoned == "rerun"
        self._stored_errors = policy.options.store_errors
        self._shown_store = self.store.name if self.store.durable else None

    def emit(self, name: str, call: Call, key: str, **fields: Any) -> None:
        """An event about a key, by the start of its digest."""
        bus.emit(name, call, self.policy, key_digest=key[:12], store=self._shown_store, **fields)

    # Before the body

    def begin(self, run: Run, call: Call) -> Outcome | Running | None:
        """Ask the store, and say what its answer means."""
        run.claimed = True  # whatever becomes of the question: taking back a claim that is not there does nothing
        try:
            reply = self.store.begin(run.key, run.claim)
        except Exception as error:
            raise self.unreachable(run, call, error) from error
        return self.begun(run, call, reply)

    def begun(self, run: Run, call: Call, reply: Reply[Any]) -> Outcome | Running | None:
        """What the store's answer means: an outcome, a run elsewhere to wait for, or None to go ahead."""
        if isinstance(reply, Started):
            if reply.abandoned_for is not None:
                self.emit("idempotent.abandoned", call, run.key, age=reply.abandoned_for, mode="rerun")
            if self.store.durable:
                self._keep_lease(run, call)
            return None
        run.claimed = False
        if isinstance(reply, Finished):
            return Replay(reply.payload, reply.age)
        if isinstance(reply, Running):
            return reply if self.joins else Failed(self.in_progress(call, run.key, reply.left))
        if isinstance(reply, Mismatch):
            return Failed(self.mismatch(call, run.key, "running" if reply.running else "finished"))
        self.emit("idempotent.abandoned", call, run.key, age=reply.age, mode="raise")
        return Failed(self.abandoned(call))

    def unreachable(self, run: Run, call: Call, error: Exception) -> StoreError:
        """The error when the store could not be asked; should it have heard us, the claim is taken back."""
        self.release_later(run)
        return StoreError(
            f"{call.function}: store {self.store.name!r} of {self.policy.label!r} cannot be asked whether this key "
            f"has run, so the call was not made: {error if isinstance(error, Reported) else type(error).__name__}; "
            "try again when it is back",
            policy=self.policy.label,
            store=self.store.name,
        )

    def _keep_lease(self, run: Run, call: Call) -> None:
        """Renew the lease for as long as the run goes on; StoreError when nobody can and the policy minds."""

        def renew() -> bool:
            try:
                held = self.store.renew(run.key, run.claim)
            except Exception as error:
                self.store_failed(call, error, "lease not renewed")
                return True
            if not held and run.claimed:  # else the run has ended while we asked
                self.emit("idempotent.abandoned", call, run.key, reason="lease lost")
            return held

        try:
            run.on_end = upkeep.every(run.claim.lease / 3, renew).cancel
        except RuntimeError as error:
            self.store_failed(call, error, "lease not renewed")
            if self.policy.options.when_store_fails == "closed":
                raise StoreError(
                    f"{call.function}: no thread can be started to renew the lease of {self.policy.label!r} on this "
                    f"key, so the call was not made: {error}",
                    policy=self.policy.label,
                    store=self.store.name,
                ) from error

    # After the body

    def returned(self, run: Run, call: Call, value: Any) -> Returned:
        """What a result becomes."""
        self.runs.advance(run, Phase.SAVING)
        return Returned(value, self._keep("value", value, call))

    def raised(self, run: Run, call: Call, error: Exception) -> Failed | Cut:
        """What an exception of the body becomes."""
        if is_own(run, call, error):
            return Cut(error)
        if not isinstance(error, self._stored_errors):
            return Failed(error)
        self.runs.advance(run, Phase.SAVING)
        return Failed(error, self._keep("error", error, call))

    def _keep(self, form: Form, content: Any, call: Call) -> Any:
        try:
            return self.keeper.keep(form, content)
        except Exception as problem:
            self.store_failed(call, problem, "result not kept")
            kind = type(content)
            why = f"its result, a {kind.__module__}.{kind.__qualname__}, cannot be kept; return plain data from it"
            return self.keeper.keep("nothing", why)

    def save(self, run: Run, call: Call, outcome: Returned | Failed, started: float) -> None:
        """Tell the store what a run has ended with."""
        run.claimed = False
        try:
            took = self.store.complete(run.key, run.claim, outcome.payload)
        except BaseException as problem:
            self.runs.settle(run, outcome, keep=True)
            self.save_later(run, call, outcome.payload, problem)
            if not isinstance(problem, Exception):
                raise
        else:
            self.accepted(run, call, outcome, took, clock.monotonic() - started)

    def accepted(self, run: Run, call: Call, outcome: Returned | Failed, took: bool, duration: float) -> None:
        """The store has answered to a completed run."""
        if not took:
            self.emit("idempotent.abandoned", call, run.key, reason="lease lost")
        elif bus.threshold <= TRACE:
            failed = isinstance(outcome, Failed)
            self.emit(
                "idempotent.stored",
                call,
                run.key,
                duration=duration,
                outcome="failure" if failed else "success",
                cause=outcome.error if isinstance(outcome, Failed) else None,
            )

    def save_later(self, run: Run, call: Call, payload: Any, problem: BaseException | None) -> None:
        """The store missed the end of a run: tell it again beside the calls, for as long as the result lives."""
        if isinstance(problem, Exception):
            self.store_failed(call, problem, "result not stored yet")
        run.claimed = False
        give_up = clock.monotonic() + run.claim.ttl

        def save() -> bool:
            try:
                self.store.complete(run.key, run.claim, payload)
            except Exception:
                if clock.monotonic() < give_up:
                    return True
            self.runs.drop(run)
            return False

        _beside(run, save, at_once=not isinstance(problem, Exception))

    def release(self, run: Run) -> None:
        """Let the next caller run the key."""
        if not run.claimed:
            return
        run.claimed = False
        try:
            self.store.release(run.key, run.claim)
        except Exception:
            self.release_later(run)

    def release_later(self, run: Run, *, at_once: bool = False) -> None:
        """The store could not be told at once that a run is over: tell it beside the calls, until its lease ends.

        With `at_once` it has not failed, and hears of it without delay: the process may be about to end.
        """
        run.claimed = False
        give_up = clock.monotonic() + run.claim.lease

        def release() -> bool:
            try:
                self.store.release(run.key, run.claim)
            except Exception:
                return clock.monotonic() < give_up
            return False

        _beside(run, release, at_once=at_once)

    def withdraw(self, run: Run, call: Call, error: BaseException | None = None) -> None:
        """What leads a run is interrupted: whoever comes next may run the key, unless it has had its effect.

        Does nothing for a run that has ended, or that nobody led.
        """
        if run.phase is Phase.SAVING and run.claimed:
            payload = self.keeper.keep("nothing", "an interrupt came before its result was kept; find out what it did")
            self.runs.settle(run, Returned(None, payload), keep=True)
            self.save_later(run, call, payload, None)
        elif run.phase is not Phase.OVER:
            self.release(run)
            self.runs.settle(run, Neutral(error))

    def store_failed(self, call: Call, problem: Exception, reason: str) -> None:
        """Say that a store, or the copy for it, failed where the call must not notice."""
        if not isinstance(problem, Reported):
            bus.emit("store.failed", call, self.policy, store=self.store.name, cause=problem, reason=reason)

    # What callers get

    def joined(self, run: Run, call: Call) -> None:
        """A caller waits for a run in flight."""
        self.emit("idempotent.joined", call, run.key, active=len(run.joined))

    def refuse(self, entry: Entry, call: Call) -> NoReturn:
        """Raise what the table says to a caller that can neither lead nor wait."""
        if entry.step is Step.MISMATCH:
            over = entry.run.phase is Phase.OVER
            raise self.mismatch(call, entry.run.key, "finished" if over else "running")
        if entry.step is Step.REJECT:
            raise self.in_progress(call, entry.run.key, None)
        if entry.step is Step.RECURSION:
            raise Deadlock(
                f"{call.function}: called with an idempotency key from inside a run of the same key, or of one that "
                "waits for it, so that the wait would never end; use another key",
                policy=self.policy.label,
            )
        waiters.refuse_on_loop_thread(f"{call.function}: {JOINING}", self.policy.label)
        raise AssertionError(entry.step)

    def deliver(self, run: Run, call: Call, leads: bool) -> Any:
        """The outcome of a run as this caller's result or exception; AGAIN when it has to enter again."""
        outcome = run.outcome
        try:
            if isinstance(outcome, Returned):
                return outcome.value if leads else self._open(call, outcome.payload)
            if isinstance(outcome, Replay):
                return self._replay(run, call, outcome)
            if isinstance(outcome, Failed):
                if leads:
                    raise outcome.error
                if outcome.payload is not None:
                    return self._open(call, outcome.payload)
                raise twin_of(outcome.error) from outcome.error
            if leads and isinstance(outcome, (Cut, Neutral)) and outcome.error is not None:
                raise outcome.error
            waiters.enter(call, JOINING)
            if isinstance(outcome, Neutral) and outcome.lost:
                self._lost(run, call)
            return AGAIN
        finally:
            if leads:
                self.runs.spend(run)
            del outcome, run  # an exception in flight has this frame in its traceback: no cycle through the run

    def _replay(self, run: Run, call: Call, replay: Replay) -> Any:
        form, content = self._opened(call, replay.payload)
        self.emit(
            "idempotent.replayed", call, run.key, age=replay.age, outcome="success" if form == "value" else "failure"
        )
        return self._given(call, form, content)

    def _open(self, call: Call, payload: Any) -> Any:
        return self._given(call, *self._opened(call, payload))

    def _opened(self, call: Call, payload: Any) -> tuple[Form, Any]:
        try:
            return self.keeper.open(payload)
        except Exception as error:
            raise StoreError(
                f"{call.function}: an earlier run of this key has finished, and its stored result cannot be read: "
                f"{error}",
                policy=self.policy.label,
                store=self.store.name,
            ) from error

    def _given(self, call: Call, form: Form, content: Any) -> Any:
        if form == "value":
            return content
        if form == "error":
            raise content
        raise StoreError(
            f"{call.function}: an earlier run of this key has finished, but {content}",
            policy=self.policy.label,
            store=self.store.name,
        )

    def _lost(self, run: Run, call: Call) -> None:
        if self.store.durable:
            return  # its lease runs out, and then the store says so
        if self.store.release(run.key, run.claim):  # true for the first of those who waited
            mode = "rerun" if self._reruns else "raise"
            self.emit("idempotent.abandoned", call, run.key, mode=mode, reason="event loop closed")
        if not self._reruns:
            raise self.abandoned(call)

    def mismatch(self, call: Call, key: str, state: str) -> KeyMismatch:
        """The error for a key that came with other arguments, told to the bus."""
        self.emit("idempotent.mismatched", call, key, state=state)
        return KeyMismatch(
            f"{call.function}: this idempotency key is taken by a call with other arguments ({state}); "
            "use a new key for a new request",
            policy=self.policy.label,
        )

    def in_progress(self, call: Call, key: str, retry_after: float | None) -> InProgress:
        """The error for a duplicate that does not join, told to the bus."""
        self.emit("idempotent.rejected", call, key, retry_after=retry_after, reason="in progress")
        return InProgress(
            f"{call.function}: this idempotency key is being executed; ask again later, or use on_duplicate='join'",
            policy=self.policy.label,
            retry_after=retry_after,
        )

    def abandoned(self, call: Call) -> errors.Abandoned:
        """The error for a key whose earlier run died half way."""
        return errors.Abandoned(
            f"{call.function}: an earlier run of this idempotency key died half way, and nobody knows whether it had "
            "its effect; find out, then use a new key or on_abandoned='rerun'",
            policy=self.policy.label,
        )


def _beside(run: Run, action: Callable[[], bool], *, at_once: bool) -> None:
    """Tell the store something beside the calls until `action` says that it is done."""
    pause = min(_RETRY_STORE, run.claim.lease / 3)

    def first() -> bool:
        if action():
            upkeep.beside(pause, action)
        return False

    if at_once:
        upkeep.beside(0.0, first)
    else:
        upkeep.beside(pause, action)


def is_own(run: Run, call: Call, error: Exception) -> bool:
    """Whether a body ended because those who asked for it had no more time, and not for a reason of its own."""
    if isinstance(error, DeadlineExceeded):
        return error.until in run.untils
    return isinstance(error, Cancelled) and call.token is not None and call.token.cancelled
