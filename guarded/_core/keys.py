"""Keys and amounts taken from the arguments of a call.

A key is given as a parameter name (``"tenant"``), a template (``"{user.id}:{region}"``) or a callable. The
key of a call is text as it is, or the canonical bytes of any other value, or None for None: so it is hashable,
equal keys are equal in every process, and ``1``, ``1.0``, ``True`` and ``"1"`` are four keys. A template of
several fields gives the tuple of its parts, never text that other parts could add up to.

Logs and stores get a `digest` of it, never the key.
"""

from __future__ import annotations

import inspect
import operator
import re
import weakref
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from string import Formatter
from types import CoroutineType
from typing import Any, TypeAlias

from guarded._core.binding import Args, Argument, Binder, Fn, Kwargs, binder_for
from guarded._core.canonical import canonical, digest
from guarded._core.kinds import kind_of
from guarded._core.nearest import did_you_mean

__all__ = [
    "Binder",
    "Key",
    "KeyOf",
    "amount_problem",
    "binder_for",
    "canonical",
    "compile_amount",
    "compile_argument",
    "compile_key",
    "digest",
    "fingerprint",
    "key_parameters",
    "key_problem",
    "number_problem",
    "one_shot",
]

Key: TypeAlias = str | bytes | None
KeyOf: TypeAlias = Callable[[Fn, Args, Kwargs], Key]
Path: TypeAlias = tuple[str, tuple[tuple[bool, str | int], ...]]  # parameter, then (is attribute, name or index)
_FIELD = re.compile(r"([^\W\d]\w*)((?:\.[^\W\d]\w*|\[[^\[\]]+\])*)")
_STEP = re.compile(r"\.(\w+)|\[([^\]]+)\]")


def key_problem(key: object) -> str | None:
    """What is wrong with a key before any function is known; None when nothing is."""
    if isinstance(key, str):
        try:
            parts = _parse(key)
        except ValueError as error:
            return str(error)
        return None if any(not isinstance(part, str) for part in parts) else "a template must name a parameter"
    if not callable(key):
        return f"must be a parameter name, a template such as '{{tenant}}', or a callable, not {type(key).__name__}"
    if kind_of(key) != "sync":
        return "must be a plain function, not an async one or a generator"
    return None


def compile_key(key: str | Callable[..., object], fn: Fn, *, option: str = "key") -> KeyOf:
    """A function ``(fn, args, kwargs) -> key`` for calls of one function.

    Args:
        key: the name of a parameter; a template whose fields are a parameter with attributes and indexes,
            ``"{user.id}:{rows[0]}"``; or a plain callable, whose parameters get the arguments of the same
            names, defaults applied (``lambda order_id, **_: order_id``). A method's instance is the argument
            ``self``; what ``*args`` and ``**kwargs`` collect is one argument each.
        fn: the function, method or partial the calls go to.
        option: how error messages call the key.

    Raises:
        ValueError: the key is malformed, reaches for private attributes, or names a parameter that `fn` has not.
        The function made raises TypeError for a value that cannot be a key, and whatever a callable raises.
    """
    argument = compile_argument(key, fn, option)

    def key_of(fn: Fn, args: Args, kwargs: Kwargs) -> Key:
        value = argument(fn, args, kwargs)
        if type(value) is str or value is None:
            return value
        try:
            is_text = isinstance(value, str) and not isinstance(value, Enum)
            return str.__str__(value) if is_text else canonical(value)
        except TypeError as error:
            raise TypeError(f"{option}={_shown(key)}: {error}") from error

    return key_of


def amount_problem(amount: object) -> str | None:
    """What is wrong with a weight or cost before any function is known; None when nothing is."""
    return number_problem(amount) if isinstance(amount, str) or callable(amount) else _count_problem(amount)


def number_problem(source: object) -> str | None:
    """What is wrong with what a number is taken from, given like a key; None when nothing is."""
    if problem := key_problem(source):
        return problem
    if isinstance(source, str) and len(_parse(source)) > 1:
        return "stands for a number, so it must be one field and nothing else, such as '{order.items}'"
    return None


