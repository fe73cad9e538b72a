"""Invoices: async, in another module, and on the same budget."""

from __future__ import annotations

import asyncio

import database

from guarded import guard, limit, retry

db_limit = limit(3, name="db")
reading = guard("db", retry(retries=1, on=ConnectionError), name="reading")


@reading
async def load_invoice(number: int) -> str:
    """One invoice."""
    return await asyncio.to_thread(database.query, f"invoice {number}")
