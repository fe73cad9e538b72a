"""From sources to a plan: the policies a config asks for, whole, ordered and checked, nothing applied yet.

Everything that can be wrong is found here and told at once; `apply` then cannot fail. The order of the steps is the
order of precedence: defaults, templates, own body, environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from guarded._core.nearest import choices
from guarded.config import schema
from guarded.config.document import Node, Path, Place, Problem, brief, find, problem_at
from guarded.config.environment import override
from guarded.config.kinds import LAYERS, kind
from guarded.config.merge import Templates, merge, without_nulls
from guarded.config.references import allowed
from guarded.config.sources import Source, read_source


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """One layer of a policy: options of its own, or the name of a shared policy."""

    key: str
    kind: str
    node: Node
    path: Path
    shared: str | None = None

    @property
    def options(self) -> Mapping[str, Node]:
        """Option nodes by name, without ``enabled``; empty for a shared layer."""
        if self.shared is not None:
            return {}
        return {name: node for name, node in self.node.value.items() if name != "enabled"}


@dataclass(frozen=True, slots=True)
class PolicyPlan:
    """One name of the file; `layers` outermost first. Switched-off layers are left out already."""

    name: str
    layers: tuple[LayerPlan, ...]
    enabled: bool
    node: Node

    def switch(self) -> dict[str, Node]:
        """The ``enabled`` of a policy that is switched off."""
        return {} if self.enabled else {"enabled": Node(False, self.node.place)}

    @property
    def own(self) -> LayerPlan | None:
        """The layer this policy is, when it is one layer with options of its own and no stack."""
        return self.layers[0] if len(self.layers) == 1 and self.layers[0].shared is None else None


@dataclass(slots=True)
class Plan:
    """What a config asks for; without `problems` it can be put in force, with `warnings` told.

    Args:
        names: of the sources.
        root: the document, with the environment in it.
        bad: ids of the nodes that problems were found at.
    """

    names: tuple[str, ...]
    root: Node
    problems: list[Problem]
    policies: dict[str, PolicyPlan] = field(default_factory=dict)
    bad: set[int] = field(default_factory=set)
    warnings: list[Problem] = field(default_factory=list)

    def section(self, name: str) -> Mapping[str, Node]:
        """The entries of a top-level section; empty when it is missing or no mapping."""
        node = self.root.value.get(name) if isinstance(self.root.value, dict) else None
        return node.value if node is not None and isinstance(node.value, dict) else {}

    def is_good(self, node: Node) -> bool:
        """Whether no problem was found in the node or right below it."""
        children = node.value.values() if isinstance(node.value, dict) else ()
        return not self._is_bad(node) and not any(map(self._is_bad, children))

    def _is_bad(self, node: Node) -> bool:
        return node.broken or id(node) in self.bad

    def effective(self) -> dict[str, Node]:
        """Every policy as it came out, for comparing two plans."""
        return {
            name: Node({**{layer.key: layer.node for layer in policy.layers}, **policy.switch()}, policy.node.place)
            for name, policy in self.policies.items()
        }

    def note(
        self,
        path: Path,
        message: str,
        node: Node,
        hint: str | None = None,
        *,
        at_key: bool = False,
        about: Iterable[Node] = (),
    ) -> None:
        """Add a problem with a value, or with its key; see `problem_at`."""
        self.problems.append(problem_at(node, path, message, hint, at_key=at_key, about=about))


def make_plan(
    sources: Sequence[Source],
    variables: Mapping[str, str],
    allow: Sequence[str] | None,
    declared: frozenset[str],
) -> Plan:
    """Read, merge, override and validate; `declared` are the names that code has given."""
    problems: list[Problem] = []
    names: list[str] = []
    root: Node | None = None
    for source in sources:
        node, name = read_source(source, variables, problems)
        names.append(name)
        if node is not None and not isinstance(node.value, dict):
            problems.append(Problem("", "must be a mapping", node.place))
        elif node is not None:
            # Spelled out first, so that a mapping in one source merges with a bare value in another.
            node = _spell_out(node)
            root = node if root is None else merge(root, node)
    if root is None:
        return Plan(tuple(names), Node({}, Place("default")), problems)
    root = _spell_out(override(root, variables, problems, declared))
    plan = Plan(tuple(names), root, problems)
    without_names = _without_references(root)
    for path in schema.validate(without_names, allow, problems):
        plan.bad.add(id(find(without_names, path)))
    _resolve(plan)
    _check_targets(plan, allow)
    return plan


def _spell_out(root: Node) -> Node:
    """The document with bare layer values (``deadline: 10s``) written as mappings."""
    sections = dict(root.value)
    for section in ("policies", "templates"):
        node = sections.get(section)
        if node is not None and isinstance(node.value, dict):
            bodies = {name: _spell_out_body(body) for name, body in node.value.items()}
            sections[section] = replace(node, value=bodies)
    return replace(root, value=sections)


def _spell_out_body(body: Node) -> Node:
    if not isinstance(body.value, dict):
        return body
    layers = dict(body.value)
    for key, word in LAYERS.items():
        layer = layers.get(key)
        if layer is None or isinstance(layer.value, (dict, list, bool)) or layer.value is None:
            continue
        found = kind(word)
        if not found.is_reference(layer.value):
            layers[key] = Node({found.first: layer.under(layer.key)}, layer.place, layer.key)
    return replace(body, value=layers)


def _without_references(root: Node) -> Node:
    """The document for the models: layers that name a shared policy are judged elsewhere."""
    sections = dict(root.value)
    for section in ("policies", "templates"):
        node = sections.get(section)
        if node is None or not isinstance(node.value, dict):
            continue
        bodies = {}
        for name, body in node.value.items():
            if isinstance(body.value, dict):
                own = {
                    key: layer
                    for key, layer in body.value.items()
                    if not (key in LAYERS and isinstance(layer.value, str))
                }
                body = replace(body, value=own)
            bodies[name] = body
        sections[section] = replace(node, value=bodies)
    return replace(root, value=sections)


def _resolve(plan: Plan) -> None:
    """Fill in `plan.policies`: extends, defaults, order, enabled."""
    bodies = plan.section("policies")
    templates = Templates(plan.section("templates"), bodies, plan.problems)
    templates.check()
    defaults = plan.section("defaults")
    for name, raw in bodies.items():
        path: tuple[str, ...] = ("policies", name)
        if not _good_name(plan, name, raw, path) or not isinstance(raw.value, dict):
            continue
        body = templates.apply(raw, path)
        if body is None:
            continue
        layers = [
            layer
            for key, word in LAYERS.items()
            if (layer := _layer(plan, key, word, body, defaults, path)) is not None
        ]
        if not layers and all(node.value is None for key, node in body.value.items() if key in LAYERS):
            if plan.is_good(raw):
                plan.note(path, "has no layers", raw, f"give it one of {', '.join(LAYERS)}", at_key=True)
            continue
        enabled = body.value.get("enabled")
        switched_on = enabled is None or enabled.value is not False
        ordered = _in_order(plan, layers, body.value.get("order"), (*path, "order"))
        plan.policies[name] = PolicyPlan(name, ordered, switched_on, raw)


def _good_name(plan: Plan, name: str, raw: Node, path: Path) -> bool:
    if schema.is_name(name):
        return True
    plan.note(path, "is no name for a policy", raw, "letters, digits, '_', '-' and '.', a letter first", at_key=True)
    return False


def _layer(plan: Plan, key: str, word: str, body: Node, defaults: Mapping[str, Node], path: Path) -> LayerPlan | None:
    node = body.value.get(key)
    if node is None or node.value is None:
        return None
    if isinstance(node.value, str):
        return LayerPlan(key, word, node, (*path, key), shared=node.value)
    if not isinstance(node.value, dict):
        return None
    base = defaults.get(key)
    if base is not None and isinstance(base.value, dict):
        node = merge(base, node)
    node = without_nulls(key, node)  # only now: a null takes a default away, too
    enabled = node.value.get("enabled")
    if enabled is not None and enabled.value is False:
        return None
    return LayerPlan(key, word, node, (*path, key))


def _in_order(plan: Plan, layers: list[LayerPlan], order: Node | None, path: Path) -> tuple[LayerPlan, ...]:
    if order is None or not isinstance(order.value, list) or not plan.is_good(order):
        return tuple(layers)
    words = [node.value for node in order.value]
    missing = [layer.key for layer in layers if layer.key not in words]
    if missing:
        plan.note(path, f"does not say where {', '.join(missing)} stands", order, "name every layer of the stack")
        return tuple(layers)
    return tuple(sorted(layers, key=lambda layer: words.index(layer.key)))


def _check_targets(plan: Plan, allow: Sequence[str] | None) -> None:
    bodies = plan.section("policies")
    for pattern, node in plan.section("targets").items():
        path = ("targets", pattern)
        if not schema.is_target(pattern):
            hint = "write package.module:Class.method; * stands for a step, but not for the first"
            plan.note(path, "is no pattern of a target", node, hint, at_key=True)
        elif not allowed(module := pattern.partition(":")[0], allow):
            plan.note(path, f"module {module!r} is not on the allow-list", node, at_key=True)
        if isinstance(node.value, str) and node.value and not node.broken and node.value not in bodies:
            plan.note(path, f"there is no policy {brief(node.value)}", node, choices(node.value, bodies))
