"""Credentials never get out of an exception's message."""

from __future__ import annotations

import time

import pytest

from guarded.events.redact import MAX_LENGTH, cause_of, scrub

CANARY = "c4n4ry-S3cr3t"
KEY_BLOCK = f"-----BEGIN RSA PRIVATE KEY-----\nMIIE{CANARY}\nabc\n-----END RSA PRIVATE KEY-----"

LEAKS = [
    # URLs
    "postgres://user:CANARY@db:5432/x failed",
    "redis://:CANARY@host/0",
    "amqp://u:CANARY@h//",
    "postgres://u:p@ss/CANARY@host/db",
    "postgres://u:12/CANARY@host/db",
    "https://CANARY@sentry.example/1",
    "https://h:443/a?token=CANARY&x=1",
    "Client error '401 Unauthorized' for url 'https://api.example/v1?q=CANARY'",
    "https://example/callback#access_token=CANARY",
    "Max retries exceeded with url: /v1?api_key=CANARY (Caused by x)",
    "GET /maps?key=CANARY&x=1",
    "jdbc:mysql://h/x?user=a&password=CANARY",
    "jdbc:oracle:thin:scott/CANARY@//h:1521/x",
    "user:CANARY@tcp(host:3306)/db",
    "//user:CANARY@host/db",
    # headers
    "Authorization: Bearer CANARY",
    'authorization: Digest username="x", response="CANARY"',
    "Proxy-Authorization: Basic CANARY",
    "{'Authorization': 'Custom CANARY', 'Host': 'x'}",
    "[(b'authorization', b'Bearer CANARY'), (b'host', b'x')]",
    '{"authorization": "Bearer CANARY"}',
    "Cookie: sid=1; other=CANARY",
    "Set-Cookie: s=CANARY; Path=/",
    "x-api-key: CANARY",
    "Idempotency-Key: CANARY",
    "bearer CANARY",
    "Basic CANARY",
    # words
    "password=CANARY host=x",
    "password='my CANARY pass' host=x",
    'passwd = "it\'s CANARY"',
    'password="a\\"CANARY"',
    "token='CANARY",
    "Driver={x};UID=me;PWD=CANARY;",
    "AccountName=x;AccountKey=CANARY;EndpointSuffix=core",
    "SharedAccessSignature sr=x&sig=CANARY&se=1",
    "AWS_SECRET_ACCESS_KEY=CANARY",
    "db_password: CANARY",
    '"refresh_token": "CANARY"',
    '{\\"password\\": \\"CANARY\\", \\"a\\": 1}',
    "client_secret=CANARY&grant_type=x",
    "password%3DCANARY",
    "('password', 'CANARY')",
    "Settings(password='CANARY', url='x')",
    "auth=('user', 'CANARY')",
    "credentials=Credentials(user='x', key='CANARY')",
    "<password>CANARY two</password>",
    "ALTER USER x PASSWORD 'CANARY'",
    'api key "CANARY" rejected',
    "token CANARY is not valid",
    "the secret is CANARY",
    "invalid password (CANARY)",
    "Command 'tool --db-password CANARY' failed",
    "curl -u user:CANARY https://example/",
    "PASSWORD = CANARY",
    "password=ab(cd)CANARY",
    "password=(ab]CANARY",
    "{password: CANARY}",
    "secret:\n  CANARY",
    # shapes
    "got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0.CANARY",
    KEY_BLOCK.replace(CANARY, "CANARY"),
    "ghp_CANARY0000000000 is revoked",
    "sk_live_CANARY0000 is revoked",
    "xoxb-CANARY-0000 is revoked",
]


@pytest.mark.parametrize("text", LEAKS)
def test_a_credential_is_hidden(text: str) -> None:
    """Whatever stands around it, the secret is gone."""
    assert "CANARY" in text
    assert CANARY not in scrub(text.replace("CANARY", CANARY))


def test_an_aws_key_id_is_hidden() -> None:
    """Key ids are known by their shape."""
    assert scrub("key AKIAIOSFODNN7EXAMPLE denied") == "key *** denied"


@pytest.mark.parametrize(
    "text",
    [
        "Connection refused: localhost:5432",
        "[Errno 111] Connect call failed ('127.0.0.1', 6379)",
        "max_tokens: 4096 exceeded",
        "Basic authentication failed",
        "Token expired",
        "user@example.com at 12:30",
        "HTTPSConnectionPool(host='api', port=443): Read timed out. (read timeout=5)",
        "Client error '404 Not Found' for url 'https://api.example/v1/orders/7'",
        "'order'",
        "",
        "{braces} %s <tags>",
    ],
)
def test_harmless_text_is_left_alone(text: str) -> None:
    """What holds no secret stays readable."""
    assert scrub(text) == text


def test_the_place_of_a_secret_stays_readable() -> None:
    """The host of an URL and the word before a secret are kept."""
    assert scrub("postgres://u:pw@db:5432/x: password=pw") == "postgres://***@db:5432/x: password=***"


def test_a_message_is_cut_to_length() -> None:
    """Long messages end in an ellipsis."""
    assert scrub("word " * 100) == ("word " * 100)[: MAX_LENGTH - 1] + "…"
    assert len(scrub("x y " * 100_000)) == MAX_LENGTH


@pytest.mark.parametrize("before", range(960, 1000))
def test_no_cut_uncovers_a_secret(before: int) -> None:
    """A secret that the reading limit goes through is not shown, even when all before it shrinks to nothing."""
    text = "password=" + "x" * (before - 22) + " postgres://u:" + CANARY + "@host"
    assert CANARY[:4] not in scrub(text)


def test_one_line_without_control_characters() -> None:
    """Nothing in a message can forge a log line or drive a terminal."""
    assert scrub("a\r\n2026 ERROR b\x1b[31m\x00\u2028c\ud800d\t e ") == "a 2026 ERROR b [31m c d e"


@pytest.mark.real_clock
@pytest.mark.parametrize(
    "piece",
    ["a://", "token ", "password=(", "a:", '"', "pass '", "token, ", "-----BEGIN A PRIVATE KEY", "eyJaaaaa.", "@a://"],
)
def test_no_message_takes_long(piece: str) -> None:
    """A text made to be slow is no way to stop the caller."""
    text = (piece * 999)[:999]
    scrub(text)
    started = time.perf_counter()
    scrub(text)
    assert time.perf_counter() - started < 0.25


def test_cause_has_type_and_message() -> None:
    """The type by name, the message scrubbed."""
    assert tuple(cause_of(ConnectionError("redis://:pw@h/0 is gone"))) == ("ConnectionError", "redis://***@h/0 is gone")
    assert str(cause_of(TimeoutError())) == "TimeoutError"


class _Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError(CANARY)


class _Wrong(Exception):
    def __str__(self) -> str:
        return None  # type: ignore[return-value]


@pytest.mark.parametrize("error", [_Broken(), _Wrong()])
def test_an_unreadable_exception_breaks_nothing(error: Exception) -> None:
    """A `__str__` that raises gives a cause that says so."""
    assert tuple(cause_of(error)) == (type(error).__name__, "(its message cannot be read)")


def test_an_interrupt_while_reading_passes() -> None:
    """Control flow is never swallowed."""

    class Interrupting(Exception):
        def __str__(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cause_of(Interrupting())
