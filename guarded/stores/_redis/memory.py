"""Which memory a server has, as this process knows it: how a flushed or restarted server is found out.

Leases live in the server's memory. When that is lost while leases run, the server would lend again what is lent
already. So it names its memory, and is told by each caller which one that caller knew within a lease; see
``limit.lua`` and ``idempotent.lua`` for what it does when they differ.
"""

from __future__ import annotations

from collections.abc import Hashable

from guarded._core import clock

_FEW = 1000


class Memories:
    """What places (pools, shards) and owners were told last, and when."""

    __slots__ = ("_known", "_tidy_at")

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[bytes, float]] = {}  # and until when that means something
        self._tidy_at = _FEW

    def known(self, who: Hashable) -> bytes:
        """What it was told, if that is not a lease ago: the server may have forgotten by itself that anybody held."""
        memory, until = self._known.get(who, (b"", 0.0))
        return memory if clock.monotonic() < until else b""

    def note(self, place: Hashable, owner: str, memory: bytes, lease: float, *, holds: bool) -> None:
        """A reply has come. An owner goes by what it was told when it held, whatever others have learned since."""
        now = clock.monotonic()
        self._known[place] = memory, now + lease
        if holds:
            self._known[owner] = memory, now + lease
        else:
            self._known.pop(owner, None)
        if len(self._known) > self._tidy_at:
            old = [who for who, (_, until) in tuple(self._known.items()) if now >= until]
            for who in old:
                self._known.pop(who, None)
            self._tidy_at = 2 * len(self._known) + _FEW

    def forget(self, owner: str) -> None:
        """It holds nothing any more."""
        self._known.pop(owner, None)
