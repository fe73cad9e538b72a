"""What every test starts from: an empty registry, real time, and no log output."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from guarded import events, registry
from guarded._core import clock


@pytest.fixture(autouse=True)
def _clean_slate() -> Iterator[None]:
    """Isolate the registry, silence the default sink, and check that no test leaves a virtual clock behind."""
    level = events.set_level("OFF")
    with registry.isolated():
        yield
    events.set_level(level)
    assert clock.installed() is None
