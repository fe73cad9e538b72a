"""Switches for tests: layers off, waits that take no time, circuits in a given state.

A switch is thrown for the whole process, all threads and loops, and undone when its block ends, however it ends. Calls
that run already go on as they began.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from guarded._core import chain, waiters
from guarded._core.policy import Policy
from guarded._core.registry import registry
from guarded._testing.selection import Selection, Target

if TYPE_CHECKING:
    from guarded._core.chain import Chain
    from guarded.policies.circuit import Circuit

Forced: TypeAlias = Literal["closed", "open", "half-open", "isolated"]


@contextmanager
def disabled(*targets: Target) -> Iterator[None]:
    """Let guarded callables run bare, or without the layers that are meant.

    Args:
        targets: kinds (``"retry"``), names of policies or stacks, policies, or guarded callables, which then run
            without any layer; nothing means every layer of every callable.

    Blocks (``with db_limit:``) and permits taken by hand are as ever; a `hedge` does not miss an `idempotent` that is
    off. Raises PolicyNotFound for a word that is neither a kind nor a registered name, TypeError for anything else.

    Example:
        >>> from guarded import retry
        >>> from guarded.testing import disabled
        >>> @retry(retries=3)
        ... def fetch() -> None:
        ...     print("called")
        ...     raise ConnectionError
        >>> with disabled("retry"):
        ...     fetch()
        Traceback (most recent call last):
        ConnectionError
    """
    selection = Selection(targets)

    def without(of: Chain, layers: tuple[Policy[Any], ...]) -> tuple[Policy[Any], ...]:
        if selection.means_callable(of):
            return ()
        return tuple([layer for layer in layers if not selection.means_layer(layer)])

    chain.add_rewrite(without)
    try:
        yield
    finally:
        chain.remove_rewrite(without)


@contextmanager
def no_wait() -> Iterator[None]:
    """End at once, as though their time had passed, the waits that wait for nothing but time; no clock moves.

    These are the backoff of `retry`, the due times of `rate`, `guarded.sleep` and `guarded.asleep` (which let other
    tasks run once), and the latency of `inject`. A wait that would outlast its deadline ends with DeadlineExceeded. A
    wait for somebody takes as long as that takes: for a permit of a `limit`, a duplicate to join, the body under a
    `deadline`, the copies of a `hedge`. Since time stands still, deadlines come no nearer, nothing expires and no
    circuit recovers by itself: where that matters, use `virtual_time`.
    """
    waiters.skip(1)
    try:
        yield
    finally:
        waiters.skip(-1)


@contextmanager
def force(circuit: Circuit | str, state: Forced) -> Iterator[Circuit]:
    """Put a circuit, or that of the name, into `state`; after the block it is what it was before.

    The state begins anew, with nothing counted, and goes on by its own rules: an open circuit lets trials through when
    its time is over; use ``"isolated"`` for one that stays shut. What calls in flight at either end of the block
    come to is counted nowhere. Listeners and events are told both changes.

    Of a circuit in a store, this process decides by itself inside the block: the store is neither asked nor changed,
    and other processes notice nothing. A call that began before the block is counted there.

    Raises:
        ValueError: no such state.
        PolicyNotFound, TypeError: no such circuit.
    """
    from guarded.policies.circuit import Circuit as CircuitPolicy  # brings no breaker along, but takes a while

    if state not in get_args(Forced):
        raise ValueError(f"state={state!r}: must be one of {', '.join(map(repr, get_args(Forced)))}")
    policy = registry[circuit] if isinstance(circuit, str) else circuit
    if not isinstance(policy, CircuitPolicy):
        raise TypeError(f"{policy!r} is no circuit")

    local = policy.local
    before = local.force(state)
    try:
        yield policy
    finally:
        local.unforce(before)
