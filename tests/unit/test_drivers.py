"""Verdicts on the errors of client libraries: by the real classes where installed, else by classes made alike."""

from __future__ import annotations

import sqlite3
import ssl
from types import SimpleNamespace
from typing import Any

import pytest

from guarded._core.drivers import by_code, by_name, inner


def alike(name: str, *bases: type, **attributes: Any) -> type[Exception]:
    """An exception class that calls itself ``package.Class``, as one of a library that is not installed."""
    module, _, short = name.rpartition(".")
    return type(short, bases or (Exception,), {"__module__": module, **attributes})


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("httpx.NetworkError", True),
        ("httpx2._exceptions.TimeoutException", True),
        ("httpx.UnsupportedProtocol", None),
        ("httpcore._exceptions.ConnectionNotAvailable", True),
        ("requests.exceptions.ChunkedEncodingError", True),
        ("requests.exceptions.InvalidURL", None),
        ("urllib3.exceptions.MaxRetryError", True),
        ("websockets.exceptions.ConnectionClosedError", True),
        ("websockets.exceptions.ConnectionClosedOK", None),
        ("http.client.IncompleteRead", True),
        ("valkey.exceptions.BusyLoadingError", True),
        ("valkey.exceptions.AuthenticationError", False),
        ("psycopg.OperationalError", True),
        ("psycopg2.OperationalError", True),
        ("psycopg_pool.PoolClosed", False),
        ("sqlalchemy.exc.TimeoutError", True),
        ("pymongo.errors.ConnectionFailure", True),
        ("elastic_transport.TlsError", False),
        ("pika.exceptions.AMQPConnectionError", True),
        ("pika.exceptions.ProbableAuthenticationError", False),
        ("kombu.exceptions.OperationalError", True),
        ("botocore.exceptions.HTTPClientError", True),
        ("botocore.exceptions.SSLError", False),
        ("azure.core.exceptions.ServiceRequestError", True),
        ("google.auth.exceptions.TransportError", True),
        ("some_vendor._errors.APIConnectionError", True),
        ("shop.errors.ConnectionError", None),
        ("shop.errors.TimeoutException", None),
    ],
)
def test_knows_classes_by_package_and_name(name: str, passes: bool | None) -> None:
    """Wherever in the package the class lives, and never by its bare name."""
    assert by_name(alike(name)("x")) is passes


def test_the_nearest_known_class_decides() -> None:
    """A lasting error that derives from a passing one lasts, and a user's subclass is what it derives from."""
    connection = alike("redis.exceptions.ConnectionError")
    login = alike("redis.exceptions.AuthenticationError", connection)
    assert by_name(connection()) is True
    assert by_name(login()) is False
    assert by_name(alike("shop.CacheDown", connection)()) is True
    assert by_name(alike("shop.LoginRefused", login)()) is False


class Refused(ssl.SSLCertVerificationError):
    pass


def wrapped(how: str, root: Exception) -> Exception:
    """A connection error of a client around `root`, the way that client hands it on."""
    if how == "cause":
        error = alike("httpx.NetworkError")("x")
        error.__cause__ = alike("httpcore.NetworkError")("x")
        error.__cause__.__cause__ = root
        return error
    if how == "argument and reason":
        return alike("requests.exceptions.ConnectionError")(alike("urllib3.exceptions.MaxRetryError", reason=root)("x"))
    return alike("urllib3.exceptions.SSLError")(root)


@pytest.mark.parametrize("how", ["cause", "argument and reason", "argument"])
def test_refused_certificates_last(how: str) -> None:
    """However deep a client has wrapped it; a connection cut while TLS was spoken passes."""
    assert by_name(wrapped(how, Refused("self-signed certificate"))) is False
    assert by_name(wrapped(how, ssl.SSLError("wrong version"))) is False
    assert by_name(wrapped(how, ssl.SSLEOFError("cut"))) is True
    assert by_name(wrapped(how, OSError("refused"))) is True


def test_causes_that_go_in_circles_end() -> None:
    """A cyclic chain is looked at a few steps deep only."""
    one, two = (alike("httpx.NetworkError")("x") for _ in range(2))
    one.__cause__, two.__cause__ = two, one
    assert by_name(one) is True


@pytest.mark.parametrize(
    ("state", "passes"),
    [
        ("08006", True),
        ("08P01", False),
        ("40001", True),
        ("40P01", True),
        ("53300", True),
        ("57P03", True),
        ("23505", False),
        ("28P01", False),
        ("57014", False),
        ("", None),
        (None, None),
        (40001, None),
    ],
)
def test_sqlstates(state: Any, passes: bool | None) -> None:
    """The state of PostgreSQL and ODBC goes before the class, which often stands for both kinds."""
    assert by_code(alike("psycopg.OperationalError", sqlstate=state)("x")) is passes
    assert by_code(alike("psycopg2.OperationalError", pgcode=state)("x")) is passes
    assert by_code(alike("asyncpg.exceptions.PostgresError", sqlstate=state)("x")) is passes
    assert by_code(alike("pyodbc.OperationalError")(state, "x")) is passes


