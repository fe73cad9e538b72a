"""Load, reload and check: a plan is made and judged whole, then put in force.

Nothing changes when anything is wrong. Loads of one registry come one after the other; calls go on meanwhile.
"""

from __future__ import annotations

import gc
import itertools
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeAlias

from guarded import events
from guarded._core import clock
from guarded._core.chain import living
from guarded._core.durations import Duration, parse_duration
from guarded._core.place import warn
from guarded._core.policy import Policy
from guarded._core.registry import Registry, registry
from guarded.config.build import Candidates, build, build_layer
from guarded.config.document import Place, Problem, problem_at
from guarded.config.fit import Fitting
from guarded.config.force import Force
from guarded.config.plan import Plan, make_plan
from guarded.config.report import Diff, compare, in_order
from guarded.config.sources import Source
from guarded.config.stores import Stores
from guarded.config.targets import Target, Targets
from guarded.config.watch import Watcher
from guarded.errors import ConfigError
from guarded.events.bus import bus
from guarded.stack import Guard

Allow: TypeAlias = "Sequence[str] | None"


class Loaded:
    """A config in force; `reload` reads its sources again, `close` takes it out.

    Attributes:
        diff: what the latest load or reload changed.
        watcher: what looks for changes, when asked to; its `nudge` may be called from a signal handler.
    """

    def __init__(self, sources: Sequence[Source], allow: Allow, owner: Registry) -> None:
        self.diff = Diff()
        self.watcher: Watcher | None = None
        self._sources = tuple(sources)
        self._allow = allow
        self._registry = owner
        # Held only to put a plan in force. Reading imports modules, which may declare policies in other threads.
        self._lock = threading.RLock()
        self._tickets = itertools.count(1)
        self._latest = 0
        self._plan: Plan | None = None
        self._stores: Stores | None = None
        self._force = Force(owner)
        self._targets = Targets(owner)

    @property
    def source(self) -> str:
        """The names of the sources."""
        return ", ".join(self._plan.names) if self._plan is not None else ""

    def reload(self) -> Diff:
        """Read the sources again and swap in what they say; does nothing once another config has taken the place.

        Raises:
            ConfigError: every problem at once; what was in force stays, and ``config.reload_failed`` has told it.
        """
        if self._registry.config is not self:
            return Diff()
        try:
            return self.apply()
        except ConfigError as error:
            bus.emit("config.reload_failed", None, None, source=self.source, problems=len(error.problems), cause=error)
            raise

    def apply(self) -> Diff:
        """Read, judge and put in force; raises ConfigError before anything has changed."""
        started, ticket = clock.monotonic(), next(self._tickets)
        plan, candidates = judge(self._sources, self._allow, self._registry)
        with self._lock:
            before = self._plan
            diff = compare(before.effective() if before is not None else {}, plan.effective())
            problems = plan.problems or self._problems_of_code(plan, candidates, diff)
            if problems and not plan.problems:
                gc.collect()  # callables that nobody has any more, as those of a module that was reloaded, do not count
                problems = self._problems_of_code(plan, candidates, diff)
            if problems:
                raise ConfigError(in_order(problems))
            if ticket < self._latest:
                return self.diff  # what has been read later is in force already
            self._latest = ticket
            self._registry.config = self  # first: what code declares from now on finds names that the file has made
            self._force.put(plan, before, candidates)
            self._plan, self._stores = plan, candidates.stores
            self._targets.use(targets_of(plan))
            self.diff = diff
            self._set_level(plan)
        for policy in candidates.declared_since(self._registry):
            self.overlay(policy)
        self._tell(diff, before, clock.monotonic() - started)
        for warning in plan.warnings:
            warn(str(warning))
        return diff

    def succeed(self, other: Loaded) -> None:
        """Take the place of another config: what both name goes on with its state."""
        with other._lock:
            self._plan, self._force, self._targets = other._plan, other._force, other._targets
            self.apply()
            other._plan, other._force, other._targets = None, Force(self._registry), Targets(self._registry)
        if other.watcher is not None:
            other.watcher.close()

    def overlay(self, policy: Policy[Any]) -> None:
        """Code has declared a policy that the file knows: put the file's options over those of code."""
        plan, stores = self._plan, self._stores
        if plan is None or stores is None or isinstance(policy, Guard):
            return
        found = plan.policies.get(policy.name or "")
        if found is None or found.own is None:
            return
        draft = Plan(plan.names, plan.root, [])
        made = build_layer(draft, found.own, policy.declared, stores, self._allow)
        if made is None:
            raise ConfigError(draft.problems)
        policy.reconfigure(made.options)
        self._registry.changed()

    def check(self) -> list[Problem]:
        """Problems that only the code can show: targets that meet no function."""
        if self._plan is None:
            return []
        section = self._plan.section("targets")
        return [
            problem_at(section[target.pattern], ("targets", target.pattern), reason, hint, at_key=True)
            for target, reason, hint in self._targets.missing()
        ]

    def watch(self, interval: Duration = 1.0) -> Watcher:
        """Reload when a file changes; gives the running watcher, which `close` ends too."""
        paths = [name for name in self._plan.names if not name.startswith("<")] if self._plan is not None else []
        seconds = parse_duration(interval, option="interval")
        if self.watcher is not None:
            self.watcher.close()
        self.watcher = Watcher(paths, self.reload, interval=seconds).start()
        return self.watcher

    def close(self) -> None:
        """Stop watching, take the targets off, and give names back to code."""
        if self.watcher is not None:
            self.watcher.close()
        with self._lock:
            self._targets.use(())
            if self._plan is not None:
                self._force.take_out(self._plan)
                self._plan = None
            if self._registry.config is self:
                self._registry.config = None

    def _problems_of_code(self, plan: Plan, candidates: Candidates, diff: Diff) -> list[Problem]:
        """Callables that would lose their policy, or get one that cannot guard them."""
        fitting = Fitting(plan, candidates, self._registry, (*diff.added, *diff.replaced))
        reached = self._targets.reach(targets_of(plan))
        return [*self._force.lost_names(plan, self._plan), *fitting.problems(reached)]

    def _set_level(self, plan: Plan) -> None:
        level = plan.section("events").get("level")
        if level is not None and level.value is not None:
            events.set_level(level.value)

    def _tell(self, diff: Diff, before: Plan | None, seconds: float) -> None:
        told = (("policy.added", diff.added), ("policy.replaced", diff.replaced), ("policy.removed", diff.removed))
        for event, names in told:
            for name in names:
                known = self._registry.get(name)
                kind = known.kind if known is not None else _kind_in(before, name)
                bus.emit(event, None, _Subject(name, kind), source=self.source)
        bus.emit("config.reloaded", None, None, source=self.source, changes=len(diff), duration=seconds)

    def __enter__(self) -> Loaded:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        count = len(self._plan.policies) if self._plan is not None else 0
        return f"<config {self.source}: {count} policies, {len(self._targets)} functions bound>"


