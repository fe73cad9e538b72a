"""What is kept of a run's result, and the copies that replays and joiners get of it.

In memory a deep copy is kept, and each replay gets a deep copy of that; a durable store gets bytes. Whoever ran
the function has its own result, and nobody shares a mutable value with anybody. A result that cannot be kept
leaves a mark that says so, since running the function again would be worse than not knowing its result.
"""

from __future__ import annotations

import copy
import inspect
import types
import typing
from abc import ABC
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import IO, Any, ClassVar, Literal, Protocol, cast

from guarded._core.kinds import kind_of

Form = Literal["value", "error", "nothing"]


class Keeper(Protocol):
    """Turns results into payloads of a store and back."""

    def keep(self, form: Form, content: Any) -> Any:
        """The payload of a result, an error, or (``nothing``) the words why there is neither.

        Raises:
            Exception: the content cannot be copied or encoded.
        """
        ...

    def open(self, payload: Any) -> tuple[Form, Any]:
        """A fresh copy of what was kept.

        Raises:
            Exception: the payload is damaged, or made by other code.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Kept:
    form: Form
    master: Any


class Copies:
    """Keeps objects, by deep copies."""

    def keep(self, form: Form, content: Any) -> _Kept:
        """See `Keeper.keep`."""
        return _Kept(form, copy.deepcopy(content) if form == "value" else _deep_twin(content))

    def open(self, payload: _Kept) -> tuple[Form, Any]:
        """See `Keeper.open`."""
        copied = copy.deepcopy(payload.master) if payload.form == "value" else _deep_twin(payload.master)
        return payload.form, copied


class Bytes:
    """Keeps bytes, by the codec of stores; stored errors are rebuilt only if their class is one of `errors`."""

    _FORMS: ClassVar[dict[bytes, Form]] = {b"v": "value", b"e": "error", b"n": "nothing"}

    def __init__(self, errors: tuple[type[Exception], ...]) -> None:
        self._errors = errors

    def keep(self, form: Form, content: Any) -> bytes:
        """See `Keeper.keep`."""
        from guarded.stores.codec import encode  # brings decimals, time zones and more along: only when it is needed

        if form == "error":
            kind = type(content)
            content = (f"{kind.__module__}:{kind.__qualname__}", _arguments(content), dict(content.__dict__))
        return form[:1].encode() + encode(content, "error" if form == "error" else "result")

    def open(self, payload: bytes) -> tuple[Form, Any]:
        """See `Keeper.open`."""
        from guarded.stores.codec import decode

        form = self._FORMS.get(bytes(payload[:1]))
        if form is None:
            raise ValueError("the stored value is damaged: its first byte is unknown")
        content = decode(payload[1:])
        return form, self._rebuilt(*content) if form == "error" else content

    def _rebuilt(self, path: str, args: tuple[Any, ...], state: dict[str, Any]) -> Exception:
        from guarded.stores.codec import find_class

        kind = find_class(path)
        if not issubclass(kind, self._errors):
            raise ValueError(f"{path} is not among store_errors")
        return _bare(kind, args, state)


def keeper_for(durable: bool, errors: tuple[type[Exception], ...]) -> Keeper:
    """What turns results into what a store keeps: objects, or bytes where it is durable."""
    if not durable:
        return Copies()
    return Bytes(errors)


def twin_of(error: Exception) -> Exception:
    """A fresh exception equal to `error`, without its traceback and what it is chained to.

    Made the way of `copy`; where the constructor does not take its own ``args``, without calling it.
    """
    try:
        twin = _copied(error)
        if type(twin) is type(error) and twin is not error and twin.args == error.args and str(twin) == str(error):
            return _own_notes(twin)
    except Exception:
        pass  # a constructor with other parameters than its args, or user code that fails
    return _bare(type(error), _arguments(error), error.__dict__)


def _copied(error: Exception) -> Exception:
    """What `copy.copy` gives where nobody has changed it: a reducer that a library registers for all exceptions to
    send tracebacks elsewhere would bring traceback and chain along, and share the attributes."""
    if hasattr(type(error), "__copy__"):
        return copy.copy(error)
    make, arguments, *state = cast("tuple[Any, ...]", error.__reduce_ex__(4))
    twin: Exception = make(*arguments)
    if state and state[0]:
        twin.__setstate__(state[0])
    return twin


def _deep_twin(content: Any) -> Any:
    """A twin that shares no mutable attribute either, where its attributes can be copied."""
    if not isinstance(content, Exception):
        return content
    twin = twin_of(content)
    try:
        args, state = copy.deepcopy((twin.args, twin.__dict__))
    except Exception:
        return twin
    twin.args = args
    twin.__dict__.clear()
    twin.__dict__.update(state)
    return twin


def _bare(kind: type[Exception], args: tuple[Any, ...], state: dict[str, Any]) -> Exception:
    """An exception without its own ``__init__`` having run; those of the interpreter keep state outside of ``args``."""
    if kind.__module__ == "builtins":
        twin = kind(*args)
    else:
        twin = kind.__new__(kind, *args)
        if not (isinstance(twin, OSError) and twin.args):
            twin.args = args
    twin.__dict__.update(state)
    return _own_notes(twin)


def _arguments(error: Exception) -> tuple[Any, ...]:
    """What to make an equal exception from: its ``args``, and of an OSError the file names too."""
    made_from = error.__reduce__()[1] if isinstance(error, OSError) else None
    return made_from if isinstance(made_from, tuple) else error.args


def _own_notes(twin: Exception) -> Exception:
    notes = twin.__dict__.get("__notes__")
    if type(notes) is list:
        twin.__dict__["__notes__"] = notes.copy()
    return twin


def errors_problem(errors: tuple[type[Exception], ...], durable: bool) -> str | None:
    """Why errors that are to be stored can never be kept; None when they can."""
    nameless = next((kind for kind in errors if durable and _is_nameless(kind)), None)
    return None if nameless is None else f"store_errors has {nameless.__qualname__}, {_NAMELESS}"


def return_problem(fn: Any, durable: bool) -> str | None:
    """Why what `fn` is annotated to return can never be kept; None when it can, or when nobody can know."""
    fn = inspect.unwrap(fn)
    if not inspect.isroutine(fn):
        fn = type(fn).__call__  # of a callable object
    try:
        annotation = typing.get_type_hints(fn).get("return", Any)
    except Exception:
        return None  # names that exist for type checkers only
    if kind_of(fn) == "async" and not inspect.iscoroutinefunction(fn):
        annotation = (typing.get_args(annotation) or (Any,))[-1]  # of the awaitable: what it gives is kept
    used_up = _find(annotation, _is_used_up)
    if used_up is not None:
        return f"it returns {used_up}, which is used up by its first reader"
    if durable:
        unencodable = _find(annotation, _is_unencodable)
        if unencodable is not None:
            return (
                f"it returns {unencodable}, which the store cannot encode; return plain values, dataclasses, "
                "named tuples, enums or pydantic models"
            )
        nameless = _find(annotation, _is_nameless_record)
        if nameless is not None:
            return f"it returns {nameless}, {_NAMELESS}"
    return None


def _find(annotation: Any, is_bad: Callable[[type], bool]) -> str | None:
    """The first class in an annotation that is bad, looking into unions and containers."""
    origin = typing.get_origin(annotation)
    if annotation is Any or origin is Literal:
        return None
    if origin is typing.Annotated:
        return _find(annotation.__origin__, is_bad)
    kind: Any = annotation if origin is None else origin
    if isinstance(kind, type) and kind is not types.UnionType and is_bad(kind):
        return kind.__qualname__
    return next((bad for part in typing.get_args(annotation) if (bad := _find(part, is_bad))), None)


def _is_used_up(kind: type) -> bool:
    if issubclass(kind, (Iterator, AsyncIterable, Awaitable, IO)):
        return True
    return hasattr(kind, "read") and hasattr(kind, "readline")


def _is_unencodable(kind: type) -> bool:
    """Whether no instance of a class, as far as its class tells, can be encoded."""
    from guarded.stores.codec import encodes, record_kind

    if kind is object or kind is type(None) or encodes(kind) or issubclass(kind, Enum):
        return False
    if typing.is_typeddict(kind):
        return False  # a plain dict
    # By descent, since `issubclass` takes whatever is a context manager or a path for an ABC of the library.
    if inspect.isabstract(kind) or getattr(kind, "_is_protocol", False) or ABC in kind.__mro__:
        return False  # stands for classes that can
    return record_kind(kind) is None


_NAMELESS = "which no other process could find by that name; define the class at the top of its module"


def _is_nameless(kind: type) -> bool:
    """Whether a class was made inside a function, or by one, so that no path leads to it."""
    return not all(name.isidentifier() for name in kind.__qualname__.split("."))


def _is_nameless_record(kind: type) -> bool:
    """Whether what stores keep of the instances of a class has its name in it, and it has none."""
    from guarded.stores.codec import record_kind

    return (issubclass(kind, Enum) or record_kind(kind) is not None) and _is_nameless(kind)
