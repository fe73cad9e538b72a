"""idempotent over a durable store: leases, take-over, failing stores, and what is kept as bytes."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

import guarded
from guarded import Abandoned, InProgress, KeyMismatch, StoreError, idempotent
from guarded._core import clock
from guarded.policies._idempotent import records
from guarded.policies._idempotent.records import Record
from guarded.policies._idempotent.results import Bytes
from guarded.stores.contract.idempotent import Claim, IdempotentStore, InThreads, Reply
from guarded.stores.health import Health
from guarded.stores.memory import MemoryStore
from guarded.stores.upkeep import upkeep
from guarded.testing import capture, virtual_time

KEY = "k"


@pytest.fixture(autouse=True)
def _no_chores_left() -> Iterator[None]:
    """Leave no chore to the next test: what a test has cut off would be tried again in its time."""
    yield
    for _, _, chore in list(upkeep._heap):
        chore.cancel()


class DurableStore(InThreads):
    """What another process would share: bytes, leases, and a switch that cuts it off."""

    name = "fake"
    durable = True

    def __init__(self) -> None:
        self.records: dict[str, Record[bytes]] = {}
        self.broken: set[str] = set()
        self.calls: list[str] = []
        self._lock = threading.Lock()

    def _step(self, name: str) -> None:
        self.calls.append(name)
        if name in self.broken:
            raise ConnectionError("secret-address refused")

    def begin(self, key: str, claim: Claim) -> Reply[bytes]:
        self._step("begin")
        with self._lock:
            reply, record = records.begin(self.records.get(key), claim, clock.monotonic())
            if record is not None:
                self.records[key] = record
        return reply

    def complete(self, key: str, claim: Claim, payload: bytes) -> bool:
        self._step("complete")
        assert type(payload) is bytes
        with self._lock:
            record = records.complete(self.records.get(key), claim, payload, clock.monotonic())
            if record is not None:
                self.records[key] = record
        return record is not None

    def renew(self, key: str, claim: Claim) -> bool:
        self._step("renew")
        with self._lock:
            record = records.renew(self.records.get(key), claim, clock.monotonic())
            if record is not None:
                self.records[key] = record
        return record is not None

    def release(self, key: str, claim: Claim) -> bool:
        self._step("release")
        with self._lock:
            if not records.may_release(self.records.get(key), claim, clock.monotonic()):
                return False
            del self.records[key]
        return True

    def seize(self, lease: float = 30, fingerprint: str | None = None) -> Claim:
        """Have another process run the only key there is."""
        (key,) = self.records
        claim = Claim("other process", fingerprint, lease, 3600.0)
        del self.records[key]
        self.begin(key, claim)
        return claim


@dataclass
class Receipt:
    """A result."""

    order: str
    amount: int


class Socket:
    """What no store can keep."""


def charge_on(store: DurableStore, **options: Any) -> tuple[Callable[[str], Receipt], list[str]]:
    """A sync guarded function and its runs."""
    runs: list[str] = []

    @idempotent("order", store=store, **options)
    def charge(order: str) -> Receipt:
        runs.append(order)
        return Receipt(order, len(runs))

    return charge, runs


def both_ways(
    store: DurableStore, body: Callable[[], Any], **options: Any
) -> Iterator[tuple[Callable[[], Any], list[int]]]:
    """The same function as sync and as async, each called by a plain thunk, with its runs."""
    sync_runs: list[int] = []

    @idempotent("order", store=store, **options)
    def sync_work(order: str) -> Any:
        sync_runs.append(1)
        return body()

    yield lambda: sync_work(KEY), sync_runs
    store.records.clear()
    async_runs: list[int] = []

    @idempotent("order", store=store, **options)
    async def async_work(order: str) -> Any:
        async_runs.append(1)
        return body()

    yield lambda: asyncio.run(async_work(KEY)), async_runs  # type: ignore[arg-type]


def test_stores_meet_the_contract() -> None:
    """Both are stores for type checkers and for the option's check."""
    assert isinstance(MemoryStore(), IdempotentStore)
    assert isinstance(DurableStore(), IdempotentStore)


