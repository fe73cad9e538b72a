"""Time-out headers, hosts and keys, without any network."""

from __future__ import annotations

from typing import Any

import pytest

from guarded.integrations._client.exchange import host_of
from guarded.integrations._client.outbound import new_key
from guarded.integrations._headers import format_timeout, parse_timeout
from guarded.integrations._server.inbound import Inbound
from guarded.integrations._server.problems import make_problem, problem_for


@pytest.mark.parametrize(
    ("name", "value", "seconds"),
    [
        ("X-Request-Timeout", "1.5", 1.5),
        ("X-Request-Timeout", " 30 ", 30),
        ("X-Request-Timeout", "0", 0),
        ("x-envoy-expected-rq-timeout-ms", "1500", 1.5),
        ("grpc-timeout", "1500m", 1.5),
        ("grpc-timeout", "2M", 120),
        ("grpc-timeout", "1H", 3600),
        ("grpc-timeout", "7n", 7e-9),
        *((name, "-1", None) for name in ("X-Request-Timeout", "x-ms", "grpc-timeout")),
        *(("X-Request-Timeout", value, None) for value in ("", "soon", "nan", "inf", "1e3", "1.", "٣", "1" * 400)),
        ("x-ms", "1.5", None),
        ("grpc-timeout", "123456789m", None),
        ("grpc-timeout", "5s", None),
    ],
)
def test_parse_timeout(name: str, value: str, seconds: float | None) -> None:
    """The name tells the format; what is malformed or negative says nothing."""
    found = parse_timeout(name, value)
    assert found == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("name", "seconds", "value"),
    [
        ("X-Request-Timeout", 1.2349, "1.234"),
        ("X-Request-Timeout", -1, "0.000"),
        ("X-Timeout-Ms", 1.2349, "1234"),
        ("grpc-timeout", 1.2349, "1234m"),
        ("grpc-timeout", 1e9, "99999999m"),
    ],
)
def test_format_timeout(name: str, seconds: float, value: str) -> None:
    """Rounded down, and read back as no more than it was."""
    assert format_timeout(name, seconds) == value
    assert (parse_timeout(name, value) or 0) <= max(0, seconds)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://API.example.com/x?y", "api.example.com"),
        ("https://api.example.com:443/", "api.example.com"),
        ("http://api.example.com:443/", "api.example.com:443"),
        ("http://user:secret@[2001:DB8::1]:8080/", "[2001:db8::1]:8080"),
    ],
)
def test_host_of(url: str, host: str) -> None:
    """One host, one name; no credentials in it."""
    assert host_of(url) == host


def test_outside_of_any_call() -> None:
    """Each request has a key of its own."""
    assert new_key("POST", "u", b"") != new_key("POST", "u", b"")


def test_a_problem_for_nothing_of_ours() -> None:
    """Is none."""
    assert problem_for(ValueError("no")) is None
    assert make_problem(400, "bad", "So it is.").status == 400


def test_a_principal_must_be_a_function() -> None:
    """Said at construction."""
    wrong: Any = "user"
    with pytest.raises(ValueError, match="principal='user'"):
        Inbound(principal=wrong)
