"""Two modules, one budget: threads of one and tasks of the other never have more than three queries at once.

Ends with exit code 0 if the database's own count agrees.

    python examples/shared_policies/main.py
"""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor

import database
import invoices
import orders

import guarded


async def load_invoices() -> list[str]:
    """Forty invoices at once."""
    return await asyncio.gather(*(invoices.load_invoice(number) for number in range(40)))


def main() -> int:
    """Load orders from threads and invoices from tasks, all at the same time."""
    with ThreadPoolExecutor(8) as pool:
        async_part = pool.submit(lambda: asyncio.run(load_invoices()))
        loaded = [*pool.map(orders.load_order, range(40)), *async_part.result()]
    print(f"same object:  {orders.db_limit is invoices.db_limit}")
    print(f"loaded:       {len(loaded)}")
    print(f"most at once: {database.peak} of 3")
    print(f"registry:     {guarded.registry!r}")
    kept = orders.db_limit is invoices.db_limit and len(loaded) == 80 and 1 < database.peak <= 3
    print("every promise was kept" if kept else "something is wrong", file=sys.stderr)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
