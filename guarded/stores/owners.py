"""Tokens by which a store tells owners apart: no other run, call or process has the same."""

from __future__ import annotations

import itertools
import os
from typing import Final

from guarded._core.fork import after_fork


class _Process:
    """What this process begins its tokens with; a forked child is another one."""

    def __init__(self) -> None:
        self._renew()
        after_fork(self, _Process._renew)

    def _renew(self) -> None:
        self.mark = os.urandom(12).hex()


_process: Final = _Process()
_count: Final = itertools.count(1)


def new_owner() -> str:
    """A token of its own."""
    return f"{_process.mark}-{next(_count):x}"


def is_inherited(owner: str) -> bool:
    """Whether it is of a process that this one was forked from."""
    return not owner.startswith(_process.mark)
