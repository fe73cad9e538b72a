"""What to say when a part of guarded is imported without the package that it is for."""

from __future__ import annotations


def missing(error: ModuleNotFoundError, what: str, install: str) -> ModuleNotFoundError:
    """The error to raise in place of `error`, which names only a module.

    Args:
        error: what the import raised.
        what: the part that needs the package, as its user knows it: ``"guarded.integrations.httpx"``, ``"a picture"``.
        install: what to give to pip: an extra such as ``"guarded[httpx]"``, or the package where there is none.
    """
    package = (error.name or str(error)).partition(".")[0]
    message = f"{what} needs {package}, which is not installed: pip install {install!r}"
    return ModuleNotFoundError(message, name=error.name, path=error.path)
