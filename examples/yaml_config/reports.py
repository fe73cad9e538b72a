"""Reports: guarded by name; this module may be imported before the file is loaded."""

from __future__ import annotations

from guarded import guard


@guard("reports")
def monthly(month: str) -> str:
    """One month as text."""
    return f"report of {month}"
