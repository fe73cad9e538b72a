"""What one call site says about a stack, before the environment, a file and code."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import pytest

import guarded
from guarded import circuit, deadline, explain, fallback, guard, hedge, idempotent, limit, rate, registry, retry
from guarded.testing import virtual_time

FILE = """
defaults: {retry: {base: 300ms}}
policies:
  payments:
    deadline: 10s
    limit: 4
    retry: {retries: 3, max_delay: 2s}
    circuit: {failures: 50}
    attempt_deadline: 1s
"""


def options(fn: Any, kind: str) -> list[Any]:
    """The options of the layers of that kind."""
    return [layer.options for layer in fn.layers if layer.kind == kind]


def test_the_call_site_comes_before_environment_file_code_and_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each option comes from the strongest that gives it, and explain says from where."""
    monkeypatch.setenv("GUARDED__POLICIES__GENTLE__RETRY__MAX_DELAY", "3s")
    monkeypatch.setenv("GUARDED__POLICIES__GENTLE__RETRY__RETRIES", "7")
    retry(retries=1, factor=3, base="50ms", name="gentle")
    file = "policies: {gentle: {retry: {retries: 4, base: 100ms, max_delay: 1s}}}"
    with guarded.load(file):

        @guard("gentle", retry={"retries": 9})
        def fn() -> None: ...

        found = options(fn, "retry")[0]
        assert (found.retries, found.max_delay, found.base, found.factor, found.jitter) == (9, 3, 0.1, 3, "full")
        text = str(explain(fn))
    assert f"retries = 9  (call site {__file__}:" in text
    assert "max_delay = 3s  (environment GUARDED__POLICIES__GENTLE__RETRY__MAX_DELAY)" in text
    assert "base = 100ms  (<text>:1:" in text
    assert f"factor = 3  (code {__file__}:" in text
    assert "jitter = 'full'  (default)" in text


def test_more_retries_find_the_delays_that_were_written_for_them() -> None:
    """A list longer than the retries of its own line is kept for whoever asks for more."""
    short = retry(retries=1, backoff=["1s", "10s", "1m"], name="patient")

    def fails() -> None:
        raise ConnectionError

    with virtual_time() as time:
        before = time.monotonic()
        with pytest.raises(ConnectionError):
            guard("patient", retry={"retries": 3})(fails)()
        assert time.monotonic() - before == 71
        with guarded.load("policies: {patient: {retry: {retries: 2}}}"):
            before = time.monotonic()
            with pytest.raises(ConnectionError):
                short.call(fails)
            assert time.monotonic() - before == 11


def test_explain_of_an_override_keeps_what_the_shared_policy_was_given() -> None:
    """Given, though it equals the default: by the shared policy, and by the call site under another name."""
    guard(retry(retries=2, jitter="full"), name="shared")
    text = str(explain(guard("shared", retry={"attempts": 4})))
    assert f"jitter = 'full'  (code {__file__}:" in text
    assert f"retries = 3  (call site {__file__}:" in text
    assert "factor = 2  (default)" in text


def test_only_that_call_site_is_changed() -> None:
    """The name, its other users and the state of the other layers stay what they are."""
    with guarded.load(FILE):
        plain = guard("payments")(lambda: None)
        own: Any = guard("payments", retry={"retries": 1}, deadline="2s", attempt_deadline="500ms")(lambda: None)
        assert [found.retries for found in options(plain, "retry")] == [3]
        assert [found.retries for found in options(own, "retry")] == [1]
        assert [found.seconds for found in options(own, "deadline")] == [2, 0.5]
        assert options(own, "retry")[0].max_delay == 2
        shared = [layer for layer in own.layers if layer.kind in ("limit", "circuit")]
        assert [layer is registry[f"payments.{layer.kind}"] for layer in shared] == [True, True]
        assert [layer.name for layer in own.layers if layer.kind == "retry"] == ["payments.retry"]


def test_the_overridden_options_are_in_force() -> None:
    """Calls obey them."""
    calls = []
    with guarded.load(FILE), virtual_time():

        @guard("payments", retry={"attempts": 2})
        def fn() -> None:
            calls.append(1)
            raise ConnectionError

        with pytest.raises(ConnectionError):
            fn()
    assert len(calls) == 2


