"""The memory store for idempotency records: bounds, clearing, copying, forking."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle

import pytest

from guarded import Deadlock, idempotent
from guarded.stores.contract.idempotent import Claim, Finished, Running, Started
from guarded.stores.memory import MemoryStore
from guarded.testing import virtual_time

CLAIM = Claim("me", "mark", float("inf"), 60.0)


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "5"])
def test_bad_bounds_are_named(bad: object) -> None:
    """The option, the value and the rule."""
    with pytest.raises(ValueError, match="max_records="):
        MemoryStore(bad)  # type: ignore[arg-type]


def test_a_finalizer_in_the_middle_of_a_step_is_refused() -> None:
    """A guarded call that it makes would wait for itself."""
    store = MemoryStore()
    with store, store._lock, pytest.raises(Deadlock, match="finalizer"):
        store.begin("k", CLAIM)
    assert store.begin("k", CLAIM) == Started()


def test_both_faces_are_one_store() -> None:
    """What one face writes the other reads."""

    async def main() -> None:
        store = MemoryStore()
        other = Claim("other", "mark", 5.0, 60.0)
        assert store.begin("k", CLAIM) == Started()
        assert await store.begin_async("k", other) == Running(float("inf"))
        assert not await store.release_async("k", other)
        assert await store.complete_async("k", CLAIM, [1])
        assert not await store.complete_async("k", CLAIM, [2])
        reply = store.begin("k", other)
        assert isinstance(reply, Finished)
        assert reply.payload == [1]
        store.clear()
        assert await store.begin_async("k", other) == Started()
        assert await store.release_async("k", other)
        assert store.snapshot() == {"running": 0, "finished": 0, "evicted": 0}

    asyncio.run(main())


def test_expired_records_do_not_count_as_pushed_out() -> None:
    """Only what went before its time did."""
    with virtual_time(auto=False) as time:
        store = MemoryStore(max_records=1)
        for key in ("a", "b"):
            store.begin(key, CLAIM)
            store.complete(key, CLAIM, key)
            time.advance(61)
        assert store.snapshot() == {"running": 0, "finished": 0, "evicted": 0}


def test_records_do_not_travel() -> None:
    """A pickled or copied store keeps its bounds and name, and is empty."""
    store = MemoryStore(5, name="mine")
    store.begin("k", CLAIM)
    for twin in (pickle.loads(pickle.dumps(store)), copy.copy(store)):
        assert (twin.max_records, twin.name) == (5, "mine")
        assert twin.snapshot()["running"] == 0
    assert repr(store) == "MemoryStore(max_records=5)"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_process_does_not_wait_for_its_parent_s_runs() -> None:
    """A fork in the middle of a run: the same key is free in the child, where that run will never end."""
    children: list[int] = []

    @idempotent("key")
    def work(key: str) -> str:
        if children:
            return "ran"
        children.append(os.fork())
        if children[0] == 0:
            try:
                os._exit(0 if work(key) == "ran" else 1)
            finally:
                os._exit(2)
        return "parent"

    assert work("k") == "parent"
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
