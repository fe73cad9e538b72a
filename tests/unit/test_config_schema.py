"""The JSON Schema, judged by a public validator, and the models behind it."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from guarded.config import json_schema, problems_of
from guarded.config.compose import compose
from guarded.config.document import plain
from guarded.config.kinds import LAYERS, kind

EXAMPLE = Path(__file__).parents[2] / "examples" / "yaml_config" / "guarded.yaml"


@functools.cache
def validator() -> jsonschema.Draft202012Validator:
    """The public validator, which has judged the schema itself too."""
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def errors(text: str) -> list[str]:
    """What the validator says of a text, as an editor would read it: without interpolation."""
    problems: list[Any] = []
    # An editor sees ${VAR} as it stands: resolve it to itself.
    root = compose(text.replace("${", "$${"), "f.yaml", {}, problems)
    assert problems == []
    assert root is not None
    return [error.message for error in validator().iter_errors(plain(root))]


def test_the_example_is_valid() -> None:
    """Word for word, with its variables in it."""
    assert errors(EXAMPLE.read_text()) == []


@pytest.mark.parametrize(
    "body",
    [
        "limit: 20",
        "limit: db",
        "limit: null",
        "limit: {max_concurrent: '${N:-20}'}",
        "deadline: 1h30m",
        "deadline: 10",
        "attempt_deadline: 250ms",
        "retry: 3",
        "retry: {on: ConnectionError, unless: ['json:JSONDecodeError'], jitter: 0.2, max_delay: null}",
        "retry: {jitter: decorrelated, backoff: 'json:dumps'}",
        "retry: {backoff: [100ms, 1, '${PAUSE:-2s}']}",
        "circuit: {failures: 5, window: 100, enabled: false}",
        "circuit: {failure_rate: 0.5, window: 60s}",
        "rate: 50/s; 1000/minute",
        "idempotent: {key: '{order_id}', ttl: 24h, store: shared}",
        "fallback: {value: [1, 2]}",
        "fallback: {function: 'json:dumps', on: OSError}",
        "retry: 1, limit: 2, order: [retry, limit], extends: [a, b], enabled: true",
    ],
)
def test_what_is_right_is_valid(body: str) -> None:
    """Shorthands, names, null and every kind of value."""
    assert errors(f"policies: {{p: {{{body}}}}}\n") == []


MISTAKES = [
    "version: 2",
    "polices: {}",
    "stores: {shared: {ulr: x, url: 'memory:'}}",
    "stores: {shared: {timeout: 5s}}",
    "stores: {shared: {url: 'memory:', timeout: 5x}}",
    "defaults: {retires: {}}",
    "defaults: {retry: 3}",
    "defaults: {retry: {base: '100'}}",
    "policies: {p: 5}",
    "policies: [p]",
    "policies: {'p 15': {retry: 1}}",
    "policies: {p: {retrys: {}}}",
    "policies: {p: {extends: 5}}",
    "policies: {p: {order: [retrys]}}",
    "policies: {p: {enabled: 'yes'}}",
    "policies: {p: {retry: {retires: 1}}}",
    "policies: {p: {retry: {retries: '3'}}}",
    "policies: {p: {retry: {base: '10'}}}",
    "policies: {p: {retry: {base: 10 parsecs}}}",
    "policies: {p: {retry: {jitter: ful}}}",
    "policies: {p: {retry: {retry_after: 'yes'}}}",
    "policies: {p: {retry: {on: [5]}}}",
    "policies: {p: {retry: {on: []}}}",
    "policies: {p: {retry: {backoff: []}}}",
    "policies: {p: {retry: {backoff: [1s, soon]}}}",
    "policies: {p: {retry: {backoff: 1s}}}",
    "policies: {p: {retry: true}}",
    "policies: {p: {limit: {max_concurrent: two}}}",
    "policies: {p: {circuit: {failure_rate: 50}}}",
    "policies: {p: {circuit: {failure_rate: 50%}}}",
    "policies: {p: {deadline: {mode: thred}}}",
    "policies: {p: {deadline: -5}}",
    "templates: {t: {retry: {retires: 1}}}",
    "targets: {shop.pay.charge: p}",
    "targets: {'*:f': p}",
    "targets: {'shop.pay:charge': 5}",
    "events: {level: LOUD}",
    "events: {levels: INFO}",
]


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_that_a_schema_can_see(text: str) -> None:
    """The validator refuses them, and so does guarded."""
    assert errors(text + "\n")
    assert problems_of(text + "\n")


@pytest.mark.parametrize("word", sorted(set(LAYERS.values())))
def test_options_are_those_of_the_factory(word: str) -> None:
    """Nothing is listed twice: each parameter of the public function is an option, with its help, and none is more."""
    found = kind(word)
    parameters = set(inspect.signature(found.factory).parameters) - {"name", "breaker"}
    assert set(found.options) - {"function"} == parameters
    assert set(found.help) >= parameters
    properties = json_schema()["$defs"][word.title()]["properties"]
    assert set(properties) == {*found.options, "enabled"}
    assert all(properties[option].get("description") for option in parameters)
