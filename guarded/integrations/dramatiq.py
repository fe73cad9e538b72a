"""Guarded functions as Dramatiq actors: rejections and retries become delayed messages, and the worker goes on.

The broker needs the middleware ``Retries``, which it has by default, and ``CurrentMessage``, which `task` adds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from math import ceil
from typing import Any

from guarded._core.extras import missing

try:
    import dramatiq
    from dramatiq.middleware import CurrentMessage
except ModuleNotFoundError as error:
    raise missing(error, __name__, "dramatiq") from error

from guarded.integrations._queue.task import HEADER, Part, Progress, Redelivery, Task, is_plain_call


def task(
    broker: Any, *parts: Part, max_rejections: int | None = None, **options: Any
) -> Callable[[Callable[..., Any]], Any]:
    """Make a function an actor of `broker`, guarded by the layers it has and by `parts` around them.

    Called directly, it is the guarded function as ever. In a worker each delivery is one attempt: a retry or a
    rejection sends the message again, with the delay that the retry has decided or the rejection has named. What ends
    the task ends the message: Dramatiq's own retries are off. An async function runs on a loop of its own.

    Args:
        broker: the broker.
        parts: policies, or names of policies and stacks, outermost first.
        max_rejections: how many rejections lead to another delivery; default None, without a bound. Retries of the
            stack have their own.
        options: of ``dramatiq.actor``.
    """

    def decorate(fn: Callable[..., Any]) -> Any:
        made = Task(fn, parts, max_rejections)

        @wraps(made.plain)
        def deliver(*args: Any, **kwargs: Any) -> Any:
            message: Any = CurrentMessage.get_current_message()
            if message is None or is_plain_call():
                return made.plain(*args, **kwargs)
            try:
                return made.deliver(Progress.read(message.options.get(HEADER)), args, kwargs)
            except Redelivery as again:
                message.options[HEADER] = again.progress.header()
                later = again
            raise dramatiq.Retry(str(later), delay=ceil(later.delay * 1000))

        if not any(isinstance(each, CurrentMessage) for each in broker.middleware):
            broker.add_middleware(CurrentMessage())
        return dramatiq.actor(broker=broker, retry_when=_is_redelivery, **options)(deliver)

    return decorate


def _is_redelivery(retries: int, error: BaseException) -> bool:
    return isinstance(error, dramatiq.Retry)
