"""Problems and changes as text and as JSON."""

from __future__ import annotations

import json

from guarded.config.compose import compose
from guarded.config.document import Place, Problem, find
from guarded.config.report import Diff, as_json, as_lines, compare


def problem(line: int | None, message: str = "is wrong", path: str = "a.b") -> Problem:
    """A problem of a file."""
    return Problem(path, message, Place("file", "f.yaml", line, 3 if line else None))


def test_lines_follow_the_file() -> None:
    """By line; what has none comes last; what is wrong with one value is told once."""
    problems = [problem(None), problem(12), problem(2), problem(12, path="c.d")]
    assert as_lines(problems) == "f.yaml:2:3: a.b: is wrong\nf.yaml:12:3: a.b: is wrong\nf.yaml: a.b: is wrong"


def test_problems_of_one_mapping_are_all_told() -> None:
    """Without lines, paths tell them apart."""
    place = Place("mapping", "<mapping>")
    assert len(json.loads(as_json([Problem("a", "is wrong", place), Problem("b", "is wrong", place)]))) == 2


def test_changes() -> None:
    """Each value that is new, other or gone, with the line of the new one."""
    before = compose("p: {retry: {retries: 1, base: 1s}}\nq: {limit: {max_concurrent: 2}}\n", "a.yaml", {}, [])
    after = compose("p: {retry: {retries: 2, factor: 3}}\nr: {limit: {max_concurrent: true}}\n", "b.yaml", {}, [])
    assert before is not None
    assert after is not None
    diff = compare(before.value, after.value)
    assert (diff.added, diff.replaced, diff.removed) == (("r",), ("p",), ("q",))
    assert str(diff).splitlines() == [
        "~ p.retry.retries: 1 → 2  (b.yaml:1:22)",
        "+ p.retry.factor: 3  (b.yaml:1:33)",
        "- p.retry.base: '1s'",
        "+ r.limit.max_concurrent: true  (b.yaml:2:29)",
        "- q.limit.max_concurrent: 2",
    ]
    assert len(diff) == 3
    assert json.loads(diff.as_json())["changes"][0]["after"] == "2"


def test_one_and_true_are_not_the_same() -> None:
    """Equal in Python, not in a file."""
    before, after = compose("p: {x: 1}\n", "a", {}, []), compose("p: {x: true}\n", "a", {}, [])
    assert before is not None
    assert after is not None
    assert len(compare(before.value, after.value).changes) == 1
    assert find(after, ("p", "x")).value is True


def test_no_change() -> None:
    """Is false, and says so."""
    assert not Diff()
    assert str(Diff()) == "no changes"
