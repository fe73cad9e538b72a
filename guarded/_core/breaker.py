"""The one place that imports pybreaker: its error type joined with ours."""

from __future__ import annotations

from pybreaker import CircuitBreakerError

from guarded.errors import Rejected


class CircuitOpen(Rejected, CircuitBreakerError):
    """The circuit is open (or half-open with all trials taken); ``__cause__`` is the failure that opened it."""

    layer = "circuit"
