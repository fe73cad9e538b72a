"""Policies of a file that cannot guard the callables they are for: the file is refused, not every call."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

import guarded
from guarded import guard, idempotent, limit, registry
from guarded.cli.commands import app
from guarded.config import Loaded, load
from guarded.errors import ConfigError

TARGETS = "targets: {'tfit:charge': p, 'tfit:Shop.of': p, 'tfit:Shop': p}\n"


@pytest.fixture(autouse=True)
def own_registry() -> Iterator[None]:
    with registry.isolated():
        yield
        if isinstance(registry.config, Loaded):
            registry.config.close()


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module with a function, a class method, and something that cannot be guarded."""
    (tmp_path / "tfit.py").write_text(
        textwrap.dedent("""\
            def charge(order_id): return order_id

            class Shop:
                @classmethod
                def of(cls, order_id): return order_id
            """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("tfit")
    del sys.modules["tfit"]


def keyed(parameter: str) -> str:
    return f"policies:\n  p: {{limit: {{max_concurrent: 2, key: {parameter}}}}}\n"


def refusals(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text)
    return [str(problem) for problem in caught.value.problems]


def test_a_reload_whose_key_a_function_has_not_changes_nothing() -> None:
    """Every function that the file would break is named, at the option."""

    @guard("p")
    def charge(order_id: str) -> str:
        return order_id

    @guard("p", limit(9))
    def refund(order_id: str) -> str:
        return order_id

    load(keyed("order_id"))
    where = f"<text>:2:39: policies.p.limit.key: does not fit {__name__}.{charge.__qualname__}"
    found = refusals(keyed("order"))
    assert sorted(line.partition(": key=")[0] for line in found) == [where, where.replace(".charge", ".refund")]
    assert all("has no parameter 'order': did you mean 'order_id'?" in line for line in found)
    assert (charge("a"), refund("b")) == ("a", "b")
    load(keyed("'{order_id}'"))
    assert charge("a") == "a"


def test_a_policy_of_code_that_the_file_changes() -> None:
    """Also where it is part of a stack of code, and through a name that stands for it."""
    db = limit(3, name="p")
    other = guard(db, name="other")

    @other
    def query(sql: str) -> str:
        return sql

    (problem,) = refusals(keyed("table") + "  q: {limit: p}\n")
    assert "policies.p.limit.key: does not fit" in problem
    assert query("select 1") == "select 1"


def test_a_stack_through_the_names_in_it() -> None:
    """A shared policy is judged where it ends up."""

    @guard("stack")
    def charge(order_id: str) -> str:
        return order_id

    (problem,) = refusals(keyed("order") + "  stack: {deadline: 1s, limit: p}\n")
    assert problem.startswith("<text>:2:39: policies.p.limit.key: does not fit")
    load("policies:\n  stack: {deadline: {seconds: 1s, mode: cooperative}}\n")
    assert charge("a") == "a"


def test_what_is_judged_is_the_finished_stack() -> None:
    """A hedge needs an @idempotent around it, which may be of code."""

    @idempotent(key="order_id")
    @guard("h")
    def safe(order_id: str) -> str:
        return order_id

    hedge = "policies: {h: {hedge: {after: 1s}}}\n"
    loaded = load(hedge)
    assert safe("a") == "a"
    loaded.close()

    @guard("h")
    def charge(order_id: str) -> str:
        return order_id

    (problem,) = refusals(hedge)
    assert problem.startswith(f"<text>:1:16: policies.h.hedge: does not fit {__name__}.{charge.__qualname__}: hedge(")


def test_a_call_site_that_knows_better() -> None:
    """An override, a layer that is left out or switched off, and a stack that is gone are not judged."""

    @guard("p", limit=None)
    def charge(order_id: str) -> str:
        return order_id

    @guard("q", idempotent={"key": "order_id"})
    def refund(order_id: str) -> str:
        return order_id

    load(keyed("order") + "  q: {idempotent: {key: order}}\n")
    assert (charge("a"), refund("b")) == ("a", "b")


def test_what_does_not_change_is_no_reason_to_refuse() -> None:
    """A function that came later and does not fit says so at its calls; the file goes on being reloaded."""
    load(keyed("order_id"))

    @guard("p")
    def odd(number: int) -> int:
        return number

    with pytest.raises(ValueError, match="no parameter 'order_id'"):
        odd(1)
    assert load(keyed("order_id") + "  q: {limit: 3}\n").diff.added == ("q",)
    assert len(refusals(keyed("'{order_id}'"))) == 1


def test_targets_of_a_first_load(shop: ModuleType) -> None:
    """Nothing is bound yet, and nothing gets bound."""
    found = refusals(keyed("order") + TARGETS)
    assert sorted(line.partition(": key=")[0] for line in found) == [
        "<text>:2:39: policies.p.limit.key: does not fit tfit.Shop.of",
        "<text>:2:39: policies.p.limit.key: does not fit tfit.charge",
    ]
    assert (shop.charge("a"), shop.Shop.of("b"), list(registry)) == ("a", "b", [])


def test_a_target_that_moves_to_a_policy_that_does_not_fit(shop: ModuleType) -> None:
    """Judged by the targets of the new file, though neither policy changes."""
    policies = keyed("order_id") + "  other: {limit: {max_concurrent: 2, key: order}}\n"
    target = "targets: {'tfit:charge': p}\n"
    load(policies + target)
    (problem,) = refusals(policies + target.replace(": p", ": other"))
    assert problem.startswith("<text>:3:43: policies.other.limit.key: does not fit tfit.charge")
    assert shop.charge("a") == "a"
    load(keyed("order"))  # without the target nobody needs to fit
    assert shop.charge("a") == "a"


def test_check_on_the_command_line(shop: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --targets, which imports the functions."""
    monkeypatch.chdir(tmp_path)
    target = "targets: {'tfit:charge': p}\n"
    (tmp_path / "g.yaml").write_text(keyed("order") + target)
    assert CliRunner().invoke(app, ["check", "g.yaml"]).exit_code == 0
    result = CliRunner().invoke(app, ["check", "g.yaml", "--targets"])
    assert result.exit_code == 2
    assert "g.yaml:2:39: policies.p.limit.key: does not fit tfit.charge: key='order'" in result.output
    (tmp_path / "g.yaml").write_text(keyed("order_id") + target)
    assert CliRunner().invoke(app, ["check", "g.yaml", "--targets"]).exit_code == 0


def test_what_an_isolated_registry_knows_is_what_was_made_there() -> None:
    """A test may use the names of the program for functions of its own; a program's are judged again after it."""

    @guard("p")
    def charge(order_id: str) -> str:
        return order_id

    with registry.isolated(), load(keyed("order")):

        @guard("p")
        def of_the_test(order: str) -> str:
            return order

        assert of_the_test("a") == "a"
    assert len(refusals(keyed("order"))) == 1
    assert charge.__name__ == "charge"


def test_circles_in_code_are_told_by_calls() -> None:
    """They do not keep a file from being loaded."""

    @guard("a")
    def charge(order_id: str) -> str:
        return order_id

    guard("b", name="a")
    guard("a", name="b")
    load(keyed("order_id"))
    with pytest.raises(ValueError, match="contains itself"):
        charge("x")
    assert guarded.registry["p"].kind == "limit"
