"""``guarded simulate``: what a load would do to a stack, without a request being sent or a second being waited."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from guarded._core.durations import format_duration, parse_duration
from guarded._core.registry import registry
from guarded.cli import plots
from guarded.cli._shell import WIDTH, Allow, AsJson, find_modules_here, problems_exit
from guarded.cli.simulation import Load, Outcome, simulate
from guarded.config import loader


def simulate_command(
    file: Annotated[Path, typer.Argument(help="Config file.")],
    policy: Annotated[str, typer.Option("--policy", "-p", help="Name of the policy or stack.")],
    rps: Annotated[float, typer.Option(help="Calls per second, at random.")] = 50.0,
    latency: Annotated[str, typer.Option(help="How long the service takes: 100ms, or 50ms..200ms.")] = "100ms",
    failure: Annotated[float, typer.Option(help="Share of requests that fail, 0 to 1.")] = 0.0,
    duration: Annotated[str, typer.Option(help="Length of the load.")] = "60s",
    capacity: Annotated[int | None, typer.Option(help="Requests at once above which the service slows down.")] = None,
    outage: Annotated[str | None, typer.Option(help="When every request fails: 20s..30s.")] = None,
    keys: Annotated[int, typer.Option(help="Number of different keys of the calls.")] = 1,
    seed: Annotated[int, typer.Option(help="The same seed gives the same outcome.")] = 0,
    png: Annotated[Path | None, typer.Option(help="Draw a picture there, too; its ending is its format.")] = None,
    allow: Allow = None,
    as_json: AsJson = False,
) -> None:
    """Try a load on a stack, in virtual time.

    What would be served, queued, refused, retried.
    """
    find_modules_here()
    with problems_exit(), registry.isolated():
        load = Load(
            rps=rps,
            latency=_span(latency, "latency"),
            failure=failure,
            duration=parse_duration(duration, option="duration"),
            capacity=capacity,
            outage=None if outage is None else _span(outage, "outage"),
            keys=keys,
            seed=seed,
        )
        with loader.load(file, allow=allow):
            outcome = simulate(registry[policy].expand(), load)
    if as_json:
        typer.echo(json.dumps(as_dict(outcome), indent=2, allow_nan=False))
    else:
        _show(outcome, policy)
    if png is not None:
        _draw(outcome, policy, png)


def _span(text: str, option: str) -> tuple[float, float]:
    """``50ms..200ms``, or one duration for both ends."""
    first, _, last = text.partition("..")
    shortest = parse_duration(first, option=option, allow_zero=True)
    return shortest, parse_duration(last, option=option) if last else shortest


def as_dict(outcome: Outcome) -> dict[str, Any]:
    """As plain values, with percentiles in the place of all latencies."""
    found = dataclasses.asdict(outcome)
    del found["latencies"]
    found["latency"] = {f"p{share * 100:g}": outcome.percentile(share) for share in (0.5, 0.95, 0.99, 1.0)}
    return found


def rows(outcome: Outcome) -> list[tuple[str, str, str]]:
    """What, how much, and what else there is to say."""
    stats, of = outcome.stats, max(1, outcome.offered)

    def share(count: float) -> str:
        return f"{count / of:.1%}"

    found = [
        ("calls", str(outcome.offered), ""),
        ("served", str(outcome.served), share(outcome.served)),
        ("  at the first attempt", "", "-" if stats.first_attempt is None else f"{stats.first_attempt:.1%}"),
    ]
    if outcome.fallbacks:
        found.append(("  by a fallback", str(outcome.fallbacks), share(outcome.fallbacks)))
    found.append(("failed", str(outcome.failed), share(outcome.failed)))
    found += [(f"refused by {name}", str(count), share(count)) for name, count in outcome.refused.items()]
    found.append(("out of time", str(outcome.out_of_time), share(outcome.out_of_time)))
    if outcome.unfinished:
        found.append(("still waiting at the end", str(outcome.unfinished), share(outcome.unfinished)))
    found += [
        ("requests to the service", str(outcome.requests), f"{outcome.requests / of:.2f} per call"),
        ("  at once, at most", str(outcome.peak), ""),
        ("retries", str(stats.retries), f"at most {stats.max_retries} of one call; {stats.exhausted} exhausted"),
        ("time queued", format_duration(stats.queued), f"{format_duration(stats.queued / of)} per call"),
        ("time backing off", format_duration(stats.backing_off), ""),
    ]
    for label, at in (("latency, median", 0.5), ("latency, 95 %", 0.95), ("latency, worst", 1.0)):
        value = outcome.percentile(at)
        found.append((label, "-" if value is None else format_duration(round(value, 4)), "of served calls"))
    return found


def _show(outcome: Outcome, policy: str) -> None:
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    load = outcome.load
    title = Text(f"{policy}: {load.rps:g} calls/s")
    table = Table(box=None, pad_edge=False, show_header=False, title=title, title_justify="left")
    table.add_column()
    table.add_column(justify="right", style="bold")
    table.add_column(style="dim")
    for row in rows(outcome):
        table.add_row(*map(Text, row))
    console.print(table)
    console.print()
    console.print(plots.as_lines(outcome))
    for note in outcome.notes:
        typer.echo(f"note: {note}", err=True)


def _draw(outcome: Outcome, policy: str, path: Path) -> None:
    try:
        plots.draw({policy: outcome}, path)
    except ModuleNotFoundError as error:
        typer.echo(f"guarded: {error}", err=True)
        raise typer.Exit(1) from None
    except (OSError, ValueError) as error:
        typer.echo(f"{path}: {error}", err=True)
        raise typer.Exit(2) from None
