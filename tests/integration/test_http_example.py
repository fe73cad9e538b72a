"""The payment service on FastAPI and the script that hammers it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.real_clock
def test_the_service_keeps_its_promises() -> None:
    """Each order charged once, the bank never busier than the limit says, whatever the client does."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["", *sys.path])}
    script = ROOT / "examples" / "fastapi_client.py"
    ran = subprocess.run(
        [sys.executable, str(script)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr.strip() == "every promise was kept"
