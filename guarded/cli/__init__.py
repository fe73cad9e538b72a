"""The ``guarded`` command (extra ``cli``)."""

from __future__ import annotations

import importlib.util
import sys

_NEEDED = ("typer", "rich", "yaml", "pydantic")


def main() -> None:
    """Run the command line; without its extra, say in one line how to install it and exit with 1."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"guarded: the command line needs {', '.join(missing)}: pip install 'guarded[cli]'")
    from guarded.cli.commands import app

    app(prog_name="guarded")
