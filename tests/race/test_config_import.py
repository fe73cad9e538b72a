"""Reloads and imports at the same time."""

from __future__ import annotations

import importlib
import sys
import threading
from pathlib import Path

import pytest

import guarded
from guarded import registry
from guarded.config import Loaded

MODULE = """
import racex_gate
from guarded import limit

class Declined(Exception):
    pass

racex_gate.inside.set()
racex_gate.go.wait(10)
db = limit(9, max_queue=4, name="db")
"""
GATE = "import threading\ninside = threading.Event()\ngo = threading.Event()\n"


@pytest.mark.real_clock
def test_a_module_may_declare_a_policy_while_a_reload_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reload waits for the import, the import's policy must not wait for the reload; both sides count."""
    (tmp_path / "racex.py").write_text(MODULE)
    (tmp_path / "racex_gate.py").write_text(GATE)
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "g.yaml"
    file.write_text("policies: {db: {limit: {max_concurrent: 2}}}\n")
    guarded.load(file)
    gate = importlib.import_module("racex_gate")
    file.write_text("policies: {db: {limit: {max_concurrent: 3}}, p: {retry: {on: 'racex:Declined'}}}\n")
    importing = threading.Thread(target=importlib.import_module, args=("racex",), daemon=True)
    reloading = threading.Thread(target=registry.reload, daemon=True)
    importing.start()
    assert gate.inside.wait(10)
    reloading.start()
    reloading.join(0.2)  # into the import's lock
    gate.go.set()
    importing.join(10)
    reloading.join(10)
    assert not importing.is_alive()
    assert not reloading.is_alive()
    assert (registry["db"].options.max_concurrent, registry["db"].options.max_queue) == (3, 4)
    assert registry["p"].options.on is sys.modules["racex"].Declined
    assert isinstance(registry.config, Loaded)
    registry.config.close()
    for name in ("racex", "racex_gate"):
        del sys.modules[name]
