"""Guards for httpx2: one transport, for ``httpx2.Client`` and ``httpx2.AsyncClient``."""

from __future__ import annotations

from guarded._core.extras import missing

try:
    import httpx2
except ModuleNotFoundError as error:
    raise missing(error, __name__, "httpx2") from error

from guarded.integrations._client.httpx import Transport

__all__ = ["GuardedTransport"]


class GuardedTransport(Transport, httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """Sends each request under the guards of its host.

    The guards last until the headers of the response are there; reading its body is bounded by the client's own
    time-outs. The client gets the last response itself, whatever its status, when retries do not help.

    Args:
        guards: the name of a stack or policy, or one itself; each host gets guards of its own from it.
        transport: what sends; default ``httpx2.HTTPTransport()`` or ``httpx2.AsyncHTTPTransport()``, so options such
            as ``verify`` have to be given there and not to the client.
        statuses: which count as failures. Default 408, 429, 500, 502, 503 and 504.
        idempotency_key: add an ``Idempotency-Key`` to requests that could not be repeated without. Default False.
        timeout_header: which header tells the server the seconds that are left. Default ``X-Request-Timeout``.

    Example:
        >>> from guarded import circuit, guard, retry
        >>> transport = GuardedTransport(guard(retry(retries=3), circuit("api")), idempotency_key=True)
        >>> client = httpx2.Client(transport=transport)
        >>> client.close()
    """

    library = httpx2
