"""Which layers and callables a test means: by kind, name, policy or guarded callable.

Names and stacks are looked up when a chain is compiled, so what is decorated or loaded later is meant too.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from guarded._core.chain import Chain, living
from guarded._core.order import ORDER, expand_known
from guarded._core.policy import Policy
from guarded._core.registry import registry
from guarded._core.wrapper import BoundGuarded, Guarded
from guarded.errors import PolicyNotFound

Target: TypeAlias = "str | Policy[Any] | Any"
"""A kind (``"retry"``), the name of a policy or stack, a policy or stack itself, or a guarded callable."""


class Selection:
    """The layers and callables that `targets` mean; all of them when there are none.

    Raises:
        PolicyNotFound: a word is neither a kind nor a registered name.
        TypeError: a target is nothing that could be meant.
    """

    def __init__(self, targets: tuple[Target, ...]) -> None:
        self._everything = not targets
        self._words: list[str] = []
        self._policies: list[Policy[Any]] = []
        self._bodies: list[Any] = []
        for target in targets:
            self._add(target)

    def _add(self, target: Target) -> None:
        if isinstance(target, str):
            known = {*ORDER, *registry, *(layer.kind for chain in living() for layer in chain.expanded())}
            if target not in known:
                raise PolicyNotFound(target, known)
            self._words.append(target)
        elif isinstance(target, Policy):
            self._policies.append(target)
        else:
            self._bodies.append(chain_of(target).wrapped)

    def means_callable(self, chain: Chain) -> bool:
        """Whether a callable itself is meant."""
        return self._everything or any(body is chain.wrapped for body in self._bodies)

    def means_layer(self, layer: Policy[Any]) -> bool:
        """Whether a layer is meant: itself, by kind or name, or as part of a stack."""
        if self._everything or layer.kind in self._words or layer.name in self._words:
            return True
        named = [policy for word in self._words if (policy := registry.get(word)) is not None]
        return any(part is layer for part in expand_known((*self._policies, *named)))


def chain_of(guarded: Any) -> Chain:
    """The chain of a guarded callable. Raises TypeError for anything else."""
    target = guarded._self_parent if isinstance(guarded, BoundGuarded) else guarded
    if isinstance(target, (classmethod, staticmethod)):
        target = target.__func__
    if not isinstance(target, Guarded):
        raise TypeError(f"{guarded!r} is no guarded callable, nor a kind, name or policy")
    return target._self_chain
