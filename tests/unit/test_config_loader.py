"""Loading and reloading: what the registry says afterwards."""

from __future__ import annotations

import gc
import pickle
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import guarded
from guarded import circuit, events, guard, limit, registry, retry
from guarded.config import Loaded, loader
from guarded.errors import ConfigError, PolicyConflict, PolicyNotFound
from guarded.events import Event
from guarded.testing import capture


@pytest.fixture(autouse=True)
def _take_out() -> Iterator[None]:
    """No config outlives its test."""
    yield
    if isinstance(registry.config, Loaded):
        registry.config.close()


def layers(fn: object) -> list[tuple[str, str | None]]:
    """Kind and name of each layer of a callable."""
    return [(layer.kind, layer.name) for layer in fn.layers]  # type: ignore[attr-defined]


def refused(source: Any, **options: Any) -> list[str]:
    """The lines of a load that fails."""
    with pytest.raises(ConfigError) as caught:
        guarded.load(source, **options)
    assert isinstance(caught.value, ValueError)
    assert str(caught.value) == "\n".join(map(str, caught.value.problems))
    return str(caught.value).splitlines()


def test_a_stack_is_its_layers_in_the_usual_order() -> None:
    """Each layer is registered too, under the name of the stack and its own."""
    guarded.load("policies:\n  p: {rate: 5/s, circuit: {failures: 2}, retry: 3, limit: 4, deadline: 5s}\n")

    @guard("p")
    def f() -> int:
        return 1

    assert f() == 1
    assert [kind for kind, _ in layers(f)] == ["deadline", "limit", "retry", "circuit", "rate"]
    assert registry["p.circuit"] is f.layers[3]  # type: ignore[attr-defined]


def test_a_policy_of_one_layer_is_that_layer() -> None:
    """So code can use the limit that a file has made."""
    guarded.load({"policies": {"db": {"limit": {"max_concurrent": 20, "max_queue": 100}}}})
    assert registry["db"].kind == "limit"
    assert registry["db"].options.max_concurrent == 20
    assert "db.limit" not in registry


def test_order_and_enabled() -> None:
    """An order of one's own; layers and policies switched off."""
    guarded.load("""
policies:
  p: {order: [retry, limit, deadline], retry: 1, limit: 2, deadline: 1s}
  q: {retry: {enabled: false, retries: 2}, limit: 2}
  r: {enabled: false, retry: 1, limit: 2}
  s: {enabled: false, retry: 1}
""")
    assert [layer.kind for layer in registry["p"].expand()] == ["retry", "limit", "deadline"]
    assert registry["q"].kind == "limit"
    assert registry["r"].expand() == registry["s"].expand() == ()


def test_a_total_and_a_per_attempt_deadline() -> None:
    """The second stands innermost."""
    guarded.load("policies:\n  p: {attempt_deadline: 1s, retry: 2, deadline: 5s}\n")
    assert [(layer.kind, layer.name) for layer in registry["p"].expand()] == [
        ("deadline", "p.deadline"),
        ("retry", "p.retry"),
        ("deadline", "p.attempt_deadline"),
    ]


def test_a_layer_that_names_a_policy_shares_it() -> None:
    """The same object in every stack, also when code has made it, or by way of another name."""
    shared = limit(3, name="db")
    guarded.load("policies:\n  a: {limit: db, retry: 1}\n  b: {limit: alias, retry: 1}\n  alias: {limit: db}\n")
    assert registry["a"].expand()[0] is registry["b"].expand()[0] is shared


def test_a_handle_may_come_before_the_file() -> None:
    """It is looked up when the first call needs it."""
    gc.collect()  # handles of earlier tests would be checked too

    @guard("p")
    def f() -> int:
        return 1

    with pytest.raises(PolicyNotFound):
        f()
    guarded.load("policies: {p: {retry: 1, limit: 2}}\n")
    assert f() == 1
    guarded.check()


def test_check_names_handles_that_lead_nowhere() -> None:
    """With the function and near names."""
    guarded.load("policies: {payments: {retry: 1}}\n")

    @guard("paymens")
    def f() -> int:
        return 1

    with pytest.raises(ConfigError, match=r"f: no policy .*'paymens': did you mean 'payments'"):
        guarded.check()
    assert f is not None


def test_check_names_all_handles_in_order() -> None:
    """By their functions."""
    found = [guard("gone")(fn) for fn in (_c, _a, _b)]
    with pytest.raises(ConfigError) as caught:
        guarded.check()
    told = [str(problem.place).rpartition(".")[2] for problem in caught.value.problems]
    assert [name for name in told if name in ("_a", "_b", "_c")] == ["_a", "_b", "_c"]
    assert len(found) == 3


