"""Overrides from the environment."""

from __future__ import annotations

import pytest

from guarded.config.compose import compose
from guarded.config.document import Problem, find, plain
from guarded.config.environment import override

TEXT = "policies:\n  partner-api: {retry: {retries: 3}, limit: db}\n  db: {limit: {max_concurrent: 5}}\n"


def apply(variables: dict[str, str], declared: frozenset[str] = frozenset()) -> tuple[object, list[str]]:
    """The policies after overriding, and the problems."""
    problems: list[Problem] = []
    root = compose(TEXT, "f.yaml", {}, problems)
    assert root is not None
    done = override(root, variables, problems, declared)
    return plain(find(done, ("policies",))), [str(problem) for problem in problems]


def test_an_option_of_a_layer() -> None:
    """Case does not matter, a dash is an underscore, the value is YAML."""
    policies, problems = apply({"guarded__POLICIES__Partner_Api__RETRY__RETRIES": "5"})
    assert policies["partner-api"]["retry"] == {"retries": 5}  # type: ignore[index]
    assert problems == []


def test_layers_come_and_go() -> None:
    """null removes, a flow mapping or list is read as such, a new layer is made."""
    policies, problems = apply(
        {
            "GUARDED__POLICIES__PARTNER_API__RETRY": "null",
            "GUARDED__POLICIES__PARTNER_API__RATE": "{spec: 5/s}",
            "GUARDED__POLICIES__DB__RETRY__ON": "[OSError]",
        }
    )
    assert policies["partner-api"] == {"retry": None, "limit": "db", "rate": {"spec": "5/s"}}  # type: ignore[index]
    assert policies["db"]["retry"] == {"on": ["OSError"]}  # type: ignore[index]
    assert problems == []


def test_the_place_is_the_variable() -> None:
    """So that explain and errors name it."""
    root = compose(TEXT, "f.yaml", {}, [])
    assert root is not None
    done = override(root, {"GUARDED__POLICIES__DB__LIMIT__MAX_CONCURRENT": "7"}, [], frozenset())
    assert str(find(done, ("policies", "db", "limit", "max_concurrent")).place) == (
        "environment GUARDED__POLICIES__DB__LIMIT__MAX_CONCURRENT"
    )


def test_a_policy_that_only_code_has() -> None:
    """It gets an entry, so that the environment reaches it too."""
    policies, problems = apply({"GUARDED__POLICIES__CODE_ONLY__LIMIT__MAX_CONCURRENT": "7"}, frozenset({"code-only"}))
    assert policies["code-only"] == {"limit": {"max_concurrent": 7}}  # type: ignore[index]
    assert problems == []


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("GUARDED__POLICY__DB__X", "policy: there is no such section (did you mean 'policies'?)"),
        (
            "GUARDED__POLICIES",
            "names no value (the form is GUARDED__POLICIES__NAME__LAYER__OPTION)",
        ),
        (
            "GUARDED__POLICIES____X",
            "names no value (the form is GUARDED__POLICIES__NAME__LAYER__OPTION)",
        ),
        (
            "GUARDED__POLICIES__PARTNER_APY__RETRY",
            "policies.partner_apy: there is no such name (did you mean 'partner-api'?)",
        ),
        (
            "GUARDED__POLICIES__PARTNER_API__LIMIT__MAX_QUEUE",
            "policies.partner-api.limit: has no options to override "
            "(it is the shared policy db: set GUARDED__POLICIES__DB__… instead)",
        ),
    ],
)
def test_names_that_lead_nowhere(name: str, line: str) -> None:
    """Each is a problem with the variable as its place."""
    assert apply({name: "1"})[1] == [f"environment {name}: {line}"]


def test_a_value_that_is_no_yaml() -> None:
    """A broken flow list is a problem of its variable."""
    _, problems = apply({"GUARDED__POLICIES__DB__RETRY__ON": "[a"})
    assert len(problems) == 1
    assert problems[0].startswith("environment GUARDED__POLICIES__DB__RETRY__ON: ")
