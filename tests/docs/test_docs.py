"""The pages say what is true: their code runs, their files load, the tests they name exist.

Every fenced ``python`` block of a page runs, in order, in one namespace, with an empty registry, in an empty directory
where the latest ``yaml`` block is ``guarded.yaml``, and in virtual time. Comments in a page tell otherwise:
``<!-- not run: why -->`` before a block, ``<!-- needs: module -->`` for one of a library that need not be installed,
``<!-- real time: why -->`` anywhere, ``<!-- given … -->`` for code that readers need not see.
"""

from __future__ import annotations

import ast
import re
import sys
import types
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from guarded import registry
from guarded.config import Loaded, problems_of
from guarded.errors import GuardWarning
from guarded.testing import virtual_time

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
PAGES = [page for page in PAGES if "_build" not in page.parts]
MOST_NOT_RUN = 8  # blocks on all pages together

_PARTS = re.compile(
    r"^<!-- given\n(?P<given>.*?)^-->$"
    r"|^(?P<skip><!-- not run: [^\n]+ -->\n)?(?:<!-- needs: (?P<needs>\w+) -->\n)?"
    r"(?P<fence>```+)(?P<kind>python|yaml)\n(?P<code>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
_NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


class Block(NamedTuple):
    """A piece of a page: its kind, its text, the line before it, whether it runs, and the module it needs."""

    kind: str
    code: str
    line: int
    runs: bool
    needs: str | None

    @property
    def can_run(self) -> bool:
        """Whether it runs, and can run here."""
        return self.runs and (self.needs is None or find_spec(self.needs) is not None)


def blocks_of(page: Path) -> Iterator[Block]:
    """What of a page is code."""
    text = page.read_text("utf-8")
    for match in _PARTS.finditer(text):
        group = "given" if match["given"] is not None else "code"
        kind = "python" if group == "given" else match["kind"]
        yield Block(kind, match[group], text.count("\n", 0, match.start(group)), match["skip"] is None, match["needs"])


def title(page: Path) -> str:
    """How a page is called in the list of tests."""
    return page.relative_to(ROOT).as_posix()


def with_code(kind: str) -> list[Path]:
    """The pages that have such blocks."""
    return [page for page in PAGES if any(block.kind == kind for block in blocks_of(page))]


@pytest.fixture
def page_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A module for the code of a page to live in, and an empty directory around it."""
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    yield module
    if isinstance(registry.config, Loaded):
        registry.config.close()


class Demand(ast.NodeTransformer):
    """Where a page shows what is raised, it has to be raised."""

    def visit_Try(self, node: ast.Try) -> ast.Try:
        self.generic_visit(node)
        if node.handlers and not node.orelse:
            node.orelse = ast.parse("raise AssertionError('the page says that this raises')").body
            for each in ast.walk(node.orelse[0]):
                ast.copy_location(each, node)
        return node


def run(block: Block, page: Path, namespace: dict[str, Any]) -> None:
    """Run one block so that a traceback shows its place in the page."""
    tree = Demand().visit(ast.parse("\n" * block.line + block.code, str(page)))
    exec(compile(tree, str(page), "exec", dont_inherit=True), namespace)


def in_real_time(page: Path) -> bool:
    """Whether the page says that its code needs real time."""
    return "<!-- real time: " in page.read_text("utf-8")


def marked(page: Path) -> Any:
    """The page as a parameter, marked where it needs real time."""
    return pytest.param(page, id=title(page), marks=pytest.mark.real_clock if in_real_time(page) else ())


@pytest.mark.parametrize("page", [marked(page) for page in with_code("python")])
def test_the_code_of_a_page_runs(page: Path, page_module: types.ModuleType, tmp_path: Path) -> None:
    """Each python block runs after those before it, and what it asserts holds."""
    with nullcontext() if in_real_time(page) else virtual_time():
        for block in blocks_of(page):
            if block.kind == "yaml":
                (tmp_path / "guarded.yaml").write_text(block.code, "utf-8")
            elif block.can_run:
                run(block, page, page_module.__dict__)
            else:
                compile(block.code, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("page", with_code("yaml"), ids=title)
def test_the_files_of_a_page_are_right(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each yaml block that runs is a file without a problem, once the code around it is there."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "yaml_config"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuardWarning)  # of stores that no server is there for
        for block in blocks_of(page):
            if block.kind == "yaml" and block.runs:
                assert [str(problem) for problem in problems_of(block.code)] == []


def test_few_blocks_are_not_run() -> None:
    """What is not run is rare, and its page says why."""
    assert sum(not block.runs for page in PAGES for block in blocks_of(page)) <= MOST_NOT_RUN


def test_every_fence_is_seen() -> None:
    """No python block hides from the tests: by indentation, by another spelling, by a missing end."""
    for page in PAGES:
        fences = re.findall(r"^\s*(?:```+|~~~+)\s*\{?(?:py|python|python3|pycon|code-block\} python)\}?\s*$",
                            page.read_text("utf-8"), re.MULTILINE)  # fmt: skip
        seen = sum(block.kind == "python" for block in blocks_of(page))
        given = page.read_text("utf-8").count("<!-- given\n")
        assert len(fences) == seen - given, page


def test_the_tests_that_pages_name_exist() -> None:
    """Each ``tests/….py::name`` on a page is a test of that file."""
    named = {found for page in PAGES for found in _NAMED_TEST.findall(page.read_text("utf-8"))}
    assert named
    missing = [f"{file}::{name}" for file, name in sorted(named) if name not in functions_of(ROOT / file)]
    assert missing == []


@cache
def functions_of(file: Path) -> set[str]:
    """Names of all functions in a file; none where it does not exist."""
    if not file.is_file():
        return set()
    tree = ast.parse(file.read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_example_is_run_by_a_test() -> None:
    """Each script and each directory of examples is named by a test, or by an example that is."""
    tests = [file for file in (ROOT / "tests").rglob("test_*.py") if file.parent.name != "docs"]
    examples = [each for each in (ROOT / "examples").iterdir() if each.suffix == ".py" or (each / "main.py").exists()]
    assert len(examples) >= 5
    sources = {file: file.read_text("utf-8") for file in [*tests, *(each for each in examples if each.is_file())]}
    for example in examples:
        names = {example.name, f'"{example.stem}"'}
        assert any(name in text for file, text in sources.items() if file != example for name in names), example


def test_links_between_pages_lead_somewhere() -> None:
    """Each relative link of a page is a file of this repository."""
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{title(page)}: {target}"
