"""guard, the order rules, explain."""

from __future__ import annotations

import math
import re
import warnings
from functools import partial
from typing import Any

import pytest

from guarded import (
    GuardWarning,
    PolicyNotFound,
    circuit,
    deadline,
    explain,
    fallback,
    guard,
    hedge,
    idempotent,
    limit,
    rate,
    registry,
    retry,
)
from guarded.stack import option_rows


def test_a_stack_puts_its_parts_outermost_first() -> None:
    """The parts keep their order, names are looked up, stacks are opened."""
    db = limit(3, name="db")
    inner = guard(retry(retries=1), deadline(1))

    @guard(deadline(10), "db", inner)
    def fn() -> str:
        return "done"

    assert fn() == "done"
    layers: Any = fn.layers  # type: ignore[attr-defined]
    assert [layer.kind for layer in layers] == ["deadline", "limit", "retry", "deadline"]
    assert layers[1] is db


@pytest.mark.parametrize("parts", [(), (3,), ("db", None)])
def test_bad_parts_are_refused(parts: Any) -> None:
    """A stack is made of policies and names."""
    with pytest.raises(ValueError, match="guard: give"):
        guard(*parts)


@pytest.mark.parametrize("part", [retry, lambda: None])
def test_missing_parentheses_are_hinted_at(part: Any) -> None:
    """Those of a policy, or of the decorator itself."""
    with pytest.raises(ValueError, match=r"not .*: this may be a policy, or @guard itself, without its parentheses"):
        guard(part)


def test_a_name_inside_itself_is_spelled_out() -> None:
    """A cycle of names is an error, not a recursion."""
    guard("b", name="a")
    guard("a", name="b")
    with pytest.raises(ValueError, match="a → b → a"):
        guard("a")(lambda: None)


@pytest.mark.parametrize(
    ("outer", "inner", "say"),
    [
        (lambda: retry(retries=1), lambda: idempotent(key="x"), "retry outside idempotent"),
        (lambda: retry(retries=1), lambda: fallback(1), "fallback inside retry"),
        (lambda: retry(retries=1), lambda: retry(retries=2), "retry inside retry"),
        (lambda: deadline(5), lambda: deadline(5), "inner deadline"),
        (lambda: deadline(5), lambda: deadline(6), "not shorter than the outer"),
    ],
)
def test_orders_that_are_almost_surely_wrong_warn_where_they_are_written(outer: Any, inner: Any, say: str) -> None:
    """The warning names the function and points at the decorator."""

    def fn(x: int) -> int:
        return x

    with pytest.warns(GuardWarning, match=say) as caught:
        outer()(inner()(fn))
    assert caught[0].filename == __file__
    assert "fn" in str(caught[0].message)
    with pytest.warns(GuardWarning, match=say):
        guard(outer(), inner())(fn)


