"""How a rate directly inside a limit waits: holding no permit, and no rate while it waits for a permit.

The rate's layer raises `MustWait` through the limit, which gives its permits back as for any BaseException. The loop
around the limit then waits for the due time, and runs the limit again. While the limit has no permit free, the turn
is withdrawn, so that others may use the rate; it keeps its place and is first again once there is a permit.
"""

from __future__ import annotations

from typing import Any, Protocol

from guarded._core.call import Call
from guarded._core.policy import Args, AsyncNext, Fn, Kwargs, Site, SyncNext


class Turn(Protocol):
    """A place in a rate's queue, between two tries of one call."""

    def wait(self) -> None:
        """Block until it is due."""

    async def wait_async(self) -> None:
        """The same for the running task."""

    def withdraw(self) -> None:
        """Let others have what is booked for it, but keep the place."""

    def abandon(self) -> None:
        """Give the place up; harmless when that was done, or when it was used."""


class MustWait(BaseException):
    """The rate is used up: give back what is held, and wait for the turn."""

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self.turn = turn


def waits_outside(site: Site) -> bool:
    """Whether a rate at `site` may raise MustWait, because nothing but limits is around it up to the loop."""
    return bool(site.outer) and site.outer[-1].kind == "limit"


def is_sent_back(site: Site) -> bool:
    """Whether the limit at `site` is the first of a run of limits that ends in a rate, so that it meets MustWait."""
    if site.outer and site.outer[-1].kind == "limit":
        return False
    below = next((layer.kind for layer in site.inner if layer.kind != "limit"), None)
    return below == "rate"


def take_turns(turn: Turn, shell: SyncNext, call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
    """Wait for `turn` without a permit and run `shell`, that of the limit, again; as often as it takes."""
    try:
        while True:
            turn.wait()
            call.turn = turn
            try:
                return shell(call, fn, args, kwargs)
            except MustWait as must:
                turn = must.turn
    finally:
        call.turn = None
        turn.abandon()


async def take_turns_async(turn: Turn, shell: AsyncNext, call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
    """The same for a task."""
    try:
        while True:
            await turn.wait_async()
            call.turn = turn
            try:
                return await shell(call, fn, args, kwargs)
            except MustWait as must:
                turn = must.turn
    finally:
        call.turn = None
        turn.abandon()


def with_turns(shell: SyncNext, site: Site) -> SyncNext:
    """`shell`, that of a limit, so that a rate directly inside waits without a permit."""
    if not is_sent_back(site):
        return shell

    def joint(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        try:
            return shell(call, fn, args, kwargs)
        except MustWait as must:
            turn = must.turn
        return take_turns(turn, shell, call, fn, args, kwargs)

    return joint


def with_turns_async(shell: AsyncNext, site: Site) -> AsyncNext:
    """`with_turns` for coroutine functions."""
    if not is_sent_back(site):
        return shell

    async def joint(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        try:
            return await shell(call, fn, args, kwargs)
        except MustWait as must:
            turn = must.turn
        return await take_turns_async(turn, shell, call, fn, args, kwargs)

    return joint
