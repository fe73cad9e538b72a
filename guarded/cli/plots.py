"""A simulation over time: as lines of blocks for a terminal, and as a picture (extra ``plot``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.text import Text

from guarded._core.extras import missing
from guarded.cli.simulation import BUCKETS, Outcome

_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_ROWS: Final = (
    ("calls/s", "offered", "white"),
    ("requests/s", "requests", "cyan"),
    ("served/s", "served", "green"),
    ("refused/s", "refused", "yellow"),
    ("failed/s", "failed", "red"),
)
_COLOURS: Final = ("#0f766e", "#c2410c", "#4f46e5", "#a16207", "#be185d", "#475569")


def blocks(values: Sequence[float], top: float) -> str:
    """One character for each value, full at `top`; what is above zero is never blank."""
    if top <= 0:
        return " " * len(values)
    steps = len(_BLOCKS) - 1
    return "".join(_BLOCKS[min(steps, max(1, round(value / top * steps)) if value > 0 else 0)] for value in values)


def as_lines(outcome: Outcome) -> Text:
    """A line for each series; rates share one scale, so that they can be compared."""
    series, part = outcome.series, outcome.load.duration / BUCKETS
    rates = {name: [count / part for count in getattr(series, name)] for _, name, _ in _ROWS}
    top = max(map(max, rates.values()))
    text = Text()
    for label, name, colour in _ROWS:
        text.append(f"{label:>11} ")
        text.append(blocks(rates[name], top), style=colour)
        text.append(f" max {max(rates[name]):.4g}\n")
    waiting = max(series.waiting)
    text.append(f"{'waiting':>11} ")
    text.append(blocks(series.waiting, waiting), style="magenta")
    text.append(f" max {waiting}\n{'':>12}0 s{f'{outcome.load.duration:g} s':>{BUCKETS - 3}}")
    return text


def draw(outcomes: Mapping[str, Outcome], path: Path) -> None:
    """A picture: what reached the service, what was served, and who waited, a line for each outcome.

    The format is that of the ending of `path`. Raises ModuleNotFoundError without matplotlib.
    """
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found,unused-ignore]
    except ModuleNotFoundError as error:
        raise missing(error, "a picture", "guarded[plot]") from error

    panels = [("requests", "reaching the service, per second"), ("served", "served, per second")]
    if any(max(outcome.series.waiting) for outcome in outcomes.values()):
        panels.append(("waiting", "waiting"))
    figure = Figure(figsize=(8.0, 0.6 + 1.7 * len(panels)), dpi=110, layout="constrained")
    axes: Any = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (name, title) in zip(axes, panels, strict=True):
        for colour, (label, outcome) in zip(_COLOURS * len(outcomes), outcomes.items(), strict=False):
            part = outcome.load.duration / BUCKETS
            values = [count if name == "waiting" else count / part for count in getattr(outcome.series, name)]
            axis.plot([(at + 0.5) * part for at in range(BUCKETS)], values, label=label, color=colour, linewidth=1.7)
        outage = next(iter(outcomes.values())).load.outage
        if outage is not None:
            axis.axvspan(*outage, color="#94a3b8", alpha=0.25, linewidth=0)
        axis.set_title(title, loc="left", fontsize=9.5, color="#334155")
        axis.set_ylim(bottom=0)
        axis.grid(axis="y", color="#e2e8f0")
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8.5, colors="#475569")
    axes[-1].set_xlabel("seconds", fontsize=9, color="#475569")
    if len(outcomes) > 1:
        lines = axes[0].get_legend_handles_labels()
        figure.legend(*lines, loc="outside upper center", ncols=2, fontsize=9, frameon=False)
    figure.savefig(path)