def test_the_taught_order_is_silent() -> None:
    """The order of the docs warns of nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        @guard(fallback(None), idempotent(key="x"), deadline(10), limit(2), retry(retries=1), deadline(1))
        def fn(x: int) -> int:
            return x

    assert fn(1) == 1


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        (lambda: retry(retries=0), lambda: retry(retries=2)),
        (lambda: retry(retries=2), lambda: retry(retries=0)),
        (lambda: retry(retries=0), lambda: idempotent(key="x")),
        (lambda: retry(retries=0), lambda: fallback(1)),
    ],
)
def test_a_retry_without_retries_is_in_nobodys_way(outer: Any, inner: Any) -> None:
    """It is how one of two is switched off, at a call site say: one call is one call, whatever is inside."""

    def fn(x: int) -> int:
        return x

    with warnings.catch_warnings(action="error"):
        inside = inner()(fn)
        assert explain(outer()(inside)).notes == ()
        outer()(partial(inside, x=1))
        guard(outer(), inner())(fn)


def test_explain_multiplies_calls_and_bounds_time() -> None:
    """The worst case counts attempts, and a deadline bounds the time."""
    unbounded = retry(retries=3)(limit(2)(lambda: None))
    found = explain(unbounded)
    assert (found.calls, found.seconds) == (4, math.inf)
    found = explain(deadline(10)(unbounded))
    assert (found.calls, found.seconds) == (4, 10)
    assert "worst case: 4 calls of the function, 10s" in str(found)


def test_explain_says_what_holds_the_slot_during_backoff() -> None:
    """limit outside or inside retry: both are legal, and it says which one it is."""
    outside = explain(guard(limit(2, name="db"), retry(retries=1)))
    inside = explain(guard(retry(retries=1), limit(2, name="db")))
    assert any("db: the slot is held for the whole logical call" in note for note in outside.notes)
    assert any("free during backoff" in note for note in inside.notes)


def test_explain_tells_options_and_where_they_came_from() -> None:
    """Defaults are told from what was given, with the line that gave it."""

    @deadline("10s", name="total")
    def fn() -> None: ...

    text = str(explain(fn))
    assert "1. deadline 'total'" in text
    assert f"seconds = 10s  (code {registry['total'].place})" in text
    assert "mode = 'thread'  (default)" in text
    assert str(explain("total")).splitlines()[1:] == text.splitlines()[1:]


def test_explain_shows_what_a_circuit_fills_in_as_a_default() -> None:
    """Nobody wrote the window and its minimum that a failure_rate needs."""
    found = str(explain(circuit("filled", failure_rate=0.5)))
    assert "window = 1m  (default)" in found
    assert "min_calls = 10  (default)" in found
    assert re.search(r"window = 30s  \(code .*\)", str(explain(circuit("own", failure_rate=0.5, window="30s"))))


def rows_of(subject: Any) -> dict[str, tuple[str, str]]:
    """Value and kind of source of each option of the first layer."""
    return {option: (value, source.split()[0]) for option, value, source in option_rows(explain(subject).layers[0])}


def test_explain_knows_what_was_given_from_what_was_not() -> None:
    """What was written down was given, though it equals the default; a second declaration changes nothing."""
    rows = rows_of(limit(20, max_queue=None, weight=1, name="db"))
    assert rows["max_queue"] == ("None", "code")
    assert rows["weight"] == ("1", "code")
    assert rows["when_store_fails"] == ("'local'", "default")
    assert "max_wait" not in rows
    assert rows_of(limit(20, priority=None, name="db")) == rows
    assert rows_of(retry(attempts=4))["retries"] == ("3", "code")
    assert rows_of(retry(lambda: None))["retries"] == ("3", "default")
    assert rows_of(circuit("c", failure_rate=0.5, window="60s"))["window"] == ("1m", "code")
    assert rows_of(retry(on=(OSError, ValueError)))["on"] == ("(OSError, ValueError)", "code")


def test_explain_shows_times_with_units_and_numbers_without() -> None:
    """As one writes them: 250ms, 1m; a number that is no time stays one."""
    rows = rows_of(retry(base="250ms", max_delay=90, factor=3, jitter=0.2))
    assert {name: rows[name][0] for name in ("base", "max_delay", "max_retry_after", "factor", "jitter")} == {
        "base": "250ms",
        "max_delay": "1m30s",
        "max_retry_after": "1m",
        "factor": "3",
        "jitter": "0.2",
    }
    assert rows_of(circuit("calls", failure_rate=0.5, window=100))["window"] == ("100", "code")
    assert rows_of(hedge(0.2, idempotent=True))["after"] == ("200ms", "code")
    assert rows_of(hedge("p95", idempotent=True))["after"] == ("'p95'", "code")
    assert rows_of(rate("5/s", max_wait=0))["max_wait"] == ("0s", "code")
    assert rows_of(deadline(lambda: 3))["seconds"][0].endswith("<lambda>")


def test_explain_of_methods_names_and_nonsense() -> None:
    """It takes a bound method, a policy and a name, and says what else it was given."""

    class Service:
        @deadline(3)
        def method(self) -> None: ...

    assert [layer.kind for layer in explain(Service().method).layers] == ["deadline"]
    assert [layer.kind for layer in explain(deadline(3)).layers] == ["deadline"]
    with pytest.raises(PolicyNotFound):
        explain("nowhere")
    with pytest.raises(TypeError, match="neither a guarded callable"):
        explain(len)


def test_explain_warns_of_nothing_itself() -> None:
    """Order findings are notes of the explanation."""
    with pytest.warns(GuardWarning):
        fn = retry(retries=1)(retry(retries=2)(lambda: None))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert any("retry inside retry" in note for note in explain(fn).notes)
