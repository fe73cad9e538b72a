"""``guarded check``: every problem of a file, and which targets were looked for.

A file is judged without importing what its targets name, since that runs the program's code; ``--targets`` does it.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from guarded._core.registry import registry
from guarded.cli._shell import DEFAULT_FILE, Allow, AsJson, Files, find_modules_here
from guarded.config import loader, references, report
from guarded.config.document import Problem, dotted, problem_at
from guarded.config.fit import Fitting
from guarded.config.plan import Plan
from guarded.config.targets import Target, Targets, fault_of, functions_of


def check_command(
    files: Files = None,
    allow: Allow = None,
    as_json: AsJson = False,
    targets: Annotated[
        bool,
        typer.Option(
            "--targets", help="Import the modules of targets, look for their functions, and see that the policies fit."
        ),
    ] = False,
) -> None:
    """Check files: status 0, or 2 and every problem."""
    sources: Sequence[Path] = files or [DEFAULT_FILE]
    find_modules_here()
    plan, candidates = loader.judge(sources, allow, registry)
    problems, notes = list(plan.problems), [f"warning: {warning}" for warning in plan.warnings]
    if targets:
        problems += _look_for_targets(plan, allow, notes)
        if not problems:
            fitting = Fitting(plan, candidates, registry, plan.policies)
            problems += fitting.problems(Targets(registry).reach(loader.targets_of(plan)))
    elif count := len(plan.section("targets")):
        notes.append(f"{_count(count, 'target', 'targets')} not looked for: --targets imports their modules")
    if as_json:
        typer.echo(report.as_json(problems))
    elif problems:
        typer.echo(report.as_lines(problems))
    for note in notes:
        typer.echo(note, err=True)
    if problems:
        raise typer.Exit(2)
    if not as_json:
        names = ", ".join(map(str, sources))
        typer.echo(f"{names}: {_count(len(plan.policies), 'policy', 'policies')}, no problems", err=True)


def _look_for_targets(plan: Plan, allow: Sequence[str] | None, notes: list[str]) -> Iterator[Problem]:
    """A problem for each target that leads nowhere; `notes` gets a line for each of the others."""
    section, told = plan.section("targets"), {problem.path for problem in plan.problems}
    for target in loader.targets_of(plan):
        node, path = section[target.pattern], ("targets", target.pattern)
        if dotted(path) in told:
            continue
        try:
            found = _found(target, allow)
        except references.BadReference as error:
            yield problem_at(node, path, str(error), error.hint, at_key=True)
        else:
            what = target.pattern if target.is_exact else f"{target.pattern} ({_count(found, 'function', 'functions')})"
            notes.append(f"target {what} → {target.policy}")


def _found(target: Target, allow: Sequence[str] | None) -> int:
    """How many functions a target means, after importing its modules; raises BadReference when there is none."""
    modules = _modules(target, allow)
    found = sum(len(functions_of(target, module)) for module in modules)
    if not found and target.is_exact:
        raise references.BadReference(*fault_of(target, modules[0]))
    if not found:
        looked_at = ", ".join(module.__name__ for module in modules) or "no module, for none matches"
        raise references.BadReference("matches no function", f"looked at {looked_at}")
    return found


def _modules(target: Target, allow: Sequence[str] | None) -> list[ModuleType]:
    """The modules a target may mean; from the first ``*`` on, those that there are in the package before it."""
    first, *rest = target.module.split(".")
    names = [first]
    for index, wanted in enumerate(rest, 1):
        if "*" in ".".join(rest[:index]):
            names = [name for parent in names for name in _below(parent, wanted, allow)]
        else:
            names = [f"{names[0]}.{wanted}"]
    return [references.import_module(name, allow) for name in names]


def _below(package: str, wanted: str, allow: Sequence[str] | None) -> list[str]:
    found = references.import_module(package, allow)
    modules = pkgutil.iter_modules(getattr(found, "__path__", ()), f"{package}.")
    return [module.name for module in modules if fnmatchcase(module.name.rpartition(".")[2], wanted)]


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
