"""``targets:`` patterns put a policy on functions without touching their code.

``pkg.mod:Class.method`` names one function; ``*`` stands for any part within one dotted step (``shop.*:*.charge``), but
not for a top-level package, and reaches only what a module or class defines itself, without a leading underscore. One
function gets one target: an exact pattern beats a wildcard, a longer one a shorter, an earlier line a later. Modules
imported later are bound on import.
"""

from __future__ import annotations

import fnmatch
import importlib.abc
import importlib.machinery
import inspect
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from guarded._core.nearest import did_you_mean
from guarded._core.policy import Policy
from guarded._core.registry import Registry
from guarded._core.wrapper import decorate


@dataclass(frozen=True, slots=True)
class Target:
    """One pattern and the name of the policy for what it matches."""

    pattern: str
    policy: str

    @property
    def module(self) -> str:
        """The part before the colon."""
        return self.pattern.partition(":")[0]

    @property
    def steps(self) -> tuple[str, ...]:
        """The dotted steps behind the colon."""
        return tuple(self.pattern.partition(":")[2].split("."))

    @property
    def is_exact(self) -> bool:
        """Whether it names one function."""
        return "*" not in self.pattern

    def rank(self) -> tuple[bool, int]:
        """More specific is greater."""
        return self.is_exact, len(self.pattern.replace("*", ""))

    def in_module(self, name: str) -> bool:
        """Whether it may match functions of that module; ``*`` reaches into no deeper package."""
        wanted, given = self.module.split("."), name.split(".")
        return len(wanted) == len(given) and all(map(fnmatch.fnmatchcase, given, wanted))

    def matches(self, steps: Sequence[str]) -> bool:
        """Whether it matches a dotted name inside its module."""
        return len(steps) == len(self.steps) and all(
            fnmatch.fnmatchcase(given, wanted) and (given == wanted or not given.startswith("_"))
            for given, wanted in zip(steps, self.steps, strict=True)
        )


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """Which function a target layer stands on."""

    function: str


class TargetLayer(Policy[TargetOptions]):
    """The layer a target puts on a function: whatever its policy's name means now, or nothing."""

    kind = "target"

    def __init__(self, function: str, registry: Registry) -> None:
        super().__init__(TargetOptions(function))
        self.policy: str | None = None
        self._registry = registry

    def expand(self) -> tuple[Policy[Any], ...]:
        """The layers of the policy; none when the target is gone."""
        if self.policy is None or self.policy not in self._registry:
            return ()
        return self._registry[self.policy].expand()

    def __repr__(self) -> str:
        return f"target({self.options.function!r} → {self.policy!r})"


@dataclass(frozen=True, slots=True)
class Reach:
    """A function that a target means.

    Attributes:
        function: as it stands in its module or class.
        policy: the name of the policy for it.
        bound: whether that policy guards it already.
    """

    function: Any
    policy: str
    bound: bool


@dataclass(slots=True)
class _Binding:
    owner: Any
    name: str
    inherited: bool
    before: Any
    after: Any
    layer: TargetLayer