def test_replays_from_bytes_in_another_process() -> None:
    """A policy that knows nothing but the store gives an equal result of the same type."""
    store = DurableStore()
    for call, runs in both_ways(store, lambda: (1, {"a": {2, 3}}, None)):
        first = call()
        assert call() == first == (1, {"a": {2, 3}}, None)
        assert type(call()) is tuple
        assert len(runs) == 1


def test_stored_errors_come_back_equal() -> None:
    """An exception of a type in store_errors is kept as bytes, one of another type is not kept."""

    def body() -> Any:
        raise errors[0]

    errors: list[Exception] = [FileNotFoundError(2, "no such order", "o1.json")]
    store = DurableStore()
    for call, runs in both_ways(store, body, store_errors=OSError):
        for _ in range(2):
            with pytest.raises(FileNotFoundError) as caught:
                call()
            assert (caught.value.errno, caught.value.filename) == (2, "o1.json")
            assert str(caught.value) == str(errors[0])
        assert len(runs) == 1
    errors[0] = LookupError("x")
    store.records.clear()
    for call, runs in both_ways(store, body, store_errors=OSError):
        for _ in range(2):
            with pytest.raises(LookupError):
                call()
        assert len(runs) == 2
        assert store.records == {}


def test_an_unencodable_return_type_is_refused_at_decoration() -> None:
    """What the annotation gives away is refused before any effect; memory would take it."""

    def connect(order: str) -> list[Socket | None]:
        return []

    with pytest.raises(TypeError, match="Socket, which the store cannot encode"):
        idempotent("order", store=DurableStore())(connect)
    idempotent("order")(connect)


def test_errors_no_other_process_could_find_are_refused_at_decoration() -> None:
    """They would be stored after the effect, and no replay could read them; memory takes them."""

    class Declined(Exception):
        """Made in a function, so that no name leads to it."""

    def charge(order: str) -> None:
        raise Declined

    with pytest.raises(TypeError, match="Declined, which no other process could find by that name"):
        idempotent("order", store_errors=Declined, store=DurableStore())(charge)
    idempotent("order", store_errors=Declined)(charge)


def test_an_unencodable_result_is_not_lost_and_not_run_again() -> None:
    """The caller gets its object; the record says that there is no result to replay."""
    store = DurableStore()
    for call, runs in both_ways(store, threading.Lock):
        with capture("ERROR") as events:
            assert type(call()) is type(threading.Lock())
        with pytest.raises(StoreError, match=r"_thread\.lock"):
            call()
        assert len(runs) == 1
        assert [event.reason for event in events] == ["result not kept"]


def test_a_store_that_cannot_be_asked_means_no_call() -> None:
    """StoreError before the effect, without the client's message, and with the client's error as its cause."""
    store = DurableStore()
    for call, runs in both_ways(store, lambda: 1):
        store.broken = {"begin"}
        with pytest.raises(StoreError) as caught:
            call()
        assert isinstance(caught.value.__cause__, ConnectionError)
        assert "secret" not in str(caught.value)
        assert str(caught.value).endswith("so the call was not made: ConnectionError; try again when it is back")
        assert runs == []
        store.broken = set()
        assert call() == 1


def test_a_store_that_misses_the_end_loses_nothing() -> None:
    """The result is returned, replayed to this process meanwhile, and told to the store as soon as it listens."""
    store = DurableStore()
    with virtual_time(auto=False) as time:
        for call, runs in both_ways(store, lambda: {"n": 1}, lease=3):
            store.broken = {"complete", "renew"}
            with capture("ERROR") as events:
                assert call() == {"n": 1}
            assert [event.reason for event in events] == ["result not stored yet"]
            calls = len(store.calls)
            assert call() == {"n": 1}
            assert "begin" not in store.calls[calls:]
            store.broken = set()
            _advance_until(time, lambda: all(record.owner is None for record in store.records.values()))
            assert call() == {"n": 1}
            assert len(runs) == 1


