"""Policies from a plan: made once to be judged, then handed on to be put in force.

A candidate is made as a draft, so that making it registers nothing. What its factory refuses becomes one
problem per rule, at the line of the option that broke it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from guarded._core.nearest import did_you_mean
from guarded._core.policy import Policy, arguments_of
from guarded._core.registry import Registry, registry
from guarded.config import schema
from guarded.config.document import brief, plain
from guarded.config.kinds import kind
from guarded.config.merge import without_rivals
from guarded.config.plan import LayerPlan, Plan, PolicyPlan
from guarded.config.stores import Stores

_SUBJECT = re.compile(r"(\w+)")
# For a required option that is wrong or misspelled, so that the others can be judged.
_STAND_INS = {"limit": 2**31, "deadline": 1, "rate": "1000000000000/h"}
_NEXT_RULE = re.compile(r"; (?=\w+(?:=| must |: ))")  # a rule may hold semicolons of its own


@dataclass(slots=True)
class Candidates:
    """The policies of a plan, by name of the policy and key of the layer, and what code had declared then."""

    layers: dict[tuple[str, str], Policy[Any]]
    stores: Stores
    declared: dict[str, Any] = field(default_factory=dict)

    def declared_since(self, owner: Registry) -> Iterator[Policy[Any]]:
        """Policies that code has declared while the plan was being made: they were made without its options."""
        for name, options in self.declared.items():
            known = owner.get(name)
            if known is not None and known.declared is not options:
                yield known


def build(plan: Plan, owner: Registry, allow: Sequence[str] | None) -> Candidates:
    """Make every layer of the plan; problems go to the plan."""
    stores = Stores(plan)
    found = Candidates({}, stores)
    for policy in plan.policies.values():
        _check_against_code(plan, policy, owner)
        for layer in policy.layers:
            _check_name(plan, policy, layer, owner)
            if layer.shared is not None:
                if plan.is_good(layer.node):
                    _check_reference(plan, layer, owner)
            else:
                declared = declared_options(policy, owner)
                if policy.own is not None:
                    found.declared[policy.name] = declared
                made = build_layer(plan, layer, declared, stores, allow)
                if made is not None:
                    found.layers[policy.name, layer.key] = made
    return found


def declared_options(policy: PolicyPlan, owner: Registry) -> Any:
    """What code has declared for a policy that is one layer; None where code says nothing."""
    known = owner.get(policy.name)
    if known is None or policy.own is None or known.kind != policy.own.kind:
        return None
    return known.declared


def build_layer(
    plan: Plan, layer: LayerPlan, declared: Any, stores: Stores, allow: Sequence[str] | None
) -> Policy[Any] | None:
    """One policy, the plan's options over those of code; None when a problem was noted."""
    whole = plan.is_good(layer.node)
    given = {name: plain(node) for name, node in layer.options.items() if whole or plan.is_good(node)}
    options = schema.parse_layer(layer.kind, given, allow)
    if "store" in options and not stores.resolve(layer, options):
        return None
    if "function" in options:
        if "value" in options:
            plan.note((*layer.path, "function"), "give value or function", layer.options["function"])
            return None
        options["value"] = options.pop("function")
    arguments = {**without_rivals({} if declared is None else arguments_of(declared), options), **options}
    found = kind(layer.kind)
    if layer.kind in _STAND_INS and (found.first in layer.options or not whole):
        arguments.setdefault(found.first, _STAND_INS[layer.kind])
    try:
        if found.has_name:
            arguments["name"] = str(layer.path[1])
        with registry.drafting():
            made: Policy[Any] = found.factory(**arguments)
    except (ValueError, TypeError) as error:
        _note_refusal(plan, layer, str(error), arguments, whole)
        return None
    return made if whole else None


