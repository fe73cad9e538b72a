"""What stores opened by an address have in common: times among their options, a name to show, a way to be copied."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from guarded._core.durations import Duration, parse_duration
from guarded.stores import open_store


def read_times(given: Mapping[str, Duration], problems: list[str]) -> dict[str, float]:
    """Seconds by option, of those that are times; adds what is wrong to `problems`."""
    seconds = {}
    for option, value in given.items():
        try:
            seconds[option] = parse_duration(value, option=option)
        except ValueError as error:
            problems.append(str(error))
    return seconds


def opened_again(url: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> Callable[[], Any]:
    """What opens the store of an address in the process that unpickles it."""
    return partial(open_store, url, **{name: value for name, value in given.items() if value != defaults[name]})


def public_name(url: str) -> str:
    """The address without user, password and options."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
