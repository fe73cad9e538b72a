"""Policies on a real server, in one process: what callers get, in sync and async code."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from guarded import CircuitOpen, DeadlineExceeded, LimitFull, RateExceeded, circuit, deadline, idempotent, limit, rate
from guarded import testing as kit
from guarded.stores import open_store

pytestmark = pytest.mark.real_clock
MODES = ("sync", "async")


@pytest.fixture
def store(valkey: Any) -> Iterator[Any]:
    """A store with a prefix of its own."""
    made = open_store(valkey.url, timeout=2.0, prefix=f"{uuid.uuid4().hex}:", lease=0.6)
    yield made
    made.close()


def guarded_by(policy: Any, mode: str, body: Callable[[], Any]) -> Callable[[], Any]:
    """`body` under `policy`, as a plain callable in either mode; an async one runs in a loop of its own."""
    if mode == "sync":

        def call() -> Any:
            return body()

        return policy(call)  # type: ignore[no-any-return]

    async def call_async() -> Any:
        return body()

    wrapped = policy(call_async)
    return lambda: asyncio.run(wrapped())


@pytest.mark.parametrize("mode", MODES)
def test_two_rates_of_one_name_are_one_budget(store: Any, mode: str) -> None:
    """Like two processes would: other objects, the same count, and a retry-after that is true."""
    one = guarded_by(rate("3/300ms", name="api", store=store, max_wait=0), mode, lambda: "one")
    with kit_isolated():
        two = guarded_by(rate("3/300ms", name="api", store=store, max_wait=0), mode, lambda: "two")
    assert [one(), two(), one()] == ["one", "two", "one"]
    with pytest.raises(RateExceeded) as caught:
        two()
    assert caught.value.retry_after is not None
    time.sleep(caught.value.retry_after)
    assert two() == "two"


def kit_isolated() -> Any:
    """Another registry, as in another process."""
    from guarded import registry

    return registry.isolated()


@pytest.mark.parametrize("mode", MODES)
def test_a_rate_lets_callers_wait_for_their_due_time(store: Any, mode: str) -> None:
    """Six calls at 3 per 200 ms take one window; nobody is refused."""
    call = guarded_by(rate("3/200ms", name="api", store=store), mode, time.monotonic)
    threads = [threading.Thread(target=lambda: times.append(call())) for _ in range(6)]
    times: list[float] = []
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times.sort()
    assert len(times) == 6
    assert times[3] - began >= 0.19
    assert times[5] - began < 1.5


@pytest.mark.parametrize("mode", MODES)
def test_a_rate_refuses_at_once_what_cannot_be_in_time(store: Any, mode: str) -> None:
    """Due past the deadline, or past max_wait: no booking is left behind."""
    policy = rate("1/5s", name="api", store=store)
    plain, hurried = guarded_by(policy, mode, lambda: 1), guarded_by(policy, mode, lambda: 2)
    plain()
    layered = deadline("200ms")(policy(lambda: 3))
    began = time.monotonic()
    with pytest.raises(RateExceeded):
        layered()
    assert time.monotonic() - began < 0.15
    assert policy.peek().delay < 5.0
    del hurried


def test_a_rate_corrected_afterwards(store: Any) -> None:
    """settle() and refund() reach the store, from a call and by hand."""
    policy = rate("10/10s", name="api", store=store, max_wait=0)

    @policy
    def call(actual: int) -> None:
        policy.settle(actual)

    call(4)
    assert policy.peek().free == 6
    with policy as admission:
        admission.refund()
    assert policy.peek().free == 6
    policy.acquire(3).settle(1)
    assert policy.peek().free == 5
    policy.refund(2)
    assert policy.peek().free == 7
    assert policy.try_acquire(7)
    assert not policy.try_acquire()


def test_a_rate_inside_a_limit_waits_without_a_permit(store: Any) -> None:
    """Both in the store: while one call waits for its due time, another may have the permit."""
    permits = limit(1, name="db", store=store)
    slow = rate("1/400ms", name="api", store=store)

    @permits
    @slow
    def both() -> float:
        return time.monotonic()

    @permits
    def quick() -> float:
        return time.monotonic()

    both()
    waiting: list[float] = []
    thread = threading.Thread(target=lambda: waiting.append(both()))
    thread.start()
    time.sleep(0.1)
    began = time.monotonic()
    assert quick() - began < 0.2
    thread.join()
    assert waiting[0] > began


@pytest.mark.parametrize("mode", MODES)
def test_a_limit_over_threads_loops_and_registries(store: Any, mode: str) -> None:
    """Never more than two inside, whoever asks; all are served."""
    active, peak, lock = 0, 0, threading.Lock()

    def body() -> None:
        nonlocal active, peak
        with lock:
            active += 1
            peak = max(peak, active)
        time.sleep(0.02)
        with lock:
            active -= 1

    calls = [guarded_by(limit(2, name="db", store=store), mode, body)]
    with kit_isolated():
        calls.append(guarded_by(limit(2, name="db", store=store), mode, body))
    threads = [threading.Thread(target=calls[number % 2]) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert peak == 2
    assert store.limits.look(("db", "")) == (0, 0)


@pytest.mark.parametrize("mode", MODES)
def test_a_full_limit_refuses_by_its_options(store: Any, mode: str) -> None:
    """max_wait and the deadline end the wait; nothing is left in the store's queue."""
    held = limit(1, name="db", store=store).acquire()
    with kit_isolated():
        call = guarded_by(limit(1, name="db", store=store, max_wait=0.1), mode, lambda: None)
        with pytest.raises(LimitFull) as caught:
            call()
    assert caught.value.reason == "timeout"
    assert "1 of 1 permits held" in str(caught.value)
    with kit_isolated():
        slow = deadline("100ms")(guarded_by(limit(1, name="db", store=store), mode, lambda: None))
        # The deadline may also end the moment in which the store is asked once more.
        with pytest.raises(DeadlineExceeded, match=r"queued for limit 'db'|waiting for store"):
            slow()
    eventually(lambda: store.limits.look(("db", "")) == (1, 0))
    held.release()
    assert store.limits.look(("db", "")) == (0, 0)


