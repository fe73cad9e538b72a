"""What a batch was asked for, checked, and how one item becomes a call.

All wrong options are named in one ValueError; what can be no function, or no source of items, is a TypeError.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, Callable, Iterable
from concurrent.futures import Executor
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from guarded._batch.offload import close_unstarted
from guarded._batch.progress import OnProgress, Reports
from guarded._batch.source import size_of
from guarded._core.call import Call, current
from guarded._core.kinds import kind_of

if TYPE_CHECKING:
    from guarded.cancel import CancelToken

Errors = Literal["raise", "collect"]
Args = tuple[Any, ...]


class CallsOptions(TypedDict, total=False):
    """The options of every batch, beside `errors`, for type checkers; `map_limit` says what they mean."""

    concurrency: int
    progress: bool | None
    on_progress: OnProgress | None
    executor: Executor | None
    cancel: CancelToken | None


class ItemsOptions(CallsOptions, total=False):
    """Those of a batch of many items."""

    window: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """One batch.

    Attributes:
        name: the public function that was called.
        split: from an item and its index to the callable and its arguments.
        is_async: whether any of the callables is known to give awaitables.
        items: where the items come from.
        concurrency: how many may run at once.
        window: how many may be running, or finished and unread.
        errors: whether the first error ends the batch, or each is an outcome.
    """

    name: str
    split: Callable[[Any, int], tuple[Callable[..., Any], Args]]
    is_async: bool
    items: Iterable[Any] | AsyncIterable[Any]
    concurrency: int
    window: int
    errors: Errors
    progress: bool
    on_progress: OnProgress | None
    executor: Executor | None
    cancel: CancelToken | None

    @property
    def awaits(self) -> bool:
        """Whether the batch runs on an event loop: for async functions and items, and wherever a loop is running."""
        return self.is_async or _only_async(self.items) or asyncio._get_running_loop() is not None

    def reports(self) -> Reports:
        """Whoever wants to know how far the batch is."""
        return Reports(self.on_progress, self.progress, self.name, size_of(self.items))

    def caller(self) -> Call:
        """What the one who waits for the batch obeys: the deadline and the token around it, and `cancel`."""
        return scope_of("batch", self.cancel)


def scope_of(function: str, token: CancelToken | None) -> Call:
    """A call below the running one whose waits also obey `token`."""
    from guarded.cancel import CancelToken  # needs the core, which is loaded lazily

    scope = Call()
    scope.function = function
    outer = current.get()
    if outer is not None:
        scope.adopt(outer)
    if token is not None:
        around = scope.token
        scope.token = token if around is None or around is token else CancelToken.any(token, around)
    return scope


def context_of(call: Call) -> Context:
    """A copy of the caller's context in which `call` is the running one."""
    context = copy_context()
    context.run(current.set, call)
    return context


def context_of_bodies(scope: Call) -> tuple[Context, CancelToken]:
    """A context for bodies that cannot be cancelled, and a token in it to tell them that nobody waits any more."""
    from guarded.cancel import CancelToken

    scope.token = token = CancelToken() if scope.token is None else CancelToken.any(scope.token)
    return context_of(scope), token


def plan_items(name: str, fn: Any, items: Any, **options: Any) -> Plan:
    """A batch of one function over many items."""
    if not callable(fn):
        raise TypeError(f"{name}: fn={fn!r} is not callable")
    if not _iterable(items):
        raise TypeError(f"{name}: items must be an iterable or an async iterable, not {type(items).__qualname__}")
    kind = kind_of(fn)
    if kind.endswith("generator"):
        raise TypeError(f"{name}: {_title(fn)} is a generator function; give a function that does the work of one item")
    return _checked(name, _splitter(name, fn), kind == "async", items, options)


