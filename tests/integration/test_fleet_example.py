"""The example of a fleet, run as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "fleet" / "main.py"


@pytest.mark.real_clock
@pytest.mark.slow
def test_every_bound_is_kept_with_a_process_killed_in_the_middle(own_valkey: Any) -> None:
    """The exit code says so, and the table shows each bound."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), own_valkey.url],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed -9" in done.stdout
    assert done.stdout.count(" kept") == 9
    assert "BROKEN" not in done.stdout
    assert done.stderr == ""
