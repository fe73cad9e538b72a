"""What has to be forgotten in a child process: its parent's other threads, and locks they held."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import TypeVar

OwnerT = TypeVar("OwnerT")

_resets: weakref.WeakKeyDictionary[object, Callable[..., object]] = weakref.WeakKeyDictionary()


def after_fork(owner: OwnerT, reset: Callable[[OwnerT], object]) -> None:
    """Call ``reset(owner)`` in every child made by ``os.fork``, as long as `owner` lives."""
    _resets[owner] = reset


def _in_child() -> None:
    for owner, reset in list(_resets.items()):
        reset(owner)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