def compile_amount(
    amount: int | str | Callable[..., int], fn: Fn, *, option: str = "weight"
) -> Callable[[Fn, Args, Kwargs], int]:
    """A function ``(fn, args, kwargs) -> amount`` of permits, given like a key or as a whole number from 1 up.

    Raises:
        ValueError: like `compile_key`; the function made raises it for an amount that is no whole number from 1 up.
    """
    if not isinstance(amount, str) and not callable(amount):
        if problem := _count_problem(amount):
            raise ValueError(f"{option}={amount!r}: {problem}")
        return lambda fn, args, kwargs: amount
    argument = compile_argument(amount, fn, option)

    def amount_of(fn: Fn, args: Args, kwargs: Kwargs) -> int:
        value = argument(fn, args, kwargs)
        if type(value) is int and value > 0:
            return value
        if problem := _count_problem(value):
            raise ValueError(f"{option}={_shown(amount)}: {problem}")
        return operator.index(value)

    return amount_of


def _count_problem(value: Any) -> str | None:
    try:
        if not isinstance(value, bool) and operator.index(value) > 0:
            return None
    except TypeError:
        pass
    got = repr(value) if isinstance(value, (int, float)) else type(value).__name__
    return f"must be a whole number from 1 up, not {got}"


def fingerprint(arguments: Mapping[str, object], exclude: Collection[str] = ()) -> str:
    """Digest of bound arguments, as given by `Binder.bind`, but for those to `exclude` (such as `Binder.instance`).

    Raises:
        TypeError: naming an argument that has no value of its own.
    """
    parts: list[object] = []
    for name in sorted(arguments.keys() - set(exclude)):
        try:
            parts.append((name, canonical(arguments[name])))
        except TypeError as error:
            raise TypeError(f"argument {name!r}: {error}") from None
    return digest(*parts)


def _shown(option: object) -> str:
    return getattr(option, "__qualname__", type(option).__qualname__) if callable(option) else repr(option)


def compile_argument(key: Any, fn: Fn, option: str) -> Argument:
    """Like `compile_key`, for the plain value that the key names."""
    problem = key_problem(key)
    if problem is not None:
        raise ValueError(f"{option}={_shown(key)}: {problem}")
    try:
        binder = binder_for(fn)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{option}={_shown(key)}: cannot read the parameters of the function: {error}") from None
    try:
        return _from_template(_parse(key), binder) if isinstance(key, str) else _from_callable(key, binder)
    except ValueError as error:
        raise ValueError(f"{option}={_shown(key)}: {error}") from None


def key_parameters(key: str | Callable[..., object]) -> set[str]:
    """Names of the parameters that a key is taken from; of a callable, all that it names."""
    if isinstance(key, str):
        return {part[0] for part in _parse(key) if not isinstance(part, str)}
    collecting = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    found = inspect.signature(key).parameters.values()
    return {parameter.name for parameter in found if parameter.kind not in collecting}


def _parse(key: str) -> list[str | Path]:
    """Literal texts and paths of a template; a key without braces is one path."""
    if "{" not in key and "}" not in key:
        if not key.isidentifier():
            raise ValueError("must be one parameter name, or a template such as '{user.id}:{region}'")
        return [(key, ())]
    parts: list[str | Path] = []
    try:
        fields = list(Formatter().parse(key))
    except ValueError as error:
        raise ValueError(f"is no template: {error}") from None
    for literal, field, spec, conversion in fields:
        if literal:
            parts.append(literal)
        if field is None:
            continue
        if spec or conversion:
            raise ValueError(f"field {field!r} is taken as it is, without a conversion or format")
        parts.append(_parse_field(field))
    return parts


def _parse_field(field: str) -> Path:
    match = _FIELD.fullmatch(field)
    if match is None:
        raise ValueError(f"field {field!r} must be a parameter name, with .attribute or [index] after it")
    steps: list[tuple[bool, str | int]] = []
    for attribute, index in _STEP.findall(match[2]):
        if attribute.startswith("_"):
            raise ValueError(f"field {field!r} reaches for the private attribute {attribute!r}")
        steps.append((True, attribute) if attribute else (False, int(index) if index.isdecimal() else index))
    return match[1], tuple(steps)


