"""The two headers that a guarded client sends and a guarded server obeys: a key, and the time that is left.

Time goes as what is left, not as a point, since the clocks of two machines differ. Seconds.
"""

from __future__ import annotations

import re

IDEMPOTENCY_KEY = "Idempotency-Key"
TIMEOUT_HEADER = "X-Request-Timeout"
"""Carries seconds, with three decimals."""

_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_MILLISECONDS = re.compile(r"[0-9]{1,12}")
_GRPC = re.compile(r"([0-9]{1,8})([HMSmun])")  # at most eight digits, by the gRPC protocol over HTTP/2
_GRPC_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


def format_timeout(header: str, seconds: float) -> str:
    """The value of a time-out header of this name, rounded down: who is told a shorter time answers in time.

    A name that ends in ``-ms`` gets whole milliseconds, ``grpc-timeout`` its own format, others seconds.
    """
    milliseconds = max(0, int(seconds * 1000))
    name = header.lower()
    if name == "grpc-timeout":
        return f"{min(milliseconds, 99_999_999)}m"
    if name.endswith("-ms"):
        return str(milliseconds)
    return f"{milliseconds / 1000:.3f}"


def parse_timeout(header: str, value: str) -> float | None:
    """Seconds by the value of a time-out header of this name; None for what is malformed or negative."""
    value = value.strip()
    name = header.lower()
    if name == "grpc-timeout":
        match = _GRPC.fullmatch(value)
        return None if match is None else int(match[1]) * _GRPC_UNITS[match[2]]
    if name.endswith("-ms"):
        return int(value) / 1000 if _MILLISECONDS.fullmatch(value) else None
    return float(value) if _SECONDS.fullmatch(value) else None


def timeout_header_problem(header: object) -> str | None:
    """What is wrong with the option ``timeout_header``, if anything is."""
    if header is None or (isinstance(header, str) and header):
        return None
    return f"timeout_header={header!r}: must be the name of a header, or None"
