"""What listens without being asked to: the ring, and loguru from INFO up."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from loguru import logger

from guarded import events
from guarded.events.bus import bus
from guarded.events.model import EVENTS, INFO, TRACE, WARNING


@pytest.fixture
def records() -> Iterator[list[dict[str, Any]]]:
    """What reaches loguru, at every level, while the default sink is at INFO."""
    found: list[dict[str, Any]] = []
    handler = logger.add(lambda message: found.append(dict(message.record)), level=0)
    events.set_level("INFO")
    yield found
    logger.remove(handler)
    events.set_level("OFF")


def emit_all() -> None:
    """One event of every name."""
    for name in EVENTS:
        bus.emit(name, None, None)


def test_info_and_up_reach_loguru(records: list[dict[str, Any]]) -> None:
    """Nothing is to be set up, and nothing below INFO comes through."""
    emit_all()
    assert [record["message"] for record in records] == [name for name in EVENTS if EVENTS[name].level >= INFO]


def test_set_level_changes_what_loguru_gets(records: list[dict[str, Any]]) -> None:
    """The new level takes the place of the old, which is given back."""
    assert events.set_level("warning") == "INFO"
    emit_all()
    assert [record["message"] for record in records] == [name for name in EVENTS if EVENTS[name].level >= WARNING]
    assert events.set_level(TRACE) == "WARNING"
    assert bus.threshold == TRACE
    records.clear()
    emit_all()
    assert len(records) == len(EVENTS)


def test_off_silences_loguru_but_not_the_ring(records: list[dict[str, Any]]) -> None:
    """The latest events can be asked for all the same."""
    events.set_level("off")
    assert events.set_level("OFF") == "OFF"
    bus.emit("limit.queued", None, None, queued=77)
    assert records == []
    assert events.recent(1)[0].queued == 77


def test_a_wrong_level_changes_nothing(records: list[dict[str, Any]]) -> None:
    """The error comes before the sink is touched."""
    with pytest.raises(ValueError, match=r"level='LOUD': must be one of TRACE .*, or OFF$"):
        events.set_level("LOUD")
    bus.emit("limit.queued", None, None)
    assert len(records) == 1


def test_recent_is_bounded() -> None:
    """The ring holds 256 events and none below INFO."""
    for number in range(300):
        bus.emit("limit.queued", None, None, queued=number)
        bus.emit("limit.acquired", None, None)
    latest = events.recent()
    assert len(latest) == 256
    assert [event.queued for event in events.recent(2)] == [298, 299]
    assert {event.name for event in latest} == {"limit.queued"}


def run(code: str) -> str:
    """Output of `code` in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_importing_events_imports_no_sink() -> None:
    """Third-party packages are loaded by the sink that needs them, when it is needed."""
    heavy = ("loguru", "structlog", "prometheus_client", "opentelemetry")
    assert run(f"import guarded.events, sys; print([m for m in {heavy} if m in sys.modules])").strip() == "[]"


def test_a_program_that_configured_structlog_gets_entries_there() -> None:
    """Also when that comes after guarded was imported; loguru then stays out."""
    output = run(
        "import guarded.events, sys, structlog\n"
        "from guarded.events.bus import bus\n"
        "structlog.configure(processors=[structlog.processors.KeyValueRenderer()])\n"
        "bus.emit('limit.rejected', None, None, reason='closed')\n"
        "assert 'loguru' not in sys.modules\n"
    )
    assert output.strip() == "reason='closed' event='limit.rejected'"


def test_the_first_event_loads_loguru_and_reaches_stderr() -> None:
    """An application that sets nothing up sees what happens."""
    output = run(
        "import guarded.events, sys\n"
        "from guarded.events.bus import bus\n"
        "bus.emit('limit.acquired', None, None)\n"
        "assert 'loguru' not in sys.modules\n"
        "bus.emit('limit.rejected', None, None)\n"
        "assert 'loguru' in sys.modules\n"
    )
    assert "WARNING" in output
    assert "limit.rejected" in output
    assert "limit.acquired" not in output


def test_every_exported_name_is_there() -> None:
    """The list of exports is true, and none is hidden by a module of the same name."""
    for name in events.__all__:
        assert not isinstance(getattr(events, name), ModuleType)
