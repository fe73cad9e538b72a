"""Several calls at once: `gather_limit`, `all_of`, `all_settled`, `race`, `any_of`.

Each gives an awaitable where anything is async or an event loop runs; for plain callables in plain code, which run in
worker threads, the answer itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, Unpack, overload

from guarded._batch.contest import AllOf, AllSettled, AnyOf, Contest, Race
from guarded._batch.contest_runs import run_in_tasks, run_in_threads, runs_async
from guarded._batch.plan import CallsOptions, Errors, plan_thunks
from guarded._batch.progress import OnProgress
from guarded._batch.runs import gather
from guarded._batch.settled import Settled

if TYPE_CHECKING:
    from guarded.cancel import CancelToken

R = TypeVar("R")

Async: TypeAlias = Awaitable[R] | Callable[[], Awaitable[R]]
Plain: TypeAlias = Callable[[], R]


def _run(make: type[Contest[Any]], entrants: tuple[Any, ...]) -> Any:
    is_async = runs_async(entrants, make.name)
    contest = make(len(entrants))
    return run_in_tasks(contest, entrants) if is_async else run_in_threads(contest, entrants)


def _some(name: str, entrants: tuple[Any, ...]) -> None:
    if not entrants:
        raise ValueError(f"{name}: give at least one awaitable or callable; of nothing there is no first")


@overload
def gather_limit(  # type: ignore[overload-overlap]
    *thunks: Callable[[], Awaitable[R]], errors: Literal["raise"] = "raise", **options: Unpack[CallsOptions]
) -> Coroutine[Any, Any, list[R]]: ...
@overload
def gather_limit(
    *thunks: Callable[[], R], errors: Literal["raise"] = "raise", **options: Unpack[CallsOptions]
) -> list[R]: ...
@overload
def gather_limit(  # type: ignore[overload-overlap]
    *thunks: Callable[[], Awaitable[R]], errors: Literal["collect"], **options: Unpack[CallsOptions]
) -> Coroutine[Any, Any, list[Settled[R]]]: ...
@overload
def gather_limit(
    *thunks: Callable[[], R], errors: Literal["collect"], **options: Unpack[CallsOptions]
) -> list[Settled[R]]: ...
def gather_limit(
    *thunks: Callable[[], Any],
    concurrency: int = 4,
    errors: Errors = "raise",
    progress: bool | None = None,
    on_progress: OnProgress | None = None,
    executor: Executor | None = None,
    cancel: CancelToken | None = None,
) -> Any:
    """Call unlike callables, `concurrency` at once, and give their results in order.

    Args:
        thunks: callables without arguments, async and plain ones mixed; all options are those of `map_limit`.

    Example:
        >>> from guarded import gather_limit
        >>> gather_limit(lambda: 1, lambda: "two")
        [1, 'two']
    """
    plan = plan_thunks(
        "gather_limit",
        thunks,
        concurrency=concurrency,
        errors=errors,
        progress=progress,
        on_progress=on_progress,
        executor=executor,
        cancel=cancel,
    )
    return gather(plan)


@overload
def all_of(*aws: Async[R]) -> Coroutine[Any, Any, list[R]]: ...  # type: ignore[overload-overlap]
@overload
def all_of(*aws: Plain[R]) -> list[R]: ...  # type: ignore[overload-overlap]
@overload
def all_of(*aws: Async[R] | Plain[R]) -> Coroutine[Any, Any, list[R]]: ...
def all_of(*aws: Any) -> Any:
    """Wait for all, and give their results in order; the first error cancels the others, waits for them, and is raised.

    Args:
        aws: awaitables, and callables without arguments: async ones, or plain ones, which run in worker threads. Tasks
            and futures among them are cancelled too when they lose.

    In a running event loop, and where anything is async, the answer is awaitable; else this blocks and gives it.
    A call that was cancelled by others counts as failed with `Cancelled`. Losers in threads cannot be interrupted, but
    their token fires: their guarded waits and `checkpoint` end with `Cancelled`.

    Example:
        >>> from guarded import all_of
        >>> all_of(lambda: 1, lambda: 2)
        [1, 2]
    """
    return _run(AllOf, aws)


@overload
def all_settled(*aws: Async[R]) -> Coroutine[Any, Any, list[Settled[R]]]: ...  # type: ignore[overload-overlap]
@overload
def all_settled(*aws: Plain[R]) -> list[Settled[R]]: ...  # type: ignore[overload-overlap]
@overload
def all_settled(*aws: Async[R] | Plain[R]) -> Coroutine[Any, Any, list[Settled[R]]]: ...
def all_settled(*aws: Any) -> Any:
    """Wait for all, and give a `Settled` for each, in order. Nothing is raised for what failed.

    Args:
        aws: as for `all_of`.

    Example:
        >>> from guarded import all_settled
        >>> [settled.ok for settled in all_settled(lambda: 1, lambda: 1 / 0)]
        [True, False]
    """
    return _run(AllSettled, aws)


@overload
def race(*aws: Async[R]) -> Coroutine[Any, Any, R]: ...
@overload
def race(*aws: Plain[R]) -> R: ...  # type: ignore[overload-overlap]
@overload
def race(*aws: Async[R] | Plain[R]) -> Coroutine[Any, Any, R]: ...
def race(*aws: Any) -> Any:
    """The first to end: its result, or its error raised. The others are cancelled and waited for.

    Args:
        aws: as for `all_of`. A plain callable that still runs 0.1 s after its token fired is left behind in its thread.

    Raises:
        ValueError: there is nothing to wait for.

    Example:
        >>> from guarded import race, sleep
        >>> race(lambda: "fast", lambda: sleep("1m"))
        'fast'
    """
    _some("race", aws)
    return _run(Race, aws)


@overload
def any_of(*aws: Async[R]) -> Coroutine[Any, Any, R]: ...
@overload
def any_of(*aws: Plain[R]) -> R: ...  # type: ignore[overload-overlap]
@overload
def any_of(*aws: Async[R] | Plain[R]) -> Coroutine[Any, Any, R]: ...
def any_of(*aws: Any) -> Any:
    """The first success. The others are cancelled and waited for.

    Args:
        aws: as for `race`.

    Raises:
        ExceptionGroup: all failed; it holds their errors, in the order of the arguments.
        ValueError: there is nothing to wait for.

    Example:
        >>> from guarded import any_of
        >>> any_of(lambda: 1 / 0, lambda: "good")
        'good'
    """
    _some("any_of", aws)
    return _run(AnyOf, aws)