def _advance_until(time: Any, condition: Callable[[], bool], step: float = 1.0) -> None:
    for _ in range(500):
        if condition():
            return
        time.advance(step)
        threading.Event().wait(0.002)
    raise AssertionError("never came true")


def test_a_lease_is_renewed_as_long_as_the_body_runs() -> None:
    """A body of ten leases keeps its key; another process is told that it runs."""
    store = DurableStore()
    replies = []

    with virtual_time(auto=False) as time:

        def body() -> str:
            for _ in range(10):
                (record,) = store.records.values()
                _advance_until(time, lambda record=record: next(iter(store.records.values())).until > record.until)
            (key,) = store.records
            replies.append(store.begin(key, Claim("other", None, 3.0, 60.0)))
            return "done"

        for call, _ in both_ways(store, body, lease=3):
            assert call() == "done"
    assert [type(reply).__name__ for reply in replies] == ["Running", "Running"]


def test_a_lost_lease_is_told_and_the_late_owner_overwrites_nothing() -> None:
    """Another process took the key over meanwhile: our caller has its result, the record stays the other's."""
    store = DurableStore()
    for call, _ in both_ways(store, lambda: store.seize().owner):
        with capture("WARNING") as events:
            assert call() == "other process"
        assert [(event.name, event.reason) for event in events] == [("idempotent.abandoned", "lease lost")]
        assert [record.owner for record in store.records.values()] == ["other process"]
        store.records.clear()


def test_a_run_elsewhere_is_joined() -> None:
    """The duplicate waits until the other process has finished, and replays its result."""
    store = DurableStore()
    charge, runs = charge_on(store)
    charge(KEY)
    (payload,) = [record.payload for record in store.records.values()]
    claim = store.seize(lease=1e9)
    (key,) = store.records
    with virtual_time(auto=False) as time, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(charge, KEY)
        _advance_until(time, lambda: store.calls.count("begin") > 5)
        assert not waiting.done()
        assert payload is not None
        store.complete(key, claim, payload)
        _advance_until(time, waiting.done)
        assert waiting.result(10) == Receipt(KEY, 1)
    assert runs == [KEY]


def test_a_run_elsewhere_is_rejected_with_the_rest_of_its_lease() -> None:
    """With on_duplicate="reject" the answer is InProgress."""
    store = DurableStore()
    for call, runs in both_ways(store, lambda: 1, on_duplicate="reject"):
        call()
        store.seize(lease=20)
        with pytest.raises(InProgress) as caught:
            call()
        assert caught.value.retry_after == pytest.approx(20, abs=1)
        assert len(runs) == 1


def test_a_run_elsewhere_with_other_arguments_mismatches() -> None:
    """Fingerprints are compared in the store too, running and finished."""
    store = DurableStore()
    for call, _ in both_ways(store, lambda: 1):
        call()
        store.seize(fingerprint="of other arguments")
        with pytest.raises(KeyMismatch, match="running"):
            call()


@pytest.mark.parametrize("on_abandoned", ["rerun", "raise"])
def test_a_run_that_died_elsewhere(on_abandoned: Any) -> None:
    """Once its lease is over it is taken over by one, or reported, and an event tells of it."""
    store = DurableStore()
    with virtual_time() as time:
        count = itertools.count(1)
        for call, _ in both_ways(store, lambda: next(count), on_abandoned=on_abandoned):
            first = call()
            store.seize(lease=5)
            time.advance(6)
            with capture("WARNING") as events:
                if on_abandoned == "rerun":
                    assert call() == first + 1
                else:
                    with pytest.raises(Abandoned, match="died half way"):
                        call()
            assert [(event.name, event.mode) for event in events] == [("idempotent.abandoned", on_abandoned)]
            store.records.clear()


