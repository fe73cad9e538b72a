"""A database that counts how many queries run at once."""

from __future__ import annotations

import threading
import time

_lock = threading.Lock()
_running = 0
peak = 0


def query(what: str) -> str:
    """Take a moment to answer."""
    global _running, peak
    with _lock:
        _running += 1
        peak = max(peak, _running)
    time.sleep(0.005)
    with _lock:
        _running -= 1
    return what
