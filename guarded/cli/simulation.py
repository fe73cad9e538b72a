"""A load against a stack of policies, in virtual time: what is served, queued, refused, retried.

Calls arrive at random (a Poisson process). Each runs the real layers around a pretended service: it answers after a
latency, fails at random, and gets slower in proportion when it has more requests than it has room for, whether anybody
still waits for them or not. One seed, one outcome. Seconds, ratios 0..1.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

from guarded import cancel
from guarded._core import clock
from guarded._core.keys import key_parameters
from guarded._core.policy import Policy
from guarded._core.wrapper import decorate
from guarded.cli._virtual_loop import run
from guarded.errors import DeadlineExceeded, Rejected
from guarded.events.tally import Stats, collecting

BUCKETS: Final = 60
PATIENCE: Final = 2  # durations that calls may take after the last arrival; who waits then waits for ever
_AMOUNTS: Final = ("weight", "cost", "priority")


@dataclass(frozen=True, slots=True)
class Load:
    """What comes, and what the service does with it.

    Attributes:
        rps: calls per second, above 0.
        latency: shortest and longest time of an answer.
        failure: share of requests that fail.
        duration: length of the load.
        capacity: requests at once above which it gets slower; None: any number.
        outage: from when to when every request fails.
        keys: among how many keys the calls are spread, where policies have keys.
        seed: of all that is random, the jitter of retries included.
    """

    rps: float = 50.0
    latency: tuple[float, float] = (0.1, 0.1)
    failure: float = 0.0
    duration: float = 60.0
    capacity: int | None = None
    outage: tuple[float, float] | None = None
    keys: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        rules = (
            ("rps", 0 < self.rps < inf, "must be above 0"),
            ("latency", 0 <= self.latency[0] <= self.latency[1] < inf, "must not be below 0, nor end before it starts"),
            ("failure", 0 <= self.failure <= 1, "must be a share from 0 to 1"),
            ("duration", 0 < self.duration < inf, "must be above 0"),
            ("capacity", self.capacity is None or self.capacity >= 1, "must be at least 1"),
            ("outage", self.outage is None or 0 <= self.outage[0] < self.outage[1], "must end after it starts"),
            ("keys", self.keys >= 1, "must be at least 1"),
        )
        wrong = [f"{name}={getattr(self, name)!r}: {rule}" for name, holds, rule in rules if not holds]
        if wrong:
            raise ValueError("simulate: " + "; ".join(wrong))


@dataclass(slots=True)
class Series:
    """What happened in each of the `BUCKETS` parts of the duration, and no more; `waiting` is at the end of each."""

    offered: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    requests: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    served: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    refused: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    failed: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    waiting: list[int] = field(default_factory=lambda: [0] * BUCKETS)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a simulation.

    Attributes:
        load: what it was.
        offered: calls that arrived.
        served: calls that returned, `fallbacks` included.
        fallbacks: calls that returned what a fallback layer gave.
        failed: calls that ended with the service's own error.
        refused: calls that a policy refused, by its name.
        out_of_time: calls that a deadline ended.
        unfinished: calls that still waited when nothing could be expected any more.
        requests: what reached the service.
        peak: most requests it had at once.
        latencies: how long the served calls took, ascending.
        stats: the figures of ``guarded.stats``.
        series: the same over time.
        notes: what was simulated otherwise than it is.
    """

    load: Load
    offered: int
    served: int
    fallbacks: int
    failed: int
    refused: dict[str, int]
    out_of_time: int
    unfinished: int
    requests: int
    peak: int
    latencies: tuple[float, ...]
    stats: Stats
    series: Series
    notes: tuple[str, ...]

    def percentile(self, share: float) -> float | None:
        """The time within which that share of the served calls was served; None when none was."""
        if not self.latencies:
            return None
        return self.latencies[min(len(self.latencies) - 1, int(share * len(self.latencies)))]


class Unavailable(Exception):
    """How the pretended service fails: with HTTP status 503."""

    status = 503

    def __str__(self) -> str:
        return "the service is unavailable"


class Service:
    """The pretended service."""

    def __init__(self, load: Load, error: type[Exception], dice: random.Random) -> None:
        self._load, self._error, self._dice = load, error, dice
        self.requests: int = 0
        self.running: int = 0
        self.peak: int = 0
        self.series: Series = Series()

    def count(self, counts: list[int]) -> None:
        """One more in this part of the duration."""
        part = int(clock.monotonic() / self._load.duration * BUCKETS)
        if part < BUCKETS:
            counts[part] += 1

    async def answer(self) -> str:
        """One request."""
        load = self._load
        self.requests += 1
        self.count(self.series.requests)
        self.running += 1
        self.peak = max(self.peak, self.running)
        seconds = self._dice.uniform(*load.latency) * max(1.0, self.running / (load.capacity or inf))
        fails = self._dice.random() < load.failure
        clock.call_at(asyncio.get_running_loop(), clock.monotonic() + seconds, self._leave)  # also if nobody waits
        await cancel.asleep(seconds)
        if fails or (load.outage is not None and load.outage[0] <= clock.monotonic() < load.outage[1]):
            raise self._error.__new__(self._error)
        return "served"

    def _leave(self) -> None:
        self.running -= 1


