"""Leases of the calls of this process: renewed at a third of their length, and told when they have ended all the same.

One chore for a limit, there only while calls hold permits. Times are monotonic seconds.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from guarded._core import clock
from guarded._core.call import Call
from guarded._core.fork import after_fork
from guarded._core.token import Token
from guarded.events.bus import bus
from guarded.stores.upkeep import upkeep

if TYPE_CHECKING:
    from guarded.policies.limit import Limit
    from guarded.stores.contract.limit import LimitStore, Pledge
    from guarded.stores.health import Access

_LOOKS: Final = 6  # looks at each lease during its length; it is renewed at every second one


class _Tether(Token):
    """Fires when one of the leases that a call holds has ended, and with the token around them.

    One for all of them, since permits taken by hand may be given back in any order.
    """

    call: Call
    outer: Token | None
    leases: set[Lease]


def _tether(call: Call, leases: set[Lease]) -> _Tether:
    """Put a new one on a call that has none."""
    outer = call.token
    token = _Tether() if outer is None else _Tether.any(outer)
    token.call, token.outer, token.leases = call, outer, leases
    call.token = token
    return token


class Lease:
    """One holder's lease.

    Attributes:
        pledge: what the store knows of it.
        renewed: when the store was asked last, of the times it said yes.
        lost: whether it has ended while the call held.
    """

    __slots__ = ("_call", "_token", "lost", "pledge", "renewed", "since")

    def __init__(self, call: Call, pledge: Pledge) -> None:
        self._call = call
        self.pledge = pledge
        self.since = self.renewed = clock.monotonic()
        self.lost = False
        token = call.token
        if not isinstance(token, _Tether) or token.call is not call or token.cancelled:
            token = _tether(call, set())
        self._token = token
        token.leases.add(self)

    def lose(self, limit: Limit) -> None:
        """It has ended: let the body know."""
        self.lost = True
        held = clock.monotonic() - self.since
        bus.emit("limit.lost", self._call, limit, duration=held, store=limit.options.store.name)
        self._token.cancel(f"the lease of limit {limit.label!r} has ended, and its permit may be another call's")

    def leave(self) -> None:
        """The call goes on without it."""
        call, token = self._call, self._token
        token.leases.discard(self)
        if call.token is not token:
            return
        if not token.leases:
            call.token = token.outer
        elif self.lost and not any(lease.lost for lease in token.leases):
            call.token = token.outer
            fresh = _tether(call, token.leases)
            for lease in tuple(fresh.leases):
                lease._token = fresh


class Leases:
    """All leases of one limit in this process.

    Attributes:
        length: of a lease, in seconds.
    """

    def __init__(self, limit: Limit, store: LimitStore, access: Access, length: float) -> None:
        self._limit = limit
        self._store = store
        self._access = access
        self.length = length
        self._held: dict[Lease, None] = {}
        self._reset()
        after_fork(self, Leases._reset)

    def _reset(self) -> None:
        for lease in self._held:
            lease.lost = True  # of a parent process: its to renew, and to give back
        self._lock = threading.Lock()
        self._held = {}
        self._looking = False

    @property
    def permits(self) -> int:
        """Permits held in this process."""
        return sum(lease.pledge.permits for lease in tuple(self._held))

    def begin(self, call: Call, pledge: Pledge) -> Lease:
        """A lease that the store has just granted. RuntimeError when there is no thread to renew it."""
        lease = Lease(call, pledge)
        start = False
        try:
            with self._lock:
                self._held[lease] = None
                start = not self._looking
                self._looking = True
            if start:
                upkeep.every(self.length / _LOOKS, self._look)
        except BaseException:
            with self._lock:
                self._held.pop(lease, None)
                self._looking = self._looking and not start
            lease.leave()
            raise
        return lease

    def end(self, lease: Lease) -> None:
        """The holder gives it back."""
        with self._lock:
            self._held.pop(lease, None)
        lease.leave()

    def _look(self) -> bool:
        """Renew what is due; whether to look again."""
        with self._lock:
            leases = tuple(self._held)
            self._looking = bool(leases)
        for lease in leases:
            if clock.monotonic() - lease.renewed >= self.length / _LOOKS:
                self._renew(lease)
        return bool(leases)

    def _renew(self, lease: Lease) -> None:
        asked = clock.monotonic()
        renewed = self._access.tell(self._store.renew, lease.pledge)
        if renewed:
            lease.renewed = asked
        elif renewed is False or asked - lease.renewed >= self.length:
            with self._lock:
                held = self._held.pop(lease, self) is None
            if held:
                lease.lose(self._limit)