def _a() -> None: ...


def _b() -> None: ...


def _c() -> None: ...


def test_a_file_beats_code_in_place() -> None:
    """What the file does not say, code says; the object stays, and explain names both places."""
    db = limit(20, max_queue=7, name="db")
    config = guarded.load("policies: {db: {limit: {max_concurrent: 5}}}\n")
    assert registry["db"] is db
    assert (db.options.max_concurrent, db.options.max_queue) == (5, 7)
    text = str(guarded.explain("db"))
    assert "max_concurrent = 5  (<text>:1:41)" in text
    assert f"max_queue = 7  (code {__file__}" in text
    assert limit(20, max_queue=7, name="db") is db
    config.close()
    assert (db.options.max_concurrent, db.options.max_queue) == (20, 7)


def test_explain_names_the_line_of_an_option_that_is_kept_under_another_name() -> None:
    """attempts is kept as retries, a function as the value; what a reload no longer says is a default again."""
    guarded.load("policies: {p: {retry: {attempts: 4, jitter: full}, fallback: {function: 'os:getcwd'}}}\n")
    text = str(guarded.explain("p"))
    assert "retries = 3  (<text>:1:34)" in text
    assert "value = getcwd  (<text>:1:73)" in text
    assert "jitter = 'full'  (<text>:1:45)" in text
    guarded.load("policies: {p: {retry: {attempts: 4}, fallback: {function: 'os:getcwd'}}}\n")
    assert "jitter = 'full'  (default)" in str(guarded.explain("p"))


def test_code_that_comes_after_the_file() -> None:
    """The file's options lie over those of code, and a second declaration must agree with the first."""
    guarded.load("policies: {db: {limit: {max_concurrent: 5}}}\n")
    handle = registry["db"]
    db = limit(20, max_queue=7, name="db")
    assert db is handle
    assert (db.options.max_concurrent, db.options.max_queue) == (5, 7)
    with pytest.raises(PolicyConflict):
        limit(21, max_queue=7, name="db")


def test_code_that_comes_while_the_file_is_put_in_force() -> None:
    """A name that a sink declares when it hears of the policy, during the first load, gets the file's options."""
    made: list[Any] = []

    def sink(event: Event) -> None:
        if event.name == "policy.added":
            made.append(limit(20, max_queue=7, name="db"))

    with events.subscribe(sink, "DEBUG") as subscription:
        guarded.load("policies: {db: {limit: {max_concurrent: 5}}}\n")
    assert subscription.failures == 0
    assert [(db.options.max_concurrent, db.options.max_queue) for db in made] == [(5, 7)]


def test_an_allow_list_is_a_list() -> None:
    """A text would be one of letters."""
    with pytest.raises(ValueError, match=r"allow='shop': must be a list of modules, such as \['shop'\]"):
        guarded.load("policies: {}\n", allow="shop")


def test_a_source_of_no_kind_is_refused() -> None:
    """By what it is not, before anything is read."""
    with pytest.raises(TypeError, match="sources: 3 is neither a path, nor a text, nor a mapping"):
        guarded.load(3)  # type: ignore[arg-type]


def test_a_wrong_interval_changes_nothing() -> None:
    """It is refused before the file is put in force."""
    with pytest.raises(ValueError, match="watch='5x': 'x' is no unit"):
        guarded.load("policies: {db: {limit: {max_concurrent: 5}}}\n", watch="5x")
    assert "db" not in registry


def test_of_two_ways_to_say_it_the_files_wins() -> None:
    """attempts in the file replaces retries of code, of defaults and of templates."""
    retry(retries=9, name="r")
    guarded.load("""
defaults: {retry: {retries: 8}}
templates: {t: {retry: {retries: 7}}}
policies:
  r: {extends: t, retry: {attempts: 2}}
""")
    assert registry["r"].options.retries == 1


def test_the_environment_beats_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the variable as the source."""
    monkeypatch.setenv("GUARDED__POLICIES__PARTNER_API__RETRY__RETRIES", "5")
    monkeypatch.setenv("GUARDED__POLICIES__PARTNER_API__DEADLINE", "2s")
    guarded.load("policies:\n  partner-api: {retry: {attempts: 3}}\n")
    deadline, attempts = registry["partner-api"].expand()
    assert (deadline.options.seconds, attempts.options.retries) == (2.0, 5)
    assert attempts.sources == {"retries": "environment GUARDED__POLICIES__PARTNER_API__RETRY__RETRIES"}


def test_the_environment_reaches_what_only_code_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators can turn a limit that no file mentions."""
    db = limit(20, name="db")
    monkeypatch.setenv("GUARDED__POLICIES__DB__LIMIT__MAX_CONCURRENT", "7")
    guarded.load("version: 1\n")
    assert db.options.max_concurrent == 7


