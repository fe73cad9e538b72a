"""What holds for the code as a whole: who touches time, what is loaded when, which names are whose."""

from __future__ import annotations

import ast
import importlib.metadata
import pkgutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import guarded

ROOT = Path(guarded.__file__).parent
MODULES = sorted(path for path in ROOT.rglob("*.py"))

OF_TIME = {"sleep", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time_ns", "call_later", "call_at"}
EXEMPT = {
    "_core/virtual.py",  # is a clock itself
    "cli/_virtual_loop.py",  # likewise
    "policies/_idempotent/inflight.py",  # looks now and then whether a loop is alive, which only real time can tell
}
HEAVY = {
    *("pybreaker", "redis", "yaml", "pydantic", "typer", "rich", "tqdm", "httpx", "prometheus_client", "opentelemetry"),
    *("cachetools", "sqlite3", "http"),
}


def name_of(path: Path) -> str:
    """The path below the package, as it is written above."""
    return path.relative_to(ROOT).as_posix()


def uses_of_time(tree: ast.AST) -> Iterator[str]:
    """Where a module takes time or a wait from anywhere but `clock`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"line {node.lineno}: import time" for alias in node.names if alias.name in ("time", "sched"))
        elif isinstance(node, ast.ImportFrom) and node.module in ("time", "sched"):
            yield f"line {node.lineno}: from time"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in OF_TIME:
            owner = ast.unparse(node.func.value)
            is_of_time = owner in ("asyncio", "time") or owner.endswith("loop")
            if is_of_time and ast.unparse(node) != "asyncio.sleep(0)":
                yield f"line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_only_the_clock_touches_time(path: Path) -> None:
    """Everything else asks `_core/clock.py`, so that virtual and frozen time move all of it."""
    found = list(uses_of_time(ast.parse(path.read_text())))
    if name_of(path) == "_core/clock.py":
        assert found
    elif name_of(path) not in EXEMPT:
        assert found == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_file_is_short(path: Path) -> None:
    """Less than 400 lines, and says what it is."""
    text = path.read_text()
    assert text.count("\n") < 400
    assert not text or ast.get_docstring(ast.parse(text))


def test_nothing_imports_pickle() -> None:
    """What a store keeps is written by the codec; only others pickle policies, through ``__reduce__``."""
    importing = {
        name_of(path)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        and {getattr(node, "module", None), *(alias.name for alias in node.names)} & {"pickle", "marshal", "shelve"}
    }
    assert importing == set()


def test_no_module_bears_the_name_of_something_public() -> None:
    """Importing a module can never turn ``guarded.limit`` into that module."""
    modules = {module.name for module in pkgutil.iter_modules(guarded.__path__)}
    assert modules.isdisjoint(guarded.__all__)


def test_all_is_complete_and_read_by_type_checkers() -> None:
    """`__all__` is spelled out, and names what type checkers see imported and what is loaded on first use."""
    tree = ast.parse(Path(guarded.__file__).read_text())
    spelled = next(node.value for node in tree.body if isinstance(node, ast.Assign))
    assert ast.literal_eval(spelled) == guarded.__all__ == sorted(guarded._HOME_OF)
    seen = {
        (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("guarded")
        for alias in node.names
    }
    parts = {("guarded", part) for part in guarded._PARTS}
    assert seen == parts | {(home, name) for name, home in guarded._HOME_OF.items()}
    for name in (*guarded.__all__, *guarded._PARTS):
        assert getattr(guarded, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'limitt'"):
        guarded.limitt  # type: ignore[attr-defined]  # noqa: B018 - the look-up is the point


def test_parts_are_there_without_an_import_of_their_own() -> None:
    """``import guarded`` is enough for ``guarded.events`` and the like, which are loaded when they are asked for."""
    code = (
        "import sys, guarded; assert 'guarded.events' not in sys.modules\n"
        "assert {'events', 'testing', 'limit'} <= set(dir(guarded))\n"
        "print(guarded.events.recent(), guarded.testing.capture.__name__)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.split() == ["[]", "capture"]


def test_a_plain_stack_loads_nothing_heavy() -> None:
    """Neither importing guarded nor a call under limit, rate, retry and deadline loads what it has no use for."""
    code = (
        "import sys; import wrapt, loguru; before = set(sys.modules); import guarded\n"
        "from guarded import deadline, limit, rate, retry\n"
        "@deadline(10, mode='cooperative')\n@limit(2)\n@retry\n@rate('5/s')\n"
        "def fn(): return 1\n"
        "assert fn() == 1\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(run.stdout.split())
    assert "guarded" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_the_version_is_that_of_the_distribution() -> None:
    """`guarded.__version__` is what the installed package says; a source tree alone has none."""
    try:
        expected = importlib.metadata.version("guarded")
    except importlib.metadata.PackageNotFoundError:
        with pytest.raises(importlib.metadata.PackageNotFoundError):
            guarded.__version__  # noqa: B018 - the look-up is the point
    else:
        assert guarded.__version__ == expected
    assert f"{guarded.CircuitOpen.__module__}.{guarded.CircuitOpen.__qualname__}" == "guarded.errors.CircuitOpen"


def test_the_suite_also_runs_on_every_lower_bound() -> None:
    """`tests/lowest.txt` pins just what the package, its extras and what it works with ask for."""
    here = Path(__file__).parents[2]
    document = tomllib.loads((here / "pyproject.toml").read_text())
    project, groups = document["project"], document["dependency-groups"]
    extras = [*project["optional-dependencies"].values(), groups["http"], groups["queues"]]
    asked = [Requirement(line) for lines in (project["dependencies"], *extras) for line in lines]
    bounds: set[tuple[str, Version | None]] = set()
    for requirement in asked:
        if requirement.name != "guarded":
            (bound,) = requirement.specifier
            assert bound.operator == ">=", f"{requirement} names no lower bound, or more than that"
            bounds.add((canonicalize_name(requirement.name), Version(bound.version)))
    pins: dict[str, Version] = {}
    for line in (here / "tests" / "lowest.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, _, version = line.partition("==")
            pins[canonicalize_name(name)] = Version(version)
    assert bounds == {(name, pins.get(name)) for name, _ in bounds}