def _note_refusal(plan: Plan, layer: LayerPlan, message: str, arguments: Mapping[str, Any], whole: bool) -> None:
    """One problem per rule of a factory's error, ``kind: option=value: rule; option: rule``.

    Of a layer that has problems already, only rules about single options that are good so far mean something.
    """
    missing = re.search(r"missing .*required .*argument[s]?: (.*)", message)
    if missing and not whole:
        return
    if missing:
        names = re.findall(r"'(\w+)'", missing[1])
        plan.note(layer.path, f"{' and '.join(names)} must be given", layer.node, at_key=True)
        return
    for rule in _NEXT_RULE.split(message.removeprefix(f"{layer.kind}: ")):
        subject = _SUBJECT.match(rule)
        option = subject[1] if subject else ""
        node = layer.options.get(option)
        if not whole and (node is None or not plan.is_good(node)):
            continue
        about = layer.options.values()
        if node is None:
            plan.note(layer.path, _as_in_a_file(rule), layer.node, at_key=True, about=about)
        else:
            text = _without_its_option(rule, option, arguments.get(option))
            plan.note((*layer.path, option), _as_in_a_file(text), node, about=about)


def _without_its_option(rule: str, option: str, value: object) -> str:
    """``0: must be …`` for ``limit=0: must be …``: the path says which option it is."""
    rest = rule.removeprefix(f"{option}={value!r}: ")
    if rest == rule or rest.startswith(repr(value)):
        return rest
    return f"{brief(value)}: {rest.removesuffix(f', not {value!r}')}"


def _as_in_a_file(rule: str) -> str:
    """A rule in the words of YAML, without what only code can write."""
    return re.sub(r"\bNone\b", "null", re.sub(r",? or \w+\(…\)", "", rule))


def _check_against_code(plan: Plan, policy: PolicyPlan, owner: Registry) -> None:
    known = owner.get(policy.name)
    if known is None or known.declared is None or known.kind == "guard":
        return
    own = policy.own
    if own is None or own.kind != known.kind:
        what = "a stack" if own is None else f"a {own.kind}"
        plan.note(
            ("policies", policy.name),
            f"is {what} here, but a {known.kind} at {known.place}",
            policy.node,
            "give one of them another name",
            at_key=True,
        )


def _check_name(plan: Plan, policy: PolicyPlan, layer: LayerPlan, owner: Registry) -> None:
    """The name a layer of a stack goes by must be free."""
    name = f"{policy.name}.{layer.key}"
    if policy.own is not None or layer.shared is not None:
        return
    known = owner.get(name)
    if name in plan.policies or (known is not None and known.declared is not None):
        where = f"at {known.place}" if known is not None and known.declared is not None else "in this file"
        plan.note(layer.path, f"goes by the name {name!r}, which is another policy {where}", layer.node, at_key=True)


def _check_reference(plan: Plan, layer: LayerPlan, owner: Registry) -> None:
    """A layer that names a policy: it must be there, be of that kind, and not lead back to itself."""
    seen: list[str] = [str(layer.path[1])]
    name = layer.shared
    while name is not None:
        if name in seen:
            if name == seen[0] == min(seen):  # every policy of the circle comes by here; one of them tells
                circle = " → ".join((*seen, name))
                plan.note(layer.path, f"policies name each other in a circle: {circle}", layer.node)
            return
        seen.append(name)
        found = _kind_of(name, plan, owner)
        if found is None:
            _note_unknown(plan, layer, name, owner)
            return
        kind_found, name_next = found
        if kind_found != layer.kind:
            what = "a stack" if kind_found == "guard" else f"a {kind_found}"
            plan.note(layer.path, f"{name!r} is {what}, not a {layer.kind}", layer.node)
            return
        name = name_next


def _kind_of(name: str, plan: Plan, owner: Registry) -> tuple[str, str | None] | None:
    """Kind of a named policy, and the name it stands for where it is itself only a name."""
    policy = plan.policies.get(name)
    if policy is not None:
        if len(policy.layers) != 1:
            return "guard", None
        return policy.layers[0].kind, policy.layers[0].shared
    known = owner.get(name)
    return None if known is None or known.declared is None else (known.kind, None)


def _note_unknown(plan: Plan, layer: LayerPlan, name: str, owner: Registry) -> None:
    bodies = plan.section("policies")
    if name in bodies:
        return  # it is there, with a problem of its own
    of_code = [each for each in owner if owner[each].declared is not None]
    kinds = {each: _kind_of(each, plan, owner) for each in (*bodies, *of_code)}
    fitting = [each for each, found in kinds.items() if found is None or found[0] == layer.kind]
    hint = did_you_mean(name, fitting) or f"define it under policies, or give {layer.kind} a mapping"
    plan.note(layer.path, f"there is no policy {brief(name)}", layer.node, hint)
