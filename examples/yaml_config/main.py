"""Policies from a file: targets, names, a reload, and what goes wrong when the file is wrong.

Ends with exit code 0 if each call did what guarded.yaml says.

    python examples/yaml_config/main.py
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import reports  # its @guard("reports") stands before the file is loaded
from shop.payments import PaymentService

import guarded

HERE = Path(__file__).parent


def charge_twice() -> bool:
    """One order, sent twice: retried once, executed once, replayed once."""
    service = PaymentService(failures=1)
    first = service.charge("m-1", "order-1", 250)
    again = service.charge("m-1", "order-1", 250)
    print(f"charged: {first}\nagain:   {again} after {service.calls} calls in all")
    return first == again and service.calls == 2


def reload(file: Path) -> bool:
    """A better file is swapped in, a worse one is refused; the limit is the same object all the while."""
    db = guarded.registry["db"]
    text = file.read_text()
    file.write_text(text.replace("max_concurrent: 20", "max_concurrent: 30"))
    print(f"\nreload:\n{guarded.registry.reload()}")
    file.write_text(text.replace("max_concurrent: 20", "max_concurent: 20").replace("15s", '"15"'))
    try:
        guarded.registry.reload()
    except guarded.ConfigError as error:
        print(f"\nrefused:\n{error}")
    return guarded.registry["db"] is db and guarded.registry.snapshot()["db"]["limit"] == 30


def main() -> int:
    """Load, call, explain, reload."""
    os.environ.setdefault("REDIS_URL", "memory://")  # no server is needed here
    with tempfile.TemporaryDirectory() as folder:
        file = Path(shutil.copy(HERE / "guarded.yaml", folder))
        with guarded.load(file, allow=["shop"]) as config:
            guarded.check()
            print(config, "\n")
            kept = [charge_twice(), reports.monthly("May") == "report of May"]
            print(f"\n{guarded.explain(PaymentService.charge)}")
            kept.append(reload(file))
    print("\nevery promise was kept" if all(kept) else "\nsomething is wrong", file=sys.stderr)
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
