"""How long to wait before the next attempt.

The delay after failed attempt n is base * factor^(n-1), capped at max_delay, then jittered *inside* the cap:
no delay is ever above it. Instead of that law, delays may be given as a sequence or a function; those are
taken as they are. Seconds throughout; randomness comes in as an argument.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from guarded._core.durations import Duration, parse_duration
from guarded._core.kinds import kind_of

Jitter: TypeAlias = Literal["full", "equal", "decorrelated", "none"]
Given: TypeAlias = tuple[float, ...] | Callable[[int], Duration] | None
_LARGEST = sys.float_info.max  # ints may be larger than any float
_WRITTEN = 100  # delays that somebody may have written down one by one
Random: TypeAlias = Callable[[], float]  # uniform over 0 <= x < 1, like random.random


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delays between attempts.

    Args:
        base: seconds after the first failure, before jitter.
        factor: growth per failure, at least 1.
        max_delay: seconds; the cap, jitter included.
        jitter: ``"full"`` draws from 0 to the delay, ``"equal"`` from half of it, ``"none"`` takes it as it is, a
            fraction f from ±f around it; ``"decorrelated"`` draws from `base` to three times the last delay.
            Full, equal and decorrelated jitter are those of Marc Brooker, "Exponential Backoff And Jitter"
            (AWS Architecture Blog, 2015), but that what would lie above the cap is not drawn, rather than cut to
            it: else most delays would become the same one.
        given: delays in place of all that: a sequence, whose last one repeats, or a function of the failed attempt.
    """

    base: float = 0.25
    factor: float = 2.0
    max_delay: float = 5.0
    jitter: Jitter | float = "full"
    given: Given = None

    def delay(self, failed: int, previous: float | None, rand: Random) -> float:
        """Seconds to wait after attempt number `failed`; `previous` is what this gave after the one before.

        Raises what the given function raises, and ValueError when it does not give a duration.
        """
        if self.given is not None:
            return self._given(failed)
        if self.jitter == "decorrelated":
            return _between(self.base, min(self.max_delay, 3 * (self.base if previous is None else previous)), rand)
        delay = self._grown(failed)
        if self.jitter == "none":
            return delay
        if self.jitter == "full":
            return _between(0.0, delay, rand)
        if self.jitter == "equal":
            return _between(delay / 2, delay, rand)
        return _between(delay * (1 - self.jitter), min(self.max_delay, delay * (1 + self.jitter)), rand)

    def longest(self, failed: int) -> float | None:
        """The longest delay that can follow attempt number `failed`; None when a function decides."""
        if callable(self.given):
            return None
        if self.given is not None:
            return self._given(failed)
        if self.jitter == "decorrelated":
            growth = Backoff(self.base, 3.0, self.max_delay, "none")
            return growth._grown(failed + 1)
        grown = self._grown(failed)
        return grown if isinstance(self.jitter, str) else min(self.max_delay, grown * (1 + self.jitter))

    def _grown(self, failed: int) -> float:
        try:
            return min(self.max_delay, self.base * float(self.factor) ** (failed - 1))
        except OverflowError:
            return self.max_delay if self.base else 0.0

    def _given(self, failed: int) -> float:
        if callable(self.given):
            return parse_duration(self.given(failed), option=f"backoff({failed})", allow_zero=True)
        assert self.given is not None
        return self.given[min(failed, len(self.given)) - 1]


def _between(low: float, high: float, rand: Random) -> float:
    return low + (high - low) * rand()


def jitter_problem(jitter: Any) -> str | None:
    """What is wrong with a ``jitter`` option, or None."""
    if isinstance(jitter, str):
        if jitter in get_args(Jitter):
            return None
    elif isinstance(jitter, (int, float)) and not isinstance(jitter, bool) and 0 <= jitter <= 1:
        return None
    return f"jitter={jitter!r}: must be 'full', 'equal', 'decorrelated', 'none', or a fraction from 0 to 1"


def read_given(given: Any, retries: int) -> Given:
    """A ``backoff`` option: a function as it is, a sequence as seconds.

    What somebody wrote down is kept whole, since a file or a call site may ask for more retries; of a sequence that is
    endless or as good as that, there is what the retries need.

    Raises ValueError for what is neither, is used up by reading it, is empty, or holds a bad delay.
    """
    if given is None:
        return None
    if isinstance(given, (str, bytes, int, float)):
        raise ValueError(f"backoff={given!r}: must be a function or a sequence, such as [{given!r}]")
    if callable(given):
        if kind_of(given) != "sync":
            raise ValueError(f"backoff={given!r}: must be a plain function of the number of the failed attempt")
        return given  # type: ignore[no-any-return]
    if isinstance(given, Iterator):
        raise ValueError(f"backoff={given!r}: is an iterator, which the first call would use up; give a list")
    if not isinstance(given, Iterable):
        raise ValueError(f"backoff={given!r}: must be a function or a sequence of delays")
    most = min(max(retries, _WRITTEN), sys.maxsize - 1)
    delays = list(itertools.islice(given, most + 1))
    if not delays:
        raise ValueError(f"backoff={given!r}: must hold at least one delay")
    if len(delays) > most:
        del delays[max(1, retries) :]
    return tuple(
        parse_duration(delay, option=f"backoff[{index}]", allow_zero=True) for index, delay in enumerate(delays)
    )


def factor_problem(factor: Any) -> str | None:
    """What is wrong with a ``factor`` option, or None."""
    if isinstance(factor, (int, float)) and not isinstance(factor, bool) and 1 <= factor <= _LARGEST:
        return None
    return f"factor={factor!r}: must be a finite number of at least 1"
