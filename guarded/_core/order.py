"""The order of layers, outermost first, and warnings for orders that are almost surely wrong."""

from __future__ import annotations

import functools
from typing import Any

from guarded._core.place import warn
from guarded._core.policy import Policy

ORDER = ("fallback", "idempotent", "deadline", "limit", "retry", "hedge", "circuit", "rate", "deadline")
"""The order used for stacks from YAML and taught in the docs; the last deadline is per attempt."""


def check_order(
    outer: tuple[Policy[Any], ...], inner: tuple[Policy[Any], ...], wrapped: object, *, quiet: bool = False
) -> list[str]:
    """What is almost surely wrong when `outer` goes around `inner`; also issued as GuardWarnings, unless `quiet`."""
    name = getattr(wrapped, "__qualname__", None) or repr(wrapped)
    outer, inner = expand_known(outer), expand_known(inner)
    findings = []
    for index, policy in enumerate(outer):
        for below in outer[index + 1 :] + inner:
            finding = judge(policy, below)
            if finding:
                findings.append(f"{name}: {finding}")
    if any(map(_repeats, outer)) and not inner and _retries_below(wrapped):
        findings.append(f"{name}: retry around a function that retries already: the attempts multiply")
    if not quiet:
        for finding in findings:
            warn(finding)
    return findings


def expand_known(layers: tuple[Policy[Any], ...]) -> tuple[Policy[Any], ...]:
    """Layers with stacks opened, leaving out names that are not loaded yet."""
    return tuple([part for layer in layers for part in layer.known()])


def judge(outer: Policy[Any], inner: Policy[Any]) -> str | None:
    """What is wrong with `outer` around `inner`, if anything."""
    pair = (outer.kind, inner.kind)
    if outer.kind == "retry" and not _repeats(outer):
        return None
    if pair == ("retry", "idempotent"):
        return "retry outside idempotent: each attempt is a replay or a join; put @idempotent outermost"
    if pair == ("retry", "fallback"):
        return "fallback inside retry: the fallback hides every failure from the retry; put @fallback outside"
    if pair == ("retry", "retry") and _repeats(inner):
        return "retry inside retry: the attempts multiply; keep one"
    if pair == ("deadline", "deadline"):
        outer_seconds, inner_seconds = outer.options.seconds, inner.options.seconds
        if not callable(outer_seconds) and not callable(inner_seconds) and inner_seconds >= outer_seconds:
            return f"the inner deadline ({inner_seconds:g} s) is not shorter than the outer ({outer_seconds:g} s)"
    return None


def _repeats(policy: Policy[Any]) -> bool:
    """Whether it is a retry, and not one that is switched off by ``retries=0``."""
    return policy.kind == "retry" and policy.options.retries > 0


def _retries_below(wrapped: object) -> bool:
    """Whether a guarded callable with a retry hides under foreign decorators or partials."""
    seen = set()
    while wrapped is not None and id(wrapped) not in seen:
        seen.add(id(wrapped))
        if any(map(_repeats, expand_known(getattr(wrapped, "layers", ()) or ()))):
            return True
        wrapped = wrapped.func if isinstance(wrapped, functools.partial) else getattr(wrapped, "__wrapped__", None)
    return False
