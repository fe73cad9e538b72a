"""Whatever stands in a file: problems, never a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from guarded.config import Problem, problems_of

EXAMPLE = (Path(__file__).parents[2] / "examples" / "yaml_config" / "guarded.yaml").read_text()
WORDS = [
    "limit", "retry", "rate", "circuit", "deadline", "idempotent", "fallback", "hedge", "extends", "order", "enabled",
    "policies", "templates", "defaults", "targets", "stores", "events", "version", "db", "outbound", "payments",
    "retries", "attempts", "on", "key", "spec", "url", "value", "failure_rate", "window", "store", "max_concurrent",
    "a:b", "{x}", "${X}", "${X:-1}", "10s", "5/s", "0.5", "~", "[", "]", "{", "}", ":", ",", "&a", "*a", "!!x",
    "\n", "  ",
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, len(EXAMPLE)), st.integers(0, 12), st.one_of(st.sampled_from(WORDS), st.text(max_size=4))
        ),
        min_size=1,
        max_size=6,
    )
)
def test_edited_examples(edits: list[tuple[int, int, str]]) -> None:
    """The example with stretches of it replaced."""
    text = EXAMPLE
    for start, length, new in edits:
        text = text[:start] + new + text[start + length :]
    assert all(isinstance(problem, Problem) and str(problem) for problem in problems_of(text + "\n"))


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(WORDS))
trees = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(WORDS), st.text(max_size=3)), inner, max_size=4),
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "policies": st.dictionaries(st.sampled_from(WORDS), trees, max_size=3),
            "templates": st.dictionaries(st.sampled_from(WORDS), trees, max_size=3),
            "defaults": trees,
            "targets": trees,
            "stores": trees,
            "events": trees,
            "version": trees,
        },
    )
)
def test_mappings_of_any_shape(source: dict[str, Any]) -> None:
    """Random trees under the right names."""
    assert all(isinstance(problem, Problem) and str(problem) for problem in problems_of(source))