def test_code_and_file_of_different_kinds() -> None:
    """One name cannot be both; the problem names the line of code."""
    limit(3, name="db")
    assert refused("policies: {db: {rate: 5/s}}\n")[0].startswith(
        f"<text>:1:12: policies.db: is a rate here, but a limit at {__file__}"
    )
    assert registry["db"].kind == "limit"


def test_a_stack_of_code_is_replaced_and_comes_back() -> None:
    """The file's layers stand while it is loaded."""
    stack = guard(retry(retries=1), name="p")

    @stack
    def f() -> int:
        return 1

    config = guarded.load("policies: {p: {limit: 2}}\n")
    assert [kind for kind, _ in layers(f)] == ["limit"]
    config.close()
    assert [kind for kind, _ in layers(f)] == ["retry"]


def test_several_sources_merge() -> None:
    """Later ones win, null takes away."""
    guarded.load(
        {"policies": {"p": {"limit": 4, "retry": {"retries": 1}}}},
        "policies: {p: {limit: null, retry: {retries: 2}}}\n",
    )
    assert (registry["p"].kind, registry["p"].options.retries) == ("retry", 2)


def test_a_reload_keeps_objects_and_state(tmp_path: Path) -> None:
    """Same name and kind: the same object, resized; an open circuit stays open; what is gone is gone."""
    file = tmp_path / "g.yaml"
    file.write_text("policies:\n  p: {limit: 5, circuit: {failures: 1}}\n  old: {retry: 1}\n")
    guarded.load(file)
    before = registry["p"].expand()
    registry["p.circuit"].isolate()  # type: ignore[attr-defined]
    file.write_text("policies:\n  p: {limit: 9, circuit: {failures: 2}, retry: 1}\n  new: {retry: 1}\n")
    diff = registry.reload()
    after = registry["p"].expand()
    assert (after[0], after[2]) == before
    assert after[0].options.max_concurrent == 9
    assert after[2].state == "isolated"  # type: ignore[attr-defined]
    assert "old" not in registry
    assert (diff.added, diff.replaced, diff.removed) == (("new",), ("p",), ("old",))  # type: ignore[attr-defined]
    assert "~ p.limit.max_concurrent: 5 → 9" in str(diff)


def test_one_layer_grows_to_a_stack_and_back(tmp_path: Path) -> None:
    """The limit is the same object all the while, under the name that fits."""
    file = tmp_path / "g.yaml"
    file.write_text("policies: {p: {limit: 5}}\n")
    guarded.load(file)
    only = registry["p"]
    file.write_text("policies: {p: {limit: 5, retry: 1}}\n")
    registry.reload()
    assert registry["p.limit"] is only
    assert registry["p"].kind == "guard"
    file.write_text("policies: {p: {limit: 5}}\n")
    registry.reload()
    assert registry["p"] is only
    assert "p.limit" not in registry
    assert "p.retry" not in registry


def test_another_kind_is_another_object(tmp_path: Path) -> None:
    """Handles see the new one."""
    file = tmp_path / "g.yaml"
    file.write_text("policies: {p: {limit: 5}}\n")
    guarded.load(file)

    @guard("p")
    def f() -> int:
        return 1

    f()
    file.write_text("policies: {p: {retry: 5}}\n")
    registry.reload()
    f()
    assert layers(f) == [("retry", "p")]


def test_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    """Not one policy, and the event says how many problems there are."""
    file = tmp_path / "g.yaml"
    file.write_text("policies: {p: {limit: 5}, q: {retry: 1}}\n")
    guarded.load(file)
    file.write_text("policies: {p: {limit: 6}, q: {retry: -1}}\n")
    with capture() as events, pytest.raises(ConfigError):
        registry.reload()
    assert registry["p"].options.max_concurrent == 5
    assert [(event.name, event.problems, event.source) for event in events] == [("config.reload_failed", 1, str(file))]
    file.write_text("policies: {p: {limit: 7}, q: {retry: 1}}\n")
    registry.reload()
    assert registry["p"].options.max_concurrent == 7


def test_a_name_in_use_cannot_go(tmp_path: Path) -> None:
    """A reload that would break calls is refused; one that only switches off is not."""
    file = tmp_path / "g.yaml"
    file.write_text("policies: {p: {limit: 5}, q: {retry: 1}}\n")
    guarded.load(file)

    @guard("p")
    def f() -> int:
        return 1

    file.write_text("policies: {q: {retry: 1}}\n")
    with pytest.raises(ConfigError, match=r"policies\.p: is gone, but guards .*f \(or set enabled: false\)"):
        registry.reload()
    assert f() == 1
    file.write_text("policies: {p: {limit: 5, enabled: false}, q: {retry: 1}}\n")
    registry.reload()
    assert f() == 1
    assert layers(f) == []


