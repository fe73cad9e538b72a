"""The layers of a guarded function for one delivery by a queue: a retry makes one attempt, and leaves the wait to it.

The call is unwound with a `Leave`, which every layer around takes for no outcome at all: a slot comes free, a key is
released, nothing is counted. Delays are seconds.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

from guarded._core.call import Call
from guarded._core.policy import Args, AsyncNext, Fn, Kwargs, Policy, Site, SyncNext
from guarded.errors import Rejected
from guarded.policies._retry.core import encloses
from guarded.policies._retry.run import Done, Layer, Run
from guarded.policies.retry import Retry


class Leave(BaseException):
    """Unwinds a delivery whose next attempt is another one, `delay` seconds later.

    Args:
        delay: seconds.
        cause: what the attempt raised; None when its result was refused.
    """

    def __init__(self, delay: float, cause: Exception | None) -> None:
        super().__init__(delay)
        self.delay = delay
        self.cause = cause


@dataclass(slots=True)
class Delivery:
    """One delivery while it is worked on.

    Attributes:
        attempt: its number among those in which the function began.
        began: whether the function has begun in this one.
    """

    attempt: int
    began: bool = False


delivering: ContextVar[Delivery | None] = ContextVar("guarded_delivery", default=None)


def _current() -> Delivery:
    return cast("Delivery", delivering.get())


@dataclass(frozen=True, slots=True)
class DeliveryOptions:
    """The layers as decorated; names are looked up when needed."""

    layers: tuple[Policy[Any], ...]


class DeliveryStack(Policy[DeliveryOptions]):
    """Stands for the layers of a function, for one delivery."""

    kind = "guard"

    def expand(self) -> tuple[Policy[Any], ...]:
        """Each retry makes one attempt; innermost it is noted that the function begins."""
        known = [each for layer in self.options.layers for each in layer.expand()]
        return (*[OneAttempt(each) if isinstance(each, Retry) else each for each in known], Beginning(None))


class Beginning(Policy[None]):
    """Notes that the function begins: what is raised from here on is no refusal of the task."""

    kind = "task"

    def sync_layer(self, proceed: SyncNext, site: Site) -> SyncNext:
        """See `Policy.sync_layer`."""

        def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
            _current().began = True
            return proceed(call, fn, args, kwargs)

        return shell

    def async_layer(self, proceed: AsyncNext, site: Site) -> AsyncNext:
        """See `Policy.async_layer`."""

        async def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
            _current().began = True
            return await proceed(call, fn, args, kwargs)

        return shell


class OneAttempt(Policy[Any]):
    """A retry that decides as ever, and whose next attempt is the next delivery."""

    kind = "retry"

    def __init__(self, retry: Retry) -> None:
        super().__init__(retry.options)
        self._retry = retry

    def check(self, site: Site) -> None:
        """See `Policy.check`."""
        self._retry.check(site)

    def sync_layer(self, proceed: SyncNext, site: Site) -> SyncNext:
        """See `Policy.sync_layer`."""
        layer = Layer(self._retry, site)

        def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
            visit = _Visit(layer, call, args, kwargs)
            try:
                verdict = visit.look_first()
                if isinstance(verdict, Done):
                    return verdict.value
                try:
                    result = proceed(call, fn, args, kwargs)
                except Exception as error:
                    leave = visit.failed(error)
                    if leave is None:
                        raise
                else:
                    leave = visit.returned(result)
                    if leave is None:
                        return result
                raise leave
            finally:
                visit.end()

        return shell

    def async_layer(self, proceed: AsyncNext, site: Site) -> AsyncNext:
        """See `Policy.async_layer`."""
        layer = Layer(self._retry, site)

        async def shell(call: Call, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
            visit = _Visit(layer, call, args, kwargs)
            try:
                verdict = visit.look_first()
                if hasattr(type(verdict), "__await__"):
                    verdict = await verdict
                if isinstance(verdict, Done):
                    return verdict.value
                try:
                    result = await proceed(call, fn, args, kwargs)
                except Exception as error:
                    leave = visit.failed(error)
                    if leave is None:
                        raise
                else:
                    leave = visit.returned(result)
                    if leave is None:
                        return result
                raise leave
            finally:
                visit.end()

        return shell


class _Visit:
    """One call on its way through a `OneAttempt`."""

    __slots__ = ("_args", "_call", "_kwargs", "_layer", "_outer")

    def __init__(self, layer: Layer, call: Call, args: Args, kwargs: Kwargs) -> None:
        self._layer = layer
        self._call = call
        self._args = args
        self._kwargs = kwargs
        self._outer = call.attempt
        call.attempt = _current().attempt
        call.count_attempt(call.attempt)
        if layer.budget is not None and call.attempt == 1:
            layer.budget.deposit()

    def look_first(self) -> Any:
        """Ask the hook before a further attempt; the error of the one before has stayed in its own delivery."""
        hook, attempt = self._layer.hook, _current().attempt
        return None if hook is None or attempt == 1 else hook(None, attempt - 1)

    def failed(self, error: Exception) -> Leave | None:
        """What follows an error: another delivery, or None when it is the end of it."""
        if (isinstance(error, Rejected) and not _current().began) or encloses(error, self._call.until):
            return None  # nothing was tried: the task comes again for that; or the time for this delivery is over
        return self._leave(error, None)

    def returned(self, result: Any) -> Leave | None:
        """The same for a result."""
        on_result = self._layer.on_result
        if on_result is not None and on_result(result):
            return self._leave(None, result)
        if self._call.attempt != 1:
            self._run().recovered()
        return None

    def _leave(self, error: Exception | None, result: Any) -> Leave | None:
        deadline, self._call.deadline = self._call.deadline, None  # the next delivery has one of its own
        try:
            delay = self._run().next_delay(error, result)
        finally:
            self._call.deadline = deadline
        return None if delay is None else Leave(delay, error)

    def _run(self) -> Run:
        return Run(self._layer, self._call, self._outer, self._args, self._kwargs)

    def end(self) -> None:
        """The call goes back to what is around."""
        self._call.attempt = self._outer
