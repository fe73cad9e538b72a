"""schema, explain, show; check, top and simulate have modules of their own.

Results go to standard output, the rest to standard error. Exit status: 0, or 2 when a file, a name or an argument is
wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from math import isinf
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import guarded
from guarded._core.registry import registry
from guarded.cli._shell import DEFAULT_FILE, WIDTH, Allow, AsJson, Files, find_modules_here, problems_exit
from guarded.cli.check import check_command
from guarded.cli.simulate import simulate_command
from guarded.cli.top import top_command
from guarded.config import document, loader, references, report, schema
from guarded.config.plan import Plan
from guarded.errors import ConfigError
from guarded.stack import Explanation, explain, option_rows

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("check")(check_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"guarded {guarded.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Check, explain and show the policies of guarded."""


@app.command("schema")
def schema_command() -> None:
    """Print the JSON Schema, for editors."""
    typer.echo(json.dumps(schema.json_schema(), ensure_ascii=False, indent=2))


@app.command("explain")
def explain_command(
    subject: Annotated[str, typer.Argument(help="Name of a policy, or module:function.")],
    file: Annotated[
        Path | None, typer.Argument(help="Config file.", show_default="guarded.yaml where there is one")
    ] = None,
    allow: Allow = None,
    as_json: AsJson = False,
) -> None:
    """Print a stack, and where each value came from.

    With the worst case, and what looks wrong.
    """
    find_modules_here()
    with problems_exit():
        is_code = ":" in subject
        if is_code:
            references.resolve_reference(subject, allow)  # first: a file that the module loads gives way to this one
        _load(file, allow)
        found = explain(references.resolve_reference(subject, allow) if is_code else subject)  # with targets bound
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
    find_modules_here()
    with problems_exit():
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
        loader.load(file or DEFAULT_FILE, allow=allow)


app.command("top")(top_command)
app.command("simulate")(simulate_command)
