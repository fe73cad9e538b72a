"""Guarded functions as taskiq tasks: rejections and retries become scheduled messages, and the worker goes on.

Delays need a schedule source and a running ``taskiq scheduler``, or a broker that obeys the label ``delay``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from importlib.metadata import version
from typing import Any, NoReturn

from guarded._core.extras import missing

try:
    from taskiq import TaskiqMessage, TaskiqMiddleware, TaskiqResult
    from taskiq.exceptions import NoResultError
    from taskiq.kicker import AsyncKicker
except ModuleNotFoundError as error:
    raise missing(error, __name__, "taskiq") from error

# Before that, what a plain function's task sends again is lost without a word.
if tuple(map(int, re.findall(r"\d+", version("taskiq"))[:3])) < (0, 12, 1):
    raise ImportError(f"{__name__} needs taskiq 0.12.1 or later, not {version('taskiq')}: pip install -U taskiq")

from guarded._core import clock
from guarded.integrations._queue.task import HEADER, Part, Progress, Redelivery, Task, is_plain_call

_message: ContextVar[TaskiqMessage | None] = ContextVar("guarded_taskiq_message", default=None)


def task(
    broker: Any, *parts: Part, max_rejections: int | None = None, schedule_source: Any = None, **options: Any
) -> Callable[[Callable[..., Any]], Any]:
    """Make a function a task of `broker`, guarded by the layers it has and by `parts` around them.

    Called directly, it is the guarded function as ever. In a worker each delivery is one attempt: a retry or a
    rejection sends the task again under its own id, with the delay that the retry has decided or the rejection has
    named; no result is stored meanwhile.

    Args:
        broker: the broker.
        parts: policies, or names of policies and stacks, outermost first.
        max_rejections: how many rejections lead to another delivery; default None, without a bound. Retries of the
            stack have their own.
        schedule_source: where to put what is to be delivered later; default None, a label ``delay`` for the broker.
        options: of ``broker.task``.
    """

    def decorate(fn: Callable[..., Any]) -> Any:
        if not any(isinstance(each, _Current) for each in broker.middlewares):
            broker.add_middlewares(_Current())
        made = Task(fn, parts, max_rejections)
        again = partial(_send_again, broker, schedule_source)
        return broker.task(**options)(_async_delivery(made, again) if made.is_async else _delivery(made, again))

    return decorate


class _Current(TaskiqMiddleware):
    """Lets a task see the message that it was called for."""

    def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        """See `TaskiqMiddleware.pre_execute`."""
        _message.set(message)
        return message

    def post_execute(self, message: TaskiqMessage, result: TaskiqResult[Any]) -> None:
        """See `TaskiqMiddleware.post_execute`."""
        _message.set(None)


def _async_delivery(made: Task, again: Callable[[TaskiqMessage, Redelivery], Any]) -> Callable[..., Any]:
    @wraps(made.plain)
    async def deliver(*args: Any, **kwargs: Any) -> Any:
        message = _message.get()
        if message is None or is_plain_call():
            return await made.plain(*args, **kwargs)
        try:
            return await made.deliver_async(_progress(message), args, kwargs)
        except Redelivery as redelivery:
            later = redelivery
        return await again(message, later)

    return deliver


def _delivery(made: Task, again: Callable[[TaskiqMessage, Redelivery], Any]) -> Callable[..., Any]:
    @wraps(made.plain)
    def deliver(*args: Any, **kwargs: Any) -> Any:
        message = _message.get()
        if message is None or is_plain_call():
            return made.plain(*args, **kwargs)
        try:
            return made.deliver(_progress(message), args, kwargs)
        except Redelivery as later:
            return again(message, later)  # the worker awaits it, on its loop

    return deliver


def _progress(message: TaskiqMessage) -> Progress:
    return Progress.read(json.loads(message.labels.get(HEADER, "null")))


async def _send_again(broker: Any, source: Any, message: TaskiqMessage, later: Redelivery) -> NoReturn:
    kicker: AsyncKicker[Any, Any] = AsyncKicker(message.task_name, broker, message.labels)
    kicker = kicker.with_task_id(message.task_id).with_labels(**{HEADER: json.dumps(later.progress.header())})
    if source is None:
        await kicker.with_labels(delay=later.delay).kiq(*message.args, **message.kwargs)
    else:
        due = datetime.fromtimestamp(clock.wall(), UTC) + timedelta(seconds=later.delay)
        await kicker.schedule_by_time(source, due, *message.args, **message.kwargs)
    raise NoResultError
