"""Measure everything in one process and one run: ``python tests/bench``.

Prints the tables; ``--write`` puts them into docs/performance.md. Needs the dependency group ``bench``. Takes several
minutes; ``--rounds 3`` is quicker and less exact.
"""

from __future__ import annotations

import argparse
import platform
from importlib.metadata import version
from pathlib import Path

from budgets import measured, table_of
from contention import contention
from footprint import footprint
from growth import growth
from peers import peers
from table import put

from guarded import events, registry

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
PEERS = (
    "wrapt", "tenacity", "stamina", "backoff", "pyresilience", "pybreaker", "interlock-cb", "limits", "pyrate-limiter",
    "throttled-py", "aiolimiter", "hyx", "aiologic", "anyio",
)  # fmt: skip


def machine() -> str:
    """Where the figures come from: interpreter, machine, and the versions of all that was measured."""
    versions = ", ".join(f"{name} {version(name)}" for name in PEERS)
    implementation = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{implementation} on {platform.system()} {platform.machine()}, {_processor()}; {versions}."


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    """Run it all."""
    arguments = argparse.ArgumentParser(description="Measure guarded beside its peers.")
    arguments.add_argument("--rounds", type=int, default=15, help="rounds of each group; the best counts (default 15)")
    arguments.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.name}")
    given = arguments.parse_args()
    events.set_level("ERROR")
    tables = [table_of(measured(given.rounds))]
    with registry.isolated():
        tables += peers(given.rounds)
        tables += contention(max(3, given.rounds // 3))
        tables += growth(max(3, given.rounds // 3))
        tables += footprint()
    for table in tables:
        print(f"\n{table.name}\n\n{table}", flush=True)
        if given.write:
            put(PAGE, table.name, str(table))
    print(f"\n{machine()}")
    if given.write:
        put(PAGE, "machine", machine())


if __name__ == "__main__":
    main()
