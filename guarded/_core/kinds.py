"""What a callable is: how it is called, and what it is called.

A plain function that returns an awaitable is an async one when its return annotation says so. Without one, that
shows only at its first call.
"""

from __future__ import annotations

import ast
import asyncio
import functools
import inspect
import os
import re
import sys
import typing
from collections.abc import Awaitable, Coroutine
from types import CoroutineType
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["sync", "async", "generator", "async_generator"]

_MAY_PROMISE = re.compile(r"[\s\w.'\"]*(?:Awaitable|Coroutine|Future|Task)")  # reading an annotation takes long
_FOR_TYPE_CHECKERS = re.compile(r"(?:.*\.)?(?:Awaitable|Coroutine)|asyncio\.(?:Future|Task)")


def kind_of(wrapped: Any) -> Kind:
    """How a callable is called, seen through partials, class and static methods and callable objects."""
    target = wrapped
    while True:
        if isinstance(target, functools.partial):
            target = target.func
        elif isinstance(target, (classmethod, staticmethod)):
            target = target.__func__
        else:
            break
    candidates = [target]
    if not inspect.isroutine(target):
        candidates.append(getattr(type(target), "__call__", None))  # noqa: B004 - the method, not the question
    for candidate in candidates:
        if inspect.iscoroutinefunction(candidate):
            return "async"
        if inspect.isasyncgenfunction(candidate):
            return "async_generator"
        if inspect.isgeneratorfunction(candidate):
            return "generator"
    return "async" if any(map(_promises_awaitable, candidates)) else "sync"


def _promises_awaitable(function: Any) -> bool:
    """Whether a plain function says in its return annotation that what it gives is to be awaited."""
    try:
        if "__wrapped__" in function.__dict__:
            return False  # the annotations are those of what it wraps
        annotation = function.__annotations__["return"]
    except Exception:  # there is none, or (Python 3.14) it names what is not there yet
        return False
    if isinstance(annotation, str):
        annotation = _head(annotation, getattr(function, "__globals__", {})) if _MAY_PROMISE.match(annotation) else None
    promised = typing.get_origin(annotation) or annotation
    # No others: the future of Dask or Ray is a plain result to a caller that runs no event loop.
    if not isinstance(promised, type):
        return False
    return promised in (Awaitable, Coroutine, CoroutineType) or issubclass(promised, asyncio.Future)


def _head(annotation: str, names: dict[str, Any]) -> Any:
    """What an annotation in text stands for, without its parameters."""
    try:
        node = ast.parse(annotation.strip(), mode="eval").body
    except SyntaxError:
        return None
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _head(node.value, names)
    node = node.value if isinstance(node, ast.Subscript) else node
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return None
    dotted = ast.unparse(node)
    first, *rest = dotted.split(".")
    if first in names:
        return functools.reduce(lambda found, name: getattr(found, name, None), rest, names[first])
    return Awaitable if _FOR_TYPE_CHECKERS.fullmatch(dotted) else None  # imported under ``if TYPE_CHECKING``


def qualified_name(wrapped: Any) -> str:
    """``module.Class.method`` of a callable; of the function below a partial, of the class of a callable object."""
    target = wrapped
    while isinstance(target, functools.partial):
        target = target.func
    module = _importable(getattr(target, "__module__", None))
    name = getattr(target, "__qualname__", None) or type(target).__qualname__
    return f"{module}.{name}" if module else name


def _importable(module: str | None) -> str | None:
    """The name under which other processes import a module that this one runs as a script.

    An idempotency key has the function's name in it, so that a script and a worker that imports it have to agree.
    """
    if module not in ("__main__", "__mp_main__"):
        return module
    main = sys.modules.get(module)
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:  # python -m shop.payments
        return str(spec.name)
    return os.path.splitext(os.path.basename(file))[0] if file else module  # python payments.py, or a prompt
