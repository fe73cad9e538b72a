"""The grammar of durations: one for code, YAML and the command line."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guarded._core.durations import format_duration, parse_duration, parse_duration_ns

MS = 1_000_000
S = 1_000 * MS


@pytest.mark.parametrize(
    ("value", "ns"),
    [
        ("7ns", 7),
        ("10us", 10_000),
        ("10µs", 10_000),
        ("10μs", 10_000),
        ("250ms", 250 * MS),
        ("1.5s", 1500 * MS),
        (".5s", 500 * MS),
        ("2m", 120 * S),
        ("1h30m", 5400 * S),
        ("1h 30m 15s", 5415 * S),
        ("24h", 86_400 * S),
        ("1d", 86_400 * S),
        ("1w", 604_800 * S),
        ("1 second", S),
        ("10 minutes", 600 * S),
        ("2 hours 1 min", 7260 * S),
        ("  3s ", 3 * S),
        (5, 5 * S),
        (0.25, 250 * MS),
        (1.1, 1_100 * MS),
        (timedelta(days=1, seconds=1, microseconds=1), 86_401 * S + 1_000),
    ],
)
def test_reads_seconds_timedeltas_and_text(value: Any, ns: int) -> None:
    """Every form gives the same length in nanoseconds and in seconds."""
    assert parse_duration_ns(value) == ns
    assert parse_duration(value) == ns / S


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ("30", "write '30s' for seconds or '30ms' for milliseconds"),
        ("1h30", "write '30s' for seconds"),
        ("", "must be numbers with units"),
        ("   ", "must be numbers with units"),
        ("s", "must be numbers with units"),
        ("1,5s", "must be numbers with units"),
        ("1.s", "must be numbers with units"),
        ("30 1h", "must be numbers with units"),
        ("٣s", "must be numbers with units"),
        ("1e3s", "'e' is no unit"),
        ("5 Minutes", "did you mean 'minutes'?"),
        ("5 secodns", "did you mean 'seconds'?"),
        ("5 parsnips", "use ns, us, ms, s, m, h, d or w"),
        ("30m1h", "from large to small"),
        ("1h1h", "each at most once"),
        ("1s" * 33, "at most 64 characters"),
        ("-5s", "must not be negative"),
        ("nan", "must be finite"),
        ("inf", "must be finite"),
        ("0s", "must be more than 0"),
        ("0.1ns", "must be more than 0"),
        ("300000d", "at most 292 years"),
        (0, "must be more than 0"),
        (0.0, "must be more than 0"),
        (-1, "must not be negative"),
        (-0.5, "must not be negative"),
        (timedelta(seconds=-1), "must not be negative"),
        (math.nan, "must be finite"),
        (math.inf, "must be finite"),
        (1e300, "at most 292 years"),
        (10**400, "at most 292 years"),
        (True, "not bool"),
        (None, "not NoneType"),
        ([1], "not list"),
    ],
)
@pytest.mark.parametrize("parse", [parse_duration, parse_duration_ns])
def test_refuses_what_is_no_duration(parse: Any, value: Any, rule: str) -> None:
    """The error names the option, the value and the rule."""
    with pytest.raises(ValueError) as caught:
        parse(value, option="max_wait")
    message = str(caught.value)
    assert message.startswith("max_wait=")
    assert rule in message
    if not isinstance(value, str) or len(value) <= 64:
        assert repr(value) in message


@pytest.mark.parametrize("value", [0, 0.0, "0s", "0ms", timedelta()])
def test_zero_only_where_it_is_a_length(value: Any) -> None:
    """`allow_zero` lets 0 through in every form."""
    assert parse_duration(value, allow_zero=True) == 0.0
    assert parse_duration_ns(value, allow_zero=True) == 0


def test_text_is_read_without_binary_fractions() -> None:
    """Tenths and thirds of a second come out exact to the nanosecond."""
    assert parse_duration_ns("0.1s") == 100 * MS
    assert parse_duration_ns("4503599627.370497001s") == 4_503_599_627_370_497_001
    assert parse_duration("0.3s") == 0.3


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (1e-9, "1ns"),
        (1.5e-6, "1.5us"),
        (0.25, "250ms"),
        (0.0123456, "12.346ms"),
        (0.9999996, "1s"),
        (0.0009999999, "1ms"),
        (1.5, "1.5s"),
        (1.050, "1.05s"),
        (59.9999, "1m"),
        (90.5, "1m30.5s"),
        (3600.25, "1h0.25s"),
        (5400, "1h30m"),
        (86_400, "1d"),
        (90_061, "1d1h1m1s"),
        (-1.5, "-1.5s"),
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_shows_short_text(seconds: float, text: str) -> None:
    """Messages get the largest units, three decimals at most, and never an error."""
    assert format_duration(seconds) == text


@given(st.integers(1, 9 * 10**12))
def test_whole_milliseconds_round_trip(ms: int) -> None:
    """What is shown is read back as the same length."""
    assert parse_duration_ns(format_duration(ms / 1_000)) == ms * MS
    assert parse_duration(ms / 1_000) == ms / 1_000


@given(st.floats(1e-9, 1e9))
def test_shown_text_is_close(seconds: float) -> None:
    """What is shown is within half of its last digit, at most one part in 2000, of the length."""
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=1 / 2_000, abs=0.5e-9)


@given(st.text(alphabet="0123456789.hmsuµ nd-+", max_size=20))
def test_text_either_reads_or_names_its_option(text: str) -> None:
    """Any text gives whole positive nanoseconds or a ValueError that names the option."""
    message = ""
    try:
        assert parse_duration_ns(text, option="ttl") > 0
    except ValueError as error:
        message = str(error)
    assert not message or message.startswith("ttl=")
