"""The pytest plugin: its fixtures take effect for one test, and loading it costs next to nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from guarded import registry
from guarded._core import clock, waiters

pytest_plugins = ["pytester"]

LOADS_THE_PLUGIN = """
from guarded._testing import pytest_plugin

def pytest_configure(config):
    if not config.pluginmanager.has_plugin("guarded"):
        config.pluginmanager.register(pytest_plugin, "guarded")
"""


def test_fixtures_give_time_events_registry_and_switches(pytester: pytest.Pytester) -> None:
    """Each fixture works in a test of its own, and nothing of it is left in the next one, whatever the test did."""
    pytester.makeconftest(LOADS_THE_PLUGIN)
    pytester.makepyfile(
        """
        import pytest
        import guarded
        from guarded import limit, retry, registry
        from guarded._core import clock, waiters

        @retry(retries=2, base="1h", max_delay="1h", jitter="none")
        def fails():
            raise ConnectionError

        def test_time(guarded_time):
            before = guarded_time.monotonic()
            with pytest.raises(ConnectionError):
                fails()
            assert guarded_time.monotonic() - before == 7200
            guarded_time.advance(60)
            assert guarded_time.monotonic() - before == 7260

        def test_events(guarded_events, guarded_time):
            with pytest.raises(ConnectionError):
                fails()
            names = [event.name for event in guarded_events]
            assert names == ["retry.scheduled", "retry.scheduled", "retry.exhausted", "call.failed"]

        @pytest.mark.parametrize("size", [1, 2])
        def test_registry(guarded_registry, size):
            assert len(guarded_registry) == 0
            assert limit(size, name="db") is registry["db"]

        def test_no_wait(guarded_no_wait):
            with pytest.raises(ConnectionError):
                fails()
            assert waiters._skipping == 1

        def test_disabled(guarded_disabled, guarded_events):
            with pytest.raises(ConnectionError):
                fails()
            assert [event.name for event in guarded_events] == ["call.failed"]

        def test_fails(guarded_time, guarded_disabled, guarded_no_wait):
            raise KeyError

        def test_nothing_is_left():
            assert clock.installed() is None
            assert waiters._skipping == 0
            assert "db" not in registry
        """
    )
    pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider").assert_outcomes(passed=7, failed=1)
    assert clock.installed() is None
    assert waiters._skipping == 0
    assert len(registry) == 0


def test_loading_it_imports_no_dependency() -> None:
    """Every pytest run of everybody who has guarded installed loads it."""
    code = (
        "import sys, pytest; before = set(sys.modules); import guarded._testing.pytest_plugin; "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "heavy = {'wrapt', 'loguru', 'pybreaker', 'redis', 'cachetools', 'asyncio', 'yaml', 'pydantic'}; "
        "assert not new & heavy, new & heavy; "
        "own = {name for name in sys.modules if name.startswith('guarded')}; "
        "assert own == {'guarded', 'guarded._testing', 'guarded._testing.pytest_plugin'}, own"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