def simulate(layers: Sequence[Policy[Any]], load: Load) -> Outcome:
    """Run `load` against `layers`, outermost first. Their state is used up: give fresh ones."""
    layers, notes = _adapted(layers)
    dice, state = random.Random(load.seed), random.getstate()
    random.seed(load.seed)  # what the layers draw from
    try:
        return run(_Course(layers, load, dice).run(tuple(notes)))
    finally:
        random.setstate(state)


def _adapted(layers: Iterable[Policy[Any]]) -> tuple[tuple[Policy[Any], ...], list[str]]:
    """The layers without what a simulation cannot have."""
    found: list[Policy[Any]] = []
    notes: list[str] = []
    for layer in layers:
        if layer.kind == "idempotent":
            notes.append(f"{layer.label}: left out, since every simulated call has a key of its own")
            continue
        if getattr(layer.options, "store", None) is not None:
            notes.append(f"{layer.label}: without its store, as one process alone")
            layer = type(layer)(dataclasses.replace(layer.options, store=None), name=layer.name)
        found.append(layer)
    return tuple(found), notes


class _Course:
    """One simulation while it runs."""

    def __init__(self, layers: tuple[Policy[Any], ...], load: Load, dice: random.Random) -> None:
        self._layers, self._load, self._dice = layers, load, dice
        self._service = Service(load, _error_for(layers), dice)
        self._keys, self._amounts = _parameters(layers)
        self._call = self._guarded()
        self._counts: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._latencies: list[float] = []

    def _guarded(self) -> Any:
        service = self._service

        async def simulated(**arguments: object) -> str:
            return await service.answer()

        names = sorted({*self._keys, *self._amounts})
        parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
        simulated.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return decorate(simulated, self._layers) if self._layers else simulated

    async def run(self, notes: tuple[str, ...]) -> Outcome:
        """All calls, and what came of them."""
        with collecting() as tally:
            await self._drive()
            return self._outcome(tally.stats(), notes)

    async def _drive(self) -> None:
        """All calls to their ends."""
        load, tasks = self._load, set[asyncio.Task[None]]()
        sampling = asyncio.ensure_future(self._sample())
        while True:
            await cancel.asleep(self._dice.expovariate(load.rps))
            if clock.monotonic() >= load.duration:
                break
            task = asyncio.ensure_future(self._one())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        if tasks:
            await asyncio.wait(tasks, timeout=PATIENCE * load.duration)
        self._counts["unfinished"] = len(tasks)
        for task in (*tasks, sampling):
            task.cancel()

    async def _sample(self) -> None:
        """How many wait, at the end of each part."""
        for bucket in range(BUCKETS):
            await cancel.asleep(self._load.duration / BUCKETS)
            waiting = sum(layer.live_state().get("queued") or 0 for layer in self._layers)
            self._service.series.waiting[bucket] = waiting

    async def _one(self) -> None:
        series, count, began = self._service.series, self._service.count, clock.monotonic()
        count(series.offered)
        self._counts["offered"] += 1
        chosen = self._dice.randrange(self._load.keys)
        arguments = {**dict.fromkeys(self._keys, _Someone(f"key-{chosen}")), **dict.fromkeys(self._amounts, 1)}
        try:
            result = await self._call(**arguments)
        except (Rejected, DeadlineExceeded) as error:
            count(series.refused)
            if isinstance(error, Rejected):
                self._refused[error.policy or "?"] += 1
            else:
                self._counts["out_of_time"] += 1
        except Exception:
            count(series.failed)
            self._counts["failed"] += 1
        else:
            count(series.served)
            self._counts["served"] += 1
            self._counts["fallbacks"] += result != "served"
            self._latencies.append(clock.monotonic() - began)

    def _outcome(self, stats: Stats, notes: tuple[str, ...]) -> Outcome:
        """The sums."""
        counts, service = self._counts, self._service
        return Outcome(
            load=self._load,
            offered=counts["offered"],
            served=counts["served"],
            fallbacks=counts["fallbacks"],
            failed=counts["failed"],
            refused=dict(self._refused.most_common()),
            out_of_time=counts["out_of_time"],
            unfinished=counts["unfinished"],
            requests=service.requests,
            peak=service.peak,
            latencies=tuple(sorted(self._latencies)),
            stats=stats,
            series=service.series,
            notes=notes,
        )


class _Someone(str):
    """An argument that a key is taken from: any attribute and any index of it is the same again."""

    __slots__ = ()

    def __getattr__(self, name: str) -> _Someone:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, index: Any) -> _Someone:
        return self


def _parameters(layers: Iterable[Policy[Any]]) -> tuple[set[str], set[str]]:
    """The parameters that keys are taken from, and those that numbers are."""
    keys: set[str] = set()
    amounts: set[str] = set()
    for layer in layers:
        for option, names in (("key", keys), *((amount, amounts) for amount in _AMOUNTS)):
            value = getattr(layer.options, option, None)
            if isinstance(value, str) or callable(value):
                names.update(key_parameters(value))
    return keys, amounts - keys


def _error_for(layers: Iterable[Policy[Any]]) -> type[Exception]:
    """An error that the types which retries and circuits name match, too."""
    bases: list[type] = [Unavailable]
    for layer in layers:
        named = getattr(layer.options, "on", None) if layer.kind in ("retry", "circuit") else None
        for kind in named if isinstance(named, tuple) else (named,):
            if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(Unavailable, kind):
                try:
                    bases = [type("Unavailable", (*bases, kind), {})]
                except TypeError:
                    continue  # types of different layouts cannot be one; the first one counts
    found: type[Exception] = bases[0]
    return found
