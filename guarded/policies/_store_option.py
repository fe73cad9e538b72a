"""The options that say where the state of a policy lives, and what becomes of calls while that cannot be used."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias, get_args

WhenStoreFails: TypeAlias = Literal["local", "open", "closed"]
"""Go on with the budget of this process, let every call through, or raise StoreError."""

_CHOICES: Final = get_args(WhenStoreFails)


def read_store(store: Any, kind: str, name: str | None, when_store_fails: Any, problems: list[str]) -> Any:
    """The store an option means, None for the state of this process; adds what is wrong to `problems`."""
    if when_store_fails not in _CHOICES:
        problems.append(f"when_store_fails={when_store_fails!r}: must be one of {', '.join(_CHOICES)}")
    if store is None:
        return None
    from guarded.stores import StoreProblem, face_of, open_store  # only where there is one

    try:
        found = open_store(store)
        if found is not None:
            face_of(found, kind)
    except StoreProblem as problem:
        problems.append(str(problem))
        return None
    if found is not None and name is None:
        problems.append(f"store={found!r}: needs a name for the {kind}, by which all processes know it")
    return found
