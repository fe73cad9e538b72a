"""The ``stores:`` section: names to where state lives. Addresses appear in no message, they may hold passwords."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from guarded._core.nearest import choices, did_you_mean
from guarded.config.document import Node, Path, Problem, brief, dotted, plain
from guarded.config.kinds import kind
from guarded.config.plan import LayerPlan, Plan
from guarded.stores import StoreProblem, open_store

SCHEMES = ("memory", "sqlite", "redis", "rediss", "valkey", "valkeys", "unix", "postgres", "postgresql")
_EXAMPLE = "redis://host:6379/0"
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):")


class Stores:
    """The stores of one plan; a bad address is a problem of the plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._named = {name: self._read(name, node) for name, node in plan.section("stores").items()}

    def resolve(self, layer: LayerPlan, options: dict[str, Any]) -> bool:
        """Turn ``store`` into what the policy takes; False when a problem was found, here or before."""
        node, path, given = layer.options["store"], (*layer.path, "store"), str(options.pop("store"))
        if given in self._named:
            settings = self._named[given]
        elif _ADDRESS.match(given):
            settings = {"url": given} if self._is_address(given, node, path) else None
        else:
            hint = did_you_mean(given, self._named) or f"name one under stores, or give an address such as {_EXAMPLE}"
            what = "this store" if "@" in given else f"store {brief(given)}"  # it may hold a password
            self._plan.note(path, f"there is no {what}", node, hint)
            return False
        if settings is None:
            return False
        scheme = settings["url"].partition(":")[0].lower()
        if scheme == "memory":
            return True  # state in the process is what a policy without a store has
        if "when_store_fails" not in kind(layer.kind).options:
            message = f"no {scheme} store keeps the state of {layer.kind} layers: it stays in this process"
            self._plan.warnings.append(Problem(dotted(path), message, node.place, "say memory:// to have it so"))
            return True
        return self._open(settings, options, node, path)

    def _open(self, settings: Mapping[str, Any], options: dict[str, Any], node: Node, path: Path) -> bool:
        try:
            options["store"] = open_store(settings["url"], **{k: v for k, v in settings.items() if k != "url"})
        except (StoreProblem, TypeError) as problem:
            message = str(problem).replace(settings["url"], "the address").removeprefix("store: ")
            self._plan.note(path, message, node)
            return False
        return True

    def _read(self, name: str, node: Node) -> Mapping[str, Any] | None:
        """The settings of a store; None when something is wrong with them."""
        url = node.value.get("url") if isinstance(node.value, dict) else None
        if url is None or not self._plan.is_good(url) or not self._is_address(url.value, url, ("stores", name, "url")):
            return None
        settings = {option: value for option, value in plain(node).items() if value is not None}
        return settings if self._plan.is_good(node) else None

    def _is_address(self, url: str, node: Node, path: Path) -> bool:
        scheme = _ADDRESS.match(url)
        if scheme is not None and scheme[1].lower() in SCHEMES:
            return True
        if scheme is None:
            self._plan.note(path, "is no address", node, f"for example {_EXAMPLE} or memory://")
        else:
            what = f"there is no store of the kind {scheme[1]!r}"
            self._plan.note(path, what, node, choices(scheme[1], SCHEMES))
        return False
