"""Guards in front of a FastAPI application, which is a Starlette application."""

from __future__ import annotations

from guarded.integrations.starlette import client_key, install, problem_response

__all__ = ["client_key", "install", "problem_response"]
