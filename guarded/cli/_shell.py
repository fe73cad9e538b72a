"""What the commands share: the working directory, and how mistakes end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from guarded.config.references import BadReference
from guarded.errors import ConfigError, PolicyNotFound

WIDTH = 160  # of tables that go into a pipe or a file


@contextmanager
def here() -> Iterator[None]:
    """Find modules in the working directory, as ``python -m`` does and an installed script does not."""
    folder = str(Path.cwd())
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)
    yield


@contextmanager
def problems_exit() -> Iterator[None]:
    """End with status 2 and the message of what is wrong with a file, a name or an argument."""
    try:
        yield
    except (ConfigError, PolicyNotFound, BadReference, TypeError, ValueError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
