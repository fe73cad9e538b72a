"""Guards for each host, made from one stack."""

from __future__ import annotations

from typing import Any

import pytest

from guarded import circuit, guard, idempotent, limit, rate, registry, retry
from guarded._core.registry import Registry
from guarded.errors import PolicyNotFound
from guarded.integrations._client import hosts as _hosts
from guarded.integrations._client.hosts import Hosts, hosts_of
from guarded.testing import virtual_time


def make(name: str) -> Any:
    """A function to guard."""

    def send(request: Any) -> Any:
        return request()

    send.__qualname__ = name
    return send


def use(hosts: Hosts, host: str) -> Any:
    """A request to a host, over at once: its lane."""
    lane = hosts.enter(host)
    hosts.leave(lane)
    return lane


def test_state_is_apart_and_options_are_not() -> None:
    """Each host has policies of its own, with the options of the stack, under a name that tells the host."""
    hosts = Hosts(guard(limit(3), circuit("api", failures=2), name="outbound"))
    one, other = use(hosts, "one"), use(hosts, "other")
    assert use(hosts, "one") is one
    assert [layer.options for layer in one.layers] == [layer.options for layer in other.layers]
    assert not {id(layer) for layer in one.layers} & {id(layer) for layer in other.layers}
    assert [layer.name for layer in one.layers] == ["outbound[one]", "api[one]"]
    assert set(registry) == {"outbound", "api"}


def test_parts_with_a_name_of_their_own_are_shared() -> None:
    """A name in the stack stands for one object; so does a limit or rate that code has named. A circuit does not."""
    named = rate("5/s", name="partner")
    limit(5, name="db")
    circuit("whole", failures=1)
    hosts = Hosts(guard("db", named, circuit("own", failures=1), "whole"))
    one, other = use(hosts, "one").layers, use(hosts, "other").layers
    assert one[0] is other[0] is registry["db"]
    assert one[1] is other[1] is named
    assert one[2] is not other[2]
    assert one[3] is other[3] is registry["whole"]


def test_a_name_of_a_single_policy_is_a_template() -> None:
    """Given to the client itself, it is the stack."""
    limit(5, name="db")
    hosts = Hosts("db")
    assert use(hosts, "one").layers[0] is not use(hosts, "other").layers[0]


def test_nested_stacks_are_opened() -> None:
    """Their parts are as if they stood in the outer one."""
    guard(retry(retries=1), limit(1), name="inner")
    assert [layer.kind for layer in use(Hosts(guard("inner", circuit("c"))), "one").layers] == [
        "retry",
        "limit",
        "circuit",
    ]


def test_new_options_keep_the_state() -> None:
    """A reload changes options in place; what hosts have counted goes on."""
    mine = limit(3)
    hosts = Hosts(guard(mine))
    lane = use(hosts, "one")
    before = lane.layers[0]
    sender = lane.guarded(make, repeatable=True)
    mine.reconfigure(limit(7).options)
    registry.changed()
    assert use(hosts, "one").layers[0] is before
    assert before.snapshot().limit == 7
    assert lane.guarded(make, repeatable=True) is not sender


def test_another_stack_under_the_name_is_followed() -> None:
    """What the name means is looked up again when names change."""
    guard(limit(3), name="outbound")
    hosts = hosts_of("outbound")
    busy = hosts.enter("busy")
    use(hosts, "idle")
    registry.replace({"outbound": guard(retry(retries=1))})
    assert [layer.kind for layer in use(hosts, "one").layers] == ["retry"]
    assert use(hosts, "busy") is busy
    assert set(hosts.snapshot()) == {"busy", "one"}
    hosts.leave(busy)


def test_what_must_not_be_repeated_goes_without_retry() -> None:
    """And through the same other layers."""
    lane = use(Hosts(guard(limit(3), retry(retries=1))), "one")
    assert [layer.kind for layer in lane.guarded(make, repeatable=True).layers] == ["limit", "retry"]
    assert lane.guarded(make, repeatable=False).layers == lane.layers[:1]