def test_events_of_a_load(tmp_path: Path) -> None:
    """One for each policy that is new, other or gone, then one for the whole."""
    file = tmp_path / "g.yaml"
    file.write_text("policies: {p: {limit: 5}, q: {retry: 1}, s: {retry: 1, limit: p}}\n")
    guarded.load(file)
    file.write_text("policies: {p: {limit: 6}, r: {retry: 1}}\n")
    with capture("DEBUG") as events:
        registry.reload()
    told = [(event.name, event.policy, event.layer) for event in events if event.name != "limit.resized"]
    assert told == [
        ("policy.added", "r", "retry"),
        ("policy.replaced", "p", "limit"),
        ("policy.removed", "q", "retry"),
        ("policy.removed", "s", "guard"),
        ("config.reloaded", None, None),
    ]
    assert events[-1].changes == 4
    assert events[-1].source == str(file)


def test_a_second_load_replaces_the_first() -> None:
    """What both name goes on with its state; the rest of the first is gone."""
    guarded.load("policies: {p: {limit: 5}, q: {retry: 1}}\n")
    p = registry["p"]
    guarded.load("policies: {p: {limit: 6}}\n")
    assert registry["p"] is p
    assert "q" not in registry
    refused("policies: {p: {limit: 0}}\n")
    assert registry["p"].options.max_concurrent == 6


def test_reload_without_a_load() -> None:
    """Says what to do."""
    with pytest.raises(LookupError, match=r"call guarded\.load first"):
        registry.reload()
    with pytest.raises(ValueError, match="sources"):
        guarded.load()


def test_references_and_the_allow_list() -> None:
    """Exceptions and functions by name; none outside the list."""
    text = "policies:\n  p: {retry: {on: [ConnectionError, 'json:JSONDecodeError'], before_retry: 'json:dumps'}}\n"
    guarded.load(text, allow=["json"])
    assert registry["p"].options.on[0] is ConnectionError
    assert len(refused(text, allow=["shop"])) == 2


def test_python_objects_in_a_mapping() -> None:
    """A mapping may hold the exception itself."""
    guarded.load({"policies": {"p": {"retry": {"on": [OSError, ValueError]}}}})
    assert registry["p"].options.on == (OSError, ValueError)


def test_the_event_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """events: {level: …} sets what reaches the log."""
    levels: list[object] = []
    monkeypatch.setattr("guarded.events.set_level", levels.append)
    guarded.load("events: {level: WARNING}\n")
    assert levels == ["WARNING"]


def test_named_policies_from_a_file_survive_pickling() -> None:
    """In one process the copy is the policy itself, whether or not code declares it too."""
    guarded.load("policies: {db: {limit: 5}}\n")
    assert pickle.loads(pickle.dumps(registry["db"])) is registry["db"]
    db = limit(9, name="db")
    assert pickle.loads(pickle.dumps(db)) is db


def test_a_quoted_variable_may_be_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """In braces YAML wants the quotes; where a number or a boolean is due, the text is read as one."""
    monkeypatch.setenv("N", "7")
    guarded.load("""
policies:
  p: {limit: "${N}"}
  q: {limit: {max_concurrent: "${N:-5}", enabled: "${ON:-true}"}}
  r: {retry: {base: "${N}", max_delay: "${D:-90s}"}}
""")
    assert registry["p"].options.max_concurrent == registry["q"].options.max_concurrent == 7
    assert (registry["r"].options.base, registry["r"].options.max_delay) == (7.0, 90.0)
    guarded.load({"policies": {"p": {"limit": "${N}"}}})


def test_a_circuit_of_a_file_has_its_name() -> None:
    """The one that rejections and events show."""
    guarded.load("policies: {gateway: {circuit: {failures: 1}}}\n")
    assert registry["gateway"].name == "gateway"
    assert registry["gateway"].breaker.name == "gateway"  # type: ignore[attr-defined]
    with pytest.raises(PolicyConflict):
        guard(circuit("other", failures=1), name="gateway")


