"""The budgets hold, within margins that a busy machine does not break."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
MARGIN = 1.5
TRIES = 3
NEEDED = ("interlock", "limits", "pyresilience", "stamina")


def traced() -> bool:
    """Whether something looks over every line, which slows Python code down and C code not."""
    monitoring = getattr(sys, "monitoring", None)
    watched = monitoring is not None and any(monitoring.get_tool(tool) for tool in range(6))
    return sys.gettrace() is not None or watched or any(name.startswith("COVERAGE_PROCESS") for name in os.environ)


def budgets() -> list[dict[str, Any]]:
    """All budgets, measured in a process of their own."""
    run = subprocess.run(
        [sys.executable, HERE / "budgets.py", "--json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return json.loads(run.stdout)  # type: ignore[no-any-return]


@pytest.mark.real_clock
@pytest.mark.slow
@pytest.mark.skipif(traced(), reason="under a tracer Python code costs more than it should")
@pytest.mark.skipif(not all(map(find_spec, NEEDED)), reason="needs the dependency group bench")
def test_no_budget_is_missed_by_half() -> None:
    """What is far above its bound in every one of three runs has become dearer."""
    missed: set[str] | None = None
    for _ in range(TRIES):
        found = {
            f"{row['what']}, against {row['against']}"
            for row in budgets()
            if row["figure"] > MARGIN * row["bound"] * row["reference"]
        }
        missed = found if missed is None else missed & found
        if not missed:
            return
    pytest.fail(f"more than {MARGIN} times the budget: {'; '.join(sorted(missed or ()))}")
