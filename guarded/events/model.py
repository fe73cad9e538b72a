"""What an event is, and the one table of all of them: name, level, meaning and fields.

Events are named ``<layer>.<past participle>``. TRACE is the success path, INFO what waits or is repeated,
WARNING what is refused or opened, ERROR what is lost. Durations are seconds, ratios 0..1; a field that
does not apply is None. No field holds an argument, a result, a key or a credential. The docs page is
made from `EVENTS` and `FIELDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypedDict

TRACE: Final = 5
DEBUG: Final = 10
INFO: Final = 20
WARNING: Final = 30
ERROR: Final = 40

LEVELS: Final[Mapping[int, str]] = MappingProxyType(
    {TRACE: "TRACE", DEBUG: "DEBUG", INFO: "INFO", WARNING: "WARNING", ERROR: "ERROR"}
)
_NUMBERS: Final = {name: number for number, name in LEVELS.items()}

Outcome = Literal["success", "failure", "neutral"]


def level_number(level: int | str) -> int:
    """The number of a level given by name (any case) or by number; ValueError names the choices."""
    number = _NUMBERS.get(level.upper()) if isinstance(level, str) else level
    if number is None or number not in LEVELS:
        choices = ", ".join(f"{name} ({number})" for number, name in LEVELS.items())
        raise ValueError(f"level={level!r}: must be one of {choices}")
    return number


class Cause(NamedTuple):
    """The exception behind an event: the name of its type, and its message, redacted."""

    type: str
    message: str

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


def _optional(unit: str, meaning: str) -> Any:
    return field(default=None, metadata={"unit": unit, "meaning": meaning})


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to a call or a policy; what each field means and its unit is in `FIELDS`."""

    time: float = field(metadata={"unit": "seconds since the epoch", "meaning": "when, by the wall clock"})
    name: str = field(metadata={"unit": "", "meaning": "which row of the table"})
    level: int = field(metadata={"unit": "", "meaning": "5 TRACE, 10 DEBUG, 20 INFO, 30 WARNING, 40 ERROR"})
    policy: str | None = _optional("", "name of the policy, or its short repr")
    layer: str | None = _optional("", "kind of the policy: limit, rate, retry …")
    function: str | None = _optional("", "qualified name of the guarded callable")
    call_id: str | None = _optional("", "the same for all events of one call")
    attempt: int | None = _optional("calls", "number of the attempt; 1 is the first call")
    wait: float | None = _optional("s", "time spent waiting so far")
    duration: float | None = _optional("s", "time spent running")
    remaining: float | None = _optional("s", "time left before the effective deadline")
    active: int | None = _optional("permits", "held, or running, after this event")
    queued: int | None = _optional("calls", "waiting after this event")
    cause: Cause | None = _optional("", "type and redacted message of the exception")  # noqa: RUF009
    outcome: Outcome | None = _optional("", "success, failure or neutral")  # noqa: RUF009
    cancelled: bool | None = _optional("", "whether the call was cancelled")
    reason: str | None = _optional("", "why, in a fixed word or two; for a deadline, what was going on")
    hint: str | None = _optional("", "what to change so that it goes another way")
    allowed: float | None = _optional("s", "length of the deadline")
    delay: float | None = _optional("s", "length of the wait that starts now")
    retry_after: float | None = _optional("s", "time after which the same call would be admitted")
    attempts: int | None = _optional("calls", "calls made in all")
    retries: int | None = _optional("calls", "additional calls allowed")
    status: int | None = _optional("", "HTTP status of the failed attempt")
    limit: float | None = _optional("permits", "bound in force after this event")
    state: str | None = _optional("", "state after this event: closed, open, half-open, isolated")
    previous: float | str | None = _optional("", "the limit or the state before")
    failures: int | None = _optional("calls", "failures counted")
    failure_rate: float | None = _optional("0..1", "share of failed calls in the window")
    slow_rate: float | None = _optional("0..1", "share of slow calls in the window")
    key_digest: str | None = _optional("", "start of the sha256 of the key")
    age: float | None = _optional("s", "time since the stored result was completed")
    store: str | None = _optional("", "name of the store; credentials removed")
    mode: str | None = _optional("", "what goes on meanwhile: local, open or closed")
    source: str | None = _optional("", "file of the config, or place in the code")
    changes: int | None = _optional("policies", "added, replaced and removed")
    problems: int | None = _optional("problems", "found in the config")

    def fields(self) -> dict[str, Any]:
        """The fields that are set, by name, as plain values (the cause as ``Type: message``)."""
        return {name: getattr(self, name) for name in HEAD} | self.details()

    def details(self) -> dict[str, Any]:
        """`fields` without time, name and level, which every log record has a place of its own for."""
        found = {name: value for name in _DETAILS if (value := getattr(self, name)) is not None}
        if self.cause is not None:
            found["cause"] = str(self.cause)
        return found

    def __str__(self) -> str:
        """One readable line: the name, then what is set."""
        rest = " ".join(
            f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in self.details().items()
            if name != "call_id"
        )
        return f"{self.name} {rest}".rstrip()


