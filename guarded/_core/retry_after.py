"""How long a server asks to wait: the `Retry-After` field of RFC 9110, section 10.2.3, and its close relatives.

Seconds, from the wall clock where the server names a date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from guarded._core import clock
from guarded._core.drivers import attribute

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_SECONDS = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_TIME = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
_DAY = r"(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
_DATES = (
    # RFC 9110, section 5.6.7: the preferred form and the two obsolete ones
    re.compile(rf"{_DAY}, (?P<day>\d{{1,2}}) (?P<month>\w{{3}}) (?P<year>\d{{4}}) {_TIME} (?:GMT|UTC)", re.ASCII),
    re.compile(rf"{_DAY}, (?P<day>\d\d)-(?P<month>\w{{3}})-(?P<year>\d\d) {_TIME} (?:GMT|UTC)", re.ASCII),
    re.compile(rf"{_DAY} (?P<month>\w{{3}}) (?P<day>[ \d]\d) {_TIME} (?P<year>\d{{4}})", re.ASCII),
)
_IN_MILLISECONDS = ("Retry-After-Ms", "X-Ms-Retry-After-Ms", "X-Amz-Retry-After")


def parse_retry_after(value: object, *, now: float | None = None) -> float | None:
    """Seconds to wait, by the value of a `Retry-After` field.

    Args:
        value: text or bytes of the field, or a number of seconds, or a timedelta.
        now: seconds since the epoch that dates are compared with; default is the wall clock.

    Returns:
        Seconds from 0.0 up; 0.0 for a date in the past; None for what is malformed, negative or NaN. Absurdly
        long waits are returned as they are: the caller knows how long is too long.
    """
    seconds = _seconds(value)
    if seconds is not None or not isinstance(value, (str, bytes)):
        return seconds
    now = clock.wall() if now is None else now
    until = _http_date(_text(value), now)
    return None if until is None else max(0.0, until - now)


def _text(value: str | bytes) -> str:
    return (value.decode("latin-1") if isinstance(value, bytes) else value).strip()


def _seconds(value: object) -> float | None:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    elif isinstance(value, (str, bytes)):
        text = _text(value)
        value = float(text) if _SECONDS.fullmatch(text) else None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= 0:
        return None
    return float(value) if value <= sys.float_info.max else sys.float_info.max


def _http_date(text: str, now: float) -> float | None:
    """Seconds since the epoch of an HTTP date."""
    for form in _DATES:
        match = form.fullmatch(text)
        if match is None:
            continue
        second = int(match["second"])
        if match["month"] not in _MONTHS or second > 60:  # 60 is a leap second
            return None
        month = _MONTHS.index(match["month"]) + 1
        year = int(match["year"])
        year = year if year > 99 else _full_year(year, now)
        try:
            minute = datetime(year, month, int(match["day"]), int(match["hour"]), int(match["minute"]), tzinfo=UTC)
        except ValueError:
            return None
        return minute.timestamp() + second
    return None


def _full_year(year: int, now: float) -> int:
    """RFC 9110: two digits that seem more than 50 years ahead are the latest past year with them."""
    this = datetime.fromtimestamp(now, UTC).year
    full = this - this % 100 + year
    return full - 100 if full > this + 50 else full


def read_headers(headers: Any) -> float | None:
    """The wait that a response's headers ask for; milliseconds of Azure and AWS, being finer, go first."""
    get = attribute(headers, "get")
    if not callable(get):
        return None
    for name in _IN_MILLISECONDS:
        found = _seconds(_header(get, name))
        if found is not None:
            return found / 1_000
    return parse_retry_after(_header(get, "Retry-After"))


def _header(get: Callable[[str], object], name: str) -> object:
    value = get(name)
    return get(name.lower()) if value is None else value  # plain dicts know one spelling only
