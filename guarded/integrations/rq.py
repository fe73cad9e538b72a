"""Guarded functions as RQ jobs: rejections and retries become scheduled jobs, and the worker goes on.

Delays need a worker with its scheduler (``rq worker --with-scheduler``); they are rounded up to whole seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from math import ceil
from typing import Any

from guarded._core.extras import missing

try:
    from rq import Retry, get_current_job
    from rq.decorators import job
except ModuleNotFoundError as error:
    raise missing(error, __name__, "rq") from error

from guarded.integrations._queue.task import HEADER, Part, Progress, Redelivery, Task, is_plain_call

_WITHOUT_BOUND = 2**31  # it is the stack that says how often


def task(
    queue: Any, *parts: Part, max_rejections: int | None = None, **options: Any
) -> Callable[[Callable[..., Any]], Any]:
    """Make a function a job of `queue`, guarded by the layers it has and by `parts` around them.

    Called directly, it is the guarded function as ever; ``.enqueue(…)`` puts it into the queue. In a worker each
    delivery is one attempt: a retry or a rejection schedules the job again, after the delay that the retry has decided
    or the rejection has named. An async function runs on a loop of its own.

    Args:
        queue: the queue, or its name with `connection` among the options.
        parts: policies, or names of policies and stacks, outermost first.
        max_rejections: how many rejections lead to another delivery; default None, without a bound. Retries of the
            stack have their own.
        options: of ``rq.decorators.job``.
    """

    def decorate(fn: Callable[..., Any]) -> Any:
        made = Task(fn, parts, max_rejections)

        @wraps(made.plain)
        def deliver(*args: Any, **kwargs: Any) -> Any:
            current = get_current_job()
            if current is None or is_plain_call():
                return made.plain(*args, **kwargs)
            try:
                return made.deliver(Progress.read(current.meta.get(HEADER)), args, kwargs)
            except Redelivery as again:
                current.meta[HEADER] = again.progress.header()
                current.save_meta()  # type: ignore[no-untyped-call]
                return Retry(max=_WITHOUT_BOUND, interval=ceil(again.delay))

        if "connection" not in options and not isinstance(queue, str):
            return job(queue, connection=queue.connection, **options)(deliver)
        return job(queue, **options)(deliver)

    return decorate