@cache
def event_maker() -> Callable[..., Event]:
    """What makes an event of keyword arguments, several times faster than its own frozen ``__init__``.

    It fills an unfrozen twin of the same layout, which then becomes an `Event`.
    """
    columns = [(f.name, Any, field(default=None)) for f in fields(Event)]
    twin: Any = make_dataclass("_Twin", columns, init=True, repr=False, eq=False, slots=True)

    def make(**values: Any) -> Event:
        event = twin(**values)
        event.__class__ = Event
        return event  # type: ignore[no-any-return]

    return make


class Fields(TypedDict, total=False):
    """What an emitter may say beyond what the bus takes from the call and the policy."""

    attempt: int | None
    wait: float | None
    duration: float | None
    remaining: float | None
    active: int | None
    queued: int | None
    cause: BaseException | None
    outcome: Outcome | None
    cancelled: bool | None
    reason: str | None
    hint: str | None
    allowed: float | None
    delay: float | None
    retry_after: float | None
    attempts: int | None
    retries: int | None
    status: int | None
    limit: float | None
    state: str | None
    previous: float | str | None
    failures: int | None
    failure_rate: float | None
    slow_rate: float | None
    key_digest: str | None
    age: float | None
    store: str | None
    mode: str | None
    source: str | None
    changes: int | None
    problems: int | None


class FieldSpec(NamedTuple):
    """One field of an event: its unit (empty for words) and what it means."""

    name: str
    unit: str
    meaning: str


FIELDS: Final[Mapping[str, FieldSpec]] = MappingProxyType(
    {f.name: FieldSpec(f.name, f.metadata["unit"], f.metadata["meaning"]) for f in fields(Event)}
)

HEAD: Final = ("time", "name", "level")
_DETAILS: Final = tuple([name for name in FIELDS if name not in HEAD])
_CALL: Final = ("function", "call_id", "attempt", "remaining")
_POLICY: Final = ("policy", "layer")


class Spec(NamedTuple):
    """One row of the table.

    Attributes:
        name: ``<layer>.<past participle>``.
        level: one of the five levels.
        meaning: one sentence.
        fields: names of the fields it may carry, always in the order of `FIELDS`.
    """

    name: str
    level: int
    meaning: str
    fields: tuple[str, ...]


def _spec(name: str, level: int, meaning: str, own: str = "") -> Spec:
    layer = name.partition(".")[0]
    names = {*HEAD, *own.split()}
    if layer not in ("policy", "config"):
        names.update(_CALL)
    if layer not in ("call", "config"):
        names.update(_POLICY)
    return Spec(name, level, meaning, tuple(field for field in FIELDS if field in names))


