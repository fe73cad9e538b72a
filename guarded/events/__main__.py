"""``python -m guarded.events``: the tables of events, fields and metrics, as Markdown."""

from __future__ import annotations

from guarded.events.tables import events_table_markdown, fields_table_markdown, metrics_table_markdown

if __name__ == "__main__":
    print(f"{events_table_markdown()}\n{fields_table_markdown()}\n{metrics_table_markdown()}", end="")
