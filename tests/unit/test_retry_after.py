"""The Retry-After field in all its forms."""

from __future__ import annotations

import email.utils
import math
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import freezegun
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guarded._core.retry_after import parse_retry_after, read_headers

NOW = datetime(1994, 11, 6, 8, 49, 7, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        (" 120 ", 120.0),
        (b"120", 120.0),
        ("0", 0.0),
        ("1.5", 1.5),
        (3, 3.0),
        (0.25, 0.25),
        (0, 0.0),
        (timedelta(minutes=2), 120.0),
        ("99999999999999999999", 1e20),
        ("9" * 400, sys.float_info.max),
        (10**400, sys.float_info.max),
        (math.inf, sys.float_info.max),
    ],
)
def test_seconds(value: Any, seconds: float) -> None:
    """Text, bytes, numbers and timedeltas; absurd waits are given as they are, and finite."""
    assert parse_retry_after(value) == seconds


@pytest.mark.parametrize(
    "date",
    [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sun, 6 Nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 08:49:37 UTC",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
        b"Sun, 06 Nov 1994 08:49:37 GMT",
    ],
)
def test_dates(date: Any) -> None:
    """The form of today and the two obsolete ones, which RFC 9110 still asks to read."""
    assert parse_retry_after(date, now=NOW) == 30.0
    assert parse_retry_after(date, now=NOW + 30) == 0.0
    assert parse_retry_after(date, now=NOW + 86_400) == 0.0


def test_a_leap_second_is_the_second_after() -> None:
    """:60 is a valid second."""
    assert parse_retry_after("Sun, 06 Nov 1994 08:49:60 GMT", now=NOW) == 53.0


@pytest.mark.parametrize(
    ("today", "year", "full"),
    [
        (1994, "94", 1994),
        (2026, "94", 1994),
        (2026, "27", 2027),
        (2026, "76", 2076),
        (2026, "77", 1977),
        (1999, "00", 1900),
    ],
)
def test_years_of_two_digits(today: int, year: str, full: int) -> None:
    """More than 50 years ahead is the past, as RFC 9110 says; else this century."""
    now = datetime(today, 1, 1, tzinfo=UTC).timestamp()
    expected = datetime(full, 11, 6, tzinfo=UTC).timestamp() - now
    assert parse_retry_after(f"Sunday, 06-Nov-{year} 00:00:00 GMT", now=now) == max(0.0, expected)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "soon",
        "-1",
        "-0.5",
        "+5",
        "1e3",
        "0x10",
        "1,5",
        "٣",
        "nan",
        "inf",
        -1,
        -0.001,
        math.nan,
        True,
        [120],
        timedelta(seconds=-1),
        "Sun, 06 Nov 1994 08:49:37",
        "Sun, 06 Nov 1994 08:49:37 PST",
        "Sun, 06 Nov 1994 08:49:37 -0700",
        "Sun, 06 Now 1994 08:49:37 GMT",
        "Sun, 31 Feb 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 25:49:37 GMT",
        "Sun, 06 Nov 1994 08:49:61 GMT",
        "1994-11-06T08:49:37Z",
    ],
)
def test_what_is_malformed_says_nothing(value: Any) -> None:
    """No number, no date, negative or NaN: as if the field were not there."""
    assert parse_retry_after(value, now=NOW) is None


def test_dates_are_compared_with_the_wall_clock() -> None:
    """Which tests freeze."""
    with freezegun.freeze_time("1994-11-06 08:49:07"):
        assert parse_retry_after("Sun, 06 Nov 1994 08:49:37 GMT") == 30.0


@given(st.integers(0, 4_000_000_000))
def test_reads_what_the_standard_library_writes(stamp: int) -> None:
    """Dates of every year, in the preferred and the asctime form."""
    for text in (email.utils.formatdate(stamp, usegmt=True), time.asctime(time.gmtime(stamp))):
        assert parse_retry_after(text, now=0.0) == stamp


@given(st.text() | st.from_regex(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", fullmatch=True))
def test_no_text_raises(text: str) -> None:
    """Servers send anything."""
    wait = parse_retry_after(text, now=NOW)
    assert wait is None or wait >= 0.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "2"}, 2.0),
        ({"retry-after": "2"}, 2.0),
        ({"Retry-After": "2", "Retry-After-Ms": "1500"}, 1.5),
        ({"x-ms-retry-after-ms": "250"}, 0.25),
        ({"x-amz-retry-after": "1000", "retry-after": "2"}, 1.0),
        ({"retry-after-ms": "soon", "retry-after": "2"}, 2.0),
        ({"retry-after-ms": "Sun, 06 Nov 1994 08:49:37 GMT"}, None),
        ({}, None),
        (None, None),
        ([("Retry-After", "2")], None),
    ],
)
def test_headers(headers: Any, seconds: float | None) -> None:
    """Any mapping with `get`, in either spelling; milliseconds go first, being finer."""
    assert read_headers(headers) == seconds
