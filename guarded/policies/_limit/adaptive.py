"""Estimators of how many calls a dependency bears at once, from the outcome and latency of each call.

An `Adaptive` says which algorithm with which options; `estimator()` makes its state. An estimator is fed one call at a
time and gives the new limit: no clock, no lock, no I/O. Latencies are seconds, limits are permits, kept between
`min_limit` and `max_limit`.

Both algorithms are those of Netflix concurrency-limits (AIMDLimit and Gradient2Limit), as published at
https://github.com/Netflix/concurrency-limits; where this differs, a comment says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from sys import float_info
from typing import Any, Literal, Protocol

from guarded._core.durations import Duration, parse_duration
from guarded._core.numbers import is_whole

Algorithm = Literal["aimd", "gradient2"]
_OWN = {"aimd": ("backoff", "slow"), "gradient2": ("smoothing", "tolerance", "window", "headroom")}


class Estimator(Protocol):
    """State of one adaptive limit."""

    @property
    def limit(self) -> int:
        """The present estimate."""
        ...

    def observe(self, latency: float, inflight: int, dropped: bool) -> int:
        """Learn from one call and give the new limit.

        Args:
            latency: seconds that the call ran, without its wait for a permit.
            inflight: permits held when it started, its own included.
            dropped: whether it failed in a way that speaks of overload.
        """
        ...


@dataclass(frozen=True, slots=True)
class Adaptive:
    """What `adaptive` was given; options of the algorithm that was not chosen are at their defaults."""

    algorithm: Algorithm = "gradient2"
    initial: int = 20
    min_limit: int = 1
    max_limit: int = 200
    backoff: float = 0.9
    slow: float | None = None
    smoothing: float = 0.2
    tolerance: float = 1.5
    window: int = 600
    headroom: int = 4

    def estimator(self) -> Estimator:
        """Fresh state, starting at `initial`."""
        return Aimd(self) if self.algorithm == "aimd" else Gradient2(self)

    def __repr__(self) -> str:
        shared = f"{self.algorithm!r}, initial={self.initial}, min_limit={self.min_limit}, max_limit={self.max_limit}"
        own = "".join(f", {option}={getattr(self, option)}" for option in _OWN[self.algorithm])
        return f"adaptive({shared}{own})"


class Aimd:
    """Additive increase, multiplicative decrease: one more after a good call, a cut by `backoff` after a bad one."""

    __slots__ = ("_options", "limit")

    def __init__(self, options: Adaptive) -> None:
        self._options = options
        self.limit = options.initial

    def observe(self, latency: float, inflight: int, dropped: bool) -> int:
        """See `Estimator.observe`."""
        options = self._options
        if dropped or (options.slow is not None and latency > options.slow):
            self.limit = max(options.min_limit, int(self.limit * options.backoff))
        elif inflight * 2 >= self.limit:  # a limit that nobody comes near has proved nothing
            self.limit = min(options.max_limit, self.limit + 1)
        return self.limit


class Gradient2:
    """Compares each latency with a long moving average: a queue is building up where it is longer.

    The limit follows ``limit * gradient + headroom``, where the gradient is the average over the latest latency, times
    `tolerance`, between 0.5 and 1; smoothed exponentially by `smoothing`. Under a demand that never lets up the average
    follows the latency and the limit drifts up to `max_limit`.
    """

    __slots__ = ("_average", "_count", "_estimate", "_options", "_sum")

    _WARM_UP = 10  # a plain mean of so many samples comes before the exponential average

    def __init__(self, options: Adaptive) -> None:
        self._options = options
        self._estimate = float(options.initial)
        self._average = self._sum = 0.0
        self._count = 0

    @property
    def limit(self) -> int:
        """The present estimate."""
        return int(self._estimate)

    def observe(self, latency: float, inflight: int, dropped: bool) -> int:
        """See `Estimator.observe`."""
        options = self._options
        if dropped:
            # The original does not look at failures. A refusal is quick, so its latency would speak for more load:
            # it is left out of the average and taken for the steepest gradient instead.
            self._follow(0.5, headroom=0)
            return self.limit
        latency = max(latency, 1e-9)
        self._remember(latency)
        if self._average / latency > 2:
            self._average *= 0.95  # the load has gone: forget the slow time faster than the window would
        if inflight >= self._estimate / 2:  # a limit that nobody comes near has proved nothing
            self._follow(max(0.5, min(1.0, options.tolerance * self._average / latency)), options.headroom)
        return self.limit

    def _remember(self, latency: float) -> None:
        if self._count < self._WARM_UP:
            self._count += 1
            self._sum += latency
            self._average = self._sum / self._count
        else:
            self._average += (latency - self._average) * 2 / (self._options.window + 1)

    def _follow(self, gradient: float, headroom: int) -> None:
        options = self._options
        target = self._estimate * gradient + headroom
        smoothed = self._estimate + (target - self._estimate) * options.smoothing
        self._estimate = max(float(options.min_limit), min(float(options.max_limit), smoothed))


def adaptive(
    algorithm: Algorithm = "gradient2",
    *,
    initial: int = 20,
    min_limit: int = 1,
    max_limit: int = 200,
    backoff: float | None = None,
    slow: Duration | None = None,
    smoothing: float | None = None,
    tolerance: float | None = None,
    window: int | None = None,
    headroom: int | None = None,
) -> Adaptive:
    """A limit that finds its own size: ``limit(adaptive())``.

    Calls that fail with a time-out, a lost connection, or another transient error, and calls cut by their deadline,
    count as overload; other failures and cancelled calls teach nothing.

    Args:
        algorithm: ``"gradient2"`` follows the latency; ``"aimd"`` grows by one until calls fail.
        initial: permits to begin with, default 20.
        min_limit: never fewer permits, default 1.
        max_limit: never more permits, default 200. Choose it with care for gradient2: a demand that fills the limit
            without a pause lets it drift up to there.
        backoff: aimd: what a cut leaves of the limit, at least 0.5 and less than 1, default 0.9.
        slow: aimd: a call that runs longer counts as overload; a duration, default none.
        smoothing: gradient2: weight of the newest call, more than 0 and at most 1, default 0.2.
        tolerance: gradient2: how many times the average latency is still good, at least 1, default 1.5.
        window: gradient2: calls that the average latency looks back on, default 600.
        headroom: gradient2: permits by which the limit may grow at a time, before smoothing, default 4.

    Raises:
        ValueError: an option is wrong, or belongs to the other algorithm; all wrong ones are named.

    Source: Netflix concurrency-limits, AIMDLimit and Gradient2Limit.
    """
    given: dict[str, Any] = {
        "backoff": backoff,
        "slow": slow,
        "smoothing": smoothing,
        "tolerance": tolerance,
        "window": window,
        "headroom": headroom,
    }
    given = {option: value for option, value in given.items() if value is not None}
    problems = _bounds_problems(initial, min_limit, max_limit)
    if not isinstance(algorithm, str) or algorithm not in _OWN:
        problems.append(f"algorithm={algorithm!r}: must be 'aimd' or 'gradient2'")
    else:
        problems += [f"{option}={value!r}: is no option of {algorithm!r}" for option, value in given.items()
                     if option not in _OWN[algorithm]]  # fmt: skip
    for option, value in given.items():
        problems += _own_problems(option, value)
    if problems:
        raise ValueError("adaptive: " + "; ".join(problems))
    if slow is not None:
        given["slow"] = parse_duration(slow, option="slow")
    return Adaptive(algorithm, initial, min_limit, max_limit, **given)


def _bounds_problems(initial: Any, min_limit: Any, max_limit: Any) -> list[str]:
    bounds = {"initial": initial, "min_limit": min_limit, "max_limit": max_limit}
    problems = [
        f"{option}={value!r}: must be a whole number from 1 up"
        for option, value in bounds.items()
        if not is_whole(value, 1)
    ]
    if not problems and not min_limit <= initial <= max_limit:
        problems.append(f"initial={initial!r}: must lie between min_limit={min_limit!r} and max_limit={max_limit!r}")
    return problems


def _own_problems(option: str, value: Any) -> list[str]:
    if option == "slow":
        try:
            parse_duration(value, option="slow")
        except ValueError as error:
            return [str(error)]
        return []
    if option in ("window", "headroom"):
        return [] if is_whole(value, 1) else [f"{option}={value!r}: must be a whole number from 1 up"]
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and value <= float_info.max
    rule, right = {
        "backoff": ("at least 0.5 and less than 1", number and 0.5 <= value < 1),
        "smoothing": ("more than 0 and at most 1", number and 0 < value <= 1),
        "tolerance": ("at least 1", number and value >= 1),
    }[option]
    return [] if right else [f"{option}={value!r}: must be a number {rule}"]