def eventually(holds: Callable[[], bool]) -> None:
    """Within two seconds."""
    give_up = time.monotonic() + 2
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_a_lease_is_renewed_as_long_as_the_body_runs(store: Any) -> None:
    """Three times its length, and the permit is never free meanwhile."""
    policy = limit(1, name="db", store=store)

    @policy
    def long() -> set[int]:
        seen = set()
        until = time.monotonic() + 1.8
        while time.monotonic() < until:
            seen.add(store.limits.look(("db", ""))[0])
            time.sleep(0.05)
        return seen

    assert long() == {1}


@pytest.mark.parametrize("mode", MODES)
def test_a_circuit_opens_for_all_and_recovers(store: Any, mode: str) -> None:
    """What one sees, the other obeys; one trial decides; events come once."""

    def fail() -> None:
        raise ConnectionError("down")

    options: dict[str, Any] = {"failures": 3, "reset_after": 0.3, "store": store}
    with kit.capture() as events:
        failing = guarded_by(circuit("gateway", **options), mode, fail)
        with kit_isolated():
            other = guarded_by(circuit("gateway", **options), mode, lambda: "up")
        for _ in range(3):
            with pytest.raises(ConnectionError):
                failing()
        with pytest.raises(CircuitOpen) as caught:
            other()
        assert caught.value.retry_after is not None
        assert 0 < caught.value.retry_after <= 0.3
        time.sleep(caught.value.retry_after)
        assert other() == "up"
        with pytest.raises(ConnectionError):
            failing()
    changes = [
        event.name for event in events if event.name in ("circuit.opened", "circuit.half_opened", "circuit.closed")
    ]
    assert changes == ["circuit.opened", "circuit.half_opened", "circuit.closed"]


def test_a_circuit_by_hand(store: Any) -> None:
    """isolate() and reset() are for the fleet."""
    mine = circuit("gateway", store=store)
    with kit_isolated():
        theirs = circuit("gateway", store=store)
    mine.isolate()
    with pytest.raises(CircuitOpen, match="isolated"):
        theirs.call(lambda: None)
    assert theirs.state == theirs.snapshot().state == "isolated"
    theirs.reset()
    assert mine.call(lambda: 5) == 5
    assert mine.state == "closed"


def test_half_open_trials_are_one_budget(store: Any) -> None:
    """Of twenty callers at once, two are let in."""
    policy = circuit("gateway", failures=1, reset_after=0.1, half_open=2, store=store)
    with pytest.raises(ConnectionError):
        policy.call(boom)
    time.sleep(0.12)
    inside, outcomes, done = [], [], threading.Event()

    def trial() -> None:
        inside.append(1)
        done.wait(2)

    def caller() -> None:
        try:
            outcomes.append(policy.call(trial))
        except CircuitOpen:
            outcomes.append("rejected")

    threads = [threading.Thread(target=caller) for _ in range(20)]
    for thread in threads:
        thread.start()
    eventually(lambda: outcomes.count("rejected") == 18)
    done.set()
    for thread in threads:
        thread.join()
    assert len(inside) == 2
    assert policy.state == "closed"


def boom() -> None:
    """What is down."""
    raise ConnectionError("down")


@pytest.mark.parametrize("mode", MODES)
def test_idempotent_runs_once_and_replays_from_the_server(store: Any, mode: str) -> None:
    """A policy that knows nothing but the store gives the stored result; nothing there is pickled."""
    runs = []

    def build() -> Callable[[str], Any]:
        policy = idempotent("order", store=store)
        if mode == "sync":

            def charge(order: str) -> tuple[str, int]:
                runs.append(order)
                return order, len(runs)

            return policy(charge)

        async def charge_async(order: str) -> tuple[str, int]:
            runs.append(order)
            return order, len(runs)

        charge_async.__qualname__ = "charge"
        wrapped = policy(charge_async)
        return lambda order: asyncio.run(wrapped(order))

    first, second = build(), build()
    assert first("a") == second("a") == ("a", 1)
    assert runs == ["a"]


