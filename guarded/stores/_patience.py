"""How long one step of a store may take: its time-out, or what the deadline of the running call leaves. Seconds."""

from __future__ import annotations

from math import inf

from guarded._core import clock
from guarded._core.call import current

_LEAST = 0.001  # a step that has begun is given this much, so that one on time is not cut by its own start


def allowance(timeout: float) -> tuple[float, bool]:
    """Seconds for a step, and whether that is less than `timeout`."""
    call = current.get()
    if call is None or call.until == inf:
        return timeout, False
    left = call.until - clock.monotonic()
    return (timeout, False) if left >= timeout else (max(left, _LEAST), True)
