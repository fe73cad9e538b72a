"""The ``guarded`` command (extra ``cli``)."""

from __future__ import annotations

import sys

_NEEDED = ("typer", "rich", "yaml", "pydantic")


def main() -> None:
    """Run the command line; without its extra, say in one line how to install it and exit with 1."""
    try:
        from guarded.cli.commands import app
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package in _NEEDED:
            sys.exit(f"guarded: the command line needs {package}: pip install 'guarded[cli]'")
        raise
    app(prog_name="guarded")
