"""The grammar of rates."""

from __future__ import annotations

from typing import Any

import pytest

from guarded._core.quotas import parse_rate_spec

MS = 1_000_000
S = 1_000 * MS


@pytest.mark.parametrize(
    ("spec", "quotas"),
    [
        ("5/s", ((5, S),)),
        ("5 / 1s", ((5, S),)),
        ("100/minute", ((100, 60 * S),)),
        ("10 per 250ms", ((10, 250 * MS),)),
        ("3 per 2s", ((3, 2 * S),)),
        ("1/1h30m", ((1, 5400 * S),)),
        ("1_000_000/day", ((1_000_000, 86_400 * S),)),
        (
            "5/s; 100/minute; 10 per 250ms; 1000/day",
            ((5, S), (100, 60 * S), (10, 250 * MS), (1000, 86_400 * S)),
        ),
    ],
)
def test_reads_counts_per_length(spec: str, quotas: Any) -> None:
    """Quotas come in the order written, windows in nanoseconds."""
    assert parse_rate_spec(spec) == quotas


@pytest.mark.parametrize(
    ("spec", "rule"),
    [
        ("", "an entry is empty"),
        ("5/s;", "an entry is empty"),
        ("5", "must be a count per length of time"),
        ("5per s", "must be a count per length of time"),
        ("0/s", "whole numbers from 1 up"),
        ("-1/s", "whole numbers from 1 up"),
        ("1.5/s", "whole numbers from 1 up"),
        ("1_0/s", "whole numbers from 1 up"),
        ("x/s", "whole numbers from 1 up"),
        ("000/s", "whole numbers from 1 up"),
        ("9999999999999999/s", "at most 999_999_999_999_999"),
        ("1_000_000_000_000_000/s", "at most 999_999_999_999_999"),
        pytest.param("9" * 5000 + "/s", "at most 999_999_999_999_999", id="more digits than int() reads"),
        ("5/", "wrong window: must be numbers with units"),
        ("5/30", "wrong window: needs a unit"),
        ("5/fortnight", "'fortnight' is no unit"),
        ("5/minuet", "did you mean 'minute'?"),
        ("5/0s", "window of more than 0"),
        ("5/s/s", "wrong window"),
        ("5/s; 6/1s", "'6/1s' has the same window as one before it"),
    ],
)
def test_refuses_what_is_no_rate(spec: str, rule: str) -> None:
    """The error names the option, the value and the rule."""
    with pytest.raises(ValueError) as caught:
        parse_rate_spec(spec, option="rate")
    assert str(caught.value).startswith(f"rate={spec!r}: ")
    assert rule in str(caught.value)


def test_names_all_problems_at_once() -> None:
    """Each wrong entry is listed, the right ones are not."""
    with pytest.raises(ValueError) as caught:
        parse_rate_spec("0/s; 5/minute; 7/parsec; 8")
    message = str(caught.value).partition(": ")[2]
    assert all(entry in message for entry in ("'0/s'", "'7/parsec'", "'8'"))
    assert "5/minute" not in message


@pytest.mark.parametrize("spec", [5, None, 5.0, ("5/s",)])
def test_takes_text_only(spec: Any) -> None:
    """Anything but text is told what a rate looks like."""
    with pytest.raises(ValueError, match="must be text such as '5/s; 100/minute'"):
        parse_rate_spec(spec)
