"""Batches: one function over many items, and several calls at once.

`map_limit`, `imap_limit` and `gather_limit` run a bounded number at once, on the event loop for async functions and in
worker threads for plain ones. `all_of`, `all_settled`, `race` and `any_of` wait for several. Whatever ends them,
nothing of theirs runs any more when the caller goes on. `settled_of(error)` gives the outcomes of what was cut short.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
)
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, Unpack, overload

from guarded._batch.combinators import all_of, all_settled, any_of, gather_limit, race
from guarded._batch.plan import Errors, ItemsOptions, plan_items
from guarded._batch.progress import OnProgress
from guarded._batch.runs import gather, stream
from guarded._batch.settled import Settled, settled_of
from guarded._batch.window import AsCompleted, InOrder

if TYPE_CHECKING:
    from guarded.cancel import CancelToken

__all__ = [
    "OnProgress",
    "Settled",
    "all_of",
    "all_settled",
    "any_of",
    "gather_limit",
    "imap_limit",
    "map_limit",
    "race",
    "settled_of",
]

T = TypeVar("T")
R = TypeVar("R")

AsyncFn: TypeAlias = Callable[[T], Awaitable[R]] | Callable[[T, int], Awaitable[R]]
PlainFn: TypeAlias = Callable[[T], R] | Callable[[T, int], R]
Items: TypeAlias = Iterable[T] | AsyncIterable[T]


@overload
def map_limit(  # type: ignore[overload-overlap]
    fn: AsyncFn[T, R], items: Items[T], *, errors: Literal["raise"] = "raise", **options: Unpack[ItemsOptions]
) -> Coroutine[Any, Any, list[R]]: ...
@overload
def map_limit(
    fn: PlainFn[T, R], items: Iterable[T], *, errors: Literal["raise"] = "raise", **options: Unpack[ItemsOptions]
) -> list[R]: ...
@overload
def map_limit(
    fn: PlainFn[T, R], items: AsyncIterable[T], *, errors: Literal["raise"] = "raise", **options: Unpack[ItemsOptions]
) -> Coroutine[Any, Any, list[R]]: ...
@overload
def map_limit(  # type: ignore[overload-overlap]
    fn: AsyncFn[T, R], items: Items[T], *, errors: Literal["collect"], **options: Unpack[ItemsOptions]
) -> Coroutine[Any, Any, list[Settled[R]]]: ...
@overload
def map_limit(
    fn: PlainFn[T, R], items: Iterable[T], *, errors: Literal["collect"], **options: Unpack[ItemsOptions]
) -> list[Settled[R]]: ...
@overload
def map_limit(
    fn: PlainFn[T, R], items: AsyncIterable[T], *, errors: Literal["collect"], **options: Unpack[ItemsOptions]
) -> Coroutine[Any, Any, list[Settled[R]]]: ...
def map_limit(
    fn: Callable[..., Any],
    items: Items[Any],
    *,
    concurrency: int = 4,
    window: int | None = None,
    errors: Errors = "raise",
    progress: bool | None = None,
    on_progress: OnProgress | None = None,
    executor: Executor | None = None,
    cancel: CancelToken | None = None,
) -> Any:
    """Call `fn` for each item, `concurrency` at once, and give the results in input order.

    An async `fn` gives an awaitable list, a plain one a list, for which it ran in worker threads. With a plain `fn`
    the list is awaitable too where the items are async, and wherever an event loop runs, which must not be blocked.
    There a plain function that gives an awaitable works as well: it is called in a thread, and awaited on the loop.

    Each item runs in a copy of the caller's context, under the caller's deadline and token; policies on `fn` draw on
    the same budgets as other calls.

    Args:
        fn: takes the item, or, if it has two parameters without defaults, the item and its index.
        items: an iterable or async iterable, endless or not. Pulled one at a time, by the loop or in the caller's
            thread, no further ahead than `window`, and closed however the batch ends; files stay open.
        concurrency: how many items may run at once. Default 4.
        window: how many may be pulled and not finished (`imap_limit`: or not read), at least `concurrency`. Default
            twice the concurrency.
        errors: ``"raise"``: at the first error, take in nothing more, cancel what runs, wait for it, and raise that
            error with a note that names the item's index. ``"collect"``: a `Settled` for each item.
        progress: show a bar on stderr if that is a terminal, by tqdm where installed, else by rich. Default: none.
        on_progress: called with the items done, those of them that failed, and the total (None if not known), for
            each item, in the caller's thread or loop. What it raises is reported once and changes nothing.
        executor: run the items on this executor of `concurrent.futures` instead, Dask's and Ray's included. Where it
            is in other processes, functions travel by name, and find their policies by name there.
        cancel: a token that ends the batch, beside the one around the caller.

    Raises:
        ValueError: an option is wrong; all wrong ones are named.
        TypeError: `fn` or `items` is of no use here.
        Cancelled: the token fired. `settled_of` gives the outcomes reached by then, also those behind a
            ``CancelledError``, ``DeadlineExceeded`` or ``KeyboardInterrupt``.

    A thread cannot be interrupted: cancelled items end at their next guarded wait or `checkpoint`, and are waited for.

    Example:
        >>> from guarded import map_limit
        >>> map_limit(len, ["a", "bb", "ccc"], concurrency=2)
        [1, 2, 3]
    """
    plan = plan_items(
        "map_limit",
        fn,
        items,
        concurrency=concurrency,
        window=window,
        errors=errors,
        progress=progress,
        on_progress=on_progress,
        executor=executor,
        cancel=cancel,
    )
    return gather(plan)


@overload
def imap_limit(  # type: ignore[overload-overlap]
    fn: AsyncFn[T, R],
    items: Items[T],
    *,
    as_completed: bool = False,
    errors: Literal["raise"] = "raise",
    **options: Unpack[ItemsOptions],
) -> AsyncGenerator[R, None]: ...
@overload
def imap_limit(
    fn: PlainFn[T, R],
    items: Iterable[T],
    *,
    as_completed: bool = False,
    errors: Literal["raise"] = "raise",
    **options: Unpack[ItemsOptions],
) -> Generator[R, None, None]: ...
@overload
def imap_limit(
    fn: PlainFn[T, R],
    items: AsyncIterable[T],
    *,
    as_completed: bool = False,
    errors: Literal["raise"] = "raise",
    **options: Unpack[ItemsOptions],
) -> AsyncGenerator[R, None]: ...
@overload
def imap_limit(  # type: ignore[overload-overlap]
    fn: AsyncFn[T, R],
    items: Items[T],
    *,
    as_completed: bool = False,
    errors: Literal["collect"],
    **options: Unpack[ItemsOptions],
) -> AsyncGenerator[Settled[R], None]: ...
@overload
def imap_limit(
    fn: PlainFn[T, R],
    items: Iterable[T],
    *,
    as_completed: bool = False,
    errors: Literal["collect"],
    **options: Unpack[ItemsOptions],
) -> Generator[Settled[R], None, None]: ...
@overload
def imap_limit(
    fn: PlainFn[T, R],
    items: AsyncIterable[T],
    *,
    as_completed: bool = False,
    errors: Literal["collect"],
    **options: Unpack[ItemsOptions],
) -> AsyncGenerator[Settled[R], None]: ...
def imap_limit(
    fn: Callable[..., Any],
    items: Items[Any],
    *,
    concurrency: int = 4,
    window: int | None = None,
    as_completed: bool = False,
    errors: Errors = "raise",
    progress: bool | None = None,
    on_progress: OnProgress | None = None,
    executor: Executor | None = None,
    cancel: CancelToken | None = None,
) -> Any:
    """Like `map_limit`, but give the results one by one while others run.

    An async generator for an async `fn`, else a generator; which one is decided as for `map_limit`. Items are pulled
    and run while the reader is busy, up to `window`. A reader that stops ends the batch: by leaving the ``for`` loop of
    a generator, or ``contextlib.aclosing`` around an async one, which makes sure that all has ended at that point.

    Args:
        fn: as for `map_limit`; so are the others.
        items: a plain function's are pulled in the reader's thread, whenever it asks for a result.
        as_completed: give results as they come in, not in input order, in which a slow one holds up those behind it.

    With ``errors="raise"`` results that were there before the error are still handed out.

    Example:
        >>> from guarded import imap_limit
        >>> list(imap_limit(len, ["a", "bb", "ccc"]))
        [1, 2, 3]
    """
    plan = plan_items(
        "imap_limit",
        fn,
        items,
        concurrency=concurrency,
        window=window,
        errors=errors,
        progress=progress,
        on_progress=on_progress,
        executor=executor,
        cancel=cancel,
    )
    return stream(plan, AsCompleted if as_completed else InOrder)
