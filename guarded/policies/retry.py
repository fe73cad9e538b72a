"""retry: again, later.

A failed attempt is followed by another one while the error is worth it, retries are left, and the next
attempt can start before the deadline; never is a wait begun that could lead to nothing. What the last attempt
raised or returned is what the caller gets, the same object. Delays are seconds; attempt 1 is the first call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import fields
from math import inf
from typing import Any, cast, overload

from guarded._core import waiters
from guarded._core.call import Call
from guarded._core.durations import Duration
from guarded._core.factory import factory
from guarded._core.kinds import kind_of
from guarded._core.place import warn
from guarded._core.policy import Args, AsyncNext, F, Fn, Kwargs, Policy, Site, SyncNext
from guarded._core.registry import registry
from guarded.errors import DeadlineExceeded
from guarded.http import transient
from guarded.policies._exceptions import trim
from guarded.policies._matching import Matches, title
from guarded.policies._retry.backoff import Jitter
from guarded.policies._retry.budget import RetryBudget
from guarded.policies._retry.options import RetryOptions
from guarded.policies._retry.run import Done, Layer, Run

__all__ = ["Done", "Retry", "RetryBudget", "retry"]

_SUMMED = 10_000  # delays that the worst case adds up one by one


def _pause(
    run: Run, delay: float, failed: Exception | None, result: Any, warn_of_freeze: Callable[[], None]
) -> Done[Any] | None:
    """Wait, then ask the hook: a Done ends the call, None lets the next attempt start."""
    layer, verdict = run.layer, None
    with run.between(failed):
        if delay > 0 and asyncio._get_running_loop() is not None:
            warn_of_freeze()
        try:
            waiters.sleep(run.call, delay, run.during)
        except DeadlineExceeded:
            pass  # it passed since the decision; the caller is told by the error of the last attempt
        if layer.hook is not None and not run.is_late():
            verdict = layer.hook(failed, run.attempt)
            if hasattr(type(verdict), "__await__"):
                raise TypeError(f"before_retry of {layer.policy!r} is async, but {run.call.function} is not")
    return run.conclude(verdict, failed, result)


def _sync_shell(layer: Layer, proceed: SyncNext, warn_of_freeze: Callable[[], None]) -> SyncNext:
    on_result, budget, is_stream = layer.on_result, layer.budget, layer.is_stream

    def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        outer = call.attempt
        call.attempt = 1
        if budget is not None:
            budget.deposit()
        run: Run | None = None
        failed: Exception | None = None
        try:
            while True:
                try:
                    result = proceed(call, fn, args, kwargs)
                except Exception as error:
                    trim(error)
                    run = run or Run(layer, call, outer, args, kwargs)
                    delay = run.next_delay(error)
                    if delay is None:
                        raise
                    failed, result = error, None
                else:
                    if on_result is None or not on_result(result):
                        if run is not None:
                            run.recovered()
                        return result
                    run = run or Run(layer, call, outer, args, kwargs)
                    delay = run.next_delay(None, result)
                    if delay is None:
                        return result
                done = _pause(run, delay, failed, result, warn_of_freeze)  # not inside the except block
                if done is not None:
                    return done.value
                failed = result = None
                run.begin_next()
        except BaseException:
            call.attempt = outer
            raise
        finally:
            failed = None
            if not is_stream:  # the body of a stream goes on after this
                call.attempt = outer

    return shell


async def _pause_async(run: Run, delay: float, failed: Exception | None, result: Any) -> Done[Any] | None:
    """Like `_pause`; the hook may be async."""
    layer, verdict = run.layer, None
    with run.between(failed):
        try:
            await waiters.sleep_async(run.call, delay, run.during)
        except DeadlineExceeded:
            pass  # it passed since the decision; the caller is told by the error of the last attempt
        if layer.hook is not None and not run.is_late():
            verdict = layer.hook(failed, run.attempt)
            if hasattr(type(verdict), "__await__"):
                verdict = await cast("Awaitable[object]", verdict)
    return run.conclude(verdict, failed, result)


def _async_shell(layer: Layer, proceed: AsyncNext) -> AsyncNext:
    on_result, budget, is_stream = layer.on_result, layer.budget, layer.is_stream

    async def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        outer = call.attempt
        call.attempt = 1
        if budget is not None:
            budget.deposit()
        run: Run | None = None
        failed: Exception | None = None
        try:
            while True:
                try:
                    result = await proceed(call, fn, args, kwargs)
                except Exception as error:
                    trim(error)
                    run = run or Run(layer, call, outer, args, kwargs)
                    delay = run.next_delay(error)
                    if delay is None:
                        raise
                    failed, result = error, None
                else:
                    if on_result is None or not on_result(result):
                        if run is not None:
                            run.recovered()
                        return result
                    run = run or Run(layer, call, outer, args, kwargs)
                    delay = run.next_delay(None, result)
                    if delay is None:
                        return result
                done = await _pause_async(run, delay, failed, result)
                if done is not None:
                    return done.value
                failed = result = None
                run.begin_next()
        except BaseException:
            call.attempt = outer
            raise
        finally:
            failed = None
            if not is_stream:
                call.attempt = outer

    return shell


class Retry(Policy[RetryOptions]):
    """Repeats failed attempts; see `retry`."""

    kind = "retry"

    def __init__(self, options: RetryOptions, *, name: str | None = None) -> None:
        super().__init__(options, name=name)
        self._warned: set[str] = set()

    def __repr__(self) -> str:
        shown = [f"retries={self.options.retries}"]
        for field in fields(self.options):
            value = getattr(self.options, field.name)
            if field.name != "retries" and value != field.default:
                shown.append(f"{field.name}={title(value) if _is_code(value) else repr(value)}")
        return f"retry({', '.join(shown)}{f', name={self.name!r}' if self.name else ''})"

    def check(self, site: Site) -> None:
        """Refuse an async hook where nobody could await it."""
        hook = self.options.before_retry
        if hook is not None and kind_of(hook) == "async" and not site.kind.startswith("async"):
            raise TypeError(f"before_retry={title(hook)} is async, but {site.function} is not: give a plain function")

    def sync_layer(self, proceed: SyncNext, site: Site) -> SyncNext:
        """Attempts in the caller's thread, which sleeps between them."""
        return _sync_shell(Layer(self, site), proceed, lambda: self._warn_of_freeze(site))

    def async_layer(self, proceed: AsyncNext, site: Site) -> AsyncNext:
        """Attempts in the caller's task."""
        return _async_shell(Layer(self, site), proceed)

    def worst_case(self, calls: float, seconds: float, site: Site) -> tuple[float, float]:
        """All attempts, with the longest delays: the other side may ask for up to `max_retry_after` each time."""
        options, law = self.options, self.options.law
        asked = options.max_retry_after if options.retry_after else 0.0
        delays = 0.0
        for failed in range(1, min(options.retries, _SUMMED) + 1):
            longest = law.longest(failed)
            delays += inf if longest is None else max(longest, asked)
        if options.retries > _SUMMED:  # by then all are as long as the last
            longest = law.longest(options.retries)
            delays += (options.retries - _SUMMED) * (inf if longest is None else max(longest, asked))
        return calls * (options.retries + 1), seconds * (options.retries + 1) + delays

    def _warn_of_freeze(self, site: Site) -> None:
        """Warn, once for each function, that a plain function sleeps on the thread of a running event loop."""
        if site.function not in self._warned:
            self._warned.add(site.function)
            warn(
                f"{site.function}: the backoff of a plain function freezes the event loop that runs in this thread; "
                "make the function async, or call it in a worker thread"
            )