@pytest.mark.parametrize("mode", MODES)
def test_one_round_trip_for_each_decision(proxy: Any, mode: str) -> None:
    """Counted on the wire, on a connection that is there: rate 1, limit 2 (in and out), circuit 2."""
    store = open_store(proxy.url, timeout=2.0, prefix=f"{uuid.uuid4().hex}:")
    expected = {
        rate("1000/s", name="api", store=store): 1,
        rate("1000/s; 5000/m", name="apis", store=store): 1,
        rate("1000/s", name="paced", algorithm="gcra", store=store): 1,
        rate("1000/s", name="aligned", algorithm="fixed", store=store): 1,
        limit(5, name="db", store=store): 2,
        circuit("gateway", failure_rate=0.5, store=store): 2,
    }
    counted = {}
    for policy in expected:
        counted[policy] = trips(proxy, policy, mode)
    store.close()
    assert counted == expected


def trips(proxy: Any, policy: Any, mode: str) -> float:
    """Requests on the wire for one call, over ten."""
    if mode == "sync":

        def body() -> None:
            pass

        call = policy(body)
        call()
        before = proxy.requests
        for _ in range(10):
            call()
        return float(proxy.requests - before) / 10

    async def body_async() -> None:
        pass

    async def main() -> float:
        call = policy(body_async)
        await call()
        before = proxy.requests
        for _ in range(10):
            await call()
        return float(proxy.requests - before) / 10

    return asyncio.run(main())


def test_every_key_expires_and_stays_in_one_slot(store: Any, valkey: Any) -> None:
    """After every kind of step; the keys of one script share a hash tag."""
    for algorithm in ("sliding", "gcra", "leaky", "fixed"):
        policy = rate("2/s", name=algorithm, algorithm=algorithm, store=store, key="who", max_wait=0)  # type: ignore[arg-type]
        policy.try_acquire(key="x")
        policy.pause("1s")
    policy = circuit("gateway", failure_rate=0.5, window="10s", slow_call=0.001, slow_rate=0.9, store=store)
    for _ in range(3):
        with pytest.raises(ConnectionError):
            policy.call(boom)
    permits = limit(5, name="db", store=store)
    with permits.acquire(weight=3), valkey.client() as client:
        keys = list(client.scan_iter(f"{store.prefix}*"))
        lives = {key: client.pttl(key) for key in keys}
    assert len(keys) >= 12
    assert {key: life for key, life in lives.items() if life <= 0} == {}
    assert all(key.count(b"{") == key.count(b"}") == 1 for key in keys)


def test_loops_come_and_go(store: Any) -> None:
    """Each event loop has its own connections, and takes them with it; nothing warns."""
    policy = rate("1000/s", name="api", store=store)

    @policy
    async def call() -> int:
        return 1

    async def several() -> list[int]:
        return list(await asyncio.gather(*[call() for _ in range(20)]))

    for _ in range(3):
        assert asyncio.run(several()) == [1] * 20
    assert not store.link._loops


def test_a_forked_child_has_connections_of_its_own(store: Any) -> None:
    """Parent and child speak to the server at the same time, and hear their own answers."""
    import os

    policy = rate("100000/s", name="api", store=store)
    assert policy.try_acquire()
    child = os.fork()
    if child == 0:
        good = all(policy.try_acquire() for _ in range(200))
        os._exit(0 if good else 1)
    assert all(policy.try_acquire() for _ in range(200))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert policy.peek().free == 100_000 - 401


def test_a_file_puts_policies_of_code_into_a_store(valkey: Any) -> None:
    """All four kinds: from then on the state of each is on the server."""
    import guarded
    from guarded import registry

    prefix = f"{uuid.uuid4().hex}:"
    stack = [limit(5, name="db"), rate("9/s", name="api"), circuit("gateway"), idempotent("order", name="once")]

    @guarded.guard(stack[3], stack[0], stack[2], stack[1])
    def charge(order: str) -> str:
        return order

    def keys() -> set[bytes]:
        with valkey.client() as client:
            return {key.split(b":")[1] for key in client.scan_iter(f"{prefix}*")}

    charge("a")
    assert keys() == set()
    config = guarded.load(f"""
stores: {{fleet: {{url: "{valkey.url}", prefix: "{prefix}", timeout: 2s}}}}
policies:
  db: {{limit: {{max_concurrent: 5, store: fleet}}}}
  api: {{rate: {{spec: 9/s, store: fleet}}}}
  gateway: {{circuit: {{store: fleet}}}}
  once: {{idempotent: {{key: order, store: fleet}}}}
""")
    assert charge("b") == "b"
    assert keys() == {b"limit", b"rate", b"circuit", b"idempotent"}
    assert registry["db"] is stack[0]
    config.close()


def test_a_forked_child_does_not_wait_for_its_parent(store: Any) -> None:
    """The parent holds and waits; the child has a line of its own, and its own lease."""
    import os

    policy = limit(2, name="db", store=store)
    with policy.acquire():
        child = os.fork()
        if child == 0:
            with policy:
                os._exit(0 if store.limits.look(("db", ""))[0] == 2 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
