"""The permits of a limit: who holds, who waits, who is next.

Invariants: free + held = total at rest; nobody waits while the head of the queue could be served; nobody overtakes the
head; one wake-up per grant. Counts are permits.

A permit that was used once lies in the list `tokens` while free. Taking one is a deletion without the lock, allowed
while `slow` is False; giving one back an ``append``, then a look at `slow`. Whoever must act on what comes back (a
waiter, a shrunk limit) sets `slow` first and then looks at the list. So either it finds the permit there, or the append
came later, hence after `slow` was set, and its thread sees that and asks for a decision. This needs no more than atomic
list operations, with the GIL or without. A deletion is no call, after which a signal handler could raise before it is
noted that the permit was taken.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from guarded._core.keys import Key
from guarded._core.monitor import Monitor
from guarded._core.waiters import TaskWaiter
from guarded.errors import LimitReason
from guarded.policies._limit.queue import CLOSED, GONE, GRANTED, TAKEN, WAITING, Entry, State, WaitQueue


@dataclass(frozen=True, slots=True)
class LimitSnapshot:
    """State of a limit at one moment.

    Attributes:
        limit: permits at once; of each key, when there are keys.
        held: permits out, those handed to a waiter that has not resumed yet included.
        queued: live waiters.
        oldest_wait: seconds that the longest waiter has waited; 0 when nobody waits.
        keys: keys somebody holds or waits for; None without ``key``.
    """

    limit: int
    held: int
    queued: int
    oldest_wait: float
    keys: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


class Pool(Monitor):
    """The permits of one limit, or of one key of it.

    Attributes:
        limit: permits at once; 0 pauses.
        total: permits in existence, held or in `tokens`; up to `limit` they are made when needed, and above it, after
            the limit shrank, they are destroyed as they come back.
        tokens: permits ready to be taken.
        slow: whether taking and giving back need a decision: somebody waits, the limit shrank or is closed.
        max_queue: live waiters allowed; None for any number.
        key, home, users: for a pool of one key: which, of which `KeyedPools`, and how many callers have it in use.
    """

    __slots__ = ("_loops", "closed", "home", "key", "limit", "max_queue", "queue", "slow", "tokens", "total", "users")

    def __init__(self, limit: int, max_queue: int | None, *, home: KeyedPools | None = None, key: Key = None) -> None:
        super().__init__()
        self.limit = limit
        self.max_queue = max_queue
        self.home = home
        self.key = key
        self.users = 0
        self.total = 0
        self.tokens: list[bool] = []
        self.slow = False
        self.closed = False
        self.queue = WaitQueue()
        self._loops: dict[AbstractEventLoop, set[Entry]] = {}  # entries that a closing loop would leave behind

    @property
    def held(self) -> int:
        """Permits out."""
        return self.total - len(self.tokens)

    def quick(self) -> bool:
        """Take one permit without the lock, if nothing speaks against it."""
        if self.slow:
            return False
        try:
            del self.tokens[-1]
        except IndexError:
            return False
        return True

    def take(self, weight: int, priority: int) -> bool:
        """Take permits without waiting, unless that would overtake the head of the queue."""
        taken = False
        try:
            with self, self._lock:
                if self.closed:
                    return False
                if self.slow and self.held < self.limit:
                    self._grant()  # what a signal handler kept from being handed on
                if self.queue.goes_first(priority):
                    taken = self._collect(weight)
                    self._settle()
                if not taken and self._loops and self._rescue() and self.queue.goes_first(priority):
                    taken = self._collect(weight)
                    self._settle()
        except BaseException:  # of a signal handler
            if taken:
                self.give_back(weight)
            raise
        return taken

    def join(self, entry: Entry) -> LimitReason | None:
        """Take permits for `entry` (then it is TAKEN) or queue it (WAITING); a reason when neither is possible."""
        with self, self._lock:
            if self.closed:
                entry.state = CLOSED
                return "closed"
            self.slow = True  # before the last look at the tokens
            is_head = self.queue.goes_first(entry.priority)
            self.queue.add(entry)
            if is_head:
                self._grant()
            if entry.state is GRANTED:
                entry.state = TAKEN
            elif self.max_queue is not None and len(self.queue) > self.max_queue:
                self.queue.remove(entry)
                entry.state = GONE
                self._settle()
                return "queue_full"
            elif isinstance(entry.waiter, TaskWaiter):
                self._loops.setdefault(entry.waiter.loop, set()).add(entry)
            return None

    def resume(self, entry: Entry) -> State:
        """The caller of `entry` runs again: TAKEN, CLOSED, or GONE when it was not served in time."""
        with self, self._lock:
            self._forget(entry)
            if entry.state is GRANTED:
                entry.state = TAKEN
            elif entry.state is WAITING:
                self._drop(entry)
                self._grant()
            return entry.state

    def abandon(self, entry: Entry) -> None:
        """The caller of `entry` will not go on; what it was handed goes to the next. Safe in finalizers."""
        self.post(entry)

    def give_back(self, weight: int) -> None:
        """Return held permits. Safe in finalizers."""
        try:
            if weight == 1:
                self.tokens.append(True)
            else:
                self.tokens.extend((True,) * weight)
            if self.slow:
                self.post(None)
        except BaseException:  # of a signal handler: others wait for them
            self.post(None)
            raise

    def depart(self) -> None:
        """A caller has done with this pool; where it is one key's, it may go. Safe in finalizers."""
        if self.home is not None:
            self.home.post(self)

    def allow(self, max_queue: int | None) -> None:
        """Set how many may wait from now on."""
        self.max_queue = max_queue

    def resize(self, limit: int) -> None:
        """Set the limit; never blocks. Holders finish, waiters are served as far as it goes."""
        with self, self._lock:
            self.limit = limit
            self.slow = True  # before the last look at the tokens
            self._grant()

    def close(self) -> None:
        """Refuse from now on, waiters included."""
        with self, self._lock:
            self.closed = self.slow = True
            for entry in tuple(self.queue):
                self._drop(entry)
                entry.state = CLOSED
                self._outgoing.append(entry)
            self._loops.clear()

    def snapshot(self, now: float) -> LimitSnapshot:
        """Count everything at one moment."""
        with self, self._lock:
            oldest = self.queue.oldest()
            wait = 0.0 if oldest is None else max(0.0, now - oldest)
            return LimitSnapshot(self.limit, self.held, len(self.queue), wait)

    def _handle(self, message: Entry | None) -> None:
        """An entry was abandoned, or (None) permits came back."""
        if message is not None:
            self._forget(message)
            self._drop(message)
        self._grant()

    def _drop(self, entry: Entry) -> None:
        """End an entry that has not resumed, returning what it was granted."""
        if entry.state is WAITING:
            self.queue.remove(entry)
        elif entry.state is GRANTED:
            self.tokens.extend((True,) * entry.weight)
        else:
            return
        entry.state = GONE

    def _grant(self) -> None:
        """Serve the head of the queue as often as the permits allow."""
        while (entry := self.queue.head()) is not None:
            if entry.state is WAITING:  # else a signal handler raised when it had just been granted
                if not self._collect(entry.weight):
                    break
                entry.state = GRANTED
            self.queue.remove(entry)
            self._outgoing.append(entry)
        self._settle()

    def _collect(self, weight: int) -> bool:
        """Take `weight` permits, or none of them."""
        if self.total > self.limit:
            self._shrink()
        held = self.total - len(self.tokens)
        if held + weight > self.limit and (held or not self.limit):
            return False
        ready = 0
        try:
            while ready < weight and self._pop():
                ready += 1
            missing = weight - ready
            alone = ready == self.total and self.limit > 0  # a weight that a shrunk limit cannot hold runs by itself
            if self.total + missing <= self.limit or alone:
                self.total += missing
                ready = 0
                return True
        finally:
            if ready:
                self.tokens.extend((True,) * ready)
        return False

    def _shrink(self) -> None:
        while self.total > self.limit and self._pop():
            self.total -= 1

    def _pop(self) -> bool:
        while self.tokens:
            try:
                del self.tokens[-1]
            except IndexError:
                continue  # another thread was faster; perhaps there are more
            return True
        return False

    def _settle(self) -> None:
        """Leave the fast way open only while nothing needs a decision."""
        if self.total > self.limit:
            self._shrink()
        self.slow = self.closed or len(self.queue) > 0 or self.total > self.limit

    def _rescue(self) -> bool:
        """Hand on what closed loops have left behind, before anybody has to wait for it: whether there was any."""
        closed = [loop for loop in self._loops if loop.is_closed()]
        for loop in closed:
            for entry in self._loops.pop(loop):
                self._drop(entry)
        if closed:
            self._grant()
        return bool(closed)

    def _forget(self, entry: Entry) -> None:
        if isinstance(entry.waiter, TaskWaiter) and (entries := self._loops.get(entry.waiter.loop)) is not None:
            entries.discard(entry)
            if not entries:
                del self._loops[entry.waiter.loop]

    def _carry_out(self, decision: Entry) -> None:
        """Wake one whose wait is over; when that cannot be, its loop is dead and it is abandoned."""
        if decision.state in (TAKEN, GONE):
            return  # it found out by itself
        try:
            if not isinstance(decision.waiter, TaskWaiter):
                decision.waiter.wake()
            elif not decision.waiter.wake(on_lost=partial(self.post, decision)):
                self.post(decision)
        except BaseException:  # of a signal handler: to be woken twice does no harm
            self._outgoing.appendleft(decision)
            raise


