"""Guards in front of a Django application, WSGI or ASGI.

In ``wsgi.py`` or ``asgi.py``: ``application = install(get_wsgi_application())``; and in the settings, so that
rejections in views become responses, ``MIDDLEWARE = ["guarded.integrations.django.RejectionMiddleware", …]``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Unpack

from guarded._core.extras import missing

try:
    import django  # noqa: F401 - before what it brings along, so that it is named where it is not installed
    from asgiref.sync import iscoroutinefunction, markcoroutinefunction
    from django.core.handlers.asgi import ASGIHandler
    from django.http import HttpRequest, HttpResponse
except ModuleNotFoundError as error:
    raise missing(error, __name__, "django") from error

from guarded.errors import GuardedError
from guarded.integrations import asgi, wsgi
from guarded.integrations._server.inbound import Options
from guarded.integrations._server.problems import problem_for
from guarded.integrations._server.request import client_key

__all__ = ["RejectionMiddleware", "client_key", "install", "problem_response"]


def install(application: Any, **options: Unpack[Options]) -> Any:
    """`application` with the guards in front of it. Options as for the ASGI and WSGI middleware."""
    if isinstance(application, ASGIHandler):
        return _Told(application, **options)
    return wsgi.GuardedMiddleware(application, **options)


class _Told(asgi.GuardedMiddleware):
    """For Django's handler: cancelled, it leaves its tasks behind; told that the client has gone, it ends them."""

    async def run(self, scope: Any, client: Any, send: asgi.Send) -> None:
        handling = asyncio.ensure_future(super().run(scope, client, send))
        try:
            await asyncio.shield(handling)
        except asyncio.CancelledError:
            client.hang_up()
            await asyncio.wait({handling})
            raise


class RejectionMiddleware:
    """Lets rejections in views become responses; Django answers 500 before an outer middleware could see them."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        """Called by Django."""
        return self._get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Called by Django with what a view raised."""
        return problem_response(error) if isinstance(error, GuardedError) else None


def problem_response(error: GuardedError) -> HttpResponse | None:
    """The response for an error of guarded that is caught by hand; None for a fault of the program."""
    problem = problem_for(error)
    if problem is None:
        return None
    return HttpResponse(problem.body, status=problem.status, headers=dict(problem.headers))
