"""The ``guarded`` command (extra ``cli``)."""

from __future__ import annotations

import sys

from guarded._core.extras import missing
from guarded.events.defaults import mute


def main() -> None:
    """Run the command line; without its extra, say in one line how to install it and exit with 1."""
    try:
        from guarded.cli.commands import app
    except ModuleNotFoundError as error:
        sys.exit(f"guarded: {missing(error, 'the command line', 'guarded[cli]')}")
    mute()
    app(prog_name="guarded")
