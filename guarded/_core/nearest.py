"""The right name for a wrong one: what every "did you mean" of guarded goes by."""

from __future__ import annotations

from collections.abc import Iterable

_FEW = 20


def nearest(word: object, known: Iterable[object], most: int = 1) -> list[str]:
    """The names in `known` that `word` was probably meant to be, the nearest first; case, ``-`` and ``_`` are alike."""
    import difflib  # for mistakes only

    folded = {_folded(name): str(name) for name in known}
    wanted = _folded(word)
    # Letters that changed places count for much in a short word: 'bd' is far from 'db' by what they have in common.
    swapped = [name for name in folded if sorted(name) == sorted(wanted)]
    near = swapped + [name for name in difflib.get_close_matches(wanted, folded, most) if name not in swapped]
    return [folded[name] for name in near[:most]]


def _folded(name: object) -> str:
    return str(name).casefold().replace("-", "_")


def did_you_mean(word: object, known: Iterable[object], most: int = 1) -> str | None:
    """``did you mean 'db'?``, or None when nothing is near."""
    near = nearest(word, known, most)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else None


def choices(word: object, known: Iterable[object]) -> str | None:
    """`did_you_mean`; where nothing is near, all names, if they are few."""
    names = list(map(str, known))
    few = f"one of {', '.join(names)}" if 0 < len(names) <= _FEW else None
    return did_you_mean(word, names) or few
