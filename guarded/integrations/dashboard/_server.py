"""The dashboard on a port of its own, for programs without a web framework: a daemon thread of the standard library."""

from __future__ import annotations

import threading
from socketserver import ThreadingMixIn
from types import TracebackType
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from guarded._core.durations import Duration
from guarded.integrations.dashboard._site import Site
from guarded.integrations.dashboard._wsgi import WsgiDashboard

if TYPE_CHECKING:
    from typing import Self

PORT = 8765


def serve(
    port: int = PORT,
    *,
    host: str = "127.0.0.1",
    token: str | None = None,
    loopback_only: bool = True,
    interval: Duration = "1s",
) -> Server:
    """Show the dashboard at ``http://host:port/`` until the process ends, or until `Server.close`.

    Args:
        port: default 8765; 0 takes any that is free.
        host: the address to listen at; another one than this machine's own takes ``loopback_only=False``.
        token, loopback_only, interval: see `wsgi_app`.

    Raises:
        ValueError: naming every wrong option.
        OSError: the port is taken.

    Example:
        >>> from guarded.integrations import dashboard
        >>> with dashboard.serve(0) as server:
        ...     server.url.startswith("http://127.0.0.1:")
        True
    """
    app = WsgiDashboard(Site(token=token, loopback_only=loopback_only, interval=interval, host=host))
    return Server(make_server(host, port, app, _Threads, _Quiet), app)


class _Threads(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A viewer that leaves is no error of this program's."""


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Standard error is the program's own."""

    def address_string(self) -> str:
        """Without asking a name server."""
        return str(self.client_address[0])


class Server:
    """A running dashboard; a context manager.

    Attributes:
        url: where it is, with a slash at the end.
    """

    def __init__(self, server: WSGIServer, app: WsgiDashboard) -> None:
        self._server = server
        self._app = app
        host, port = server.server_address[:2]
        self.url: str = f"http://{host!s}:{port}/"
        self._thread = threading.Thread(
            target=server.serve_forever, args=(0.05,), name="guarded-dashboard", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Take no more requests, and end the streams that are open."""
        self._app.stop()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<dashboard at {self.url}>"
