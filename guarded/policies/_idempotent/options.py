"""The options of `idempotent`: what they are, and everything that can be wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from guarded._core.durations import parse_duration
from guarded._core.keys import key_problem
from guarded.policies._store_option import WhenStoreFails, read_store
from guarded.stores.contract.idempotent import IdempotentStore

OnDuplicate = Literal["join", "reject"]
OnAbandoned = Literal["rerun", "raise"]


@dataclass(frozen=True, slots=True)
class IdempotentOptions:
    """What `idempotent` was given; `ttl` and `lease` in seconds."""

    key: str | Callable[..., object] | None = None
    ttl: float = 86_400.0
    on_duplicate: OnDuplicate = "join"
    fingerprint: bool = True
    store_errors: tuple[type[Exception], ...] = ()
    lease: float = 30.0
    on_abandoned: OnAbandoned = "rerun"
    store: Any = None
    when_store_fails: WhenStoreFails = "closed"

    @classmethod
    def checked(cls, **given: Any) -> IdempotentOptions:
        """Raise one ValueError that names every wrong option."""
        problems = []
        if given["key"] is not None and (problem := key_problem(given["key"])):
            problems.append(f"key={given['key']!r}: {problem}")
        for option in ("ttl", "lease"):
            try:
                given[option] = parse_duration(given[option], option=option)
            except ValueError as error:
                problems.append(str(error))
        for option, choices in (("on_duplicate", ("join", "reject")), ("on_abandoned", ("rerun", "raise"))):
            if given[option] not in choices:
                problems.append(f"{option}={given[option]!r}: must be {choices[0]!r} or {choices[1]!r}")
        if not isinstance(given["fingerprint"], bool):
            problems.append(f"fingerprint={given['fingerprint']!r}: must be True or False")
        errors = given["store_errors"]
        given["store_errors"] = errors = errors if isinstance(errors, (tuple, list)) else (errors,)
        wrong = [each for each in errors if not (isinstance(each, type) and issubclass(each, Exception))]
        if wrong:
            problems.append(f"store_errors={wrong[0]!r}: must be Exception types; control flow is never stored")
        given["store_errors"] = tuple(errors)
        store, mode = given["store"], given["when_store_fails"]
        if mode != "closed" or not (store is None or isinstance(store, IdempotentStore)):
            given["store"] = read_store(store, "idempotent", "", mode, problems)
        if problems:
            raise ValueError("idempotent: " + "; ".join(problems))
        return cls(**given)