def _is_code(value: object) -> bool:
    return callable(value) or (isinstance(value, tuple) and any(map(callable, value)))


@overload
def retry(retries: F, /) -> F: ...


@overload
def retry(
    retries: int | None = None,
    *,
    attempts: int | None = None,
    on: Matches = ...,
    on_result: Callable[[Any], object] | None = None,
    unless: Matches = (),
    base: Duration = 0.25,
    factor: float = 2,
    max_delay: Duration = 5,
    jitter: Jitter | float = "full",
    backoff: Callable[[int], Duration] | Iterable[Duration] | None = None,
    retry_after: bool = True,
    max_retry_after: Duration = 60,
    budget: RetryBudget | str | None = None,
    before_retry: Callable[[Any, int], object] | None = None,
    name: str | None = None,
) -> Retry: ...


@factory
def retry(
    retries: Any = None,
    *,
    attempts: int | None = None,
    on: Matches = transient,
    on_result: Callable[[Any], object] | None = None,
    unless: Matches = (),
    base: Duration = 0.25,
    factor: float = 2,
    max_delay: Duration = 5,
    jitter: Jitter | float = "full",
    backoff: Callable[[int], Duration] | Iterable[Duration] | None = None,
    retry_after: bool = True,
    max_retry_after: Duration = 60,
    budget: RetryBudget | str | None = None,
    before_retry: Callable[[Any, int], object] | None = None,
    name: str | None = None,
) -> Any:
    """Repeat failed attempts; ``@retry`` alone, or with options.

    The caller gets the last result or exception itself. Control flow (cancellation, KeyboardInterrupt and the like) is
    never retried, nor is a deadline that encloses the retry; a generator is retried until its first item is out.

    Args:
        retries: additional calls, at least 0; default 3.
        attempts: all calls, at least 1; in place of `retries`.
        on: which errors are worth a retry: a type, a predicate ``(exc) -> bool``, or a tuple of them. A type means an
            ExceptionGroup when it means all leaves. Default `guarded.transient`.
        on_result: predicate over results; true asks for a retry.
        unless: like `on`; errors never to retry, also when only a leaf of a group is meant.
        base: delay after the first failure, before jitter. Default 250 ms.
        factor: growth of the delay per failure, at least 1. Default 2.
        max_delay: longest own delay, jitter included. Default 5 s.
        jitter: ``"full"`` (default), ``"equal"``, ``"decorrelated"``, ``"none"``, or a fraction (0.2 is ±20 %).
        backoff: delays in place of `base`, `factor`, `max_delay` and `jitter`, taken as they are: a function of the
            number of the failed attempt, or a sequence, whose last delay repeats.
        retry_after: whether a wait that a server or a rejection asks for is a floor under the own delay. Default True.
        max_retry_after: longest such wait; a longer one ends the call at once and is left on the error as its
            ``retry_after``. Default 60 s.
        budget: a `RetryBudget`, or the name of one; asked before each wait.
        before_retry: ``(exc, attempt)`` is called after each wait, right before the next attempt, with the error (None
            when a result was refused) and the number of the failed attempt. It may look at the world and return
            ``Done(value)`` to end as a success. It may be async where the function is. What it raises ends the call.
        name: register the policy under this name.

    Raises:
        ValueError: naming every wrong option.
        TypeError: at decoration, for an async hook on a plain function.
        PolicyConflict: the name stands for something else already.

    Example:
        >>> from guarded import retry
        >>> @retry(attempts=3, on=ConnectionError, base="10ms")
        ... def fetch() -> str:
        ...     return "page"
        >>> fetch()
        'page'
    """
    if callable(retries) or isinstance(retries, (classmethod, staticmethod)):
        return Retry(RetryOptions())(retries)
    given = {
        "on": on,
        "on_result": on_result,
        "unless": unless,
        "base": base,
        "factor": factor,
        "max_delay": max_delay,
        "jitter": jitter,
        "backoff": backoff,
        "retry_after": retry_after,
        "max_retry_after": max_retry_after,
        "budget": budget,
        "before_retry": before_retry,
    }
    return registry.intern(Retry(RetryOptions.checked(retries, attempts, given), name=name))
