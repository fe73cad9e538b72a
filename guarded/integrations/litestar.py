"""Guards in front of a Litestar application: ``Litestar(…, on_app_init=[install(guards="front")])``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

from guarded._core.extras import missing

try:
    from litestar import Request, Response
    from litestar.config.app import AppConfig
except ModuleNotFoundError as error:
    raise missing(error, __name__, "litestar") from error

from guarded.errors import GuardedError
from guarded.integrations._server.inbound import Inbound, Options
from guarded.integrations._server.problems import MEDIA_TYPE, problem_for
from guarded.integrations._server.request import client_key
from guarded.integrations.asgi import GuardedMiddleware

__all__ = ["client_key", "install", "problem_response"]


def install(**options: Unpack[Options]) -> Callable[[AppConfig], AppConfig]:
    """What puts the guards in front of an application, and lets rejections in its handlers become responses.

    Options as for the ASGI middleware.
    """

    middleware = partial(GuardedMiddleware.ruled, Inbound(**options))  # Litestar makes one for each route

    def on_app_init(config: AppConfig) -> AppConfig:
        config.middleware.insert(0, middleware)
        config.exception_handlers[GuardedError] = _handle
        return config

    return on_app_init


def _handle(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    response = problem_response(error) if isinstance(error, GuardedError) else None
    if response is None:
        raise error
    return response


def problem_response(error: GuardedError) -> Response[bytes] | None:
    """The response for an error of guarded that is caught by hand; None for a fault of the program."""
    problem = problem_for(error)
    if problem is None:
        return None
    headers = {name: value for name, value in problem.headers if name != "Content-Type"}
    return Response(problem.body, status_code=problem.status, headers=headers, media_type=MEDIA_TYPE)
