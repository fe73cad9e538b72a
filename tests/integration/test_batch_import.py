"""The import example, run as users run it: to the end, and interrupted with Ctrl-C on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real_clock, pytest.mark.slow]

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(["", *sys.path]), "TERM": "xterm"}
SCRIPT = Path(__file__).parents[2] / "examples" / "batch_import.py"


def write(path: Path, count: int, hopeless: int = 0) -> Path:
    """A file of records, the first of which the server never takes."""
    rows = [f"record-{number},{number},{'503' if number < hopeless else ''}\n" for number in range(count)]
    path.write_text("id,amount,step\n" + "".join(rows))
    return path


def figures(output: str) -> dict[str, int]:
    """The table."""
    return {name.strip(): int(count) for name, count in re.findall(r"^(.*?)  +(\d+)$", output, re.MULTILINE)}


def test_an_import_to_the_end(tmp_path: Path) -> None:
    """All records are accounted for; hopeless ones with their cause; others were retried; the exit code says it."""
    records = write(tmp_path / "records.csv", 60, hopeless=2)
    run = subprocess.run(
        [sys.executable, str(SCRIPT), str(records)], capture_output=True, text=True, timeout=60, env=ENVIRONMENT
    )
    table = figures(run.stdout)
    assert table["succeeded"] + table["failed"] == 60, run.stdout + run.stderr
    assert 2 <= table["failed"] <= 8
    assert table["HTTP 503"] >= 2
    assert table["retried"] > 0
    assert "failed: lines 2, 3" in run.stdout
    assert run.returncode == 1
    assert run.stderr == ""  # no terminal, no bar


def test_an_import_interrupted_on_a_terminal(tmp_path: Path) -> None:
    """Ctrl-C in the middle: over within a second, with what was and what was not done; the bar was on the terminal."""
    records = write(tmp_path / "records.csv", 500)
    terminal, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))  # a bar needs a width
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), str(records)], stdout=subprocess.PIPE, stderr=theirs, text=True, env=ENVIRONMENT
    ) as process:
        os.close(theirs)
        shown = b""
        while not re.search(rb"([4-9]\d|\d\d\d)/500", shown):
            shown += os.read(terminal, 4096)
        pressed = time.monotonic()
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=20)
        took = time.monotonic() - pressed
    os.close(terminal)
    assert process.returncode == 130, output
    assert took < 1
    assert b"map_limit" in shown
    table = figures(output)
    done = table["succeeded"] + table["failed"]
    assert 30 <= done < 500
    assert 1 <= table["interrupted half-way"] <= 12
    assert done + table["interrupted half-way"] + table["not begun"] == 500
    assert "stopped half-way: lines" in output
    assert f"not begun: from line {502 - table['not begun']} on" in output