def _from_template(parts: list[str | Path], binder: Binder) -> Argument:
    compiled = [part if isinstance(part, str) else _from_path(part, binder) for part in parts]
    first = compiled[0]
    if len(compiled) == 1 and not isinstance(first, str):
        return first

    def filled(fn: Fn, args: Args, kwargs: Kwargs) -> tuple[object, ...]:
        return tuple([part if isinstance(part, str) else part(fn, args, kwargs) for part in compiled])

    return filled


def _from_path(path: Path, binder: Binder) -> Argument:
    name, steps = path
    _require([name], binder)
    argument = binder.argument(name)
    if not steps:
        return argument

    def reached(fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        value = argument(fn, args, kwargs)
        try:
            for is_attribute, step in steps:
                value = getattr(value, str(step)) if is_attribute else value[step]
        except Exception as error:
            way = "".join(f".{step}" if is_attribute else f"[{step}]" for is_attribute, step in steps)
            error.add_note(f"while {{{name}{way}}} was taken from the arguments of {binder.function}()")
            raise
        return value

    return reached


def _from_callable(key: Callable[..., object], binder: Binder) -> Argument:
    """Hand over by name, and positionally only what the key function takes in no other way."""
    try:
        parameters = inspect.signature(key).parameters.values()
    except (TypeError, ValueError):
        raise ValueError("its parameters cannot be read: write a lambda that names them") from None
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        raise ValueError("gets its arguments by name, so it cannot take *args: name the parameters it needs")
    wanted = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
    _require([each.name for each in wanted if each.default is each.empty], binder)
    known = [each for each in wanted if each.name in binder.names]
    ordered = [(each.name, binder.argument(each.name)) for each in known if each.kind is each.POSITIONAL_ONLY]
    named = [(each.name, binder.argument(each.name)) for each in known if each.kind is not each.POSITIONAL_ONLY]
    if len(wanted) < len(parameters):
        positional = [name for name, _ in ordered]

        def called_with_all(fn: Fn, args: Args, kwargs: Kwargs) -> object:
            bound = binder.bind(fn, args, kwargs)
            first = [bound.pop(name) for name in positional]
            return key(*first, **bound)

        return called_with_all

    def called(fn: Fn, args: Args, kwargs: Kwargs) -> object:
        first = [argument(fn, args, kwargs) for _, argument in ordered]
        return key(*first, **{name: argument(fn, args, kwargs) for name, argument in named})

    return called


def _require(names: list[str], binder: Binder) -> None:
    for name in names:
        if name not in binder.names:
            has = did_you_mean(name, binder.names) or f"it has {', '.join(binder.names) or 'none at all'}"
            raise ValueError(f"{binder.function}() has no parameter {name!r}: {has}")


_LONGEST_LOOK = 100
_streams: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def one_shot(args: Args, kwargs: Kwargs) -> str | None:
    """Which argument can be used up, as words for a message, or None.

    An iterator, a coroutine or an open stream is empty when the function runs again. Found by type, without
    touching the argument, directly or as an item of a list, tuple or dict of up to 100 items.
    """
    for position, value in enumerate(args, 1):
        if _is_one_shot(value):
            return f"positional argument {position}"
    for name, value in kwargs.items():
        if _is_one_shot(value):
            return f"argument {name!r}"
    return None


def _is_one_shot(value: Any, look_inside: bool = True) -> bool:
    kind = type(value)
    if kind in (list, tuple, dict) and look_inside:
        items = list(value.values()) if isinstance(value, dict) else value
        return len(items) <= _LONGEST_LOOK and any(_is_one_shot(item, False) for item in items)
    found = _streams.get(kind)
    if found is None:
        found = _streams[kind] = _type_is_one_shot(kind)
    return found


def _type_is_one_shot(kind: type) -> bool:
    if hasattr(kind, "__next__") or hasattr(kind, "__anext__") or kind is CoroutineType:
        return not hasattr(kind, "execute")  # a database cursor is an iterator that starts over
    read = getattr(kind, "read", None)
    if not callable(read):
        return False
    try:
        parameters = list(inspect.signature(read).parameters.values())[1:]
    except (TypeError, ValueError):
        return True
    # A stream reads without being told what; a repository or a parser with read(key) does not.
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(each.default is not each.empty or each.kind in optional for each in parameters)
