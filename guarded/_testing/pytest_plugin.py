"""Fixtures for pytest, there as soon as guarded is installed; each takes effect for one test and is undone after it.

Loaded by every pytest run of everybody who has guarded installed: it imports nothing until a fixture is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from guarded._core.registry import Registry
    from guarded._core.virtual import VirtualTime
    from guarded.events.model import Event


@pytest.fixture
def guarded_time() -> Iterator[VirtualTime]:
    """Virtual time: guarded waits take no real time, and ``guarded_time.advance(60)`` moves it by hand."""
    from guarded.testing import virtual_time

    with virtual_time() as time:
        yield time


@pytest.fixture
def guarded_events() -> Iterator[list[Event]]:
    """The events of the test, of all levels, as a list that grows."""
    from guarded.testing import capture

    with capture() as events:
        yield events


@pytest.fixture
def guarded_registry() -> Iterator[Registry]:
    """The registry, empty for this test: names given in it collide with no others and are forgotten after it."""
    from guarded import registry

    with registry.isolated():
        yield registry


@pytest.fixture
def guarded_no_wait() -> Iterator[None]:
    """Backoffs, rates and ``guarded.sleep`` wait for nothing, and time stands still."""
    from guarded.testing import no_wait

    with no_wait():
        yield


@pytest.fixture
def guarded_disabled() -> Iterator[None]:
    """Guarded callables run bare."""
    from guarded.testing import disabled

    with disabled():
        yield
