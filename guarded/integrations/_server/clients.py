"""Who a request comes from, as a key for rates and limits.

The peer of the connection, unless that is a trusted proxy: then the last address of ``X-Forwarded-For`` that no
trusted proxy has. Only trusted proxies are believed, from the nearest one outwards, so that a forged header gives
nobody another key. An IPv6 client is its /64, since a subscriber owns at least that many addresses.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence
from typing import TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

FORWARDED_FOR = "x-forwarded-for"
LOCAL = "local"
"""Stands for a peer without an address, on a Unix socket; also what trusts such a peer as a proxy."""

_IPV6_PREFIX = 64
_FARTHEST = 50  # proxies; a longer header was not written by proxies


class Clients:
    """Tells clients apart.

    Args:
        trusted: addresses and networks of our own proxies, such as ``"10.0.0.0/8"``, and ``"local"`` for one on a
            Unix socket.

    Raises:
        ValueError: one is neither.
    """

    def __init__(self, trusted: Collection[str] = ()) -> None:
        given = (trusted,) if isinstance(trusted, str) else tuple(trusted)
        self._trusts_local = LOCAL in given
        networks: list[Network] = []
        for each in given:
            if each != LOCAL:
                try:
                    networks.append(ipaddress.ip_network(each))
                except ValueError as error:
                    raise ValueError(
                        f"trusted_proxies={each!r}: must be an address, a network or 'local': {error}"
                    ) from None
        self._networks = tuple(networks)

    def identify(self, peer: str | None, forwarded: Sequence[str]) -> str:
        """The key of a client.

        Args:
            peer: address at the other end of the connection; None for a Unix socket.
            forwarded: values of all ``X-Forwarded-For`` headers, in their order.
        """
        address = None if peer is None else parse_address(peer)
        if address is None:
            if not self._trusts_local:
                return peer or LOCAL
        elif not self._trusts(address):
            return _key(address)
        hops = [hop for value in forwarded for hop in value.split(",")]
        for hop in reversed(hops[-_FARTHEST:]):
            found = parse_address(hop.strip())
            if found is None:
                break  # what a trusted proxy has not written as an address says nothing, nor does what is before it
            address = found
            if not self._trusts(found):
                break
        return LOCAL if address is None else _key(address)

    def _trusts(self, address: Address) -> bool:
        return any(address.version == network.version and address in network for network in self._networks)


def parse_address(text: str) -> Address | None:
    """An address, with or without brackets, port and zone; None for anything else."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _key(address: Address) -> str:
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))
