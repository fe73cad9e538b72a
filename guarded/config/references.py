"""``module:Name`` references to exceptions and functions, with an optional allow-list of modules.

Nothing is imported before the module is known to be allowed, and with an allow-list an object must also
come from an allowed module: ``shop.jobs:os.system`` is no way around it. Built-in exceptions need no module.
"""

from __future__ import annotations

import builtins
import fnmatch
import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from guarded._core.nearest import did_you_mean
from guarded.events.redact import cause_of

EXCEPTIONS = {
    name: value
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
}


class BadReference(ValueError):
    """A reference cannot be resolved; ``hint`` says what would work."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def allowed(module: str, patterns: Sequence[str] | None) -> bool:
    """Whether `module` matches a pattern: ``shop`` is it and all below; None is all."""
    if patterns is None:
        return True
    return any(
        module == pattern or module.startswith(pattern + ".") or fnmatch.fnmatchcase(module, pattern)
        for pattern in patterns
    )


def resolve_reference(text: str, allow: Sequence[str] | None) -> Any:
    """The object that ``module:Name.attribute`` or the name of a built-in exception stands for.

    Raises:
        BadReference: malformed, not allowed, not importable or not there.
    """
    module_name, colon, names = text.partition(":")
    if not colon:
        if text in EXCEPTIONS:
            return EXCEPTIONS[text]
        near = did_you_mean(text, EXCEPTIONS) if text.isidentifier() else None
        raise BadReference(f"{text!r} is no built-in exception", near or "refer to others as module:Name")
    steps = names.split(".")
    if not all(part.isidentifier() for part in (*module_name.split("."), *steps)):
        raise BadReference(f"{text!r} is not of the form module:Name", "for example httpx:TransportError")
    if any(step.startswith("__") for step in steps):
        raise BadReference(f"{text!r} reaches into a dunder attribute")
    found = _walk(import_module(module_name, allow), module_name, steps)
    home = getattr(found, "__module__", None)
    if allow is not None and not (isinstance(home, str) and allowed(home, allow)):
        raise BadReference(f"{text!r} comes from module {home!r}, which is not on the allow-list")
    return found


def import_module(name: str, allow: Sequence[str] | None) -> ModuleType:
    """The module of that name; BadReference when it is not allowed, or cannot be imported."""
    if not allowed(name, allow):
        raise BadReference(f"module {name!r} is not on the allow-list")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise BadReference(f"there is no module {error.name!r}", "is it installed and on the path?") from None
        raise BadReference(f"importing {name!r} failed: {error}") from error
    except (Exception, SystemExit) as error:
        raise BadReference(f"importing {name!r} failed: {cause_of(error)}") from error


def _walk(module: ModuleType, module_name: str, steps: Sequence[str]) -> Any:
    found: Any = module
    for step in steps:
        try:
            found = getattr(found, step)
        except AttributeError:
            owner = module_name if found is module else getattr(found, "__qualname__", repr(step))
            raise BadReference(f"{owner!r} has no {step!r}", did_you_mean(step, dir(found))) from None
        if isinstance(found, ModuleType):
            raise BadReference(f"{module_name}:{step} is a module", f"write {found.__name__}:Name")
    return found
