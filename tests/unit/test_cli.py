"""The command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import guarded
from guarded import registry
from guarded.cli.commands import app
from guarded.config import Loaded

GOOD = "policies:\n  db: {limit: {max_concurrent: 20}}\n  p: {limit: db, retry: {retries: 2}, enabled: true}\n"
BAD = "policies:\n  p: {retry: {retires: 2}, limit: 0}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory of its own; no config outlives its test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    if isinstance(registry.config, Loaded):
        registry.config.close()


def run(*arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output, standard error."""
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


def test_check_of_a_good_file(folder: Path) -> None:
    """Exit status 0; guarded.yaml is the default."""
    (folder / "guarded.yaml").write_text(GOOD)
    assert run("check") == (0, "", "guarded.yaml: 2 policies, no problems\n")
    assert run("check", "guarded.yaml", "--json") == (0, "[]\n", "")
    assert list(registry) == []


def test_check_of_a_bad_file(folder: Path) -> None:
    """Exit status 2 and every problem, for people and for programs."""
    (folder / "bad.yaml").write_text(BAD)
    status, out, _ = run("check", "bad.yaml")
    assert status == 2
    assert out.splitlines() == [
        "bad.yaml:2:15: policies.p.retry.retires: there is no option 'retires' (did you mean 'retries'?)",
        "bad.yaml:2:35: policies.p.limit.max_concurrent: 0: must be a whole number from 1 up",
    ]
    status, out, _ = run("check", "bad.yaml", "--json")
    assert status == 2
    assert json.loads(out)[0] == {
        "file": "bad.yaml",
        "line": 2,
        "col": 15,
        "path": "policies.p.retry.retires",
        "message": "there is no option 'retires'",
        "hint": "did you mean 'retries'?",
    }


def test_check_of_no_file() -> None:
    """A missing file is a problem like others."""
    assert run("check", "none.yaml") == (2, "none.yaml: cannot be read: No such file or directory\n", "")


def test_check_with_targets_and_allow_list(folder: Path) -> None:
    """--targets imports them; --allow refuses the rest."""
    (folder / "shopc.py").write_text("def charge(): pass\n")
    (folder / "g.yaml").write_text(GOOD + "targets: {'shopc:charge': p, 'shopc:refund': p, 'json:dumps': p}\n")
    status, out, err = run("check", "g.yaml")
    assert (status, out) == (0, "")
    assert err.splitlines() == [
        "3 targets not looked for: --targets imports their modules",
        "g.yaml: 2 policies, no problems",
    ]
    status, out, err = run("check", "g.yaml", "--targets", "--allow", "shopc")
    assert (status, err) == (2, "target shopc:charge → p\n")
    assert [line.partition(" ")[2] for line in out.splitlines()] == [
        "targets[\"shopc:refund\"]: 'shopc' has no 'refund'",
        "targets[\"json:dumps\"]: module 'json' is not on the allow-list",
    ]
    sys.modules.pop("shopc")


def test_check_tells_what_each_target_means(folder: Path) -> None:
    """How many functions a wildcard meets, in modules that only this imports; none at all is a problem."""
    (folder / "shopw").mkdir()
    (folder / "shopw" / "__init__.py").write_text("")
    (folder / "shopw" / "pay.py").write_text("class Service:\n    def charge(self): pass\n    def refund(self): pass\n")
    (folder / "shopw" / "ship.py").write_text("def send(): pass\nthing = 3\n")
    targets = ("shopw.pay:Service.charge", "shopw.*:*.*", "shopw.*:*", "shopw.pay:Service.chrage", "shopw.*.deep:*")
    lines = "\n".join(f"  '{target}': p" for target in (*targets, "shopw.ship:thing", "shopw:nope.*"))
    (folder / "g.yaml").write_text(f"{GOOD}targets:\n{lines}\n")
    status, out, err = run("check", "g.yaml", "--targets")
    assert (status, err.splitlines()) == (
        2,
        [
            "target shopw.pay:Service.charge → p",
            "target shopw.*:*.* (2 functions) → p",
            "target shopw.*:* (1 function) → p",
        ],
    )
    assert out.splitlines() == [
        "g.yaml:8:3: targets[\"shopw.pay:Service.chrage\"]: 'shopw.pay' has no 'Service.chrage' "
        "(did you mean 'Service.charge'?)",
        'g.yaml:9:3: targets["shopw.*.deep:*"]: matches no function (looked at no module, for none matches)',
        "g.yaml:10:3: targets[\"shopw.ship:thing\"]: 'shopw.ship:thing' is no function",
        'g.yaml:11:3: targets["shopw:nope.*"]: matches no function (looked at shopw)',
    ]
    for name in [name for name in sys.modules if name.startswith("shopw")]:
        sys.modules.pop(name)


