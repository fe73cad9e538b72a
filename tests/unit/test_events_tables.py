"""The tables for the docs."""

from __future__ import annotations

import subprocess
import sys

from guarded.events import events_table_markdown, fields_table_markdown, metrics_table_markdown
from guarded.events.metrics import METRICS
from guarded.events.model import EVENTS, FIELDS


def rows(table: str) -> list[list[str]]:
    """The cells below the head, each row as wide as the head."""
    lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
    assert {len(line) for line in lines} == {len(lines[0])}
    return lines[2:]


def test_every_event_field_and_metric_has_a_row() -> None:
    """With level, meaning and fields; unit and meaning; kind, unit and labels."""
    assert [row[0] for row in rows(events_table_markdown())] == [f"`{name}`" for name in EVENTS]
    assert [row[0] for row in rows(fields_table_markdown())] == [f"`{name}`" for name in FIELDS]
    assert [row[:2] for row in rows(metrics_table_markdown())] == [[f"`{m.name}`", f"`{m.exported}`"] for m in METRICS]
    [circuit] = [row for row in rows(metrics_table_markdown()) if row[0] == "`guarded.circuit.state`"]
    assert circuit[1:5] == ["`guarded_circuit_state`", "gauge", "`{state}`", "`policy`"]


def test_as_a_program() -> None:
    """All three, one after the other."""
    done = subprocess.run(
        [sys.executable, "-m", "guarded.events"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"{events_table_markdown()}\n{fields_table_markdown()}\n{metrics_table_markdown()}"
    assert done.stderr == ""
