"""What the commands share: arguments, the working directory, and how mistakes end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from guarded.config.references import BadReference
from guarded.errors import ConfigError, PolicyNotFound

DEFAULT_FILE = Path("guarded.yaml")
WIDTH = 160  # of tables that go into a pipe or a file

Files = Annotated[list[Path] | None, typer.Argument(help="Config files; later ones are merged over earlier ones.")]
Allow = Annotated[
    list[str] | None, typer.Option(help="Module that module:Name and targets may name; may be repeated. Default: all.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def find_modules_here() -> None:
    """Find modules in the working directory, as ``python -m`` does and an installed script does not."""
    folder = str(Path.cwd())
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)


@contextmanager
def problems_exit() -> Iterator[None]:
    """End with status 2 and the message of what is wrong with a file, a name or an argument."""
    try:
        yield
    except (ConfigError, PolicyNotFound, BadReference, TypeError, ValueError) as error:
        hint = getattr(error, "hint", None)
        typer.echo(f"{error} ({hint})" if hint else str(error), err=True)
        raise typer.Exit(2) from None