def test_a_join_elsewhere_takes_over_when_the_lease_ends() -> None:
    """Waiting for a process that is dead ends with its lease, not later."""
    store = DurableStore()
    with virtual_time(auto=False) as time, ThreadPoolExecutor(1) as pool:
        count = itertools.count(1)
        for call, _ in both_ways(store, lambda: next(count)):
            first = call()
            store.seize(lease=5)
            began = time.monotonic_ns()
            waiting = pool.submit(call)
            _advance_until(time, waiting.done, 0.25)
            assert waiting.result(10) == first + 1
            assert 5 <= (time.monotonic_ns() - began) / 1e9 < 8


def test_cancelling_frees_the_key_in_the_store() -> None:
    """A cancelled run, in any of its phases, leaves no record behind."""

    async def main(turns: int) -> None:
        store = DurableStore()

        @idempotent("order", store=store)
        async def work(order: str) -> None:
            await asyncio.Event().wait()

        task = asyncio.create_task(work(KEY))
        for _ in range(turns):
            await asyncio.sleep(0)
        if turns > 5:
            while "begin" not in store.calls:
                await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert store.records == {}

    for turns in (0, 1, 2, 3, 4, 10):
        asyncio.run(main(turns))


def test_a_cancel_that_comes_after_the_effect_keeps_the_result() -> None:
    """The body is done and the store is being told: the result is kept."""

    async def main() -> None:
        store = DurableStore()
        task: asyncio.Task[Any]
        runs = []

        @idempotent("order", store=store)
        async def work(order: str) -> str:
            runs.append(order)
            asyncio.get_running_loop().call_soon(lambda: task.cancel())
            return "done"

        task = asyncio.create_task(work(KEY))
        await asyncio.gather(task, return_exceptions=True)
        while any(record.owner is not None for record in store.records.values()):
            await asyncio.sleep(0.001)
        assert await work(KEY) == "done"
        assert len(runs) == 1

    asyncio.run(main())


def test_damaged_payload_is_a_store_error() -> None:
    """Bytes that say nothing are not taken for a result, and the function is not run again."""
    store = DurableStore()
    charge, runs = charge_on(store)
    charge(KEY)
    (key, record), *_ = store.records.items()
    for payload in (b"", b"?", b"v", b'v{"~data":["os:environ",{}]}', b"\xff"):
        store.records[key] = Record(None, record.fingerprint, record.since, record.until, record.expires, payload)
        with pytest.raises(StoreError, match="cannot be read"):
            charge(KEY)
    assert runs == [KEY]


def test_sync_wait_for_another_process_on_a_loop_thread_raises() -> None:
    """Polling would freeze the loop."""
    store = DurableStore()
    charge, _ = charge_on(store)
    charge(KEY)
    store.seize()

    async def main() -> None:
        with pytest.raises(guarded.Deadlock):
            charge(KEY)

    asyncio.run(main())


def test_who_comes_while_the_store_is_asked_waits_for_its_answer() -> None:
    """A duplicate that would be refused may yet find a finished record, and other arguments no record at all."""

    async def main(**options: Any) -> list[Any]:
        asked, answer = asyncio.Event(), asyncio.Event()

        class Slow(DurableStore):
            async def begin_async(self, key: str, claim: Claim) -> Reply[bytes]:
                asked.set()
                await answer.wait()
                return self.begin(key, claim)

        @idempotent("order", store=Slow(), **options)
        async def work(order: str, amount: int) -> int:
            await asyncio.sleep(0)
            return amount

        first = asyncio.create_task(work(KEY, 1))
        await asked.wait()
        others = [asyncio.create_task(work(KEY, 1)), asyncio.create_task(work(KEY, 2))]
        await asyncio.sleep(0)
        others[1 if options else 0].cancel()
        await asyncio.sleep(0)
        answer.set()
        return await asyncio.gather(first, *others, return_exceptions=True)

    first, same, cancelled = asyncio.run(main(on_duplicate="reject"))
    assert first == 1
    assert isinstance(same, InProgress)
    assert isinstance(cancelled, asyncio.CancelledError)
    first, cancelled, other = asyncio.run(main())
    assert first == 1
    assert isinstance(cancelled, asyncio.CancelledError)
    assert isinstance(other, KeyMismatch)


