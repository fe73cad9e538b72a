"""extends and null."""

from __future__ import annotations

import textwrap

from guarded.config.compose import compose
from guarded.config.document import Problem, find, plain
from guarded.config.merge import Templates, without_nulls


def effective(text: str, name: str = "p") -> tuple[object, list[str]]:
    """The effective body of policy `name`, and the problems."""
    problems: list[Problem] = []
    root = compose(textwrap.dedent(text), "f.yaml", {}, problems)
    assert root is not None
    templates, policies = find(root, ("templates",)).value, find(root, ("policies",)).value
    body = Templates(templates, policies, problems).apply(policies[name], ("policies", name))
    lines = [str(problem) for problem in problems]
    if body is None:
        return None, lines
    layers = {key: layer for key, layer in body.value.items() if layer.value is not None}
    return {key: plain(without_nulls(key, layer)) for key, layer in layers.items()}, lines


def test_maps_merge_lists_replace_null_removes() -> None:
    """The three rules, through a list of templates."""
    body, problems = effective("""
        templates:
          a: {retry: {retries: 3, on: [OSError]}, circuit: {failures: 5}, rate: {spec: 1/s, burst: 2}}
          b: {retry: {on: [ValueError]}, rate: null}
        policies:
          p: {extends: [a, b], retry: {base: 1s}, circuit: null}
    """)
    assert body == {"retry": {"retries": 3, "on": ["ValueError"], "base": "1s"}}
    assert problems == []


def test_a_null_option_is_as_if_not_written() -> None:
    """It removes the option it would inherit; a fallback value may be null, though."""
    body, _ = effective("""
        templates:
          a: {limit: {max_concurrent: 3, max_queue: 5}}
        policies:
          p: {extends: a, limit: {max_queue: null}, fallback: {value: null}}
    """)
    assert body == {"limit": {"max_concurrent": 3}, "fallback": {"value": None}}


def test_values_keep_the_place_they_were_written_at() -> None:
    """A merged body still knows the line of each value."""
    problems: list[Problem] = []
    root = compose(
        "templates:\n  a: {retry: {retries: 3}}\npolicies:\n  p: {extends: a, retry: {base: 1}}\n",
        "f",
        {},
        problems,
    )
    assert root is not None
    body = Templates(find(root, ("templates",)).value, {}, problems).apply(
        find(root, ("policies", "p")), ("policies", "p")
    )
    assert body is not None
    assert str(find(body, ("retry", "retries")).place) == "f:2:24"
    assert str(find(body, ("retry", "base")).place) == "f:4:33"


def test_circles_are_spelled_out() -> None:
    """The whole way round, once, at the name that closes it."""
    body, problems = effective("""
        templates:
          a: {extends: b}
          b: {extends: [c]}
          c: {extends: a}
        policies:
          p: {extends: a}
    """)
    assert body is None
    assert problems == ["f.yaml:5:16: templates.c.extends: templates extend each other in a circle: a → b → c → a"]


def test_unknown_templates_name_the_nearest() -> None:
    """A slip of the pen, and a policy taken for a template."""
    _, problems = effective("""
        templates:
          outbound: {retry: {}}
        policies:
          db: {limit: {max_concurrent: 3}}
          p: {extends: outbuond}
    """)
    assert problems == ["f.yaml:6:16: policies.p.extends: there is no template 'outbuond' (did you mean 'outbound'?)"]
    _, problems = effective("templates: {}\npolicies:\n  db: {limit: 3}\n  p: {extends: db}\n")
    assert problems[0].startswith("f.yaml:4:16: policies.p.extends: 'db' is a policy, not a template")


def test_a_chain_of_thousands_is_refused() -> None:
    """Depth is bounded before recursion is."""
    chain = "".join(f"  t{n}: {{extends: t{n + 1}}}\n" for n in range(5000))
    body, problems = effective(f"templates:\n{chain}  t5000: {{}}\npolicies:\n  p: {{extends: t0}}\n")
    assert body is None
    assert "a chain of more than 32 templates" in problems[0]
