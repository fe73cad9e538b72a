"""``with db_limit:`` and ``async with db_limit:``: a permit for the length of a block."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from guarded._core import clock
from guarded._core.call import Call, current
from guarded._core.durations import Duration
from guarded._core.policy import Policy
from guarded.events.bus import bus
from guarded.events.model import TRACE
from guarded.policies._limit.core import KeyedPools, Pool
from guarded.policies._limit.hand import NOTHING_TO_AWAIT, Claim, Scope, Visit
from guarded.policies._limit.learner import Learner
from guarded.policies._limit.options import LimitOptions
from guarded.policies._limit.wait import Gate

if TYPE_CHECKING:
    from guarded.policies._limit.stored import StoredLimit

_get, _set, _reset = current.get, current.set, current.reset


class Blocks(Policy[LimitOptions]):
    """The half of a limit that is used around blocks; the other half makes claims and keeps the pools."""

    gate: Gate
    learner: Learner | None
    stored: StoredLimit | None
    _pools: Pool | KeyedPools
    _quick: Pool | None
    _weight: int | None

    def _claim(self, timeout: Duration | None, key: object, weight: int | None, priority: int | None) -> Claim:
        raise NotImplementedError

    def tell_acquired(self, call: Call, pool: Pool, waited: float) -> None:
        """A call got its permits."""
        raise NotImplementedError

    def __enter__(self) -> None:
        if not self._enter_quickly():
            claim, scope = self._claim_scope()
            waited = self.gate.enter(*claim)
            try:
                self._publish(scope, claim, waited)
            except BaseException:  # of a signal handler: nobody will leave the block
                self._retract(scope, claim)
                raise

    def __aenter__(self) -> Awaitable[None]:
        return NOTHING_TO_AWAIT if self._enter_quickly() else self._enter_slowly()

    async def _enter_slowly(self) -> None:
        claim, scope = self._claim_scope()
        waited = await self.gate.enter_async(*claim)
        try:
            self._publish(scope, claim, waited)
        except BaseException:
            self._retract(scope, claim)
            raise

    def _enter_quickly(self) -> bool:
        """Open a ``with`` block if that takes no decision."""
        pool = self._quick
        if pool is None or pool.slow:
            return False
        scope = Scope()
        outer = scope.parent = _get()
        if outer is not None:
            scope.deadline = outer.deadline
            scope.token = outer.token
        try:
            del pool.tokens[-1]
        except IndexError:
            return False
        try:
            scope.held = [pool, None, self, _set(scope), None]
            if bus.threshold <= TRACE:
                self.tell_acquired(scope, pool, 0.0)
        except BaseException:  # of a signal handler: nobody will leave the block
            _set(outer)
            pool.give_back(1)
            raise
        return True

    def _claim_scope(self) -> tuple[Claim, Scope]:
        scope = Scope()
        outer = _get()
        if outer is not None:
            scope.adopt(outer)
        return self._claim(None, None, None, None)._replace(call=scope), scope

    def _publish(self, scope: Scope, claim: Claim, waited: float) -> None:
        visit = Visit(claim.weight, claim.pool.held, clock.monotonic())
        scope.held = [claim.pool, None, self, _set(scope), visit]
        if self.stored is not None:
            self.stored.blocks.append(claim.pool)
        if bus.threshold <= TRACE:
            self.tell_acquired(scope, claim.pool, waited)

    def _retract(self, scope: Scope, claim: Claim) -> None:
        _set(scope.parent)
        claim.pool.give_back(claim.weight)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        scope = _get()
        if type(scope) is not Scope or scope.held[2] is not self:
            self._exit_from_afar(scope, error)
            return
        pool, _, _, token, visit = node = scope.held
        node[0] = node[2] = None
        outer = scope.parent
        try:
            if outer is not None and type(outer) is Scope and outer.held[2] is None:
                _set(outer.still_open())
            else:
                try:
                    _reset(token)
                except ValueError:  # entered in another context, which this one was copied from
                    _set(outer)
        finally:
            if visit is not None:
                self._end_visit(pool, visit, scope, error)
            else:
                pool.tokens.append(True)
                if pool.slow:
                    pool.post(None)

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> Awaitable[None]:
        self.__exit__(kind, error, trace)
        return NOTHING_TO_AWAIT

    def _exit_from_afar(self, innermost: Call | None, error: BaseException | None) -> None:
        """Leave a block that is not the innermost one, or was entered in another context."""
        scope = innermost
        while scope is not None and not (type(scope) is Scope and scope.held[2] is self):
            scope = scope.parent
        if scope is None:
            if self.stored is not None:
                self.stored.leave_any_block()
            elif isinstance(self._pools, Pool):
                self._pools.give_back(self._weight or 1)
            return
        pool, _, _, _, visit = node = scope.held
        node[0] = node[2] = None
        self._end_visit(pool, visit or Visit(1, 0, 0.0), scope, error)

    def _end_visit(self, pool: Pool, visit: Visit, scope: Call, error: BaseException | None) -> None:
        if self.stored is not None:
            self.stored.forget_block(pool)
        pool.give_back(visit.weight)
        if self.learner is not None and visit.started:
            self.learner.learn(scope, visit.started, visit.inflight, error)
