"""Which errors of well-known client libraries pass by themselves: told by name and code, importing none of them.

A class is known as ``package.ClassName``, wherever in the package it lives. The most derived known class
decides. Codes (SQLSTATE, MySQL, SQLite, gRPC, AWS, Kafka) go before names, since one class often stands for both.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_DEEPEST = 10
_HTTPX = "TimeoutException NetworkError RemoteProtocolError ProxyError ConnectionNotAvailable"
_REDIS = "ConnectionError TimeoutError BusyLoadingError TryAgainError ClusterDownError MasterDownError ReadOnlyError"

_PASSING = {
    # HTTP and sockets
    "httpx": _HTTPX,
    "httpx2": _HTTPX,
    "httpcore": _HTTPX,
    "httpcore2": _HTTPX,
    "h11": "RemoteProtocolError",
    "requests": "ConnectionError Timeout ChunkedEncodingError RetryError",
    "urllib3": "TimeoutError NewConnectionError ProtocolError MaxRetryError EmptyPoolError ProxyError SSLError",
    "aiohttp": "ClientConnectionError ClientPayloadError",
    "websockets": "ConnectionClosedError",
    "anyio": "BrokenResourceError ConnectionFailed",
    "asyncio": "IncompleteReadError",
    "http": "IncompleteRead BadStatusLine",
    "urllib": "ContentTooShortError",
    "ssl": "SSLEOFError SSLZeroReturnError",
    "smtplib": "SMTPServerDisconnected",
    "ftplib": "error_temp",
    # databases, caches and search
    "redis": _REDIS,
    "valkey": _REDIS,
    "psycopg": "OperationalError",
    "psycopg2": "OperationalError",
    "sqlalchemy": "TimeoutError DisconnectionError",
    "pymongo": "ConnectionFailure",
    "elastic_transport": "ConnectionError ConnectionTimeout",
    "elasticsearch": "ConnectionError ConnectionTimeout",
    "opensearchpy": "ConnectionError ConnectionTimeout",
    # queues and clouds
    "pika": "AMQPConnectionError",
    "amqp": "RecoverableConnectionError RecoverableChannelError",
    "kombu": "OperationalError",
    "botocore": "ConnectionError HTTPClientError IncompleteReadError",
    "azure": "ServiceRequestError ServiceResponseError",
    "google": "TransportError",
}
_LASTING = {
    "aiohttp": "ServerFingerprintMismatch ClientConnectorCertificateError InvalidURL",
    "redis": "AuthenticationError AuthorizationError",
    "valkey": "AuthenticationError AuthorizationError",
    "psycopg_pool": "PoolClosed",
    "elastic_transport": "TlsError",
    "elasticsearch": "SSLError",
    "opensearchpy": "SSLError",
    "pika": "AuthenticationError ProbableAuthenticationError ProbableAccessDeniedError IncompatibleProtocolError",
    "botocore": "SSLError",
}
_BY_NAME: dict[str, bool] = {
    f"{package}.{name}": passing
    for table, passing in ((_PASSING, True), (_LASTING, False))
    for package, names in table.items()
    for name in names.split()
}
# Generated API clients of many vendors share these two names.
_IN_ANY_PACKAGE = frozenset(("APIConnectionError", "APITimeoutError"))

_SQLSTATES = frozenset(
    # serialization failure, deadlock, lock not available, too many connections, shutdown and start-up of PostgreSQL;
    # time-outs of ODBC. Class 08, the connection, is taken whole but for protocol violations.
    ("40001", "40P01", "55P03", "53300", "57P01", "57P02", "57P03", "HYT00", "HYT01")
)
_MYSQL_CODES = frozenset(
    # too many connections, shutdown, network, lock wait time-out, deadlock; from 2000 on the client's own: no
    # connection, gone away, lost
    (1040, 1053, 1077, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1205, 1213, 2002, 2003, 2006, 2013, 2055, 4031)
)
_SQLITE_CODES = frozenset((5, 6))  # SQLITE_BUSY, SQLITE_LOCKED
_GRPC_CODES = frozenset(("UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "ABORTED"))
_AWS_CODES = frozenset(
    # AWS SDKs and Tools Reference Guide, "Retry behavior": throttling, then transient error codes
    (
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestThrottledException",
        "RequestThrottled",
        "TooManyRequestsException",
        "ProvisionedThroughputExceededException",
        "TransactionInProgressException",
        "RequestLimitExceeded",
        "BandwidthLimitExceeded",
        "LimitExceededException",
        "SlowDown",
        "EC2ThrottledException",
        "PriorRequestNotComplete",
        "RequestTimeout",
        "RequestTimeoutException",
        "InternalError",
    )
)


def attribute(value: object, name: str) -> Any:
    """An attribute, or None when there is none or its property raises."""
    try:
        return getattr(value, name, None)
    except Exception:
        return None


def by_code(error: Exception) -> bool | None:
    """What the error's own code says: it passes, it lasts, or None when it carries no code known here."""
    for package in _packages(error):
        judge = _JUDGES.get(package)
        if judge is not None:
            verdict = judge(error)
            if verdict is not None:
                return verdict
    state = attribute(error, "sqlstate") or attribute(error, "pgcode")
    return _by_sqlstate(state)


