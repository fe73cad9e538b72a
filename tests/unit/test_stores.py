"""Addresses, options and faces of stores; nothing here connects."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from guarded import circuit, idempotent, limit, rate
from guarded.stores import StoreProblem, face_of, open_store
from guarded.stores.contract.circuit import CircuitStore
from guarded.stores.contract.idempotent import IdempotentStore
from guarded.stores.contract.limit import LimitStore
from guarded.stores.contract.rate import RateStore
from guarded.stores.memory import MemoryStore

URL = "redis://user:hunter2@127.0.0.1:1/0"


@pytest.mark.parametrize("url", [URL, "rediss://h", "valkey://h:7/1", "valkeys://h", "unix:///tmp/redis.sock"])
def test_one_address_is_one_store(url: str) -> None:
    """With the same options; a pickled store is the one of the process that loads it."""
    store = open_store(url)
    assert open_store(url) is store
    assert open_store(url, timeout="50ms") is not store
    assert pickle.loads(pickle.dumps(store)) is store
    assert pickle.loads(pickle.dumps(open_store(url, timeout="50ms"))) is open_store(url, timeout="50ms")


def test_one_address_is_one_store_for_threads_at_once() -> None:
    """Whoever is slower gets the store of the faster one."""
    ready = threading.Barrier(4)

    def opened(_: int) -> Any:
        ready.wait(10)
        return open_store("redis://threads:1")

    with ThreadPoolExecutor(4) as pool:
        assert len({id(store) for store in pool.map(opened, range(4))}) == 1


def test_a_store_has_a_face_for_each_kind() -> None:
    """Each of them meets its contract."""
    store = open_store(URL)
    kinds = {"rate": RateStore, "limit": LimitStore, "circuit": CircuitStore, "idempotent": IdempotentStore}
    for kind, protocol in kinds.items():
        assert isinstance(face_of(store, kind), protocol)


def test_nothing_shows_the_password() -> None:
    """Name, repr, policies on it, and errors about addresses."""
    store = open_store(URL)
    policy = rate("5/s", name="api", store=URL)
    shown = [store.name, repr(store), repr(policy), repr(policy.options)]
    for wrong in ("redisss://user:hunter2@h", "redis://user:hunter2@h:port"):
        with pytest.raises(ValueError, match="store") as caught:
            open_store(wrong)
        shown.append(str(caught.value))
    assert not [text for text in shown if "hunter2" in text]


def test_memory_is_this_process() -> None:
    """And a store, or none, is what it is."""
    store = MemoryStore()
    assert open_store("memory://") is None
    assert open_store(None) is None
    assert open_store(store) is store
    assert rate("5/s", store="memory://").options == rate("5/s").options


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"timeout": 0}, ["timeout=0"]),
        ({"timeout": -1, "lease": "x", "probe": True, "prefix": "a{b"}, ["timeout", "lease", "probe", "prefix='a{b'"]),
    ],
)
def test_wrong_options_are_all_told(options: dict[str, Any], parts: list[str]) -> None:
    """In one error."""
    with pytest.raises(StoreProblem) as caught:
        open_store("redis://h", **options)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: rate("5/s", store="nowhere"), ["store", "no address of a store"]),
        (lambda: rate("5/s", store="redis://h"), ["needs a name"]),
        (lambda: limit(5, store="redis://h", when_store_fails="maybe"), ["needs a name", "when_store_fails='maybe'"]),
        (lambda: rate("5/s", name="a", store=MemoryStore()), ["MemoryStore", "keeps no state of rate layers"]),
        (lambda: limit(5, name="a", store="sqlite:///x.db"), ["keeps no state of limit layers"]),
        (lambda: circuit("a", store="sqlite:///x.db"), ["keeps no state of circuit layers"]),
        (lambda: circuit("a", when_store_fails="never"), ["when_store_fails='never'"]),
        (lambda: idempotent("key", store=5), ["keeps no state of idempotent layers"]),
    ],
)
def test_what_a_policy_says_about_its_store(make: Any, parts: list[str]) -> None:
    """Named with all the other problems."""
    with pytest.raises(ValueError, match="store") as caught:
        make()
    for part in parts:
        assert part in str(caught.value)


def test_a_stored_rate_makes_no_reservations() -> None:
    """The store has to hear of the moment the caller goes on."""
    with pytest.raises(TypeError, match="use acquire"):
        rate("5/s", name="api", store=URL).reserve()


def test_equal_policies_are_one() -> None:
    """By address or by store."""
    assert rate("5/s", name="api", store=URL) is rate("5/s", name="api", store=open_store(URL))
