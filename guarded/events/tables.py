"""The tables of events, fields and metrics as Markdown, for the docs page; ``python -m guarded.events`` prints them."""

from __future__ import annotations

from collections.abc import Iterable

from guarded.events.metrics import METRICS
from guarded.events.model import EVENTS, FIELDS, HEAD, LEVELS


def events_table_markdown() -> str:
    """Every event: name, level, meaning, and the fields it may carry beyond time, name and level."""
    rows = (
        (f"`{spec.name}`", LEVELS[spec.level], spec.meaning, _code(name for name in spec.fields if name not in HEAD))
        for spec in EVENTS.values()
    )
    return _table(("event", "level", "meaning", "fields"), rows)


def fields_table_markdown() -> str:
    """Every field: name, unit, meaning."""
    return _table(
        ("field", "unit", "meaning"), ((f"`{spec.name}`", spec.unit, spec.meaning) for spec in FIELDS.values())
    )


def metrics_table_markdown() -> str:
    """Every metric: its name in OpenTelemetry and in Prometheus, kind, unit, labels, meaning."""
    rows = (
        (
            f"`{metric.name}`",
            f"`{metric.exported}`",
            metric.kind,
            f"`{metric.unit}`",
            _code(metric.labels),
            metric.meaning,
        )
        for metric in METRICS
    )
    return _table(("metric", "in Prometheus", "kind", "unit", "labels", "meaning"), rows)


def _code(names: Iterable[str]) -> str:
    return " ".join(f"`{name}`" for name in names)


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [titles, ("---",) * len(titles), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