def plan_thunks(name: str, thunks: tuple[Any, ...], **options: Any) -> Plan:
    """A batch of callables without arguments."""
    for index, thunk in enumerate(thunks):
        if not callable(thunk):
            hint = "; write a lambda around it" if inspect.isawaitable(thunk) else unpack_hint(thunk)
            for other in thunks:
                close_unstarted(other)
            raise TypeError(f"{name}: argument {index} is {type(thunk).__qualname__}, which is not callable{hint}")
    is_async = any(kind_of(thunk) == "async" for thunk in thunks)
    return _checked(name, lambda thunk, index: (thunk, ()), is_async, thunks, {"window": None, **options})


def unpack_hint(argument: object) -> str:
    """For a list of calls that was given as one argument."""
    return "; unpack it with *" if hasattr(type(argument), "__iter__") else ""


def _checked(name: str, split: Any, is_async: bool, items: Any, options: dict[str, Any]) -> Plan:
    problems = _problems(options)
    if problems:
        raise ValueError(f"{name}: " + "; ".join(problems))
    window = options.pop("window")
    return Plan(
        name,
        split,
        is_async,
        items,
        window=2 * options["concurrency"] if window is None else window,
        progress=bool(options.pop("progress")),
        **options,
    )


def _problems(options: dict[str, Any]) -> list[str]:
    from guarded.cancel import CancelToken

    problems = []
    concurrency, window = options["concurrency"], options["window"]
    if not _is_count(concurrency):
        problems.append(f"concurrency={concurrency!r}: must be a whole number from 1 up")
    if window is not None and not _is_count(window):
        problems.append(f"window={window!r}: must be a whole number from 1 up, or None for twice the concurrency")
    elif window is not None and _is_count(concurrency) and window < concurrency:
        problems.append(f"window={window!r}: must not be below concurrency={concurrency!r}")
    if options["errors"] not in ("raise", "collect"):
        problems.append(f"errors={options['errors']!r}: must be 'raise' or 'collect'")
    if not (options["progress"] is None or isinstance(options["progress"], bool)):
        problems.append(f"progress={options['progress']!r}: must be True, False or None")
    listener = options["on_progress"]
    if listener is not None and not callable(listener):
        problems.append(f"on_progress={listener!r}: must be callable")
    elif listener is not None and kind_of(listener) != "sync":
        problems.append(f"on_progress={_title(listener)}: must be a plain function")
    if options["executor"] is not None and not callable(getattr(options["executor"], "submit", None)):
        problems.append(f"executor={options['executor']!r}: must be a concurrent.futures.Executor")
    if options["cancel"] is not None and not isinstance(options["cancel"], CancelToken):
        problems.append(f"cancel={options['cancel']!r}: must be a CancelToken")
    return problems


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _iterable(items: Any) -> bool:
    return any(hasattr(type(items), method) for method in ("__iter__", "__aiter__", "__getitem__"))


def _only_async(items: Any) -> bool:
    return hasattr(type(items), "__aiter__") and not hasattr(type(items), "__iter__")


def _splitter(name: str, fn: Any) -> Callable[[Any, int], tuple[Any, Args]]:
    """Whether `fn` takes the item alone, or its index as well: by the parameters it cannot do without."""
    if _required(name, fn) >= 2:
        return lambda item, index: (fn, (item, index))
    return lambda item, index: (fn, (item,))


def _required(name: str, fn: Any) -> int:
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return 1  # a builtin that does not tell
    required = [parameter for parameter in parameters if parameter.default is parameter.empty]
    named = [parameter.name for parameter in required if parameter.kind is parameter.KEYWORD_ONLY]
    places = [parameter for parameter in required if parameter.kind in (parameter.POSITIONAL_ONLY, _EITHER)]
    takes_any = any(parameter.kind in (*_PLACES, parameter.VAR_POSITIONAL) for parameter in parameters)
    if named or len(places) > 2 or not takes_any:
        raise TypeError(
            f"{name}: {_title(fn)} must take the item, or the item and its index; bind the rest by partial()"
        )
    return len(places)


_EITHER = inspect.Parameter.POSITIONAL_OR_KEYWORD
_PLACES = (inspect.Parameter.POSITIONAL_ONLY, _EITHER)


def _title(fn: Any) -> str:
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__
