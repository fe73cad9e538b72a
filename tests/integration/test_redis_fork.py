"""Forks in the middle of a call whose permit or key is in a store: it stays the parent's."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

_FRAME = """
import os, sys
from guarded import events, idempotent, limit
from guarded.stores import open_store

events.set_level("OFF")
store = open_store(sys.argv[1], prefix=f"{os.urandom(8).hex()}:")
one = limit(1, name="one", store=store, max_queue=0)
pid = None

def fork():
    global pid
    pid = os.fork()
    if pid:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return "parent" if pid else "child"

def out():
    pool = ("one", "")
    return store.limits.look(pool)[0]

"""


def run(valkey: Any, script: str) -> None:
    """Run it in a process of its own; its child, too, must end well."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _FRAME + script, valkey.url],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("how", ["called", "block"])
def test_a_permit_is_not_given_back_by_a_child(valkey: Any, how: str) -> None:
    """The child may leave the call, and cannot have the permit either."""
    bodies = {
        "called": "@one\ndef body():\n    fork()\n    check()\nbody()",
        "block": "with one:\n    fork()\n    check()",
    }
    check = "def check():\n    assert out() == 1 and one.snapshot().held == (1 if pid else 0)\n"
    run(valkey, check + bodies[how] + "\nassert out() == (0 if pid else 1)\n")


def test_a_run_is_not_ended_by_a_child(valkey: Any) -> None:
    """What the child returns is stored nowhere, and what it raises frees no key."""
    run(
        valkey,
        """
@idempotent(key="key", store=store)
def effect(key):
    who = fork()
    if who == "child" and key == "raises":
        raise ValueError
    return who

for key in ("returns", "raises"):
    try:
        result = effect(key)
    except ValueError:
        result = "child"
    if not pid:
        assert result == "child"
        sys.exit()
    assert result == effect(key) == "parent"
""",
    )
