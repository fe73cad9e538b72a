"""Orders: names the database budget, and so shares it."""

from __future__ import annotations

import database

from guarded import limit

db_limit = limit(3, name="db")


@db_limit
def load_order(number: int) -> str:
    """One order."""
    return database.query(f"order {number}")
