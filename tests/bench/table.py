"""Tables of figures, and their places in a page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Table:
    """One table: `name` is its place in the page, between ``<!-- bench: name -->`` and ``<!-- end -->``."""

    name: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def times(ratio: float) -> str:
    """A ratio with two digits that count, or three."""
    if ratio >= 100:
        return f"{ratio:,.0f}"
    return f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}"


def put(page: Path, name: str, text: str) -> None:
    """Write `text` into the place `name` of a page; ValueError when it has none."""
    pattern = re.compile(rf"(<!-- bench: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    written, found = pattern.subn(lambda place: f"{place[1]}\n{text}\n\n{place[2]}", page.read_text())
    if found != 1:
        raise ValueError(f"{page} has {found} places for {name!r}")
    page.write_text(written)