class Targets:
    """All bindings of one registry; `use` replaces the patterns and binds, rebinds and unbinds to match."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lock = threading.RLock()
        self._targets: tuple[Target, ...] = ()
        self._bindings: dict[str, _Binding] = {}
        self._refused: dict[str, str] = {}
        self._finder = _Finder(self)

    def use(self, targets: Sequence[Target]) -> None:
        """Put these patterns in force for every module that is imported, and for those to come."""
        with self._lock:
            self._targets = tuple(targets)
            self._finder.install(bool(targets))
            wanted = _wanted(self._targets, *_imported())
            for key in self._bindings.keys() - wanted.keys():
                self._unbind(key)
            for key, (target, owner, name) in wanted.items():
                self._bind(key, target, owner, name)

    def imported(self, module: ModuleType) -> None:
        """Bind what a module that has just been imported defines."""
        with self._lock:
            for key in [key for key in self._bindings if key.partition(":")[0] == module.__name__]:
                del self._bindings[key]  # it has been executed again: its functions are new ones
            for key, (target, owner, name) in _wanted(self._targets, module).items():
                self._bind(key, target, owner, name)

    def reach(self, targets: Sequence[Target]) -> Iterator[Reach]:
        """Every function that these patterns mean in the modules imported so far."""
        with self._lock:
            for key, (target, owner, name) in _wanted(targets, *_imported()).items():
                known = self._bindings.get(key)
                bound = known is not None and known.owner is owner and known.layer.policy == target.policy
                yield Reach(inspect.getattr_static(owner, name), target.policy, bound)

    def missing(self) -> Iterator[tuple[Target, str, str | None]]:
        """Exact targets that are bound to nothing, with reason and hint; modules not imported yet are no fault."""
        for target in self._targets:
            module = sys.modules.get(target.module)
            if target.is_exact and module is not None and target.pattern not in self._bindings:
                if functions_of(target, module):
                    reason = self._refused.get(target.pattern, "it has changed since")
                    yield target, f"{target.pattern!r} cannot be guarded: {reason}", None
                else:
                    yield target, *fault_of(target, module)

    def concerns(self, name: str) -> bool:
        """Whether some pattern may match in a module of that name."""
        return any(target.in_module(name) for target in self._targets)

    def __len__(self) -> int:
        return len(self._bindings)

    def _bind(self, key: str, target: Target, owner: Any, name: str) -> None:
        known = self._bindings.get(key)
        if known is not None and known.owner is owner:
            known.layer.policy = target.policy
            return
        before = vars(owner).get(name)
        inherited = before is None
        if inherited:
            before = inspect.getattr_static(owner, name)
        layer = TargetLayer(key, self._registry)
        layer.policy = target.policy
        try:
            after = decorate(before, (layer,))
            setattr(owner, name, after)
        except (TypeError, AttributeError) as error:  # a property, or a class written in C
            self._refused[key] = str(error)
            return
        self._bindings[key] = _Binding(owner, name, inherited, before, after, layer)

    def _unbind(self, key: str) -> None:
        binding = self._bindings.pop(key)
        # Whoever holds the guarded function, or has wrapped it since, is left with a layer that does nothing.
        binding.layer.policy = None
        if vars(binding.owner).get(binding.name) is binding.after:
            if binding.inherited:
                delattr(binding.owner, binding.name)
            else:
                setattr(binding.owner, binding.name, binding.before)


def _imported() -> list[ModuleType]:
    return [module for module in tuple(sys.modules.values()) if isinstance(module, ModuleType)]


def _wanted(targets: Sequence[Target], *modules: ModuleType) -> dict[str, tuple[Target, Any, str]]:
    """The most specific target for each function of the modules, with its owner and name there."""
    found: dict[str, tuple[Target, Any, str]] = {}
    for module in modules:
        for target in targets:
            if not target.in_module(module.__name__):
                continue
            for owner, steps in functions_of(target, module):
                key = f"{module.__name__}:{'.'.join(steps)}"
                if key not in found or target.rank() > found[key][0].rank():
                    found[key] = target, owner, steps[-1]
    return found


def functions_of(target: Target, module: ModuleType) -> list[tuple[Any, tuple[str, ...]]]:
    """Owner and dotted steps of every function that a target means in a module."""
    if "*" not in "".join(target.steps):
        owner, found = _walk(module, target.steps)
        return [(owner, target.steps)] if owner is not None and _is_function(found) else []
    return [(owner, steps) for owner, steps in _functions(module) if target.matches(steps)]


def fault_of(target: Target, module: ModuleType) -> tuple[str, str | None]:
    """Why an exact target means no function in its module, and what may have been meant."""
    owner, _ = _walk(module, target.steps)
    if owner is not None:
        return f"{target.pattern!r} is no function", None
    name = ".".join(target.steps)
    return f"{target.module!r} has no {name!r}", did_you_mean(
        name, (".".join(steps) for _, steps in _functions(module))
    )


def _walk(module: ModuleType, steps: Sequence[str]) -> tuple[Any, Any]:
    """The owner and the raw attribute at a dotted name; (None, None) when there is none."""
    owner: Any = module
    for step in steps[:-1]:
        owner = vars(owner).get(step)
        if not isinstance(owner, type):
            return None, None
    if isinstance(owner, ModuleType):
        found = vars(owner).get(steps[-1])
        return (None, None) if found is None else (owner, found)
    try:
        return owner, inspect.getattr_static(owner, steps[-1])
    except AttributeError:
        return None, None


def _functions(module: ModuleType) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Every function a module or one of its classes defines itself, with its owner."""
    pending: list[tuple[Any, tuple[str, ...]]] = [(module, ())]
    while pending:
        owner, path = pending.pop()
        for name, value in tuple(vars(owner).items()):
            steps = (*path, name)
            if isinstance(value, type):
                if value.__module__ == module.__name__ and value.__qualname__ == ".".join(steps):
                    pending.append((value, steps))
            elif inspect.isfunction(getattr(value, "__func__", value)) and value.__module__ == module.__name__:
                yield owner, steps


def _is_function(value: object) -> bool:
    if isinstance(value, (classmethod, staticmethod)):
        return True
    return callable(value) and not isinstance(value, type) and hasattr(value, "__qualname__")


class _Finder(importlib.abc.MetaPathFinder):
    """Asks the other finders, and adds the binding to the end of the module's execution."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._asking = threading.local()

    def install(self, wanted: bool) -> None:
        """Stand first in ``sys.meta_path``, or not at all."""
        if wanted and self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        elif not wanted and self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec the others find, with its loader told to bind."""
        if getattr(self._asking, "now", False) or not self._targets.concerns(fullname):
            return None
        self._asking.now = True
        try:
            spec = next(filter(None, (_ask(finder, fullname, path, target) for finder in tuple(sys.meta_path))), None)
        finally:
            self._asking.now = False
        if spec is not None and spec.loader is not None and not isinstance(spec.loader, type):
            self._bind_after(spec.loader)
        return spec

    def _bind_after(self, loader: Any) -> None:
        execute = loader.exec_module
        if getattr(execute, "targets", None) is self._targets:
            return  # one loader for many modules, as that of a zip archive is

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._targets.imported(module)

        exec_module.targets = self._targets  # type: ignore[attr-defined]
        try:
            # On the instance: whoever asks for the type of the loader, as importlib.resources does, sees no change.
            loader.exec_module = exec_module
        except AttributeError:
            pass  # a loader with slots; guarded.check() binds the module later


def _ask(
    finder: Any, fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> importlib.machinery.ModuleSpec | None:
    find: Any = getattr(finder, "find_spec", None)
    found: importlib.machinery.ModuleSpec | None = find(fullname, path, target) if find is not None else None
    return found