_TABLE: Final = (
    _spec("call.succeeded", TRACE, "A guarded call returned.", "duration outcome attempts"),
    _spec(
        "call.failed",
        DEBUG,  # the caller has the exception already
        "A guarded call raised, was refused or was cancelled.",
        "duration outcome cancelled cause attempts status",
    ),
    _spec("limit.acquired", TRACE, "A call got its permits.", "wait active queued limit"),
    _spec("limit.queued", INFO, "No permit is free, so the call waits its turn.", "active queued limit"),
    _spec(
        "limit.rejected",
        WARNING,
        "The queue is full, the wait took too long or was cut off, or the limit is closed.",
        "wait active queued limit reason cancelled",
    ),
    _spec(
        "limit.lost",
        WARNING,
        "The lease of a holder ended in the store: its permit may be another call's.",
        "duration store",
    ),
    _spec(
        "limit.resized",
        DEBUG,  # adaptive limits do this many times a minute
        "The number of permits changed.",
        "active queued limit previous reason",
    ),
    _spec("rate.delayed", INFO, "The rate is used up, so the call waits for its due time.", "delay queued"),
    _spec("rate.rejected", WARNING, "The rate is used up, the wait too long.", "retry_after queued"),
    _spec("rate.paused", WARNING, "The server asked for a pause.", "delay"),
    _spec(
        "retry.scheduled",
        INFO,
        "An attempt failed and will be repeated after the delay.",
        "delay retries cause reason retry_after status",
    ),
    _spec("retry.recovered", INFO, "A call succeeded after retries.", "attempts wait reason"),
    _spec(
        "retry.exhausted",
        WARNING,
        "The last attempt failed too.",
        "attempts retries cause reason status wait",
    ),
    _spec(
        "retry.gave_up",
        INFO,  # on an error that is not worth a retry this is the normal course
        "No retry, though some are left: the error does not match, or there is no time for one.",
        "attempts retries cause reason hint retry_after status wait",
    ),
    _spec(
        "retry.budget_spent",
        WARNING,
        "No retry, because too large a share of recent calls were retries.",
        "attempts retries cause status",
    ),
    _spec("retry.nested", WARNING, "A retry inside a retry: attempts multiply.", "retries hint"),
    _spec("deadline.exceeded", WARNING, "The time of a call was up.", "reason allowed"),
    _spec("deadline.late", WARNING, "The body ended too late.", "duration cause allowed"),
    _spec(
        "deadline.abandoned",
        WARNING,
        "The caller went on while the body still runs in its worker thread.",
        "active allowed",
    ),
    _spec(
        "circuit.opened",
        WARNING,
        "Too many calls failed or were slow: calls are refused for a while.",
        "state previous reason failures failure_rate slow_rate retry_after cause",
    ),
    _spec("circuit.half_opened", INFO, "Trial calls are let through.", "state previous reason limit"),
    _spec("circuit.closed", INFO, "Calls are let through again.", "state previous reason"),
    _spec(
        "circuit.rejected",
        WARNING,
        "The circuit is open, isolated, or has all its trials out.",
        "state reason retry_after active cause",
    ),
    _spec("circuit.isolated", WARNING, "The circuit was opened by hand, to stay so.", "state previous reason"),
    _spec(
        "circuit.late",
        DEBUG,
        "A result of a call that began before the last change of state; it is not counted.",
        "state outcome duration cause",
    ),
    _spec("idempotent.stored", TRACE, "A result was stored.", "key_digest duration outcome cause store"),
    _spec("idempotent.joined", INFO, "A duplicate joined the run in flight.", "key_digest active store"),
    _spec("idempotent.replayed", INFO, "A stored result was given.", "key_digest age outcome store"),
    _spec("idempotent.rejected", WARNING, "The key is in progress.", "key_digest retry_after reason store"),
    _spec("idempotent.mismatched", WARNING, "A key came with other arguments.", "key_digest state store"),
    _spec(
        "idempotent.abandoned",
        WARNING,
        "An earlier run of the key died half way; its outcome is unknown.",
        "key_digest age reason store mode",
    ),
    _spec("fallback.used", INFO, "The fallback answered in place of the call.", "cause reason duration"),
    _spec("hedge.launched", INFO, "Another copy of the call was started.", "delay active cause reason"),
    _spec("hedge.won", INFO, "A copy answered before the first call did.", "duration active attempts"),
    _spec("store.failed", ERROR, "A store cannot be used.", "store mode cause reason"),
    _spec("store.recovered", INFO, "A store that had failed works again.", "store duration"),
    _spec("policy.added", DEBUG, "A policy or stack got a name.", "source"),
    _spec("policy.replaced", INFO, "A name means another policy now.", "source"),
    _spec("policy.removed", INFO, "A name was taken out.", "source"),
    _spec("config.reloaded", INFO, "A config source was read and is in force.", "source changes duration"),
    _spec("config.reload_failed", ERROR, "A config is wrong; the former stays.", "source problems cause"),
)

EVENTS: Final[Mapping[str, Spec]] = MappingProxyType({spec.name: spec for spec in _TABLE})
