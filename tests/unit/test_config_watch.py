"""Watching files and signals."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from guarded.config.watch import Watcher, reload_on_signal
from guarded.errors import ConfigError, GuardWarning


def test_a_change_of_content_reloads_once(tmp_path: Path) -> None:
    """Time stamp, size or inode: any of them is a change; none is no reload."""
    file = tmp_path / "g.yaml"
    file.write_text("a: 1\n")
    calls: list[int] = []
    watcher = Watcher([str(file)], lambda: calls.append(1))
    assert not watcher.poll()
    file.write_text("a: 12\n")
    assert watcher.poll()
    assert not watcher.poll()
    os.utime(file, ns=(1, 1))
    assert watcher.poll()
    assert len(calls) == 2


def test_a_missing_file_waits_for_its_return(tmp_path: Path) -> None:
    """An editor that replaces by rename causes one reload, not an error in between."""
    file = tmp_path / "g.yaml"
    file.write_text("a: 1\n")
    calls: list[int] = []
    watcher = Watcher([str(file)], lambda: calls.append(1))
    file.unlink()
    assert not watcher.poll()
    file.write_text("a: 123\n")
    assert watcher.poll()
    assert calls == [1]


def test_a_bad_file_does_not_end_the_watch(tmp_path: Path) -> None:
    """ConfigError is told elsewhere; the next change reloads again."""
    file = tmp_path / "g.yaml"
    file.write_text("a: 1\n")
    calls: list[int] = []

    def reload() -> None:
        calls.append(1)
        raise ConfigError([])

    watcher = Watcher([str(file)], reload)
    for text in ("a: 22\n", "a: 333\n"):
        file.write_text(text)
        assert watcher.poll()
    assert calls == [1, 1]


def test_an_error_that_is_no_problem_of_the_file_does_not_end_the_watch(tmp_path: Path) -> None:
    """A warning turned into an error, or a listener that fails: it is warned of, and the next change reloads again."""
    file = tmp_path / "g.yaml"
    file.write_text("a: 1\n")

    def reload() -> None:
        raise GuardWarning("no store keeps this")

    watcher = Watcher([str(file)], reload)
    for text in ("a: 22\n", "a: 333\n"):
        file.write_text(text)
        with pytest.warns(GuardWarning, match=r"reload: GuardWarning: no store keeps this; .*g\.yaml is still watched"):
            assert watcher.poll()


def test_a_signal_needs_somebody_who_watches() -> None:
    """What was loaded without ``watch`` is refused at once, not when the signal comes."""
    with pytest.raises(ValueError, match="watch=True"):
        reload_on_signal(SimpleNamespace(watcher=None))


@pytest.mark.real_clock
@pytest.mark.parametrize("of_loaded", [False, True])
def test_a_signal_reloads_in_the_watcher_thread(of_loaded: bool) -> None:
    """The handler hands over; the old handler comes back."""
    done = threading.Event()
    threads: list[threading.Thread] = []

    def reload() -> None:
        threads.append(threading.current_thread())
        done.set()

    before = signal.getsignal(signal.SIGHUP)
    with Watcher([], reload, interval=60).start() as watcher:
        loaded = SimpleNamespace(watcher=watcher)
        restore = reload_on_signal(loaded if of_loaded else watcher)
        signal.raise_signal(signal.SIGHUP)
        assert done.wait(5)
        restore()
    assert threads[0] is not threading.main_thread()
    assert signal.getsignal(signal.SIGHUP) is before