def test_a_release_that_fails_is_made_up_for() -> None:
    """A failed run whose key could not be freed at once is freed as soon as the store listens."""

    def body() -> Any:
        raise LookupError("x")

    store = DurableStore()
    with virtual_time(auto=False) as time:
        for call, runs in both_ways(store, body):
            store.broken = {"release"}
            with pytest.raises(LookupError):
                call()
            assert len(store.records) == 1
            store.broken = set()
            _advance_until(time, lambda: not store.records)
            with pytest.raises(LookupError):
                call()
            assert len(runs) == 2


def test_a_store_that_stays_away_is_given_up_with_the_result() -> None:
    """Once its ttl is over the unsaved result is forgotten here too."""
    store = DurableStore()
    charge, runs = charge_on(store, ttl=60, lease=3)
    with virtual_time(auto=False) as time:
        store.broken = {"complete"}
        charge(KEY)
        policy = charge.layers[0]  # type: ignore[attr-defined]
        assert policy.snapshot() == {"store": "fake", "running": 1}
        _advance_until(time, lambda: policy.snapshot()["running"] == 0, 5.0)
        store.broken = set()
        store.records.clear()
        charge(KEY)
    assert runs == [KEY, KEY]


def test_an_interrupt_while_the_store_is_told_loses_nothing() -> None:
    """KeyboardInterrupt passes, and the result is kept all the same."""
    store = DurableStore()
    real, interrupted = store.complete, []

    def complete(key: str, claim: Claim, payload: bytes) -> bool:
        if not interrupted:
            interrupted.append(key)
            raise KeyboardInterrupt
        return real(key, claim, payload)

    store.complete = complete  # type: ignore[method-assign]
    charge, runs = charge_on(store)
    with pytest.raises(KeyboardInterrupt):
        charge(KEY)
    assert charge(KEY) == Receipt(KEY, 1)
    assert runs == [KEY]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_interrupt_before_the_result_is_kept_runs_nothing_again(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The effect is there and its result is lost: later callers are told so, here and in other processes."""
    store = DurableStore()
    runs: list[str] = []
    real = Bytes.keep

    def keep(self: Bytes, form: Any, content: Any) -> bytes:
        if form == "value":
            raise KeyboardInterrupt
        return real(self, form, content)

    monkeypatch.setattr(Bytes, "keep", keep)

    @idempotent("order", store=store)
    def charge(order: str) -> str:
        runs.append(order)
        return "charged"

    @idempotent("order", store=store)
    async def charge_async(order: str) -> str:
        runs.append(order)
        return "charged"

    def call() -> str:
        return charge(KEY) if mode == "sync" else asyncio.run(charge_async(KEY))

    with virtual_time(auto=False) as time:
        with pytest.raises(KeyboardInterrupt):
            call()
        for _ in range(2):
            with pytest.raises(StoreError, match="an interrupt came before its result was kept"):
                call()
            _advance_until(time, lambda: "complete" in store.calls, 5.0)
    assert runs == [KEY]


def test_a_renewal_that_fails_is_told_and_tried_again() -> None:
    """A store that is away for one renewal does not cost the lease."""
    store = DurableStore()
    with virtual_time(auto=False) as time, capture("WARNING") as events:

        def body() -> str:
            store.broken = {"renew"}
            _advance_until(time, lambda: len(events) > 0, 0.25)
            store.broken = set()
            before = store.calls.count("renew")
            _advance_until(time, lambda: store.calls.count("renew") > before, 0.25)
            return "done"

        for call, _ in both_ways(store, body, lease=3):
            events.clear()
            assert call() == "done"
            assert {event.reason for event in events} == {"lease not renewed"}


def test_a_lease_lost_during_the_body_is_told_at_its_renewal() -> None:
    """The holder learns of it while it still runs."""
    store = DurableStore()
    with virtual_time(auto=False) as time, capture("WARNING") as events:

        def body() -> str:
            store.seize()
            _advance_until(time, lambda: len(events) > 0, 0.25)
            return "done"

        for call, _ in both_ways(store, body, lease=3):
            events.clear()
            assert call() == "done"
            assert {event.reason for event in events} == {"lease lost"}
            store.records.clear()


class Addressed:
    """A store as an address opens it: it has a health, and one face."""

    name = "fake"

    def __init__(self) -> None:
        self.health = Health("fake", probe=1.0)
        self.idempotent = DurableStore()


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("when_store_fails", ["local", "open"])
def test_a_key_begun_elsewhere_ends_there(when_store_fails: Any, mode: str) -> None:
    """While the store cannot be asked: in the memory of this process, which replays; or nowhere, and it runs again."""
    store = Addressed()
    policy = idempotent("order", store=store, when_store_fails=when_store_fails, lease=3, name="payments")
    runs: list[str] = []

    def body(order: str) -> str:
        runs.append(order)
        store.idempotent.broken = set()  # it is back when the run ends
        if order == "bad":
            raise ConnectionError
        return order

    async def body_async(order: str) -> str:
        return body(order)

    guarded_body: Any = policy(body) if mode == "sync" else policy(body_async)

    def call(order: str) -> Any:
        store.idempotent.broken = {"begin"}
        store.health.since = None
        return guarded_body(order) if mode == "sync" else asyncio.run(guarded_body(order))

    with virtual_time(auto=False):
        assert [call("good"), call("good")] == ["good", "good"]
        for _ in range(2):
            with pytest.raises(ConnectionError):
                call("bad")
    good = 1 if when_store_fails == "local" else 2
    assert runs == ["good"] * good + ["bad"] * 2
    assert set(store.idempotent.calls) == {"begin"}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_store_that_has_failed_is_not_asked_for_each_key(mode: str) -> None:
    """By default no key is begun without it; one that was, ends in it."""
    store = Addressed()
    policy = idempotent("order", store=store, lease=3)
    runs: list[str] = []

    def body(order: str) -> str:
        runs.append(order)
        if order == "bad":
            raise ConnectionError
        return order

    async def body_async(order: str) -> str:
        return body(order)

    guarded_body: Any = policy(body) if mode == "sync" else policy(body_async)

    def call(order: str) -> Any:
        return guarded_body(order) if mode == "sync" else asyncio.run(guarded_body(order))

    with virtual_time(auto=False) as time:
        store.idempotent.broken = {"begin"}
        with pytest.raises(StoreError, match="so the call was not made: ConnectionError; try again when it is back"):
            call("good")
        with pytest.raises(StoreError, match="so the call was not made: it has just failed and is not asked yet;"):
            call("good")
        assert runs == []
        store.idempotent.broken = set()
        time.advance(1)
        assert [call("good"), call("good")] == ["good", "good"]
        with pytest.raises(ConnectionError):
            call("bad")
    assert runs == ["good", "bad"]
    assert store.idempotent.calls.count("complete") == 1
    assert "release" in store.idempotent.calls


@pytest.mark.parametrize(("when_store_fails", "broken"), [("closed", set()), ("local", {"begin"}), ("open", {"begin"})])
def test_a_lease_is_renewed_where_the_key_was_begun(when_store_fails: Any, broken: set[str]) -> None:
    """In the store, or in what has taken its place; it is held there."""
    store = Addressed()
    store.idempotent.broken = broken
    policy = idempotent("order", store=store, when_store_fails=when_store_fails, lease=3)
    held: list[object] = []

    @policy
    def work(order: str) -> str:
        chore = upkeep._heap[0][2]
        assert chore.action is not None
        held.append(chore.action())
        return order

    with virtual_time(auto=False), capture("WARNING") as events:
        assert work("o-1") == "o-1"
    assert held == [True]
    assert "idempotent.abandoned" not in {event.name for event in events}
    assert ("renew" in store.idempotent.calls) == (when_store_fails == "closed")
