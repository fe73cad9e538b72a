"""What counts as a number where an option or an argument asks for one."""

from __future__ import annotations


def is_whole(value: object, least: float) -> bool:
    """Whether `value` is a whole number from `least` up; a bool is none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
