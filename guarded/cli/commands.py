"""check, schema, explain, show; top and simulate have modules of their own.

Results go to standard output, the rest to standard error. Exit status: 0, or 2 when a file, a name or an argument is
wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from math import isinf
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from guarded import events
from guarded._core.registry import registry
from guarded.cli._shell import WIDTH, here, problems_exit
from guarded.cli.simulate import simulate_command
from guarded.cli.top import top_command
from guarded.config import document, loader, references, report, schema
from guarded.config.plan import Plan
from guarded.errors import ConfigError
from guarded.stack import Explanation, explain, option_rows

DEFAULT_FILE = Path("guarded.yaml")

app = typer.Typer(
    help="Check, explain and show the policies of guarded.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Files = Annotated[list[Path] | None, typer.Argument(help="Config files; later ones are merged over earlier ones.")]
File = Annotated[Path | None, typer.Option("--file", "-f", help="Config file; guarded.yaml where there is one.")]
Allow = Annotated[
    list[str] | None, typer.Option(help="Module that module:Name may refer to; may be repeated. Default: all.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("check")
def check_command(
    files: Files = None,
    allow: Allow = None,
    as_json: AsJson = False,
    targets: Annotated[
        bool, typer.Option("--targets", help="Import the modules of targets and look for them.")
    ] = False,
) -> None:
    """Check files: status 0, or 2 and every problem."""
    sources = files or [DEFAULT_FILE]
    with here():
        plan, _ = loader.judge(sources, allow, registry)
        problems = list(plan.problems)
        if targets:
            problems += _missing_targets(plan, allow)
    if as_json:
        typer.echo(report.as_json(problems))
    elif problems:
        typer.echo(report.as_lines(problems))
    for warning in plan.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if problems:
        raise typer.Exit(2)
    if not as_json:
        names = ", ".join(map(str, sources))
        typer.echo(f"{names}: {_count(len(plan.policies), 'policy', 'policies')}, no problems", err=True)


def _missing_targets(plan: Plan, allow: Sequence[str] | None) -> Iterator[document.Problem]:
    """Exact targets that cannot be imported."""
    section = plan.section("targets")
    for target in loader.targets_of(plan):
        if target.is_exact and schema.is_target(target.pattern):
            try:
                references.resolve_reference(target.pattern, allow)
            except references.BadReference as error:
                place = section[target.pattern].key or section[target.pattern].place
                yield document.Problem(document.dotted(("targets", target.pattern)), str(error), place, error.hint)


@app.command("schema")
def schema_command() -> None:
    """Print the JSON Schema, for editors."""
    typer.echo(json.dumps(schema.json_schema(), ensure_ascii=False, indent=2))


@app.command("explain")
def explain_command(
    subject: Annotated[str, typer.Argument(help="Name of a policy, or module:function.")],
    file: File = None,
    allow: Allow = None,
    as_json: AsJson = False,
) -> None:
    """Print a stack, and where each value came from.

    With the worst case, and what looks wrong.
    """
    with here(), problems_exit():
        target: Any = references.resolve_reference(subject, allow) if ":" in subject else subject
        _load(file, allow)
        found = explain(target)
    if as_json:
        typer.echo(json.dumps(_explanation_as_dict(found), ensure_ascii=False, indent=2, default=str))
    else:
        typer.echo(str(found))


def _explanation_as_dict(found: Explanation) -> dict[str, Any]:
    return {
        "subject": found.subject,
        "layers": [
            {
                "kind": layer.kind,
                "name": layer.name,
                "options": [
                    {"option": option, "value": value, "source": source} for option, value, source in option_rows(layer)
                ],
            }
            for layer in found.layers
        ],
        "calls": found.calls,
        "seconds": None if isinf(found.seconds) else found.seconds,
        "notes": list(found.notes),
    }


@app.command("show")
def show_command(files: Files = None, allow: Allow = None, as_json: AsJson = False) -> None:
    """Print what files come out as.

    Layers in order, values, and the line each layer stands at.
    """
    sources = files or [DEFAULT_FILE]
    with here(), problems_exit():
        plan, _ = loader.judge(sources, allow, registry)
        if plan.problems:
            raise ConfigError(report.in_order(plan.problems))
    if as_json:
        typer.echo(json.dumps(_plan_as_dict(plan), ensure_ascii=False, indent=2, default=str))
        return
    Console(width=None if sys.stdout.isatty() else WIDTH).print(_plan_as_table(plan))


def _plan_as_table(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title=", ".join(plan.names), title_justify="left")
    for title in ("policy", "layer", "options", "at"):
        table.add_column(title, overflow="fold")

    def at(place: document.Place) -> Text:
        return Text(str(place).removeprefix(f"{plan.names[0]}:") if len(plan.names) == 1 else str(place))

    for policy in plan.policies.values():
        name = policy.name if policy.enabled else f"{policy.name} (off)"
        for layer in policy.layers:
            options = ", ".join(f"{option}={document.shown(node)}" for option, node in layer.options.items())
            value = Text(options if layer.shared is None else f"→ {layer.shared}")
            table.add_row(Text(name), Text(layer.key), value, at(layer.node.key or layer.node.place))
            name = ""
    for target in loader.targets_of(plan):
        place = plan.section("targets")[target.pattern].place
        table.add_row(Text(target.pattern), Text("target"), Text(f"→ {target.policy}"), at(place))
    return table


def _plan_as_dict(plan: Plan) -> dict[str, Any]:
    policies = {
        policy.name: {
            "enabled": policy.enabled,
            "layers": [
                {
                    "layer": layer.key,
                    "kind": layer.kind,
                    "shared": layer.shared,
                    "options": {
                        option: {"value": document.shown(node), "source": str(node.place)}
                        for option, node in layer.options.items()
                    },
                }
                for layer in policy.layers
            ],
        }
        for policy in plan.policies.values()
    }
    return {"policies": policies, "targets": {target.pattern: target.policy for target in loader.targets_of(plan)}}


def _load(file: Path | None, allow: Sequence[str] | None) -> None:
    if file is not None or DEFAULT_FILE.exists():
        events.set_level("OFF")
        loader.load(file or DEFAULT_FILE, allow=allow)


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


app.command("top")(top_command)
app.command("simulate")(simulate_command)
