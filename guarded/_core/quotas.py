"""The grammar of rates: ``"5/s; 100/minute; 10 per 250ms"`` is a whole number per length of time, several times.

Windows are whole nanoseconds. Lengths follow `guarded._core.durations`, where the number may be left out
for one unit.
"""

from __future__ import annotations

import re

from guarded._core.durations import read_text

_QUOTA = re.compile(r"\s*(\S+?)\s*(?:/|\bper\b)\s*(.*?)\s*")
_COUNT = re.compile(r"[0-9]+|[0-9]{1,3}(?:_[0-9]{3})+")
LARGEST_COUNT = 10**15 - 1


def parse_rate_spec(spec: str, *, option: str = "spec") -> tuple[tuple[int, int], ...]:
    """Quotas of a rate, in the order written, each as ``(count, window in ns)``.

    Args:
        spec: one or more ``count/length`` or ``count per length``, separated by ``;``.
        option: how error messages call the spec.

    Raises:
        ValueError: with every problem of the text: counts that are no whole number from 1 up, lengths
            that are no duration, one window twice.
    """
    if not isinstance(spec, str):
        raise ValueError(f"{option}={spec!r}: must be text such as '5/s; 100/minute', not {type(spec).__name__}")
    quotas: list[tuple[int, int]] = []
    problems: list[str] = []
    for part in spec.split(";"):
        try:
            count, window = _read_quota(part)
            if window in (known for _, known in quotas):
                raise ValueError("has the same window as one before it")
        except ValueError as error:
            problems.append(f"{part.strip()!r} {error}" if part.strip() else "an entry is empty")
        else:
            quotas.append((count, window))
    if problems:
        raise ValueError(f"{option}={spec!r}: {'; '.join(problems)}")
    return tuple(quotas)


def _read_quota(part: str) -> tuple[int, int]:
    match = _QUOTA.fullmatch(part)
    if match is None:
        raise ValueError("must be a count per length of time, such as '5/s' or '10 per 250ms'")
    count, length = match.groups()
    digits = count.replace("_", "").lstrip("0") if _COUNT.fullmatch(count) else ""
    if not digits:
        raise ValueError("must count in whole numbers from 1 up ('1.5/s' is '3 per 2s')")
    if len(digits) > len(str(LARGEST_COUNT)):
        raise ValueError(f"must count to at most {LARGEST_COUNT:_}")
    try:
        window = read_text(f"1{length}" if length[:1].isalpha() else length)
    except ValueError as error:
        raise ValueError(f"has a wrong window: {error}") from None
    if window < 1:
        raise ValueError("must have a window of more than 0")
    return int(digits), window
