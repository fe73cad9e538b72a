"""The stores section."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import guarded
from guarded import registry
from guarded.cli.commands import app
from guarded.config import Loaded, problems_of
from guarded.config.kinds import kind


@pytest.fixture(autouse=True)
def _take_out() -> Iterator[None]:
    """No config outlives its test."""
    yield
    if isinstance(registry.config, Loaded):
        registry.config.close()


@pytest.mark.parametrize(
    ("store", "line"),
    [
        ("sharde", "<text>:2:41: policies.p.rate.store: there is no store 'sharde' (did you mean 'shared'?)"),
        (
            "x",
            "<text>:2:41: policies.p.rate.store: there is no store 'x' "
            "(name one under stores, or give an address such as redis://host:6379/0)",
        ),
        (
            "rediss+x://h",
            "<text>:2:41: policies.p.rate.store: there is no store of the kind 'rediss+x' (did you mean 'rediss'?)",
        ),
    ],
)
def test_stores_that_are_not_there(store: str, line: str) -> None:
    """Names and addresses of no known kind."""
    text = f"stores: {{shared: {{url: 'memory://'}}}}\npolicies: {{p: {{rate: {{spec: 5/s, store: '{store}'}}}}}}\n"
    assert [str(problem) for problem in problems_of(text)] == [line]


def test_a_bad_address_is_told_once_and_not_shown() -> None:
    """At the store, not at every policy that uses it; the address may hold a password."""
    uses = "{rate: {spec: 5/s, store: s}}"
    text = f"stores: {{s: {{url: ':hunter2@host'}}}}\npolicies: {{p: {uses}, q: {uses}}}\n"
    assert [str(problem) for problem in problems_of(text)] == [
        "<text>:1:19: stores.s.url: is no address (for example redis://host:6379/0 or memory://)"
    ]


def test_memory_is_the_state_of_the_process() -> None:
    """By name and by address."""
    guarded.load("""
stores: {s: {url: "memory://"}}
policies: {p: {rate: {spec: 5/s, store: s}}, q: {rate: {spec: 5/s, store: "memory://"}}}
""")
    assert registry["p"].options.store is registry["q"].options.store is None


def test_a_store_reaches_the_policy() -> None:
    """With the settings that stand beside its address; one address is one store. Nothing connects yet."""
    guarded.load("""
stores: {s: {url: "redis://:hunter2@127.0.0.1:1/0", timeout: 50ms, prefix: "shop:"}}
policies: {p: {rate: {spec: 5/s, store: s}}, q: {rate: {spec: 6/s, store: s, when_store_fails: closed}}}
""")
    store = registry["p"].options.store
    assert store is registry["q"].options.store
    assert "hunter2" not in store.name


def test_what_the_store_refuses_is_a_problem() -> None:
    """At the policy that uses it, without the address."""
    lines = [
        str(problem)
        for problem in problems_of("""
stores: {s: {url: "redis://:hunter2@h:port/0"}}
policies: {p: {rate: {spec: 5/s, store: s}}}
""")
    ]
    assert len(lines) == 1
    assert lines[0].startswith("<text>:3:41: policies.p.rate.store: ")
    assert "hunter2" not in lines[0]


def test_a_kind_that_has_no_use_for_the_store_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state stays in the process, and whoever loads is told where to say so."""
    options = {name: type_ for name, type_ in kind("rate").options.items() if name != "when_store_fails"}
    without = dataclasses.replace(kind("rate"), options=options)
    monkeypatch.setattr("guarded.config.stores.kind", lambda word: without)
    with pytest.warns(guarded.GuardWarning, match=r"<text>:1:41: policies\.p\.rate\.store: no redis store keeps"):
        guarded.load("policies: {p: {rate: {spec: 5/s, store: 'redis://:hunter2@h'}}}\n")
    assert registry["p"].options.store is None


def test_no_message_shows_a_password(tmp_path: Path) -> None:
    """Not a problem, not a warning, not a diff, not a table."""
    file = tmp_path / "g.yaml"
    file.write_text("policies: {p: {rate: {spec: 5/s, store: 'redis://:hunter2@h'}}}\n")
    config = guarded.load(file)
    shown = CliRunner().invoke(app, ["show", str(file)]).output
    assert "rate" in shown
    wrong = "policies: {p: {rate: {spec: 5/s, store: ':hunter2@h', cost: 'redis://:hunter2@h'}, retry: 'redis://:hunter2@h'}}\n"
    texts = [str(guarded.explain("p")), str(config.diff), config.diff.as_json(), shown, *map(str, problems_of(wrong))]
    assert len(texts) >= 6
    assert "hunter2" not in "\n".join(texts)
