"""Guards in front of a FastAPI application, which is a Starlette application."""

from __future__ import annotations

from guarded._core.extras import missing

try:
    from guarded.integrations.starlette import client_key, install, problem_response
except ModuleNotFoundError as error:
    raise missing(error, __name__, "fastapi") from error

__all__ = ["client_key", "install", "problem_response"]
