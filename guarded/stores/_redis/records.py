"""Idempotency records on Redis: `IdempotentStore` over one script; payloads are bytes."""

from __future__ import annotations

from typing import Any, Final

from guarded.stores._redis.link import Link, Script, Word
from guarded.stores._redis.memory import Memories
from guarded.stores.contract.idempotent import Abandoned, Claim, Finished, Mismatch, Reply, Running, Started

_US = 1_000_000
_SCRIPT: Final = Script("idempotent")
_SHARD: Final = 2  # digits of a key's digest that say with which others it shares a place in a cluster
_CUT: Final = 253_402_300_799_000_000  # what is to be kept for ever is kept until the year 9999


class RedisRecords:
    """See `IdempotentStore` for the methods."""

    durable = True

    def __init__(self, link: Link, prefix: str, name: str) -> None:
        self._prefix = f"{prefix}idempotent:"
        self._link = link
        self.name = name
        self._memories = Memories()

    def begin(self, key: str, claim: Claim) -> Reply[bytes]:
        """See `IdempotentStore.begin`."""
        return self._begun(key, claim, self._link.run(*self._step("begin", key, claim, int(claim.take_over))))

    async def begin_async(self, key: str, claim: Claim) -> Reply[bytes]:
        """See `IdempotentStore.begin`."""
        step = self._step("begin", key, claim, int(claim.take_over))
        return self._begun(key, claim, await self._link.run_async(*step))

    def complete(self, key: str, claim: Claim, payload: bytes) -> bool:
        """See `IdempotentStore.complete`."""
        return self._ended(claim, self._link.run(*self._step("complete", key, claim, payload)))

    async def complete_async(self, key: str, claim: Claim, payload: bytes) -> bool:
        """See `IdempotentStore.complete`."""
        return self._ended(claim, await self._link.run_async(*self._step("complete", key, claim, payload)))

    def renew(self, key: str, claim: Claim) -> bool:
        """See `IdempotentStore.renew`."""
        memory, held = self._link.run(*self._step("renew", key, claim))
        self._memories.note(key[:_SHARD], claim.owner, memory, claim.lease, holds=bool(held))
        return bool(held)

    def release(self, key: str, claim: Claim) -> bool:
        """See `IdempotentStore.release`."""
        return self._ended(claim, self._link.run(*self._step("release", key, claim)))

    async def release_async(self, key: str, claim: Claim) -> bool:
        """See `IdempotentStore.release`."""
        return self._ended(claim, await self._link.run_async(*self._step("release", key, claim)))

    def _step(self, step: str, key: str, claim: Claim, *more: Word) -> tuple[Script, list[str], list[Word]]:
        shard = key[:_SHARD]
        known = self._memories.known(shard if step == "begin" else claim.owner)
        given: list[Word] = [step, claim.owner, claim.fingerprint or "", _us(claim.lease), _us(claim.ttl), known, *more]
        return _SCRIPT, [f"{self._prefix}{{{shard}}}:{key}", f"{self._prefix}{{{shard}}}:memory"], given

    def _begun(self, key: str, claim: Claim, reply: list[Any]) -> Reply[bytes]:
        answer = _reply(reply[1:])
        self._memories.note(key[:_SHARD], claim.owner, reply[0], claim.lease, holds=isinstance(answer, Started))
        return answer

    def _ended(self, claim: Claim, reply: list[Any]) -> bool:
        self._memories.forget(claim.owner)
        return bool(reply[1])


def _us(seconds: float) -> int:
    return _CUT if seconds * _US >= _CUT else int(seconds * _US)


def _reply(reply: list[Any]) -> Reply[bytes]:
    kind = reply[0]
    if kind == b"started":
        return Started(None if reply[1] < 0 else reply[1] / _US)
    if kind == b"finished":
        return Finished(reply[1], max(0, reply[2]) / _US)
    if kind == b"running":
        return Running(reply[1] / _US)
    return Mismatch(bool(reply[1])) if kind == b"mismatch" else Abandoned(max(0, reply[1]) / _US)
