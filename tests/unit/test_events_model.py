"""The table of events: complete, consistent, and an event as its users see it."""

from __future__ import annotations

import ast
import copy
import dataclasses
import pickle
import re
import typing
from pathlib import Path

import pytest

import guarded
from guarded.events.model import (
    DEBUG,
    ERROR,
    EVENTS,
    FIELDS,
    INFO,
    LEVELS,
    TRACE,
    WARNING,
    Cause,
    Event,
    Fields,
    level_number,
)

DESIGNED = [
    "call.succeeded",
    "call.failed",
    "limit.acquired",
    "limit.lost",
    "limit.queued",
    "limit.rejected",
    "limit.resized",
    "rate.delayed",
    "rate.rejected",
    "rate.paused",
    "retry.scheduled",
    "retry.recovered",
    "retry.exhausted",
    "retry.gave_up",
    "retry.budget_spent",
    "retry.nested",
    "deadline.exceeded",
    "deadline.late",
    "deadline.abandoned",
    "circuit.opened",
    "circuit.half_opened",
    "circuit.closed",
    "circuit.rejected",
    "circuit.isolated",
    "circuit.late",
    "idempotent.stored",
    "idempotent.joined",
    "idempotent.replayed",
    "idempotent.rejected",
    "idempotent.mismatched",
    "idempotent.abandoned",
    "fallback.used",
    "hedge.launched",
    "hedge.won",
    "store.failed",
    "store.recovered",
    "policy.added",
    "policy.replaced",
    "policy.removed",
    "config.reloaded",
    "config.reload_failed",
]


def test_the_table_has_each_name() -> None:
    """No event of the documented list is missing, and none is there that the list does not know."""
    assert sorted(EVENTS) == sorted(DESIGNED)


@pytest.mark.parametrize("name", DESIGNED)
def test_every_row_is_complete(name: str) -> None:
    """A row has a known level, a sentence, and known fields without repetition."""
    spec = EVENTS[name]
    assert spec.name == name
    assert spec.level in LEVELS
    assert spec.meaning[0].isupper()
    assert spec.meaning.endswith(".")
    assert set(spec.fields) <= set(FIELDS)
    assert len(set(spec.fields)) == len(spec.fields)
    assert {"time", "name", "level"} <= set(spec.fields)


@pytest.mark.parametrize(
    ("level", "names"),
    [
        (TRACE, ["call.succeeded", "limit.acquired", "idempotent.stored"]),
        (DEBUG, ["call.failed"]),
        (INFO, ["limit.queued", "rate.delayed", "retry.scheduled", "retry.recovered", "idempotent.joined"]),
        (WARNING, ["limit.rejected", "rate.rejected", "circuit.rejected", "circuit.opened", "deadline.exceeded"]),
        (ERROR, ["store.failed"]),
    ],
)
def test_levels_follow_the_rule(level: int, names: list[str]) -> None:
    """TRACE for success, INFO for waits and retries, WARNING for refusals, ERROR for lost stores."""
    assert {EVENTS[name].level for name in names} == {level}


def test_every_field_is_used_and_described() -> None:
    """Each field belongs to some event and says what it means."""
    assert set().union(*(spec.fields for spec in EVENTS.values())) == set(FIELDS)
    assert all(field.meaning for field in FIELDS.values())


def test_no_field_can_hold_what_must_not_be_seen() -> None:
    """There is no place for arguments, results or keys."""
    assert not {"args", "kwargs", "arguments", "result", "value", "key", "token", "password"} & set(FIELDS)


def test_emitters_may_say_what_the_bus_does_not_know() -> None:
    """The typed keywords of emit are the fields of an event, less those taken from the call and the policy."""
    own = {"time", "name", "level", "policy", "layer", "function", "call_id"}
    assert set(Fields.__annotations__) == set(FIELDS) - own
    hints, emitted = typing.get_type_hints(Event), typing.get_type_hints(Fields)
    assert {name for name in emitted if emitted[name] != hints[name]} == {"cause"}


