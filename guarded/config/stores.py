"""The ``stores:`` section: names to where state lives. Addresses appear in no message, they may hold passwords."""

from __future__ import annotations

import re
from typing import Any

from guarded.config.document import Node, Path, Problem, dotted
from guarded.config.plan import Plan
from guarded.config.references import nearest

SCHEMES = ("memory", "sqlite", "redis", "rediss", "valkey", "valkeys", "unix", "postgres", "postgresql")
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):")


class Stores:
    """The stores of one plan; a bad address is a problem of the plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._urls: dict[str, str | None] = {}
        for name, node in plan.section("stores").items():
            url = node.value.get("url") if isinstance(node.value, dict) else None
            if url is not None and isinstance(url.value, str) and plan.is_good(node):
                good = self._check(url.value, url, ("stores", name, "url"))
                self._urls[name] = url.value if good else None
            else:
                self._urls[name] = None

    def resolve(self, options: dict[str, Any], node: Node, path: Path) -> bool:
        """Turn a name under ``store`` into what the policy takes; False when a problem was found, here or before."""
        given = str(options["store"])
        if given in self._urls:
            url = self._urls[given]
            if url is None:
                return False
        elif _ADDRESS.match(given):
            if not self._check(given, node, path):
                return False
            url = given
        else:
            hint = nearest(given, self._urls) or "name one under stores, or give an address such as redis://host:6379/0"
            what = "this store" if "@" in given else f"store {given!r}"  # it may hold a password
            self._plan.note(path, f"there is no {what}", node.place, hint)
            return False
        scheme = url.partition(":")[0].lower()
        if scheme != "memory":
            message = f"{scheme} stores are not available here: the state is kept in this process alone"
            self._plan.warnings.append(Problem(dotted(path), message, node.place, "say memory:// to have it so"))
        del options["store"]  # state in the process is what a policy without a store has
        return True

    def _check(self, url: str, node: Node, path: Path) -> bool:
        scheme = _ADDRESS.match(url)
        if scheme is not None and scheme[1].lower() in SCHEMES:
            return True
        if scheme is None:
            self._plan.note(path, "is no address", node.place, "for example redis://host:6379/0 or memory://")
        else:
            self._plan.note(
                path, f"there is no store of the kind {scheme[1]!r}", node.place, nearest(scheme[1], SCHEMES)
            )
        return False
