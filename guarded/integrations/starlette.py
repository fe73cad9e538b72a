"""Guards in front of a Starlette application."""

from __future__ import annotations

from functools import partial
from typing import Unpack

from guarded._core.extras import missing

try:
    from starlette.applications import Starlette
    from starlette.responses import Response
except ModuleNotFoundError as error:
    raise missing(error, __name__, "starlette") from error

from guarded.errors import GuardedError
from guarded.integrations._server.inbound import Inbound, Options
from guarded.integrations._server.problems import problem_for
from guarded.integrations._server.request import client_key
from guarded.integrations.asgi import GuardedMiddleware

__all__ = ["client_key", "install", "problem_response"]


def install(app: Starlette, **options: Unpack[Options]) -> None:
    """Put the guards in front of `app`; call it after adding other middleware. Options as for the ASGI middleware."""
    app.add_middleware(partial(GuardedMiddleware.ruled, Inbound(**options)))


def problem_response(error: GuardedError) -> Response | None:
    """The response for an error of guarded that is caught by hand; None for a fault of the program."""
    problem = problem_for(error)
    return None if problem is None else Response(problem.body, problem.status, dict(problem.headers))