def test_interpolated_values_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password in the environment is in no message."""
    monkeypatch.setenv("PASSWORD", "hunter2")
    lines = refused("stores: {s: {url: 'nope://:${PASSWORD}@host'}}\npolicies: {p: {retry: {base: '${PASSWORD}'}}}\n")
    assert len(lines) == 2
    assert "hunter2" not in "\n".join(lines)
    assert lines[1].startswith("<text>:2:30: policies.p.retry.base: ${PASSWORD}: ")


def test_code_that_the_file_makes_wrong() -> None:
    """Options that are right apart and wrong together are told where the code says its part, with the file's line."""
    guarded.load("policies: {r: {retry: {max_delay: 1s}}}\n")
    with pytest.raises(ConfigError, match=r"<text>:1:\d+: policies\.r\.retry: base=2\.0: must not be above max_delay"):
        retry(base="2s", name="r")


def test_a_stack_of_code_that_comes_after_the_file() -> None:
    """The file's stack stands."""
    guarded.load("policies: {p: {limit: 2, deadline: 1s}}\n")
    stack = guard(retry(retries=1), name="p")
    assert stack is registry["p"]
    assert [layer.kind for layer in stack.expand()] == ["deadline", "limit"]


def test_watching_again_and_closing_twice(tmp_path: Path) -> None:
    """A second watch replaces the first; a load that succeeds another ends its watch."""
    file = tmp_path / "g.yaml"
    file.write_text("policies: {p: {limit: 2}}\n")
    first = guarded.load(file, watch=60)
    watcher = first.watcher
    assert watcher is not None
    assert first.watch("60s") is not watcher
    assert not watcher.is_alive()
    with guarded.load(file, watch=True) as second:
        assert first.watcher is not None
        assert not first.watcher.is_alive()
        assert second.watcher is not None
        assert second.watcher.is_alive()
        assert repr(second) == f"<config {file}: 1 policies, 0 functions bound>"
    second.close()
    assert "p" not in registry


def test_an_older_reading_does_not_replace_a_newer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two reloads at once: what was read first and judged last is dropped."""
    file = tmp_path / "g.yaml"
    file.write_text("policies: {p: {limit: 2}}\n")
    config = guarded.load(file)
    judge = loader.judge

    def slow(*arguments: Any) -> Any:
        found = judge(*arguments)
        monkeypatch.setattr(loader, "judge", judge)
        file.write_text("policies: {p: {limit: 4}}\n")
        registry.reload()
        return found

    file.write_text("policies: {p: {limit: 3}}\n")
    monkeypatch.setattr(loader, "judge", slow)
    config.reload()
    assert registry["p"].options.max_concurrent == 4


def test_a_config_that_was_replaced_is_inert(tmp_path: Path) -> None:
    """Neither its reload nor its end touches the one that took its place."""
    file = tmp_path / "g.yaml"
    file.write_text("policies: {p: {limit: 2}}\n")
    with guarded.load(file) as first:
        guarded.load("policies: {p: {limit: 5}, q: {retry: 1}}\ntargets: {'textwrap:dedent': q}\n")
        assert not first.reload()
    assert registry["p"].options.max_concurrent == 5
    assert textwrap.dedent.layers  # type: ignore[attr-defined]


def test_a_bare_value_merges_with_a_mapping_of_another_source() -> None:
    """Both are options of one layer."""
    guarded.load("policies: {p: {retry: 3}}\n", "policies: {p: {retry: {base: 1s}}}\n")
    assert (registry["p"].options.retries, registry["p"].options.base) == (3, 1.0)


def test_policies_may_be_called_like_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that are called like two ways to say one thing do not drive each other out."""
    monkeypatch.setenv("GUARDED__POLICIES__VALUE__LIMIT", "7")
    guarded.load("policies: {value: {limit: 2}}\n", "policies: {function: {limit: 3}}\n")
    assert registry["value"].options.max_concurrent == 7
    assert registry["function"].options.max_concurrent == 3


def test_the_name_of_a_layer_must_be_free() -> None:
    """Stacks register their layers too."""
    assert refused("policies:\n  p: {retry: 1, limit: 2}\n  p.retry: {retry: 1}\n") == [
        "<text>:2:7: policies.p.retry: goes by the name 'p.retry', which is another policy in this file"
    ]
    limit(3, name="p.limit")
    assert "which is another policy at" in refused("policies: {p: {retry: 1, limit: 2}}\n")[0]


def test_switching_on_what_was_switched_off(tmp_path: Path) -> None:
    """A layer that was a switched-off policy of its own takes part in the stack it grows into."""
    file = tmp_path / "g.yaml"
    file.write_text("policies: {p: {enabled: false, retry: 1}}\n")
    guarded.load(file)
    file.write_text("policies: {p: {retry: 1, limit: 2}}\n")
    registry.reload()
    assert [layer.kind for layer in registry["p"].expand()] == ["limit", "retry"]
