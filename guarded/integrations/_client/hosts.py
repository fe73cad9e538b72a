"""The guards of each host that a client talks to, made from the stack of one name.

Options come from the stack; state (slots, rates, circuits, latencies) is apart for each host. A part that the stack
gives by name, and a limit or rate that code has named, stays the one shared object, and so do retry budgets.
Hosts are bounded: one that has been at rest for long enough makes place for another, and where none has, further
hosts share one set of guards. Times are monotonic seconds.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from guarded._core import clock
from guarded._core.order import check_order
from guarded._core.policy import Policy
from guarded._core.registry import registry
from guarded._core.wrapper import Guarded
from guarded.stack import Guard

MAX_HOSTS = 1000
REST = 60.0
"""Seconds without a request before a host may be forgotten; longer where a rate takes longer to be as new."""

OTHER_HOSTS = "*"
_LOOK_AT = 16
_REPEATING = ("retry", "hedge")
_UNFIT = {"idempotent": "responses cannot be kept and replayed; put @idempotent on the function that sends"}

Maker = Callable[[str], Callable[[Any], Any]]


class _Changes:
    """How often names have changed their meaning."""

    count = 0

    @classmethod
    def note(cls) -> None:
        """Called by the registry."""
        cls.count += 1


registry.on_change(_Changes.note)


class Part(NamedTuple):
    """One layer of the template, and whether all hosts share it."""

    layer: Policy[Any]
    shared: bool


def parts_of(template: Policy[Any] | str) -> Iterator[Part]:
    """The layers of a stack, outermost first. Raises PolicyNotFound, TypeError for a layer that cannot be used."""
    policy = registry[template] if isinstance(template, str) else template
    policy.expand()  # raises for names that are missing or go round in a circle
    for part in _walk(policy, False):
        if part.layer.kind in _UNFIT:
            raise TypeError(f"{part.layer!r} cannot guard an HTTP client: {_UNFIT[part.layer.kind]}")
        yield part


def _walk(policy: Policy[Any], shared: bool) -> Iterator[Part]:
    if not isinstance(policy, Guard):
        for layer in policy.expand():
            yield Part(layer, shared)
        return
    if not policy.enabled:
        return
    for part in policy.options.parts:
        if isinstance(part, str):
            named = registry[part]
            yield from _walk(named, not isinstance(named, Guard))
        else:
            by_code = part.name is not None and part.declared is not None
            yield from _walk(part, by_code and part.kind in ("limit", "rate"))


class Lane:
    """The guards of one host.

    Attributes:
        host: ``example.com``, with the port where it is not the usual one.
        layers: outermost first.
        active: requests on their way.
        overlaps: whether two attempts of one request may run at the same time.
    """

    def __init__(self, label: str, host: str) -> None:
        self.host = host
        self.layers: tuple[Policy[Any], ...] = ()
        self.active: int = 0
        self.overlaps = False
        self._label = label
        self._made: dict[int, tuple[Policy[Any], Policy[Any], Any]] = {}
        self._senders: dict[tuple[Maker, bool], Any] = {}
        self._used = 0.0

    def adopt(self, parts: tuple[Part, ...]) -> None:
        """Follow the template: the state of a layer that is still there goes on, whatever its options are now."""
        before, made = self._made, {}
        layers = []
        for layer, shared in parts:
            mine, options = layer, layer.options
            if not shared:
                known = before.get(id(layer))
                mine = known[1] if known is not None else self._twin(layer)
                if known is not None and known[2] != options:
                    mine.reconfigure(options)
                made[id(layer)] = (layer, mine, options)
            layers.append(mine)
        self._made = made
        self.layers = tuple(layers)
        self.overlaps = any(layer.kind == "hedge" for layer in layers)
        self._senders = {}

    def _twin(self, layer: Policy[Any]) -> Policy[Any]:
        return type(layer)(layer.options, name=f"{layer.name or self._label}[{self.host}]")

    def own(self) -> list[Policy[Any]]:
        """The layers that no other host shares."""
        return [mine for _, mine, _ in self._made.values()]

    def guarded(self, make: Maker, *, repeatable: bool) -> Any:
        """What `make` makes, under the guards; without those that repeat it where it must go out once only."""
        senders = self._senders  # taken before the layers: `adopt` replaces them in the other order
        found = senders.get((make, repeatable))
        if found is None:
            layers = self.layers if repeatable else tuple(x for x in self.layers if x.kind not in _REPEATING)
            found = senders[make, repeatable] = Guarded(make(f"{self._label}[{self.host}]"), layers)
        return found

    def enter(self) -> None:
        """A request starts."""
        self.active += 1
        self._used = clock.monotonic()

    def leave(self) -> None:
        """A request is over."""
        self.active -= 1
        self._used = clock.monotonic()

    def is_at_rest(self, now: float) -> bool:
        """Whether fresh guards would decide like these."""
        if self.active or now - self._used < REST:
            return False
        return all(_rests(layer, now - self._used) for _, layer, _ in self._made.values())


def _rests(layer: Any, idle: float) -> bool:
    if layer.kind == "circuit":
        return bool(layer.state == "closed")
    if layer.kind == "rate":
        quotas, burst = layer.options.quotas, layer.options.burst or 0
        return bool(idle > max(window * max(count, burst) / count for count, window in quotas) / 1e9)
    return True


class Hosts:
    """All lanes of one template; clients that name the same stack share them.

    Args:
        template: a policy, or the name of one; a name may be loaded later.
    """

    def __init__(self, template: Policy[Any] | str) -> None:
        self.template = template
        self.label: str = template if isinstance(template, str) else template.name or template.kind
        self._building = threading.Lock()  # held while guards are made; outside of the other one
        self._lock = threading.Lock()  # guards the table of lanes
        self._lanes: OrderedDict[str, Lane] = OrderedDict()
        self._spare = Lane(self.label, OTHER_HOSTS)
        self._seen = -1
        self._policy: Policy[Any] | None = None

    def __len__(self) -> int:
        return len(self._lanes)

    def enter(self, host: str) -> Lane:
        """The lane of a host, with one more request on it; `leave` has to follow."""
        if self._seen != _Changes.count:
            self._refresh()
        with self._lock:
            lane = self._lanes.get(host)
            if lane is not None:
                self._lanes.move_to_end(host)
                lane.enter()
                return lane
        return self._open(host)

    def leave(self, lane: Lane) -> None:
        """A request is over."""
        with self._lock:
            lane.leave()

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """For each host: requests on their way, and the live state of each of its layers."""
        with self._lock:
            lanes = list(self._lanes.values())
        return {
            lane.host: {"active": lane.active, **{layer.kind: layer.live_state() for layer in lane.layers}}
            for lane in lanes
        }

    def policies(self) -> list[Policy[Any]]:
        """What each host has of its own."""
        with self._lock:
            lanes = list(self._lanes.values())
        return [mine for lane in lanes for mine in lane.own()]

    def _open(self, host: str) -> Lane:
        made = Lane(self.label, host)
        with self._building:  # until it is among the lanes, so that no change of names passes it by
            made.adopt(self._parts())
            with self._lock:
                lane = self._lanes.get(host)
                if lane is None:
                    lane = made if len(self._lanes) < MAX_HOSTS or self._forget_one() else self._spare
                    if lane is made:
                        self._lanes[host] = made
                lane.enter()
                return lane

    def _forget_one(self) -> bool:
        now = clock.monotonic()
        for host, lane in itertools.islice(self._lanes.items(), _LOOK_AT):  # longest unused first
            if lane.is_at_rest(now):
                del self._lanes[host]
                return True
        return False

    def _refresh(self) -> None:
        """Names may mean something else than when the lanes were made."""
        with self._building:
            seen = _Changes.count
            if self._seen == seen:
                return
            parts = self._parts()
            if self._seen < 0:
                check_order(tuple(part.layer for part in parts), (), self.label)
            policy = registry[self.template] if isinstance(self.template, str) else self.template
            with self._lock:
                if policy is not self._policy:  # another one of that name: what the old one has counted is over
                    self._policy = policy
                    self._lanes = OrderedDict((host, lane) for host, lane in self._lanes.items() if lane.active)
                lanes = [*self._lanes.values(), self._spare]
            for lane in lanes:
                lane.adopt(parts)
            self._seen = seen

    def _parts(self) -> tuple[Part, ...]:
        return tuple(parts_of(self.template))


_by_name: dict[str, Hosts] = {}
_table_lock = threading.Lock()


def hosts_of(template: Policy[Any] | str) -> Hosts:
    """The lanes of a stack: the same for all who give the same name, or the same object.

    Those of a name last as long as the process, so that a client made for one request finds the state that the
    one before it has left; those of an object as long as the object.
    """
    table: dict[str, Any] = _by_name if isinstance(template, str) else vars(template)
    name = template if isinstance(template, str) else "_hosts"
    with _table_lock:
        found: Hosts | None = table.get(name)
        if found is None:
            found = table[name] = Hosts(template)
        return found


def _policies_of_hosts() -> Iterator[Policy[Any]]:
    """Those of the lanes of every registered stack, for `registry.snapshot`."""
    for name in registry:
        for found in (_by_name.get(name), getattr(registry.get(name), "_hosts", None)):
            if isinstance(found, Hosts):
                yield from found.policies()


registry.annex(_policies_of_hosts)
