"""Which call is which: the key of a call, the digest of its arguments, and the claim that it brings to a store."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from types import MethodType

from guarded._core.keys import binder_for, compile_key, digest, fingerprint
from guarded._core.policy import Args, Fn, Kwargs, Policy, Site
from guarded.policies._idempotent.options import IdempotentOptions
from guarded.stores.contract.idempotent import Claim
from guarded.stores.owners import new_owner


class Identity:
    """Key and fingerprint of the calls of one callable."""

    def __init__(self, policy: Policy[IdempotentOptions], durable: bool, site: Site) -> None:
        options = policy.options
        self._function = site.function
        self._options = options
        self._lease = options.lease if durable else inf
        self._binder = binder_for(site.wrapped)
        self._hidden = () if self._binder.instance is None else (self._binder.instance,)
        self._key_of: Callable[[Fn, Args, Kwargs], object] = (
            self._all_arguments if options.key is None else compile_key(options.key, site.wrapped)
        )
        self._compares = options.fingerprint and options.key is not None

    def of(self, fn: Fn, args: Args, kwargs: Kwargs) -> tuple[str, Claim]:
        """The key a store sees, and the claim, of one call."""
        options = self._options
        key = self._key_of(fn, args, kwargs)
        if key is None:
            raise ValueError(
                f"{self._function}: the idempotency key is None; pass one, or give `key` a function that makes "
                "a new one for calls that have none"
            )
        mark = self._fingerprint(fn, args, kwargs) if self._compares else None
        return digest(self._function, key), Claim(
            new_owner(), mark, self._lease, options.ttl, options.on_abandoned == "rerun"
        )

    def _all_arguments(self, fn: Fn, args: Args, kwargs: Kwargs) -> str:
        if isinstance(fn, MethodType):
            raise TypeError(f"{self._function} is called as a method: name the key, as in key='order_id'")
        return self._fingerprint(fn, args, kwargs)

    def _fingerprint(self, fn: Fn, args: Args, kwargs: Kwargs) -> str:
        try:
            return fingerprint(self._binder.bind(fn, args, kwargs), self._hidden)
        except TypeError as error:
            hint = "name the key, as in key='order_id'" if self._options.key is None else "use fingerprint=False"
            raise TypeError(f"{self._function}: {error}; or {hint}") from error
