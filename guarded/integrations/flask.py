"""Guards in front of a Flask application."""

from __future__ import annotations

from typing import Unpack

from guarded._core.extras import missing

try:
    from flask import Flask, Response
except ModuleNotFoundError as error:
    raise missing(error, __name__, "flask") from error

from guarded.errors import GuardedError
from guarded.integrations._server.inbound import Options
from guarded.integrations._server.problems import problem_for
from guarded.integrations._server.request import client_key
from guarded.integrations.wsgi import GuardedMiddleware

__all__ = ["client_key", "install", "problem_response"]


def install(app: Flask, **options: Unpack[Options]) -> None:
    """Put the guards in front of `app`, and let rejections in its views become responses.

    Options as for the WSGI middleware.
    """
    middleware = GuardedMiddleware(app.wsgi_app, **options)
    app.wsgi_app = middleware  # type: ignore[method-assign]

    def handle(error: GuardedError) -> Response:
        response = problem_response(error)
        if response is None:
            raise error
        return response

    app.register_error_handler(GuardedError, handle)


def problem_response(error: GuardedError) -> Response | None:
    """The response for an error of guarded that is caught by hand; None for a fault of the program."""
    problem = problem_for(error)
    return None if problem is None else Response(problem.body, problem.status, dict(problem.headers))
