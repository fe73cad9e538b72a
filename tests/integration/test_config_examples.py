"""The examples of config files and of shared policies, run as a user runs them."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import guarded
from guarded import registry
from guarded.config import Loaded, problems_of
from guarded.errors import GuardWarning

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture(autouse=True)
def _take_out() -> Iterator[None]:
    """No config outlives its test."""
    yield
    if isinstance(registry.config, Loaded):
        registry.config.close()


@pytest.mark.real_clock
@pytest.mark.parametrize("name", ["yaml_config", "shared_policies"])
def test_example(name: str) -> None:
    """Ends with exit code 0, which it does only when each of its promises was kept."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    environment.pop("REDIS_URL", None)
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name / "main.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "every promise was kept" in done.stderr


def test_the_file_of_the_design_works_word_for_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers, sharing, removal; with a memory store, and as it is where no server runs."""
    monkeypatch.setenv("REDIS_URL", "memory://")
    file = EXAMPLES / "yaml_config" / "guarded.yaml"
    guarded.load(file)
    kinds = [layer.kind for layer in registry["payments"].expand()]
    assert kinds == ["idempotent", "deadline", "limit", "retry", "circuit", "rate"]
    assert registry["payments"].expand()[2] is registry["db"]
    assert [layer.kind for layer in registry["reports"].expand()] == ["deadline", "circuit"]
    monkeypatch.delenv("REDIS_URL")
    assert problems_of(file) == []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuardWarning)  # of kinds that no Redis store can keep
        guarded.load(file)