def _kind_in(plan: Plan | None, name: str) -> str:
    """What a name that is no more was in the plan."""
    policy = plan.policies.get(name) if plan is not None else None
    return policy.own.kind if policy is not None and policy.own is not None else "guard"


@dataclass(frozen=True, slots=True)
class _Subject:
    """What an event says of a policy, which may be no more."""

    label: str
    kind: str


def judge(sources: Sequence[Source], allow: Allow, owner: Registry) -> tuple[Plan, Candidates]:
    """The plan of the sources and its policies, made but not in force; ``plan.problems`` holds what is wrong.

    Raises:
        ValueError: `allow` is one text.
    """
    if isinstance(allow, str):
        raise ValueError(f"allow={allow!r}: must be a list of modules, such as {[allow]!r}")
    declared = frozenset(name for name in owner if owner[name].declared is not None)
    plan = make_plan(sources, os.environ, allow, declared)
    return plan, build(plan, owner, allow)


def targets_of(plan: Plan) -> list[Target]:
    """The targets of a plan, in the order of the file."""
    return [Target(pattern, str(node.value)) for pattern, node in plan.section("targets").items()]


def problems_of(*sources: Source, allow: Allow = None) -> list[Problem]:
    """Every problem of the sources, in the order of the file; nothing is put in force.

    Args:
        sources: as for `load`.
        allow: as for `load`.
    """
    return in_order(judge(sources, allow, registry)[0].problems)


def load(*sources: Source, allow: Allow = None, watch: Duration | bool = False) -> Loaded:
    """Put the policies, targets and settings of a config in force, in place of those loaded before.

    Args:
        sources: paths, YAML texts or mappings; of several, later ones are merged over earlier ones. A str is a path
            unless it holds a newline or ``": "``, or starts with ``{``.
        allow: patterns of modules that ``module:Name`` may refer to and ``targets`` may name, such as
            ``["shop", "httpx"]``; None is all.
        watch: True, or seconds between two looks at the files, to reload when they change; default False.

    Raises:
        ConfigError: every problem at once; nothing has changed then.
        ValueError: no source, or an `allow` or `watch` that cannot be.
    """
    if not sources:
        raise ValueError("sources: give at least one path, text or mapping")
    interval = None if watch is False else parse_duration(1.0 if watch is True else watch, option="watch")
    before = registry.config
    loaded = Loaded(sources, allow, registry)
    if isinstance(before, Loaded):
        loaded.succeed(before)
    else:
        loaded.apply()
    if interval is not None:
        loaded.watch(interval)
    return loaded


def check() -> None:
    """Resolve every name and target that guarded callables use, and compile their stacks.

    Raises:
        ConfigError: every one that leads nowhere or cannot guard its callable.
    """
    config = registry.config
    problems = config.check() if isinstance(config, Loaded) else []
    for found in sorted(living(), key=lambda chain: chain.function):
        try:
            found.compile()
        except (LookupError, ValueError, TypeError) as error:
            problems.append(Problem("", str(error), Place("code", found.function)))
    if problems:
        raise ConfigError(problems)
