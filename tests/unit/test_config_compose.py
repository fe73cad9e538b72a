"""YAML text to nodes: positions, problems of form, bounds."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from guarded.config import compose as module
from guarded.config.compose import compose
from guarded.config.document import Problem, find, plain


def read(text: str, **variables: str) -> tuple[object, list[Problem]]:
    """The plain value of a text, and its problems."""
    problems: list[Problem] = []
    root = compose(text, "f.yaml", variables, problems)
    return (None if root is None else plain(root)), problems


def test_every_key_and_value_has_its_place() -> None:
    """Lines and columns count from 1, for keys and for values, in block and in flow style."""
    root = compose("a:\n  b: [1, {c: x}]\n", "f.yaml", {}, [])
    assert root is not None
    node = find(root, ("a", "b", 1, "c"))
    assert str(node.place) == "f.yaml:2:14"
    assert str(node.key) == "f.yaml:2:11"


def test_values_resolve_as_yaml_1_2() -> None:
    """Unquoted scalars resolve by the core schema, also after interpolation; quoted ones stay text."""
    value, problems = read('on: NO\nn: 012\nt: 1:30\nx: ${N}\nq: "${N}"\nd: ${M:-0.5}\n', N="5")
    assert value == {"on": "NO", "n": 12, "t": "1:30", "x": 5, "q": "5", "d": 0.5}
    assert problems == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1: a: duplicate key, first used on line 1"),
        (
            "a: !!python/object/apply:os.system [x]\n",
            "f.yaml:1:4: a: tag !!python/object/apply:os.system is not allowed",
        ),
        ("a: !mine x\n", "f.yaml:1:4: a: tag !mine is not allowed"),
        ("<<: {a: 1}\n", 'f.yaml:1:1: ["<<"]: merge keys (<<) are not part of YAML 1.2'),
        ("a: *b\n", "f.yaml:1:4: a: alias *b has no anchor before it"),
        ("a: &b [*b]\n", "f.yaml:1:8: a[0]: alias *b is inside what it stands for"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2:1: document: a second document starts here"),
        ("? [a]\n: 1\n", "f.yaml:1:3: document: a key must be a single word"),
        ("a: {b: 1}\n*a : 2\n", "f.yaml:2:1: document: an alias cannot be a key"),
        ("*a\n", "f.yaml:1:1: document: alias *a has no anchor before it"),
        ("${A}: 1\n", 'f.yaml:1:1: ["${A}"]: keys are not interpolated'),
        ("a: xy ${NOPE}\n", "f.yaml:1:7: a: environment variable NOPE is not set"),
        ('a: "xy ${NOPE}"\n', "f.yaml:1:8: a: environment variable NOPE is not set"),
        ("a: b: c\n", "f.yaml:1:5: document: not valid YAML: mapping values are not allowed"),
        ("\ta: 1\n", "f.yaml:1:1: document: not valid YAML"),
        ("a: @x\n", "f.yaml:1:4: a: not valid YAML"),
        ("a: [1\n", "f.yaml:2:1: a[1]: not valid YAML"),
        ("a: \x01\n", "f.yaml:1:4: document: character U+0001 is not allowed in YAML"),
        ("a: \ud800\n", "f.yaml:1:4: document: character U+D800 is not allowed in YAML"),
        ("# nothing\n", "f.yaml:1:1: document: is empty"),
        ("a: " + "{a: " * 40, "f.yaml:1:128: "),
    ],
)
@pytest.mark.parametrize("libyaml", [True, False])
def test_problems_of_form(text: str, line: str, libyaml: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is one line with its exact place, with and without the C parser."""
    monkeypatch.setattr(module.yaml, "__with_libyaml__", libyaml and module.yaml.__with_libyaml__)
    _, problems = read(text)
    assert str(problems[0]).startswith(line)
    assert len(problems) == 1


def test_of_two_equal_keys_the_first_stays() -> None:
    """Later checks speak of one value, not of a mixture."""
    value, _ = read("a: {b: 1}\na: {c: 2}\n")
    assert value == {"a": {"b": 1}}


def test_aliases_share_and_keep_the_place_of_the_anchor() -> None:
    """An honest alias works."""
    value, problems = read("a: &x {r: 1}\nb: *x\n")
    assert value == {"a": {"r": 1}, "b": {"r": 1}}
    assert problems == []


def test_core_tags_are_harmless() -> None:
    """``!!str`` is the one tag with a use."""
    assert read("a: !!str 12\n")[0] == {"a": "12"}


def _billion_laughs(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    "text",
    [
        _billion_laughs(4),
        _billion_laughs(1000),
        "a: &a [x]\n" + "".join(f"b{n}: *a\n" for n in range(10_000)),
        "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 10_000)),
    ],
    ids=["10 000 nodes", "10^1000 nodes", "10 000 aliases", "10 000 deep"],
)
def test_alias_bombs_are_refused_at_once(text: str) -> None:
    """Expansion is counted while reading, so a bomb costs less than a second and no memory."""
    started = time.perf_counter()
    value, problems = read(text)
    assert time.perf_counter() - started < 1
    assert value is None
    assert "aliases expand to more than 5000 nodes" in str(problems[-1])


def test_alias_bombs_eat_no_memory() -> None:
    """The peak is that of the text, whatever it would expand to."""
    text = _billion_laughs(1000)
    tracemalloc.start()
    try:
        read(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: " + "[" * 100_000, "nested deeper than 32 levels"),
        ("a: [" + "x," * 200_000 + "]", "holds more than 100000 values"),
        ("a: " + "x" * (module.MAX_BYTES + 1), f"is larger than {module.MAX_BYTES} bytes"),
    ],
)
def test_depth_and_size_are_bounded(text: str, message: str) -> None:
    """None of these is read to its end."""
    value, problems = read(text)
    assert value is None
    assert message in str(problems[0]) or "exceeded maximum nesting depth" in str(problems[0])


def test_a_value_from_the_environment_is_not_shown() -> None:
    """What may be a secret is kept as its raw text for messages."""
    root = compose("url: redis://:${PASSWORD}@host\n", "f.yaml", {"PASSWORD": "hunter2"}, [])
    assert root is not None
    assert find(root, ("url",)).shown == "redis://:${PASSWORD}@host"
