"""A part whose package is not installed says what to install."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import subprocess
import sys

import pytest

from guarded._core.extras import missing


def test_the_message_says_what_is_missing_and_what_to_install() -> None:
    """By the package, not by the module inside it that was asked for; and code that looks at the name still can."""
    error = missing(ModuleNotFoundError("No module named 'httpx.x'", name="httpx.x"), "the client", "guarded[httpx]")
    assert str(error) == "the client needs httpx, which is not installed: pip install 'guarded[httpx]'"
    assert error.name == "httpx.x"


def take_away(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it were not installed."""
    for name in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize(
    ("name", "install"),
    [
        *((name, f"guarded[{name}]") for name in ("aiohttp", "httpx", "requests")),
        *((name, name) for name in ("django", "dramatiq", "flask", "httpx2", "litestar", "rq", "starlette", "taskiq")),
    ],
)
def test_an_integration_says_what_to_install(name: str, install: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its extra where there is one, else by its package."""
    module = f"guarded.integrations.{name}"
    take_away(name, monkeypatch)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module(module)
    assert str(caught.value) == f"{module} needs {name}, which is not installed: pip install '{install}'"
    assert (caught.value.name or "").partition(".")[0] == name


def test_fastapi_is_what_brings_starlette(monkeypatch: pytest.MonkeyPatch) -> None:
    """So its module asks for it."""
    take_away("starlette", monkeypatch)
    for module in ("starlette", "fastapi"):
        monkeypatch.delitem(sys.modules, f"guarded.integrations.{module}", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"guarded\.integrations\.fastapi needs .*: pip install 'fastapi'"):
        importlib.import_module("guarded.integrations.fastapi")


@pytest.mark.parametrize("version", ["0.11.20", "0.12.0", "0.12"])
def test_a_taskiq_that_would_lose_tasks_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is imported, and not by a task that never comes again."""
    pytest.importorskip("taskiq", reason="taskiq is not among what is installed here")
    monkeypatch.setattr(importlib.metadata, "version", lambda package: version)
    monkeypatch.delitem(sys.modules, "guarded.integrations.taskiq", raising=False)
    with pytest.raises(ImportError, match=rf"needs taskiq 0\.12\.1 or later, not {re.escape(version)}: pip install -U"):
        importlib.import_module("guarded.integrations.taskiq")


SINKS = (("prometheus_client", "prometheus"), ("opentelemetry", "opentelemetry"), ("structlog", "structlog"))


@pytest.mark.parametrize(
    ("package", "code", "part", "extra"),
    [
        ("yaml", "import guarded; guarded.load", "a config file", "config"),
        ("pydantic", "import guarded.config", "a config file", "config"),
        *((package, f"import guarded.events.sinks.{it}", f"guarded.events.sinks.{it}", it) for package, it in SINKS),
        ("redis", "import guarded; guarded.limit(3, store='redis://host', name='db')", "limit: store: redis", "redis"),
    ],
)
def test_a_part_that_is_loaded_on_first_use_says_what_to_install(
    package: str, code: str, part: str, extra: str
) -> None:
    """Configs, sinks and stores, in a process that has none of it yet."""
    program = f"import sys; sys.modules[{package!r}] = None\n{code}"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    told = run.stderr.splitlines()[-1].partition(": ")[2]
    assert told == f"{part} needs {package}, which is not installed: pip install 'guarded[{extra}]'"
