"""Every option of every kind of layer, as a file writes it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

import guarded
from guarded import registry
from guarded.config import Loaded
from guarded.config.kinds import LAYERS, kind
from guarded.http import transient
from guarded.policies.retry import RetryBudget

BODIES = {
    "limit": [
        "{max_concurrent: 5, max_queue: 7, max_wait: 2s, key: '{tenant}', weight: size, priority: 3}",
        "{max_concurrent: 5, weight: 'operator:length_hint', store: memory}",
    ],
    "rate": [
        "{spec: 5/s, burst: 9, algorithm: gcra, max_wait: 1s, key: tenant, cost: 2, store: memory,"
        " when_store_fails: open}",
        "{spec: 100, per: 1m}",
    ],
    "retry": [
        "{retries: 2, on: [ConnectionError, 'json:JSONDecodeError'], unless: TimeoutError, base: 10ms, factor: 3,"
        " max_delay: 2s, jitter: 0.5, retry_after: false, max_retry_after: 5s, budget: {ratio: 0.1},"
        " before_retry: 'builtins:print', on_result: 'builtins:callable'}",
        "{attempts: 2, backoff: 'builtins:float', on: transient}",
        "{retries: 3, backoff: [100ms, 1, '${PAUSE:-2}', '${PAUSE:-2s}']}",
    ],
    "deadline": ["{seconds: 1h30m, mode: cooperative, late: raise}", "'operator:length_hint'"],
    "circuit": [
        "{failure_rate: 0.5, window: 100, min_calls: 20, slow_call: 2s, slow_rate: 0.9, reset_after: 5s,"
        " max_reset_after: 1m, half_open: 2, trial_timeout: 3s, on: OSError, ignore: [KeyError], enforce: false}",
        "{failures: 3, store: memory}",
    ],
    "idempotent": [
        "{key: '{order}', ttl: 1h, on_duplicate: reject, fingerprint: false, store_errors: KeyError, lease: 5s,"
        " on_abandoned: raise, store: memory}",
        "'{order}'",
    ],
    "fallback": ["{value: [1, {a: b}], on: OSError}", "{function: 'builtins:print'}", "{value: null}", "0"],
    "hedge": ["{after: 200ms, max_hedges: 2, budget: {ratio: 0.5}, idempotent: true}", "p95", "0.2"],
}


@pytest.fixture(autouse=True)
def _take_out() -> Iterator[None]:
    """No config outlives its test."""
    yield
    if isinstance(registry.config, Loaded):
        registry.config.close()


def load(word: str, body: str) -> None:
    """One policy of one layer."""
    guarded.load(f"stores: {{memory: {{url: 'memory://'}}}}\npolicies:\n  p: {{{word}: {body}}}\n")


@pytest.mark.parametrize(("word", "body"), [(word, body) for word, bodies in BODIES.items() for body in bodies])
def test_each_kind_loads(word: str, body: str) -> None:
    """The policy is of that kind, and what was given is in force."""
    load(word, body)
    assert registry["p"].kind == word
    assert registry["p"].name == "p"


@pytest.mark.parametrize("word", sorted(set(LAYERS.values())))
def test_no_option_is_left_out_above(word: str) -> None:
    """So that a new option gets a test."""
    written = " ".join(BODIES[word])
    bare = {kind(word).first} if any(not body.startswith("{") for body in BODIES[word]) else set()
    # Which kinds a store can keep is tested with the stores.
    assert {option for option in kind(word).options if f"{option}:" not in written} <= {*bare, "when_store_fails"}


def test_values_arrive_as_what_they_mean() -> None:
    """References resolved, durations in seconds, a list of exceptions as a tuple."""
    load("retry", BODIES["retry"][0])
    options = registry["p"].options
    assert options.on[0] is ConnectionError
    assert options.before_retry is print
    assert (options.base, options.max_delay, options.jitter) == (0.01, 2.0, 0.5)
    assert (options.budget.options.ratio, options.budget.options.min_per_second) == (0.1, 1.0)
    load("retry", BODIES["retry"][1])
    assert registry["p"].options.on is transient
    load("retry", BODIES["retry"][2])
    assert registry["p"].options.backoff == (0.1, 1.0, 2.0, 2.0)


def test_a_budget_may_be_shared_by_name_and_survives_a_reload() -> None:
    """A name is one that code has made; an inline one goes on while its figures are the same."""
    load("retry", "{retries: 2, budget: {ratio: 0.1}}")
    before = registry["p"].options.budget
    load("retry", "{retries: 3, budget: {ratio: 0.1}}")
    assert (registry["p"].options.retries, registry["p"].options.budget) == (3, before)
    load("retry", "{retries: 3, budget: {ratio: 0.2}}")
    assert registry["p"].options.budget is not before
    shared = RetryBudget(0.3, name="gateway-budget")
    load("retry", "{retries: 3, budget: gateway-budget}")
    assert registry["p"].options.budget == "gateway-budget"
    assert registry["gateway-budget"] is shared


@pytest.mark.parametrize(("one", "other"), [("0", "false"), ("1", "1.0"), ("[1]", "[true]"), ("{n: 0}", "{n: false}")])
def test_an_answer_that_only_compares_equal_is_taken_over_by_a_reload(one: str, other: str) -> None:
    """To Python 0 and False are equal; to whoever reads the answer they are not."""
    load("fallback", f"{{value: {one}}}")
    load("fallback", f"{{value: {other}}}")
    assert repr(registry["p"].options.value) == repr(yaml.safe_load(other))


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ("{ratio: 20}", "20 is no ratio (ratios are 0..1, did you mean 0.2?)"),
        ("{ration: 0.2}", "a budget has no 'ration' (did you mean 'ratio'?)"),
        ("{ratio: 0, min_per_second: 0}", "allows no retry at all"),
        ("5", "must be the name of a budget, or a mapping of ratio and min_per_second, not 5"),
    ],
)
def test_budgets_that_are_wrong(budget: str, message: str) -> None:
    """Told like everything else."""
    with pytest.raises(guarded.ConfigError) as caught:
        load("retry", f"{{budget: {budget}}}")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("backoff", "message"),
    [
        ("2s", "retry.backoff: must be a list of delays such as [100ms, 1s], or a function as module:name, not '2s'"),
        ("[]", "retry.backoff: must hold at least one delay"),
        ("[1s, -1]", "retry.backoff[1]: -1: must not be negative"),
        ("[true]", "retry.backoff[0]: must be a duration such as 250ms, 1.5s or 1h30m, not true"),
        ("'builtins:flaot'", "retry.backoff: 'builtins' has no 'flaot' (did you mean 'float'?)"),
    ],
)
def test_delays_that_are_wrong(backoff: str, message: str) -> None:
    """The entry is named, and what else could stand there."""
    with pytest.raises(guarded.ConfigError) as caught:
        load("retry", f"{{backoff: {backoff}}}")
    assert message in str(caught.value)


def test_a_value_and_a_function_at_once() -> None:
    """A fallback has one answer."""
    with pytest.raises(guarded.ConfigError, match="give value or function"):
        load("fallback", "{value: 1, function: 'builtins:print'}")