def test_none_leaves_a_layer_out() -> None:
    """Of any kind."""
    with guarded.load(FILE):
        bare: Any = guard("payments", limit=None, attempt_deadline=None, circuit=None, retry=None)(lambda: None)
        assert [layer.kind for layer in bare.layers] == ["deadline"]


def test_a_reload_changes_what_is_not_overridden() -> None:
    """The layer stays the same object; what does not go with the override is not taken over."""
    with guarded.load(FILE) as config:
        fn: Any = guard("payments", retry={"base": "1500ms"})(lambda: None)
        before = next(layer for layer in fn.layers if layer.kind == "retry")
        guarded.load(FILE.replace("retries: 3", "retries: 5"))
        after = next(layer for layer in fn.layers if layer.kind == "retry")
        assert after is before
        assert (after.options.retries, after.options.base) == (5, 1.5)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            guarded.load(FILE.replace("retries: 3, max_delay: 2s", "retries: 6, max_delay: 1s"))
            fn()
        assert after.options.retries == 5
        assert any("payments.retry has changed, but not for the override" in str(each.message) for each in told)
        config.close()


def test_a_name_that_is_loaded_later_may_be_overridden() -> None:
    """What is wrong with an option shows when the name is known."""
    fn: Any = guard("payments", retry={"retries": 1})(lambda: None)
    wrong: Any = guard("payments", retry={"retries": -1})(lambda: None)
    with guarded.load(FILE):
        assert [found.retries for found in options(fn, "retry")] == [1]
        with pytest.raises(ValueError, match="retries=-1"):
            wrong()
        with pytest.raises(guarded.ConfigError, match="retries=-1"):
            guarded.check()
        del wrong


def test_stacks_of_code_are_overridden_too() -> None:
    """Every kind with options of its own for one function."""
    stack = guard(fallback(1), idempotent(key="x", ttl=5), deadline(10), retry(retries=3), hedge(0.1, idempotent=True))
    found: Any = guard(
        stack, fallback=2, idempotent={"ttl": 6}, deadline=9, retry=4, hedge={"max_hedges": 2}, name="other"
    )
    layers = found.expand()
    assert [layer.kind for layer in layers] == ["fallback", "idempotent", "deadline", "retry", "hedge"]
    given = [layer.options for layer in layers]
    assert (given[0].value, given[1].ttl, given[1].key, given[2].seconds) == (2, 6, "x", 9)
    assert (given[3].retries, given[4].after, given[4].max_hedges) == (4, 0.1, 2)
    assert [layer is twin for layer, twin in zip(found.expand(), layers, strict=True)] == [True] * 5
    named = guard("other", retry=1, name="gentle")
    assert pickle.loads(pickle.dumps(named)) is named


@pytest.mark.parametrize(
    ("given", "say"),
    [
        ({"retries": 3}, r"guard: retries=3: must be a layer \(did you mean 'retry'\?\)"),
        ({"retry": {"retires": 3}}, r"not 'retires' \(did you mean 'retries'\?\)"),
        ({"retry": {"retries": -1}}, "retry: retries=-1: must be"),
        ({"retry": {"base": 10}}, "base=10.*max_delay"),
        ({"retry": {"retries": 1, "attempts": 2}}, "attempts"),
        ({"retry": len}, "must be options, not a function"),
        ({"deadline": 0}, "seconds=0: must be"),
        ({"limit": 3}, r"guard: limit=3: must be None \(to leave it out\)"),
        ({"rate": {"burst": 2}}, "rate=.*: must be None"),
        ({"circuit": {"failures": 2}, "hedging": 1}, "circuit=.*; hedging=1: must be a layer"),
        ({"hedge": 0.1}, "hedge=.*: must be a layer of the stack, which has deadline, limit, retry, circuit, rate"),
        ({"attempt_deadline": 1}, "attempt_deadline=.*: must be a layer of the stack"),
    ],
)
def test_wrong_overrides_fail_where_they_are_written(given: Any, say: str) -> None:
    """Named with layer, value and rule."""
    guard(deadline(5), limit(2), retry(), circuit("c"), rate("5/s"), name="whole")
    with pytest.raises(ValueError, match=say):
        guard("whole", **given)
