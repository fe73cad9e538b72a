"""Where in the user's code something was said: for messages that name a line."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import suppress

from guarded.errors import GuardWarning

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def caller() -> tuple[str, int]:
    """File and line of the nearest frame outside of guarded."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def caller_place() -> str:
    """The same as ``file:line``."""
    filename, line = caller()
    return f"{filename}:{line}"


def warn(message: str) -> None:
    """Issue a GuardWarning that points at the user's line, however deep inside guarded it was noticed."""
    filename, line = caller()
    warnings.warn_explicit(message, GuardWarning, filename, line)


def complain(message: str) -> None:
    """Warn where nothing may be raised, whatever the warning filters say."""
    try:
        warn(message)
    except Exception:  # a filter made an error of it, which must not get any further: show it past the filters
        with suppress(Exception):
            warnings.showwarning(message, GuardWarning, *caller())