@pytest.mark.parametrize(("code", "passes"), [(2013, True), (1213, True), (1045, False), (0, None), ("x", None)])
def test_mysql_codes(code: Any, passes: bool | None) -> None:
    """First argument or `errno`, as the driver has it."""
    assert by_code(alike("pymysql.err.OperationalError")(code, "x")) is passes
    assert by_code(alike("MySQLdb.OperationalError")(code, "x")) is passes
    if isinstance(code, int):
        assert by_code(alike("mysql.connector.errors.Error", errno=code, sqlstate="HY000")("x")) in (passes, False)


def test_sqlite_says_busy(tmp_path: Any) -> None:
    """A database locked by another connection passes, a missing table does not."""
    one = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    two = sqlite3.connect(tmp_path / "x.db", isolation_level=None, timeout=0)
    try:
        one.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError) as busy:
            two.execute("CREATE TABLE t (x)")
        one.execute("ROLLBACK")
        with pytest.raises(sqlite3.OperationalError) as missing:
            two.execute("SELECT * FROM missing")
    finally:
        one.close()
        two.close()
    assert by_code(busy.value) is True
    assert by_code(missing.value) is False
    assert by_code(sqlite3.OperationalError("made by hand")) is None


@pytest.mark.parametrize(("code", "passes"), [("UNAVAILABLE", True), ("NOT_FOUND", False), ("INTERNAL", False)])
def test_grpc_codes(code: str, passes: bool) -> None:
    """grpcio has a method, grpclib an attribute."""
    status = SimpleNamespace(name=code)
    base = alike("grpc.RpcError")
    assert by_code(alike("grpc._channel._InactiveRpcError", base, code=lambda self: status)()) is passes
    assert by_code(alike("grpclib.exceptions.GRPCError", status=status)()) is passes
    assert by_code(base()) is None


def test_aws_codes() -> None:
    """Throttling comes as status 400, so the code goes first; other codes leave it to the status."""
    client_error = alike("botocore.exceptions.ClientError")

    def answered(response: Any) -> Exception:
        error: Any = client_error("x")
        error.response = response
        return error  # type: ignore[no-any-return]

    assert by_code(answered({"Error": {"Code": "ThrottlingException"}})) is True
    assert by_code(answered({"Error": {"Code": "ValidationException"}})) is None
    assert by_code(answered({"Error": None})) is None
    assert by_code(answered(None)) is None


def test_mongo_labels() -> None:
    """The server labels what may be retried."""

    def has(self: Exception, label: str) -> bool:
        return label in self.args

    failure = alike("pymongo.errors.OperationFailure", has_error_label=has)
    assert by_code(failure("TransientTransactionError")) is True
    assert by_code(failure("RetryableWriteError")) is True
    assert by_code(failure("other")) is None


@pytest.mark.parametrize("retriable", [True, False])
def test_kafka_says_itself(retriable: bool) -> None:
    """An attribute of the error, or a method of its first argument."""
    assert by_code(alike("kafka.errors.KafkaError", retriable=retriable)()) is retriable
    inside = SimpleNamespace(retriable=lambda: retriable)
    assert by_code(alike("cimpl.KafkaException")(inside)) is retriable
    assert by_code(alike("cimpl.KafkaException")()) is None


def test_smtp_replies() -> None:
    """4yz is a transient refusal, 5yz a lasting one."""
    response = alike("smtplib.SMTPResponseException")
    assert by_code(alike("smtplib.SMTPDataError", response, smtp_code=451)()) is True
    assert by_code(alike("smtplib.SMTPDataError", response, smtp_code=554)()) is False
    assert by_code(response()) is None


def test_wrapping_libraries_show_the_drivers_error() -> None:
    """SQLAlchemy, Django, peewee and urllib only pass an error on."""
    driver = RuntimeError("driver")
    lost = alike("sqlalchemy.exc.DBAPIError", orig=driver, connection_invalidated=True)()
    kept = alike("sqlalchemy.exc.DBAPIError", orig=driver, connection_invalidated=False)()
    assert by_code(lost) is True
    assert by_code(kept) is None
    assert inner(kept) is driver
    for name in ("django.db.utils.OperationalError", "peewee.OperationalError"):
        error = alike(name)()
        error.__cause__ = driver
        assert inner(error) is driver
    assert inner(alike("urllib.error.URLError", OSError, reason=driver)()) is driver
    assert inner(ValueError()) is None


def test_a_property_that_raises_is_no_attribute() -> None:
    """Judging an error never raises one."""

    def broken(self: Exception) -> None:
        raise RuntimeError

    assert by_code(alike("asyncpg.Odd", sqlstate=property(broken), pgcode=property(broken))()) is None
