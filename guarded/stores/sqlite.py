"""A store in one SQLite file: durable on one machine, shared by its processes; rates and idempotency records.

Every decision is one transaction, made by the same code that decides in memory. Needs a local disk: SQLite's log mode
does not work on network file systems. A process that is stopped (SIGSTOP) in the middle of a step keeps the file
from the others until it goes on or ends; they treat that as a failing store. Times are seconds.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from guarded._core.durations import Duration
from guarded.stores import StoreProblem
from guarded.stores._address import opened_again, read_times
from guarded.stores._sqlite.link import Link
from guarded.stores.health import PROBE, Health

if TYPE_CHECKING:
    from guarded.stores._sqlite.rates import SQLiteRates
    from guarded.stores._sqlite.records import SQLiteRecords

TIMEOUT = 2.0
_DEFAULTS: Final = {"timeout": TIMEOUT, "probe": PROBE}
_SCHEME = "sqlite:///"


class SQLiteStore:
    """State shared by all processes of this machine that use the same file.

    Made by `guarded.stores.open_store`, so that there is one for each address in a process. The file and its tables are
    made at the first step; keep them from other users' eyes by the rights of the folder.

    Args:
        url: ``sqlite:///relative/path`` or ``sqlite:////absolute/path``; ``~`` is the home folder.
        timeout: how long one step may wait for other processes before the store counts as failed; default 2 s.
        probe: how often a failed store is tried; default 1 s.

    Raises:
        StoreProblem: a ValueError, naming every wrong option.
    """

    def __init__(self, url: str, *, timeout: Duration = TIMEOUT, probe: Duration = PROBE) -> None:
        problems: list[str] = []
        times = {"timeout": timeout, "probe": probe}
        seconds = read_times(times, problems)
        path = url.removeprefix(_SCHEME)
        if path == url or not path or path == ":memory:" or path.endswith("/"):
            problems.append(f"url={url!r}: must name a file: sqlite:///relative/path or sqlite:////absolute/path")
        if problems:
            raise StoreProblem("store: " + "; ".join(problems))
        self.link: Link = Link(os.path.abspath(os.path.expanduser(path)), seconds["timeout"])
        self.name: str = f"{_SCHEME}{self.link.path}"
        self.health: Health = Health(self.name, seconds["probe"])
        self._again = opened_again(url, times, _DEFAULTS)

    @cached_property
    def rates(self) -> SQLiteRates:
        """For `rate`."""
        from guarded.stores._sqlite.rates import SQLiteRates

        return SQLiteRates(self)

    @cached_property
    def idempotent(self) -> SQLiteRecords:
        """For `idempotent`."""
        from guarded.stores._sqlite.records import SQLiteRecords

        return SQLiteRecords(self.link, self.name)

    def close(self) -> None:
        """Close the connection; the next step opens one again."""
        self.link.close()

    def __repr__(self) -> str:
        return f"SQLiteStore({self.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return self._again, ()
