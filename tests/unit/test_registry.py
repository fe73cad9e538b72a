"""Names: one namespace, conflicts, isolation, snapshots."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

from guarded import (
    PolicyConflict,
    PolicyNotFound,
    RetryBudget,
    deadline,
    fallback,
    guard,
    hedge,
    idempotent,
    limit,
    rate,
    registry,
    retry,
)
from guarded._core.policy import Policy
from guarded.events.model import DEBUG
from guarded.policies.limit import Limit
from guarded.stack import Guard
from guarded.testing import capture


def test_the_same_name_and_options_is_the_same_object() -> None:
    """Two modules that name the same policy share it."""
    assert deadline(5, name="total") is deadline("5s", name="total")
    assert registry["total"] is deadline(5, name="total")


@pytest.mark.parametrize("name", ["", 3, True, b"total", ["total"], {}])
def test_a_name_is_text(name: Any) -> None:
    """A name that is none is told as a wrong option of every policy, and registers nothing."""
    makers: list[Callable[[], object]] = [
        lambda: limit(1, name=name),
        lambda: rate("1/s", name=name),
        lambda: retry(name=name),
        lambda: RetryBudget(name=name),
        lambda: deadline(5, name=name),
        lambda: idempotent(key="x", name=name),
        lambda: fallback(None, name=name),
        lambda: hedge(1, name=name),
        lambda: guard("total", name=name),
    ]
    for make in makers:
        with pytest.raises(ValueError, match=r"name=.*: must be a text that is not empty"):
            make()
    assert len(registry) == 0


def test_what_is_no_name_is_not_found() -> None:
    """The same error as for a name that nobody has given."""
    deadline(5, name="total")
    with pytest.raises(PolicyNotFound, match="no policy or stack is named 3"):
        registry[3]  # type: ignore[index]


def test_other_options_under_a_name_conflict_and_both_places_are_named() -> None:
    """The error says where each of the two was made."""
    first = deadline(5, name="total")
    with pytest.raises(PolicyConflict) as error:
        deadline(6, name="total")
    assert str(error.value).count("test_registry.py:") == 2
    assert first.place in str(error.value)
    assert registry["total"] is first


def test_another_kind_under_a_name_conflicts() -> None:
    """Policies and stacks share one namespace."""
    deadline(5, name="total")
    with pytest.raises(PolicyConflict):
        guard(deadline(5), name="total")


def test_stacks_that_are_written_alike_are_one() -> None:
    """A module that runs as a script and by its name defines its stacks twice; parts without names go by options."""
    limit(5, name="db")

    def define(retries: int = 2, **overrides: Any) -> Guard:
        inner = guard(deadline("2s"), fallback(None))
        return guard(registry["db"], limit(5), retry(retries=retries), inner, "later", name="outbound", **overrides)

    first = define(retry={"base": "1s"})
    assert define(retry={"base": "1s"}) is first
    assert pickle.loads(pickle.dumps(first)) is first
    for other in (lambda: define(3, retry={"base": "1s"}), define, lambda: guard(limit(5), name="outbound")):
        with pytest.raises(PolicyConflict):
            other()
    assert guard(limit(5), name="a") is not guard(rate("5/s"), name="b")
    with pytest.raises(PolicyConflict):
        guard(limit(5, name="db2"), name="a")


def test_a_name_given_by_code_is_told_once() -> None:
    """With its place; giving it again adds nothing."""
    with capture() as events:
        stack = guard(limit(5, name="db"), name="stack")
        limit(5, name="db")
        limit(6)
    told = [(event.name, event.level, event.policy, event.layer, event.source) for event in events]
    assert told == [
        ("policy.added", DEBUG, "db", "limit", registry["db"].place),
        ("policy.added", DEBUG, "stack", "guard", stack.place),
    ]


def test_threads_that_name_a_policy_at_once_get_one_object() -> None:
    """Naming is atomic."""
    start = threading.Barrier(8)
    made: list[Policy[Any]] = []

    def name_it() -> None:
        start.wait()
        made.append(deadline(5, name="shared"))

    threads = [threading.Thread(target=name_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    assert len(set(map(id, made))) == 1


def test_what_is_not_there_names_near_matches() -> None:
    """A typo is answered with what it may have meant."""
    deadline(5, name="payments")
    with pytest.raises(PolicyNotFound, match="did you mean 'payments'") as error:
        registry["paymets"]
    assert isinstance(error.value, LookupError)
    assert registry.get("paymets") is None
    with pytest.raises(PolicyNotFound, match="load the file"):
        registry["zzz"]


def test_it_is_a_collection_of_names() -> None:
    """Iteration, containment, length and repr."""
    assert repr(registry) == "<registry: empty>"
    deadline(5, name="a")
    guard("a", name="b")
    assert list(registry) == ["a", "b"]
    assert "a" in registry
    assert "c" not in registry
    assert len(registry) == 2
    assert repr(registry) == "<registry: 1 deadline, 1 guard>"


def test_isolated_starts_empty_and_restores() -> None:
    """Names made inside are gone afterwards, also when the block raises; those from before are back."""
    before = deadline(5, name="before")
    with pytest.raises(KeyError, match="out"), registry.isolated():
        assert "before" not in registry
        deadline(7, name="before")
        raise KeyError("out")
    assert registry["before"] is before


def test_snapshot_tells_the_kind_of_every_name() -> None:
    """Each named policy is there with its kind."""
    deadline(5, name="a")
    assert registry.snapshot()["a"]["kind"] == "deadline"


def test_a_named_policy_unpickles_to_the_one_of_its_process() -> None:
    """Options travel, state does not."""
    named, unnamed = deadline(5, name="a"), deadline(6)
    assert pickle.loads(pickle.dumps(named)) is named
    twin = pickle.loads(pickle.dumps(unnamed))
    assert twin is not unnamed
    assert twin.options == unnamed.options
    data = pickle.dumps(named)
    with registry.isolated():
        assert pickle.loads(data) is registry["a"]


def test_what_is_made_from_a_registered_policy_is_in_the_census() -> None:
    """An annex adds to what is shown, and takes no name from anybody."""
    db, twin, other = limit(1, name="db"), Limit(limit(2).options, name="db[a]"), Limit(limit(3).options, name="db")
    registry.annex(lambda: [twin, other] if "db" in registry else [])
    try:
        assert registry.census() == {"db": db, "db[a]": twin}
        assert {name: state["limit"] for name, state in registry.snapshot().items()} == {"db": 1, "db[a]": 2}
        with registry.isolated():
            assert registry.census() == {}
    finally:
        registry._annexes.pop()
