"""hedge: a second copy of a call that takes long; the first success wins.

Every copy runs the rest of the stack for itself, so it takes its own permits. Losers are cancelled and awaited
(async) or marked and left behind (sync). Only calls that may run twice are hedged. Delays are seconds.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from guarded._core import clock
from guarded._core.call import Call
from guarded._core.durations import Duration
from guarded._core.factory import factory
from guarded._core.fork import after_fork
from guarded._core.keys import one_shot
from guarded._core.place import warn
from guarded._core.policy import Args, AsyncNext, Fn, Kwargs, Policy, Site, SyncNext
from guarded._core.registry import registry
from guarded._core.workers import MAX_ABANDONED, workers
from guarded.policies._hedge.core import Latencies, delay_of
from guarded.policies._hedge.options import HedgeOptions
from guarded.policies._hedge.race import Contest, run_in_tasks, run_in_threads
from guarded.policies._retry.budget import RetryBudget, find_budget

__all__ = ["Hedge", "HedgeOptions", "hedge"]


class Hedge(Policy[HedgeOptions]):
    """Starts another copy of a call that takes long; see `hedge`."""

    kind = "hedge"

    def __init__(self, options: HedgeOptions, *, name: str | None = None) -> None:
        super().__init__(options, name=name)
        self._renew_lock()
        self._latencies = Latencies()
        self._warned = False
        after_fork(self, Hedge._renew_lock)

    def _renew_lock(self) -> None:
        # Anew in a forked child, which has no thread that held it; reentrant for a signal handler that makes calls.
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        options = self.options
        after = repr(options.after) if isinstance(options.after, str) else f"{options.after:g}"
        more = "" if options.max_hedges == 1 else f", max_hedges={options.max_hedges}"
        more += ", idempotent=True" if options.idempotent else ""
        return f"hedge({after}{more}{f', name={self.name!r}' if self.name else ''})"

    def check(self, site: Site) -> None:
        """Refuse generators, whose items cannot be told apart, and in a finished stack what may not run twice."""
        if site.is_stream:
            raise TypeError(f"{site.function} is a generator, which cannot be hedged: hedge the calls inside it")
        # Only a finished stack has `declared`: an outer @idempotent comes after this decorator.
        may_repeat = self.options.idempotent or any(layer.kind == "idempotent" for layer in site.declared)
        if site.declared and not may_repeat:
            raise TypeError(
                f"{self!r} runs {site.function} more than once: say hedge(idempotent=True) if that does no harm, "
                "or put @idempotent around it"
            )

    def observe(self, seconds: float) -> None:
        """Remember how long a call took, for percentiles."""
        with self._lock:
            self._latencies.observe(max(0.0, seconds))

    def _delay(self) -> Callable[[], float | None]:
        ask = delay_of(self.options.after, self._latencies)

        def delay() -> float | None:
            with self._lock:
                return ask()

        return delay

    def sync_layer(self, proceed: SyncNext, site: Site) -> SyncNext:
        """Copies in worker threads; in place while a percentile is unknown, or where threads would do no good."""
        delay, budget = self._delay(), find_budget(self.options.budget)

        def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
            if budget is not None:
                budget.deposit()
            after = delay()
            on_loop = asyncio._get_running_loop() is not None
            if after is None or on_loop or workers.abandoned >= MAX_ABANDONED or one_shot(args, kwargs):
                started = clock.monotonic()
                result = proceed(call, fn, args, kwargs)
                self.observe(clock.monotonic() - started)
                if on_loop:
                    self._warn_of_freeze(site)
                return result
            return run_in_threads(Contest(self, self.observe, budget, call, after), proceed, fn, args, kwargs)

        return shell

    def async_layer(self, proceed: AsyncNext, site: Site) -> AsyncNext:
        """Copies in tasks; in place while a percentile is unknown."""
        delay, budget = self._delay(), find_budget(self.options.budget)

        async def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
            if budget is not None:
                budget.deposit()
            after = delay()
            if after is None or one_shot(args, kwargs):
                started = clock.monotonic()
                result = await proceed(call, fn, args, kwargs)
                self.observe(clock.monotonic() - started)
                return result
            return await run_in_tasks(Contest(self, self.observe, budget, call, after), proceed, fn, args, kwargs)

        return shell

    def worst_case(self, calls: float, seconds: float, site: Site) -> tuple[float, float]:
        """All copies, the last of which starts when the one before it is about to end."""
        copies = 1 + self.options.max_hedges
        return calls * copies, seconds * copies

    def live_state(self) -> dict[str, Any]:
        """The delay before a copy starts, in seconds (None: not known yet), and the calls it is taken from."""
        return {"after": self._delay()(), "observed": len(self._latencies)}

    def _warn_of_freeze(self, site: Site) -> None:
        if not self._warned:
            self._warned = True
            warn(f"{site.function}: a plain function on the thread of an event loop is not hedged; make it async")


@factory
def hedge(
    after: Duration = "p95",
    *,
    max_hedges: int = 1,
    budget: RetryBudget | str | None = None,
    idempotent: bool = False,
    name: str | None = None,
) -> Hedge:
    """Start another copy of a call that takes long, and take the first success.

    The technique is that of Jeffrey Dean and Luiz André Barroso, "The Tail at Scale" (CACM 56:2, 2013). A copy that
    fails lets the next one start at once; when all have failed, the caller gets the error that came first, with the
    others as notes.

    The body runs in a task or a worker thread of its own, so thread-locals are not the caller's; what the winner sets
    in context variables is visible to the caller afterwards. Losers are cancelled and awaited; those in threads cannot
    be interrupted, but their waits and `checkpoint` end with Cancelled, and their results are dropped.

    Args:
        after: how long a call may take before the next copy starts: a duration, or a percentile of the latest 1000
            calls. Nothing is hedged before there are enough to tell (20 for ``"p95"``). Default ``"p95"``.
        max_hedges: additional copies, at least 1. Default 1.
        budget: a `RetryBudget`, or the name of one; asked before each additional copy.
        idempotent: says that running the call twice does no harm. Not needed below an ``@idempotent``.
        name: register the policy under this name.

    Raises:
        ValueError: naming every wrong option.
        TypeError: at decoration, for generators; at the first call, for a stack that is not declared idempotent.
        PolicyConflict: the name stands for something else already.

    Example:
        >>> from guarded import hedge
        >>> @hedge("200ms", idempotent=True)
        ... def fetch() -> str:
        ...     return "page"
        >>> fetch()
        'page'
    """
    return registry.intern(Hedge(HedgeOptions.checked(after, max_hedges, budget, idempotent), name=name))