def test_events_are_frozen_slotted_and_travel() -> None:
    """An event cannot be changed, takes no further attribute, and can be pickled and copied."""
    event = Event(1.0, "limit.queued", INFO, policy="db", cause=Cause("OSError", "gone"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.policy = "other"  # type: ignore[misc]
    assert not hasattr(event, "__dict__")
    assert pickle.loads(pickle.dumps(event)) == event
    assert copy.deepcopy(event) == event


def test_fields_gives_what_is_set_as_plain_values() -> None:
    """Unset fields are left out, falsy ones are not, and the cause is text."""
    event = Event(1.0, "limit.queued", INFO, policy="db", queued=0, cancelled=False, cause=Cause("OSError", "gone"))
    assert event.fields() == {
        "time": 1.0,
        "name": "limit.queued",
        "level": INFO,
        "policy": "db",
        "queued": 0,
        "cancelled": False,
        "cause": "OSError: gone",
    }


def test_str_is_one_readable_line() -> None:
    """The line starts with the name and shows what matters to a reader."""
    event = Event(
        1.0, "retry.scheduled", INFO, policy="pay", call_id="a-1", attempt=1, delay=0.25, cause=Cause("E", "")
    )
    assert str(event) == "retry.scheduled policy=pay attempt=1 cause=E delay=0.25"


@pytest.mark.parametrize(("given", "number"), [("trace", 5), ("INFO", 20), ("Warning", 30), (40, 40), (TRACE, 5)])
def test_levels_by_name_or_number(given: int | str, number: int) -> None:
    """A level is given by name in any case or by number."""
    assert level_number(given) == number


@pytest.mark.parametrize("given", ["", "LOUD", "CRITICAL", 0, 7, 50, True, "20"])
def test_unknown_levels_name_the_choices(given: int | str) -> None:
    """Anything else is refused with the value and all choices."""
    with pytest.raises(ValueError, match=re.escape(f"level={given!r}")) as caught:
        level_number(given)
    assert all(name in str(caught.value) for name in LEVELS.values())


_UNDER_A_COMPUTED_NAME = {
    "circuit.opened": "state previous reason failures failure_rate slow_rate retry_after cause",
    "circuit.half_opened": "state previous reason limit",
    "circuit.closed": "state previous reason",
    "circuit.isolated": "state previous reason",
    "policy.added": "source",
    "policy.replaced": "source",
    "policy.removed": "source",
}
_TAKEN_FROM_THE_CALL = {"time", "name", "level", "policy", "layer", "function", "call_id", "attempt", "remaining"}


def test_the_table_promises_what_the_package_emits() -> None:
    """Each field of a row is said by some emit of that event."""
    said = {name: set(fields.split()) for name, fields in _UNDER_A_COMPUTED_NAME.items()}
    for _, name, fields in _emits():
        own = {"key_digest", "store"} if name.startswith("idempotent.") else set()  # what Conduct.emit adds
        said.setdefault(name, set()).update(own, fields)
    never = {name: set(spec.fields) - _TAKEN_FROM_THE_CALL - said.get(name, set()) for name, spec in EVENTS.items()}
    assert {name: fields for name, fields in never.items() if fields or name not in said} == {}


def _emits() -> list[tuple[str, str, list[str]]]:
    root = Path(guarded.__file__).parent
    found = []
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "emit"
                and node.args
                and isinstance(node.args[0], ast.Constant)
            ):
                place = f"{path.relative_to(root)}:{node.lineno}"
                found.append((place, str(node.args[0].value), [word.arg for word in node.keywords if word.arg]))
    return found


def test_the_package_emits_what_the_table_says() -> None:
    """Every emit in the package names a row of the table and only fields of that row."""
    emits = _emits()
    assert emits
    unknown = [f"{place}: {name}" for place, name, _ in emits if name not in EVENTS]
    undeclared = [
        f"{place}: {name} has no field {field}"
        for place, name, fields in emits
        if name in EVENTS
        for field in fields
        if field not in EVENTS[name].fields
    ]
    assert unknown + undeclared == []
