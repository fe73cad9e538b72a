"""Whether the policies of a plan can guard the callables that would get them.

A key that names a parameter the function has not is a mistake of the file, though only the code can show it: the file
is refused for it as a whole, instead of every call. Judged is what a plan adds or changes.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from typing import Any

from guarded._core.chain import living
from guarded._core.kinds import kind_of, qualified_name
from guarded._core.policy import Policy, Site
from guarded._core.registry import Registry
from guarded._core.wrapper import parts_of
from guarded._overrides import Twins
from guarded.config.build import Candidates
from guarded.config.document import Problem, problem_at
from guarded.config.plan import LayerPlan, Plan
from guarded.config.targets import Reach, TargetLayer
from guarded.stack import Guard

Stack = tuple[Policy[Any], ...]


class Fitting:
    """The stacks that callables would have under a plan.

    Args:
        plan: without problems.
        candidates: the policies made for it.
        registry: what code has declared.
        changed: names of policies that the plan adds or changes; the others guard what they guard.
    """

    def __init__(self, plan: Plan, candidates: Candidates, registry: Registry, changed: Iterable[str]) -> None:
        self._plan = plan
        self._candidates = candidates
        self._registry = registry
        self._changed = frozenset(changed)
        self._origins: dict[int, LayerPlan] = {
            id(candidates.layers[policy.name, layer.key]): layer
            for policy in plan.policies.values()
            for layer in policy.layers
            if layer.shared is None
        }

    def problems(self, reached: Iterable[Reach]) -> Iterator[Problem]:
        """One for each layer and callable that do not fit; `reached` is what the targets of the plan mean."""
        if self._changed:
            for chain in [chain for chain in living() if chain.block is self._registry.block]:
                stack = self._stack(chain.layers)
                site = Site(chain.function, chain.wrapped, chain.kind, stack, 0, stack)
                yield from self._judge(site, self._changed)
        for found in reached:
            wrapped, layers = parts_of(found.function)
            stack = self._named(found.policy, ()) + self._stack(layers)
            site = Site(qualified_name(wrapped), wrapped, kind_of(wrapped), stack, 0, stack)
            yield from self._judge(site, self._changed if found.bound else self._plan.policies)

    def _judge(self, site: Site, names: Container[object]) -> Iterator[Problem]:
        """What of the policies `names` cannot be there."""
        for index, layer in enumerate(site.layers):
            origin = self._origins.get(id(layer))
            if origin is None or origin.path[1] not in names:
                continue
            try:
                layer.check(replace(site, index=index))
            except (ValueError, TypeError) as error:
                yield _problem(origin, f"does not fit {site.function}: {error}", str(error))

    def _stack(self, layers: Stack) -> Stack:
        return tuple([part for layer in layers for part in self._planned(layer, ())])

    def _planned(self, layer: Policy[Any], path: tuple[str, ...]) -> Stack:
        """What `layer` would stand for; `path` are the names that led to it."""
        if isinstance(layer, TargetLayer):
            return ()  # what targets say now, not what they said
        if layer.name in self._plan.policies and self._registry.get(layer.name) is layer:
            return self._named(layer.name, path)
        if not isinstance(layer, Guard):
            return layer.known()
        parts: list[Policy[Any]] = []
        for part in layer.options.parts if layer.enabled else ():
            parts += self._named(part, path) if isinstance(part, str) else self._planned(part, path)
        try:
            return Twins(layer.place).apply(tuple(parts), layer.options.overrides)
        except ValueError:  # an override that goes no longer is told by a warning that names the call site
            return ()

    def _named(self, name: str, path: tuple[str, ...]) -> Stack:
        if name in path:  # a circle in code, which every call tells
            return ()
        planned = self._plan.policies.get(name)
        if planned is None:
            known = self._registry.get(name)
            return () if known is None else self._planned(known, (*path, name))
        parts: list[Policy[Any]] = []
        for layer in planned.layers if planned.enabled else ():
            if layer.shared is not None:
                parts += self._named(layer.shared, (*path, name))
            else:
                parts.append(self._candidates.layers[name, layer.key])
        return tuple(parts)


def _problem(layer: LayerPlan, message: str, error: str) -> Problem:
    """At the option that `error` begins with, where it is one of the file, else at the layer."""
    option = re.match(r"\w*", error)
    name = option[0] if option is not None else ""
    if name in layer.options:
        return problem_at(layer.options[name], (*layer.path, name), message)
    return problem_at(layer.node, layer.path, message, at_key=True)