class KeyedPools(Monitor):
    """One pool per key, alive while somebody holds or waits for its permits.

    Attributes:
        limit: permits at once of each key.
        max_queue: live waiters allowed per key.
    """

    __slots__ = ("_pools", "closed", "limit", "max_queue")

    def __init__(self, limit: int, max_queue: int | None) -> None:
        super().__init__()
        self.limit = limit
        self.max_queue = max_queue
        self.closed = False
        self._pools: dict[Key, Pool] = {}

    def enter(self, key: Key) -> Pool:
        """The pool of `key`, kept until `Pool.depart`."""
        with self, self._lock:
            pool = self._pools.get(key)
            if pool is None:
                pool = self._pools[key] = Pool(self.limit, self.max_queue, home=self, key=key)
                if self.closed:
                    pool.close()
            pool.users += 1
            return pool

    def allow(self, max_queue: int | None) -> None:
        """Set how many may wait for each key from now on."""
        with self, self._lock:
            self.max_queue = max_queue
            for pool in self._pools.values():
                pool.allow(max_queue)

    def resize(self, limit: int) -> None:
        """Set the limit of every key."""
        with self, self._lock:
            self.limit = limit
            for pool in self._pools.values():
                pool.resize(limit)

    def close(self) -> None:
        """Refuse every key from now on, waiters included."""
        with self, self._lock:
            self.closed = True
            for pool in self._pools.values():
                pool.close()

    def snapshot(self, now: float) -> LimitSnapshot:
        """Sums over all keys; the longest wait of any."""
        with self, self._lock:
            pools = tuple(self._pools.values())
        parts = [pool.snapshot(now) for pool in pools]
        return LimitSnapshot(
            self.limit,
            sum(part.held for part in parts),
            sum(part.queued for part in parts),
            max((part.oldest_wait for part in parts), default=0.0),
            len(pools),
        )

    def _handle(self, message: Pool) -> None:
        message.users -= 1
        if not message.users:
            del self._pools[message.key]
