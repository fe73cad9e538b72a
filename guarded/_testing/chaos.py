"""Chaos: faults and latency put into guarded calls, as though the function below the layers had them.

One draw for each call decides whether it is hit; what is hit is delayed first, then raises. Durations are seconds,
`rate` is a share 0..1.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from guarded._core import chain, waiters
from guarded._core.call import Call
from guarded._core.chain import Chain
from guarded._core.durations import Duration, parse_duration
from guarded._core.policy import Args, AsyncNext, F, Fn, Kwargs, Policy, Site, SyncNext
from guarded._testing.selection import Selection, Target
from guarded.policies._idempotent.results import twin_of

Fault: TypeAlias = "BaseException | type[BaseException] | Callable[[], BaseException]"
Latency: TypeAlias = "Duration | tuple[Duration, Duration]"

_DURING = "delayed by inject"


@dataclass(frozen=True, slots=True)
class ChaosOptions:
    """What `inject` was given, checked; `latency` is the shortest and the longest delay."""

    fault: Fault | None = None
    latency: tuple[float, float] | None = None
    rate: float = 1.0
    seed: int | None = None

    @classmethod
    def checked(cls, fault: Any, latency: Any, rate: Any, seed: Any) -> ChaosOptions:
        """The options, or one ValueError that names every wrong one."""
        found = []
        if fault is None and latency is None:
            found.append("give a fault, a latency, or both")
        if problem := _fault_problem(fault):
            found.append(f"fault={fault!r}: {problem}")
        try:
            latency = None if latency is None else _span(latency)
        except ValueError as error:
            found.append(str(error))
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate <= 1:
            found.append(f"rate={rate!r}: must be a share from 0 to 1")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            found.append(f"seed={seed!r}: must be a whole number")
        if found:
            raise ValueError("inject: " + "; ".join(found))
        return cls(fault, latency, rate, seed)


def _fault_problem(fault: object) -> str | None:
    if isinstance(fault, type):
        if not issubclass(fault, BaseException):
            return "must be a type of exception"
        try:
            fault()
        except Exception:
            return "cannot be made without arguments: give an exception, or a function that makes one"
        return None
    if fault is None or callable(fault) or isinstance(fault, BaseException):
        return None
    return "must be an exception, a type of one, or a function that makes one"


def _span(latency: Any) -> tuple[float, float]:
    if not isinstance(latency, tuple):
        latency = (latency, latency)
    if len(latency) != 2:
        raise ValueError(f"latency={latency!r}: must be a duration, or the shortest and the longest one")
    shortest, longest = (parse_duration(bound, option="latency", allow_zero=True) for bound in latency)
    if shortest > longest:
        raise ValueError(f"latency={latency!r}: the shortest must not be above the longest")
    return shortest, longest


class Chaos(Policy[ChaosOptions]):
    """Faults and latency: a layer by itself, or put into other callables for a block; see `inject`.

    Attributes:
        calls: how many have come by.
        hits: how many of them were hit.
    """

    kind = "inject"

    def __init__(self, targets: tuple[Target, ...], options: ChaosOptions) -> None:
        super().__init__(options)
        self.calls = 0
        self.hits = 0
        self._targets = targets
        self._entered: list[chain.Rewrite] = []
        self._random = random.Random(options.seed)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        options = self.options
        fault = options.fault if options.fault is None else getattr(options.fault, "__qualname__", repr(options.fault))
        return f"inject(fault={fault}, latency={options.latency}, rate={options.rate:g})"

    def _put_on(self, fn: F) -> F:
        if self._targets:
            raise TypeError("inject as a decorator goes on what it decorates: give no targets")
        return super()._put_on(fn)

    def __enter__(self) -> Chaos:
        selection = Selection(self._targets)

        def inside(of: Chain, layers: tuple[Policy[Any], ...]) -> tuple[Policy[Any], ...]:
            meant = selection.means_callable(of) or any(map(selection.means_layer, layers))
            return (*layers, self) if meant else layers

        self._entered.append(inside)
        chain.add_rewrite(inside)
        return self

    def __exit__(self, *exc_info: object) -> None:
        chain.remove_rewrite(self._entered.pop())

    def _draw(self) -> tuple[float, BaseException | None] | None:
        """How the next call is hit: seconds, and what to raise; None when it is not."""
        options = self.options
        with self._lock:
            self.calls += 1
            if self._random.random() >= options.rate:
                return None
            self.hits += 1
            seconds = 0.0 if options.latency is None else self._random.uniform(*options.latency)
        return seconds, None if options.fault is None else _fresh(options.fault)

    def sync_layer(self, proceed: SyncNext, site: Site) -> SyncNext:
        """Delay and fail in the caller's thread."""

        def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
            hit = self._draw()
            if hit is not None:
                seconds, fault = hit
                waiters.sleep(call, seconds, _DURING)
                if fault is not None:
                    raise fault
            return proceed(call, fn, args, kwargs)

        return shell

    def async_layer(self, proceed: AsyncNext, site: Site) -> AsyncNext:
        """Delay and fail in the caller's task."""

        async def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
            hit = self._draw()
            if hit is not None:
                seconds, fault = hit
                await waiters.sleep_async(call, seconds, _DURING)
                if fault is not None:
                    raise fault
            return await proceed(call, fn, args, kwargs)

        return shell


def _fresh(fault: Fault) -> BaseException:
    """An exception that nobody has raised yet."""
    if isinstance(fault, BaseException):
        return twin_of(fault) if isinstance(fault, Exception) else type(fault)(*fault.args)
    made = fault()
    if not isinstance(made, BaseException):
        raise TypeError(f"inject: fault gave {made!r}, which is no exception")
    return made


def inject(
    *targets: Target,
    fault: Fault | None = None,
    latency: Latency | None = None,
    rate: float = 1.0,
    seed: int | None = None,
) -> Chaos:
    """Faults and latency, as a decorator or for the length of a ``with`` block.

    As a decorator it is a layer where it stands. As a block it stands between the layers and the function of every
    callable that is meant, so that all layers see what the function seems to do; of a generator, before its first item.
    Each attempt of a retry is a call. Delays obey deadlines, tokens, `virtual_time` and `no_wait`.

    Args:
        targets: of a block: kinds (``"retry"``), names of policies or stacks, policies, or guarded callables; callables
            with such a layer are meant. Nothing means every guarded callable.
        fault: what to raise: a type, an exception (raised as a copy), or a function that makes one. Default nothing.
        latency: how long to wait first: a duration, or the shortest and the longest. Default not at all.
        rate: share of calls that are hit, 0..1. Default 1.
        seed: makes the draws the same each time. Default None.

    Raises:
        ValueError: naming every wrong option.
        PolicyNotFound, TypeError: at the block's beginning, for targets that are nothing known.

    Example:
        >>> from guarded import retry
        >>> from guarded.testing import inject
        >>> @retry(retries=1, base="1ms")
        ... def fetch() -> str:
        ...     return "page"
        >>> with inject(fetch, fault=ConnectionError) as chaos:
        ...     fetch()
        Traceback (most recent call last):
        ConnectionError
        >>> chaos.hits
        2
    """
    return Chaos(targets, ChaosOptions.checked(fault, latency, rate, seed))