def by_name(error: Exception) -> bool | None:
    """What the name of the error's class, or of the nearest known base, says; None when none is known.

    A refused certificate or handshake lasts, whatever connection error it is wrapped in.
    """
    for kind in type(error).__mro__:
        verdict = _BY_NAME.get(f"{_package(kind)}.{kind.__name__}")
        if verdict is None and kind.__name__ in _IN_ANY_PACKAGE:
            verdict = True
        if verdict is not None:
            return verdict and not _refused_by_tls(error)
    return None


def inner(error: Exception) -> object:
    """The driver's error inside that of a library which only passes it on; None for others."""
    for package in _packages(error):
        if package == "sqlalchemy":
            return attribute(error, "orig")
        if package == "urllib":
            return attribute(error, "reason")
        if package in ("django", "peewee"):
            return error.__cause__ or attribute(error, "orig")
    return None


def _package(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def _packages(error: Exception) -> Iterator[str]:
    seen = None
    for kind in type(error).__mro__:
        package = _package(kind)
        if package != seen and package != "builtins":
            yield package
        seen = package


def _refused_by_tls(error: BaseException) -> bool:
    """Whether TLS is at the root: found along causes, reasons and first arguments, a few steps down."""
    current: object = error
    for _ in range(_DEEPEST):
        if isinstance(current, ssl.SSLError):
            return not isinstance(current, (ssl.SSLEOFError, ssl.SSLZeroReturnError))
        if not isinstance(current, BaseException):
            return False
        links = (current.__cause__, attribute(current, "reason"), *current.args[:1])
        current = next((link for link in links if isinstance(link, BaseException)), None)
    return False


def _by_sqlstate(state: object) -> bool | None:
    if not isinstance(state, str) or len(state) != 5:
        return None
    return state in _SQLSTATES or (state.startswith("08") and state != "08P01")


def _first_argument(error: Any) -> Any:
    return error.args[0] if error.args else None


def _mysql(error: Any) -> bool | None:
    code = attribute(error, "errno")
    code = code if isinstance(code, int) else _first_argument(error)
    return code in _MYSQL_CODES if isinstance(code, int) and code > 0 else None


def _sqlite(error: Any) -> bool | None:
    code = attribute(error, "sqlite_errorcode")
    return code & 0xFF in _SQLITE_CODES if isinstance(code, int) else None


def _grpc(error: Any) -> bool | None:
    code = attribute(error, "code")
    name = attribute(code() if callable(code) else attribute(error, "status"), "name")
    return name in _GRPC_CODES if isinstance(name, str) else None


def _botocore(error: Any) -> bool | None:
    response = attribute(error, "response")
    details = response.get("Error") if isinstance(response, Mapping) else None
    code = details.get("Code") if isinstance(details, Mapping) else None
    return True if code in _AWS_CODES else None  # else the HTTP status says


def _mongo(error: Any) -> bool | None:
    has = attribute(error, "has_error_label")
    labelled = callable(has) and (has("RetryableWriteError") or has("TransientTransactionError"))
    return True if labelled else None


def _kafka(error: Any) -> bool | None:
    retriable = attribute(error, "retriable")
    retriable = attribute(_first_argument(error), "retriable") if retriable is None else retriable
    verdict = retriable() if callable(retriable) else retriable
    return verdict if isinstance(verdict, bool) else None


def _smtp(error: Any) -> bool | None:
    code = attribute(error, "smtp_code")
    return 400 <= code < 500 if isinstance(code, int) else None  # RFC 5321, 4.2.1: 4yz is a transient refusal


def _sqlalchemy(error: Any) -> bool | None:
    return True if attribute(error, "connection_invalidated") is True else None


_JUDGES: dict[str, Callable[[Any], bool | None]] = {
    "pymysql": _mysql,
    "MySQLdb": _mysql,
    "asyncmy": _mysql,
    "mysql": _mysql,
    "mariadb": _mysql,
    "sqlite3": _sqlite,
    "pyodbc": lambda error: _by_sqlstate(_first_argument(error)),
    "sqlalchemy": _sqlalchemy,
    "pymongo": _mongo,
    "grpc": _grpc,
    "grpclib": _grpc,
    "botocore": _botocore,
    "kafka": _kafka,
    "aiokafka": _kafka,
    "cimpl": _kafka,  # confluent-kafka's C module
    "smtplib": _smtp,
}
