"""Passing exceptions on without changing them: chains stay clean and tracebacks do not grow.

A caller gets the exception its function raised, the same object, as if nothing had stood between.
"""

from __future__ import annotations

from typing import NoReturn


def reraise(error: BaseException) -> NoReturn:
    """Raise `error` once more, leaving its chain as it was."""
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context  # whatever the caller is handling would have replaced it
        del error, context  # the frame is in the traceback: error → traceback → frame → error is a cycle


def chain(later: BaseException, earlier: BaseException | None) -> None:
    """Put `earlier` at the end of the chain of `later`, as raising `later` while handling `earlier` does."""
    seen = {id(earlier)}
    while earlier is not None and id(later) not in seen:
        seen.add(id(later))
        if later.__context__ is None:
            later.__context__ = earlier
            return
        later = later.__context__


def trim(error: BaseException) -> None:
    """Cut off what earlier attempts left in the traceback of an exception that is raised again and again.

    To be called in the frame that catches it: where that frame comes a second time, an earlier attempt begins.
    """
    entry = error.__traceback__
    frame = None if entry is None else entry.tb_frame
    while entry is not None and entry.tb_next is not None:
        if entry.tb_next.tb_frame is frame:
            entry.tb_next = None
        entry = entry.tb_next