def test_hosts_are_bounded_and_the_idle_ones_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host at rest makes place; with none at rest, newcomers share one set of guards."""
    monkeypatch.setattr(_hosts, "MAX_HOSTS", 3)
    with virtual_time() as time:
        hosts = Hosts(guard(circuit("c", failures=1)))
        busy = hosts.enter("busy")
        broken = use(hosts, "broken")
        _break(broken)
        use(hosts, "idle")
        assert use(hosts, "new") is use(hosts, "newer")
        assert len(hosts) == 3
        time.advance(61)
        fresh = use(hosts, "new")
        assert fresh.host == "new"
        assert set(hosts.snapshot()) == {"busy", "broken", "new"}
        assert use(hosts, "broken") is broken
        hosts.leave(busy)


def _break(lane: Any) -> None:
    def fail() -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        lane.guarded(make, repeatable=True)(fail)
    assert lane.layers[0].state == "open"


def test_a_rate_with_a_long_window_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgotten, its host would get the budget of the day twice."""
    monkeypatch.setattr(_hosts, "MAX_HOSTS", 1)
    with virtual_time() as time:
        hosts = Hosts(rate("5/day"))
        first = use(hosts, "first")
        time.advance(3600)
        assert use(hosts, "second").host == "*"
        assert use(hosts, "first") is first
        time.advance(90_000)
        assert use(hosts, "second").host == "second"


def test_a_burst_that_fills_up_slowly_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgotten after the window alone, its host would get the whole burst again."""
    monkeypatch.setattr(_hosts, "MAX_HOSTS", 1)
    with virtual_time() as time:
        hosts = Hosts(rate("1/s", algorithm="gcra", burst=300))
        first = use(hosts, "first")
        time.advance(299)
        assert use(hosts, "second").host == "*"
        assert use(hosts, "first") is first
        time.advance(301)
        assert use(hosts, "second").host == "second"


def test_a_change_of_names_passes_no_new_host_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the making of its guards and its place in the table no other thread makes the change known."""
    guard(limit(3), name="outbound")
    hosts = Hosts("outbound")
    use(hosts, "known")
    table, adopt = hosts._lock, _hosts.Lane.adopt
    changed = False

    class Gate:
        """The lock of the table, at which another thread may be faster."""

        def __enter__(self) -> None:
            nonlocal changed
            hosts._lock = table
            if not hosts._building.locked():
                changed = True
                registry.replace({"outbound": guard(retry(retries=1))})
                use(hosts, "known")
            table.acquire()

        def __exit__(self, *exc_info: object) -> None:
            table.release()

    def adopt_then_meet(lane: Any, parts: Any) -> None:
        adopt(lane, parts)
        if lane.host == "new" and not changed:
            hosts._lock = Gate()  # type: ignore[assignment]

    with monkeypatch.context() as patched:
        patched.setattr(_hosts.Lane, "adopt", adopt_then_meet)
        use(hosts, "new")
    assert changed == ([layer.kind for layer in use(hosts, "new").layers] == ["retry"])


def test_what_cannot_guard_a_client_is_refused() -> None:
    """With what to do instead."""
    with pytest.raises(TypeError, match="function that sends"):
        use(Hosts(guard(idempotent(key="request"))), "one")


def test_an_unknown_name_is_found_later() -> None:
    """The error comes with the first request, and goes when the name is there."""
    hosts = Hosts("later")
    with pytest.raises(PolicyNotFound):
        use(hosts, "one")
    limit(1, name="later")
    assert len(use(hosts, "one").layers) == 1


def test_the_same_name_gives_the_same_hosts() -> None:
    """And so does the same object."""
    stack, twin = guard(limit(1)), guard(limit(1))
    assert hosts_of("x") is hosts_of("x") is not hosts_of("y")
    assert hosts_of(stack) is hosts_of(stack) is not hosts_of(twin)
    assert isinstance(registry, Registry)
