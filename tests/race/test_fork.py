"""Forks while other threads are in the middle of guarded calls: in the child those threads are gone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

_FRAME = """
import os, threading, time
import guarded
from guarded import RetryBudget, adaptive, deadline, events, hedge, limit, retry

events.set_level("OFF")  # a fork while a thread imports a module is another matter

def child(body):
    pid = os.fork()
    if not pid:
        import signal
        signal.alarm(20)
        try:
            body()
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

"""


def run(script: str) -> None:
    """Run it in a process of its own, which must end well."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _FRAME + script], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


def test_permits_of_the_parents_threads_are_free_in_the_child() -> None:
    """Holders, waiters and the lock stay in the parent; size and closing go along."""
    run("""
plain, keyed, sized, learning = limit(1), limit(1, key="key"), limit(1), limit(adaptive(initial=2, max_limit=2))
sized.resize(3)
closed = limit(1)
closed.close()
held, leave = threading.Event(), threading.Event()

@plain
@keyed
def hold(key):
    held.set()
    leave.wait(20)

@plain
@keyed
def take(key):
    return key

threads = [threading.Thread(target=hold, args=(7,)) for _ in range(2)]
for thread in threads:
    thread.start()
held.wait(20)
while not plain.snapshot().queued:
    time.sleep(0.001)
plain._pools._lock.acquire()
learning.learner._busy.acquire()

def body():
    assert take(7) == 7 and take(8) == 8
    assert [policy.snapshot().held for policy in (plain, keyed)] == [0, 0]
    assert plain.snapshot().queued == 0 and keyed.snapshot().keys == 0
    assert sized.snapshot().limit == 3
    learning.resize(1)
    try:
        closed.acquire()
    except guarded.LimitFull as error:
        assert error.reason == "closed"
    else:
        raise AssertionError("the limit was closed")

child(body)
plain._pools._lock.release()
assert plain.snapshot().held == 1
leave.set()
for thread in threads:
    thread.join()
assert plain.snapshot().held == 0
""")


def test_a_fork_inside_a_guarded_call_leaves_the_bound_as_it_is() -> None:
    """What the forking call gives back in the child is not one permit more there."""
    run("""
plain = limit(1)

@plain
def inside():
    global pid
    pid = os.fork()
    if not pid:
        assert plain.call(abs, -1) == 1
    return pid

if inside():
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
with plain:
    assert plain.snapshot().held == 1
    try:
        plain.acquire(timeout=0)
    except guarded.LimitFull:
        pass
    else:
        raise AssertionError("two permits of one")
assert plain.snapshot().held == 0
""")


def test_idle_workers_of_the_parent_get_no_job_in_the_child() -> None:
    """A sync deadline starts workers of its own there; abandoned ones do not count against it."""
    run("""
from guarded._core.workers import workers
bounded = deadline(20)(abs)
assert bounded(-1) == 1
while not workers.idle():
    time.sleep(0.001)
leave = threading.Event()
try:
    deadline(0.001)(leave.wait)(20)
except guarded.DeadlineExceeded:
    pass
assert workers.abandoned == 1

def body():
    assert bounded(-2) == 2
    assert workers.abandoned == 0

child(body)
leave.set()
""")


def test_locks_that_the_parents_threads_held_are_free_in_the_child() -> None:
    """Those of a retry budget, of a hedge, and of the table of guarded callables."""
    run("""
from guarded._core import chain
budget, hedged = RetryBudget(0.5), hedge(10, idempotent=True)
guarded_abs = hedged(retry(retries=1, budget=budget)(abs))
held = threading.Event()

def hold():
    with budget._lock, hedged._lock, chain._chains_lock:
        held.set()
        threading.Event().wait()

threading.Thread(target=hold, daemon=True).start()
held.wait()

def body():
    assert guarded_abs(-1) == 1
    assert retry(abs)(-2) == 2

child(body)
""")