def test_schema_is_json() -> None:
    """For an editor's settings."""
    status, out, _ = run("schema")
    assert status == 0
    assert json.loads(out)["title"] == "guarded policies"


def test_explain_a_name(folder: Path) -> None:
    """Every value with the line it came from, and the worst case."""
    (folder / "guarded.yaml").write_text(GOOD)
    status, out, _ = run("explain", "p")
    assert status == 0
    assert "max_concurrent = 20  (guarded.yaml:2:32)" in out
    assert "retries = 2  (guarded.yaml:3:35)" in out
    assert "worst case: 3 calls of the function" in out
    assert "the slot is held for the whole logical call, backoff included" in out


def test_explain_a_function(folder: Path) -> None:
    """By module and name, also as JSON; the file is found by --file."""
    (folder / "shopf.py").write_text("from guarded import guard\n@guard('p')\ndef charge(): pass\n")
    (folder / "g.yaml").write_text(GOOD)
    status, out, _ = run("explain", "shopf:charge", "g.yaml", "--json")
    assert status == 0
    found = json.loads(out)
    assert found["subject"] == "shopf.charge"
    assert found["calls"] == 3
    assert {"option": "retries", "value": "2", "source": "g.yaml:3:35"} in found["layers"][1]["options"]
    sys.modules.pop("shopf")


def test_explain_a_function_that_a_target_guards(folder: Path) -> None:
    """The file puts the stack on it; the code knows of none."""
    (folder / "shoph.py").write_text("class Shop:\n    def charge(self): pass\ndef refund(): pass\n")
    (folder / "guarded.yaml").write_text(f'{GOOD}targets: {{"shoph:Shop.charge": p, "shoph:refund": p}}\n')
    for subject in ("Shop.charge", "refund"):
        status, out, err = run("explain", f"shoph:{subject}")
        assert (status, err) == (0, "")
        assert out.startswith(f"shoph.{subject}\n  1. limit 'db'\n")
    sys.modules.pop("shoph")


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        ("q", "no policy or stack is named 'q'"),
        ("nope:f", "there is no module 'nope' (is it installed and on the path?)"),
        ("json:dumps", "neither a guarded callable"),
    ],
)
def test_explain_what_is_not_there(folder: Path, subject: str, message: str) -> None:
    """One line, exit status 2."""
    (folder / "guarded.yaml").write_text(GOOD)
    status, out, err = run("explain", subject)
    assert (status, out) == (2, "")
    assert message in err


def test_show(folder: Path) -> None:
    """A table of what the file comes out as; values from the environment stay hidden."""
    (folder / "g.yaml").write_text(GOOD + "  q: {retry: '${N:-3}'}\ntargets: {'json:dumps': q}\n")
    status, out, _ = run("show", "g.yaml")
    assert status == 0
    for text in ("max_concurrent=20", "→ db", "retries=2", "retries=${N:-3}", "json:dumps", "→ q", "2:8", "g.yaml"):
        assert text in out
    found = json.loads(run("show", "g.yaml", "--json")[1])
    assert found["policies"]["p"]["layers"][0]["shared"] == "db"
    assert found["targets"] == {"json:dumps": "q"}
    (folder / "bad.yaml").write_text(BAD)
    assert run("show", "bad.yaml")[0] == 2


def test_as_a_program(folder: Path) -> None:
    """``python -m guarded`` gives the status to the shell."""
    (folder / "bad.yaml").write_text(BAD)
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    command = [sys.executable, "-m", "guarded", "check", "bad.yaml"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, "")
    assert len(done.stdout.splitlines()) == 2


@pytest.mark.parametrize("missing", ["typer", "rich", "yaml", "pydantic"])
def test_without_the_extra(folder: Path, missing: str) -> None:
    """One line that says how to install it."""
    code = f"import sys; sys.modules[{missing!r}] = None\nfrom guarded.cli import main\nmain()\n"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    needs = f"the command line needs {missing}, which is not installed: pip install 'guarded[cli]'"
    assert done.stderr.splitlines() == [f"guarded: {needs}"]


def test_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """As other commands print it."""
    monkeypatch.setitem(vars(guarded), "__version__", "1.2.3")
    assert run("--version") == (0, "guarded 1.2.3\n", "")


def test_an_import_that_fails_says_why(folder: Path) -> None:
    """The message of what the module raised is what helps."""
    (folder / "failing.py").write_text('raise RuntimeError("set DB_URL first")')
    assert run("explain", "failing:x") == (2, "", "importing 'failing' failed: RuntimeError: set DB_URL first\n")


def test_output_is_the_commands_own(folder: Path) -> None:
    """A level in the file is for the program that loads it."""
    (folder / "guarded.yaml").write_text(GOOD + "events: {level: TRACE}\n")
    for arguments in (["explain", "p"], ["simulate", "guarded.yaml", "-p", "p", "--duration", "2s"]):
        command = [sys.executable, "-m", "guarded", *arguments]
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout
