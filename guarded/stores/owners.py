"""Tokens by which a store tells owners apart: no other run, call or process has the same."""

from __future__ import annotations

import itertools
import os

_process = os.urandom(12).hex()
_count = itertools.count(1)


def _new_process() -> None:
    global _process
    _process = os.urandom(12).hex()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_process)


def new_owner() -> str:
    """A token of its own."""
    return f"{_process}-{next(_count):x}"
