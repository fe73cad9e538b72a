"""A stack as plain data."""

from __future__ import annotations

import json

import pytest

from guarded import RetryBudget, adaptive, circuit, deadline, fallback, guard, limit, rate, retry
from guarded.testing import describe, disabled


def test_it_gives_kinds_names_and_options_outermost_first() -> None:
    """Names that stand for stacks are opened; a handle that is not loaded yet is left out."""
    limit(20, name="db")
    guard("db", retry(retries=5, base="100ms"), name="outbound")

    class Service:
        @guard("outbound", "later")
        def call(self) -> None: ...

    slots, again = describe(Service.call)
    assert (slots["kind"], slots["name"], slots["options"]["max_concurrent"]) == ("limit", "db", 20)
    assert (again["kind"], again["name"], again["options"]["base"]) == ("retry", None, 0.1)
    assert describe(Service().call) == describe(Service.call)


def test_options_are_plain_values() -> None:
    """Everything survives JSON as it is: durations as seconds, types and functions by name."""

    @fallback("none", on=(ConnectionError, TimeoutError))
    @deadline("1m")
    @limit(adaptive(max_limit=90))
    @retry(backoff=[1, 2], budget=RetryBudget(0.1))
    @circuit("gateway", failure_rate=0.5, window="10s")
    @rate("5/s", key="tenant")
    async def call(tenant: str) -> None: ...

    described = describe(call)
    assert json.loads(json.dumps(described)) == described
    options = {layer["kind"]: layer["options"] for layer in described}
    assert options["fallback"]["on"] == ["ConnectionError", "TimeoutError"]
    assert options["deadline"]["seconds"] == 60
    assert options["limit"]["max_concurrent"]["max_limit"] == 90
    assert options["retry"]["on"] == "guarded.http.transient"
    assert options["circuit"]["window"] == 10


def test_it_describes_what_was_decorated_also_when_that_is_off() -> None:
    """A switch changes what runs, not what is there."""

    @limit(1)
    def call() -> None: ...

    with disabled():
        assert [layer["kind"] for layer in describe(call)] == ["limit"]


def test_what_is_not_guarded_is_refused() -> None:
    """An empty answer would let a lost decorator pass."""
    with pytest.raises(TypeError, match="no guarded callable"):
        describe(print)
