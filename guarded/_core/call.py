"""One guarded call while it runs: the state that its layers share.

A `Call` is made by the wrapper for each call, handed down the chain, and published in one context
variable, so that the body and everything it calls can find its deadline, token and attempt. Whoever
runs the rest of the chain concurrently (a worker thread, a hedge) works on a `fork`.

Times are seconds of the monotonic clock.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from contextvars import ContextVar
from contextvars import Token as Mark
from math import inf
from typing import Any, Self

from guarded._core import clock
from guarded._core.token import Token
from guarded.errors import DeadlineExceeded

_serial = itertools.count(1)
_process = os.urandom(4).hex()


def _new_process_prefix() -> None:
    global _process
    _process = os.urandom(4).hex()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_process_prefix)


class Deadline:
    """An absolute point in time, who set it, and what was being waited for last.

    One object is shared by all calls it encloses, so that the layer which set it can say what it cut short.
    """

    __slots__ = ("during", "enforced", "length", "policy", "until")

    def __init__(self, until: float, policy: str | None = None, length: float | None = None) -> None:
        self.until: float = until
        self.policy: str | None = policy
        self.length: float | None = length  # seconds it gave in all; None where only the point is known
        self.during: str = "running"
        self.enforced: bool = False  # whether the caller leaves on time even when this thread is blocked


class OwnDeadline(Deadline):
    """The deadline of one call; made so often that its maker fills it in, without an ``__init__`` in between."""

    __slots__ = ()

    __init__ = object.__init__  # pyright: ignore[reportAssignmentType]


class Stream:
    """What the layers of a guarded generator leave with the wrapper that drives it.

    A layer returns as soon as the first item is there; what must last until the end of the stream
    (a held slot, a pending outcome) is put here, innermost layer first.
    """

    __slots__ = ("exits", "step", "thrown")

    def __init__(self, step: Callable[[Callable[[], Any]], Any]) -> None:
        self.exits: list[Callable[[BaseException | None], None]] = []  # called with how the stream ended
        self.step = step  # runs one resumption of the body; a deadline layer puts its own around it
        self.thrown: BaseException | None = None  # what the consumer threw in last


class Call:
    """State of one guarded call, or of a scope that calls are made in.

    Defaults live on the class and no ``__init__`` runs, since one is made for every call.
    """

    parent: Call | None = None
    function: str = ""
    deadline: Deadline | None = None  # the effective one: the earliest of all that enclose this point
    token: Token | None = None
    attempt: int | None = None  # set by a retry layer; None means "ask the parent"
    held: Any = None  # linked list (owner, rest) of what this call holds, for detecting self-deadlock
    key: str | None = None  # derived idempotency key to pass downstream
    spent: Any = None  # linked list [rate, key, mark, cost, rest] of what rates have counted for this call
    turn: Any = None  # place in a rate's queue, while the call goes back to a limit outside of it
    stream: Stream | None = None  # generators only
    attempts: int | None = None  # set by a retry layer once an attempt has failed, for whoever counts
    told: int | None = None  # id of an exception from within whose status an event has told already
    origin: Call | None = None  # what a fork was made from
    _id: str | None = None

    @property
    def id(self) -> str:
        """Short id shared by all events of this call; made on first use."""
        if self._id is None:
            self._id = f"{_process}-{next(_serial):x}"
        return self._id

    @property
    def until(self) -> float:
        """Monotonic time of the effective deadline; ``inf`` without one."""
        return inf if self.deadline is None else self.deadline.until

    def adopt(self, parent: Call) -> None:
        """Take over what an enclosing call or scope gives: deadline and token."""
        self.parent = parent
        self.deadline = parent.deadline
        self.token = parent.token

    def fork(self) -> Call:
        """A copy for a concurrent run of the rest of the chain; shares the id.

        It is a call within this one: what this one holds, it finds there, and only as long as that is held.
        """
        self.id  # noqa: B018 - fixes the id before copying it
        twin = FunctionCall()
        twin.__dict__.update(self.__dict__)
        for name in FunctionCall.__slots__:
            setattr(twin, name, getattr(self, name))
        twin.parent = twin.origin = self
        twin.held = None
        return twin

    def count_attempt(self, attempt: int) -> None:
        """Note that attempt number `attempt` was made, also on the calls this one was forked from."""
        call: Call | None = self
        while call is not None:
            call.attempts = max(call.attempts or 1, attempt)
            call = call.origin


class FunctionCall(Call):
    """A call of a guarded function; made by `call_maker`.

    What every call looks at lies in slots: half the cost of a default on the class.
    """

    __slots__ = ("attempt", "deadline", "function", "held", "parent", "spent", "token", "turn")


def call_maker(function: str) -> Callable[[Call | None], Call]:
    """What makes the calls of one function, each within the call or scope around it."""

    def make(parent: Call | None) -> Call:
        call = FunctionCall()
        call.function = function
        call.parent = parent
        call.attempt = call.held = call.spent = call.turn = None
        if parent is None:
            call.deadline = call.token = None
        else:
            call.deadline = parent.deadline
            call.token = parent.token
        return call

    return make


current: ContextVar[Call | None] = ContextVar("guarded_call", default=None)


class Scope(Call):
    """What a ``with`` block puts into the context, so that the calls in it are made within it.

    Args:
        owner: the object that the block was opened with; it may open others meanwhile.
        function: what events and errors call the block.
    """

    _mark: Mark[Call | None]

    def __init__(self, owner: object, function: str) -> None:
        self._owner = owner
        self.function = function
        around = current.get()
        if around is not None:
            self.adopt(around)

    def enter(self) -> None:
        """Let the block begin."""
        self._mark = current.set(self)

    @classmethod
    def leave(cls, owner: object) -> Self:
        """End the innermost block of `owner`: the scope it was."""
        scope = current.get()
        while not isinstance(scope, cls) or scope._owner is not owner:
            if scope is None:
                raise RuntimeError(f"the with block of {owner!r} was left in another context than it was entered in")
            scope = scope.parent  # a call or block that a signal handler cut off before it was left
        current.reset(scope._mark)
        return scope


def holds(call: Call | None, owner: object) -> bool:
    """Whether `call` or a call around it holds `owner`."""
    while call is not None:
        node = call.held
        while node is not None:
            if node[0] is owner:
                return True
            node = node[1]
        call = call.parent
    return False


def attempt() -> int:
    """Number of the running attempt of the nearest enclosing retry; 1 is the first call, also outside any retry."""
    call = current.get()
    while call is not None:
        if call.attempt is not None:
            return call.attempt
        call = call.parent
    return 1


def remaining() -> float:
    """Seconds left before the effective deadline: ``inf`` without one, never below 0."""
    call = current.get()
    return inf if call is None or call.until == inf else max(0.0, call.until - clock.monotonic())


def idempotency_key() -> str | None:
    """The key of the nearest enclosing idempotent call, derived for passing downstream; None outside one."""
    call = current.get()
    while call is not None:
        if call.key is not None:
            return call.key
        call = call.parent
    return None


def out_of_time(call: Call, during: str | None = None) -> DeadlineExceeded:
    """The error for a call whose effective deadline has passed."""
    deadline = call.deadline or Deadline(clock.monotonic())
    during = during or deadline.during
    name = f"deadline {deadline.policy!r}" if deadline.policy else "the deadline"
    return DeadlineExceeded(
        f"{call.function or 'call'}: {name} passed while {during}; allow more time or do less in the call",
        policy=deadline.policy,
        during=during,
        until=deadline.until,
    )
