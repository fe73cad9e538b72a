"""Guarded functions as Celery tasks: rejections and retries become a countdown, and the worker goes on.

The broker has to keep messages for longer than the longest delay (Redis: ``visibility_timeout``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from guarded.integrations._queue.task import HEADER, Part, Progress, Redelivery, Task, is_plain_call


def task(
    app: Any, *parts: Part, max_rejections: int | None = None, **options: Any
) -> Callable[[Callable[..., Any]], Any]:
    """Make a function a task of `app`, guarded by the layers it has and by `parts` around them.

    Called directly, it is the guarded function as ever. In a worker each delivery is one attempt: a retry or a
    rejection sends the task to the queue again, with the delay that the retry has decided or the rejection has named,
    and shows as Celery's own state RETRY. An async function runs on a loop of its own.

    Args:
        app: the Celery app.
        parts: policies, or names of policies and stacks, outermost first.
        max_rejections: how many rejections lead to another delivery; default None, without a bound. Retries of the
            stack have their own.
        options: of ``app.task``.

    Example:
        >>> from celery import Celery
        >>> from guarded import retry
        >>> app = Celery("shop", broker="redis://localhost")
        >>> @task(app, retry(retries=3), name="shop.charge")
        ... def charge(order_id: str) -> str:
        ...     return order_id
        >>> charge("A1")
        'A1'
    """

    def decorate(fn: Callable[..., Any]) -> Any:
        made = Task(fn, parts, max_rejections)

        @wraps(made.plain)
        def deliver(self: Any, *args: Any, **kwargs: Any) -> Any:
            if self.request.called_directly or is_plain_call():
                return made.plain(*args, **kwargs)
            headers = self.request.headers or {}
            try:
                return made.deliver(Progress.read(headers.get(HEADER)), args, kwargs)
            except Redelivery as again:
                later = again
            sent = {**headers, HEADER: later.progress.header()}
            raise self.retry(countdown=later.delay, exc=later.reason, headers=sent)

        return app.task(bind=True, max_retries=None, **options)(deliver)

    return decorate
