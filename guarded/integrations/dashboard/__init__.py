"""A page that shows the policies of this process live: circuits, queues, rates, retries, and the latest events.

Mount `asgi_app` or `wsgi_app` in the application, or let `serve` run it beside; ``guarded top`` shows the same in a
terminal. While nobody looks, it costs nothing. Only this machine may look unless told otherwise, and circuits can be
isolated and reset only by who knows a token.
"""

from __future__ import annotations

from guarded.integrations.dashboard._asgi import AsgiDashboard, asgi_app
from guarded.integrations.dashboard._server import Server, serve
from guarded.integrations.dashboard._wsgi import WsgiDashboard, wsgi_app

__all__ = ["AsgiDashboard", "Server", "WsgiDashboard", "asgi_app", "serve", "wsgi_app"]
