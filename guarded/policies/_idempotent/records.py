"""The life of one idempotency record: absent → running → finished, or abandoned when its lease runs out.

Pure: each function takes the record a store found, and the time by the store's clock, and says what it is to
answer and to write. A store does both in one atomic step. Times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic

from guarded.stores.contract.idempotent import Abandoned, Claim, Finished, Mismatch, PayloadT, Reply, Running, Started


@dataclass(frozen=True, slots=True)
class Record(Generic[PayloadT]):
    """One record.

    Attributes:
        owner: token of the run that has it; None once it is finished.
        fingerprint: digest of the arguments it was made with.
        since: when its run began, or when it was completed.
        until: when its lease runs out; for a finished record the same as `expires`.
        expires: when the store is to forget it.
        payload: the result of a finished record.
    """

    owner: str | None
    fingerprint: str | None
    since: float
    until: float
    expires: float
    payload: PayloadT | None = None


def begin(found: Record[PayloadT] | None, claim: Claim, now: float) -> tuple[Reply[PayloadT], Record[PayloadT] | None]:
    """The answer to a claim, and the record to write; None leaves it as it is."""
    if found is None or now >= found.expires:
        return Started(), _running(claim, now)
    compared = claim.fingerprint is not None and found.fingerprint is not None
    if compared and claim.fingerprint != found.fingerprint:
        return Mismatch(running=found.owner is not None), None
    age = max(0.0, now - found.since)
    if found.owner is None:
        return Finished(found.payload, age), None  # type: ignore[arg-type]
    if found.owner == claim.owner:
        return Started(), _leased(found, claim, now)
    if now < found.until:
        return Running(left=found.until - now), None
    if claim.take_over:
        return Started(abandoned_for=age), _running(claim, now)
    return Abandoned(age), None


def complete(found: Record[PayloadT] | None, claim: Claim, payload: PayloadT, now: float) -> Record[PayloadT] | None:
    """The finished record to write; None when the record is not the owner's."""
    if found is not None and now < found.expires and found.owner != claim.owner:
        return None
    expires = now + claim.ttl
    return Record(None, claim.fingerprint, now, expires, expires, payload)


def renew(found: Record[PayloadT] | None, claim: Claim, now: float) -> Record[PayloadT] | None:
    """The record with its lease started over; None when it is not the owner's."""
    return _leased(found, claim, now) if found is not None and _is_held(found, claim, now) else None


def may_release(found: Record[Any] | None, claim: Claim, now: float) -> bool:
    """Whether the owner may make the record absent."""
    return found is not None and _is_held(found, claim, now)


def _is_held(found: Record[Any], claim: Claim, now: float) -> bool:
    return found.owner == claim.owner and now < found.expires


def _running(claim: Claim, now: float) -> Record[Any]:
    until = now + claim.lease
    return Record(claim.owner, claim.fingerprint, now, until, until + claim.ttl)


def _leased(found: Record[PayloadT], claim: Claim, now: float) -> Record[PayloadT]:
    until = now + claim.lease
    return replace(found, until=until, expires=until + claim.ttl)
