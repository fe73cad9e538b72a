"""Putting a plan in force: the one place where a config changes the registry.

Policies that go on are changed in place, so handles, waiters and counts stay; only what is new or has another kind
becomes another object. Names are swapped at once, after everything has been judged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from guarded._core.chain import living
from guarded._core.factory import STORED_AS
from guarded._core.policy import Policy
from guarded._core.registry import Registry
from guarded.config.build import Candidates
from guarded.config.document import Place, Problem
from guarded.config.plan import LayerPlan, Plan, PolicyPlan
from guarded.policies.retry import RetryBudget
from guarded.stack import Guard, GuardOptions


def _with_budget_of(before: Any, after: Any) -> Any:
    """`after`, with the budget of `before` where it is an equal one of its own, so that what is spent stays spent."""
    old, new = getattr(before, "budget", None), getattr(after, "budget", None)
    if isinstance(old, RetryBudget) and isinstance(new, RetryBudget) and old.options == new.options:
        return dataclasses.replace(after, budget=old)
    return after


def names_used_by(layers: tuple[Policy[Any], ...]) -> Iterator[str]:
    """The names that stacks among `layers` look up."""
    for layer in layers:
        if isinstance(layer, Guard):
            for part in layer.options.parts:
                if isinstance(part, str):
                    yield part
                else:
                    yield from names_used_by((part,))


class Force:
    """The living layers of one config, by policy and layer."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._layers: dict[tuple[str, str], Policy[Any]] = {}

    def put(self, plan: Plan, before: Plan | None, candidates: Candidates) -> None:
        """Make the registry say what the plan says; cannot fail once the plan has no problems."""
        table: dict[str, Policy[Any] | None] = {}
        if before is not None:
            table.update(self._drop(set(before.policies) - set(plan.policies)))
        names_before = {live.name for live in self._layers.values() if live.declared is None and live.name is not None}
        layers: dict[tuple[str, str], Policy[Any]] = {}
        changes: list[tuple[Policy[Any], Any]] = []
        for policy in plan.policies.values():
            for layer in policy.layers:
                if layer.shared is None:
                    made = candidates.layers[policy.name, layer.key]
                    live = self._live(policy, layer, made)
                    if live is not made:
                        changes.append((live, made.options))
                    self._describe(live, policy, layer)
                    layers[policy.name, layer.key] = live
                    table[live.name or policy.name] = live
            if policy.own is None or self._is_code_stack(policy.name):
                table[policy.name] = self._stack(policy, layers, changes)
            else:
                layers[policy.name, policy.own.key].enabled = policy.enabled
        for live, options in changes:
            settled = _with_budget_of(live.options, options)
            if live.options != settled:
                live.reconfigure(settled)
        for name in names_before:  # of layers that their policy has lost, or that go by another name now
            table.setdefault(name, None)
        self._layers = layers
        self._registry.replace(table)

    def take_out(self, plan: Plan) -> None:
        """Give names back to the code that declared them, and drop the others."""
        self._registry.replace(self._drop(set(plan.policies)))
        self._layers = {}

    def lost_names(self, plan: Plan, before: Plan | None) -> list[Problem]:
        """Names that would go although guarded callables use them."""
        gone = set(before.policies) - set(plan.policies) if before is not None else set()
        gone = {name for name in gone if (known := self._registry.get(name)) is not None and known.declared is None}
        place = Place("file", ", ".join(plan.names))
        return [
            Problem(f"policies.{name}", f"is gone, but guards {found.function}", place, "or set enabled: false")
            for found in living()
            for name in names_used_by(found.layers)
            if name in gone
        ]

    def _drop(self, names: set[str]) -> dict[str, Policy[Any] | None]:
        """What `names` mean without the config: what code has declared, or nothing."""
        table: dict[str, Policy[Any] | None] = {}
        inner = {layer.name or "" for (name, _), layer in self._layers.items() if name in names}
        for name in names | inner:
            known = self._registry.get(name)
            if known is None:
                continue
            if known.declared is None:
                table[name] = None
            else:
                known.sources = {}
                known.enabled = True
                if known.options != known.declared:
                    known.reconfigure(known.declared)
        return table

    def _live(self, policy: PolicyPlan, layer: LayerPlan, made: Policy[Any]) -> Policy[Any]:
        """The policy that goes on as this layer: the one of code, the one from before, or the one just made."""
        known = self._registry.get(policy.name) if policy.own is not None else None
        if known is not None and known.declared is not None and type(known) is type(made):
            return known
        live = self._layers.get((policy.name, layer.key))
        return live if live is not None and type(live) is type(made) else made

    def _describe(self, live: Policy[Any], policy: PolicyPlan, layer: LayerPlan) -> None:
        known = self._registry.get(policy.name)
        is_of_code = known is live and live.declared is not None
        if not is_of_code:
            single = policy.own is not None and not self._is_code_stack(policy.name)
            live.name = policy.name if single else f"{policy.name}.{layer.key}"
            live.declared, live.given = None, ()
            live.place = str(layer.node.key or layer.node.place)
        live.enabled = True
        live.sources = {STORED_AS.get(name, name): str(node.place) for name, node in layer.options.items()}

    def _is_code_stack(self, name: str) -> bool:
        known = self._registry.get(name)
        return isinstance(known, Guard) and known.declared is not None

    def _stack(
        self, policy: PolicyPlan, layers: dict[tuple[str, str], Policy[Any]], changes: list[tuple[Policy[Any], Any]]
    ) -> Policy[Any]:
        parts = tuple(
            layer.shared if layer.shared is not None else layers[policy.name, layer.key] for layer in policy.layers
        )
        options = GuardOptions(parts)
        known = self._registry.get(policy.name)
        if isinstance(known, Guard):
            changes.append((known, options))
            stack = known
        else:
            stack = Guard(options, name=policy.name)
            stack.declared = None
        if stack.declared is None:
            stack.place = str(policy.node.key or policy.node.place)
        stack.enabled = policy.enabled
        return stack
