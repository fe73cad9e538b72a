"""Guarded functions as tasks of a queue: what would wait in a worker is delivered again later. Shared by all queues.

Each delivery is one attempt. Where the stack has a retry, its decision stays and its sleep goes; a rejection before the
function has begun leads to another delivery too, and costs no attempt. What has to be known then travels with the
message, as `Progress`. A deadline counts for each delivery anew. Delays are seconds.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from guarded._core.keys import amount_problem
from guarded._core.policy import Args, Kwargs, Policy
from guarded._core.wrapper import Guarded, decorate
from guarded.errors import Rejected
from guarded.integrations._queue.delivery import Delivery, DeliveryOptions, DeliveryStack, Leave, delivering
from guarded.stack import guard

Part: TypeAlias = "Policy[Any] | str"
HEADER: Final = "guarded"
"""Under this name `Progress` travels with a message."""
_FIRST, _LONGEST = 1.0, 60.0  # delays after rejections that know no better


class Progress(NamedTuple):
    """What has become of a task so far.

    Attributes:
        attempts: how often the function was tried.
        rejections: how often the task was refused before that.
    """

    attempts: int = 0
    rejections: int = 0

    @classmethod
    def read(cls, header: object) -> Progress:
        """What `header` says; nothing yet, where a message carries none."""
        if not isinstance(header, Mapping):
            return cls()
        return cls(int(header.get("attempts", 0)), int(header.get("rejections", 0)))

    def header(self) -> dict[str, int]:
        """The same as plain values."""
        return self._asdict()


class Redelivery(Exception):
    """The task has to be delivered again.

    Args:
        delay: seconds until then.
        progress: what the next delivery has to know.
        reason: the rejection, or what the attempt raised; None when its result was refused.
    """

    def __init__(self, delay: float, progress: Progress, reason: Exception | None) -> None:
        super().__init__(f"delivered again in {delay:.3g} s: {type(reason).__name__ if reason else 'result refused'}")
        self.delay = delay
        self.progress = progress
        self.reason = reason


def is_plain_call() -> bool:
    """Whether a task that is called now was called from inside another, and not by its queue."""
    return delivering.get() is not None


class Task:
    """A guarded function that a queue delivers.

    Args:
        fn: the function, guarded or not.
        parts: policies, and names of policies and stacks, to put around it, outermost first.
        max_rejections: how many rejections lead to another delivery; the next one ends the task. None without a bound.

    Attributes:
        plain: the function with all its layers, for calls that no queue has delivered.
    """

    def __init__(self, fn: Callable[..., Any], parts: tuple[Part, ...], max_rejections: int | None) -> None:
        if max_rejections not in (None, 0) and (problem := amount_problem(max_rejections)):
            raise ValueError(f"task: max_rejections={max_rejections!r}: {problem}, or 0, or None for no bound")
        whole: Any = guard(*parts)(fn) if parts else decorate(fn, ())
        chain = whole._self_chain
        if chain.kind.endswith("generator"):
            raise TypeError(f"{chain.function} is a generator, which no queue can run: give a function")
        self.plain = whole
        self.is_async: bool = chain.kind == "async"
        self._delivered = Guarded(whole.__wrapped__, (DeliveryStack(DeliveryOptions(chain.layers)),))
        self._max_rejections = max_rejections

    def deliver(self, progress: Progress, args: Args, kwargs: Kwargs) -> Any:
        """The result of one delivery; an async function is run to its end on a loop of its own.

        Raises Redelivery, or what ends the task.
        """
        if self.is_async:
            return asyncio.run(self.deliver_async(progress, args, kwargs))
        delivery = Delivery(progress.attempts + 1)
        token = delivering.set(delivery)
        try:
            return self._delivered(*args, **kwargs)
        except (Leave, Rejected) as stop:
            again = self._again(stop, delivery, progress)
        finally:
            delivering.reset(token)
        raise again  # not inside the except block: it is no consequence of an error

    async def deliver_async(self, progress: Progress, args: Args, kwargs: Kwargs) -> Any:
        """The same for the running task."""
        delivery = Delivery(progress.attempts + 1)
        token = delivering.set(delivery)
        try:
            return await self._delivered(*args, **kwargs)
        except (Leave, Rejected) as stop:
            again = self._again(stop, delivery, progress)
        finally:
            delivering.reset(token)
        raise again

    def _again(self, stop: Leave | Rejected, delivery: Delivery, progress: Progress) -> Redelivery:
        """What follows; raises a rejection that ends the task."""
        if isinstance(stop, Leave):
            return Redelivery(stop.delay, progress._replace(attempts=delivery.attempt), stop.cause)
        spent = self._max_rejections is not None and progress.rejections >= self._max_rejections
        if delivery.began or spent:  # of a call inside the function, it is an error like any other
            raise stop
        after = stop.retry_after
        if after is None:
            after = min(_LONGEST, _FIRST * 2 ** min(progress.rejections, 10)) * random.uniform(0.5, 1)
        return Redelivery(after, progress._replace(rejections=progress.rejections + 1), stop)
