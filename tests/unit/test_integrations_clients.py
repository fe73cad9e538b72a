"""Who a request comes from."""

from __future__ import annotations

from typing import Any

import pytest

from guarded.integrations._server.clients import Clients
from guarded.integrations._server.request import client_key

TRUSTED = ["10.0.0.0/8", "2001:db8:ffff::/48", "local"]


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("192.0.2.1", [], "192.0.2.1"),
        ("192.0.2.1", ["198.51.100.9"], "192.0.2.1"),  # forged: the peer is no proxy of ours
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.9"], "198.51.100.9"),
        ("10.0.0.1", ["1.1.1.1, 198.51.100.9"], "198.51.100.9"),  # what is before was written by the client
        ("10.0.0.1", ["1.1.1.1", "198.51.100.9, 10.0.0.2"], "198.51.100.9"),
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),  # a client inside
        ("10.0.0.1", ["198.51.100.9, unknown"], "10.0.0.1"),  # nothing before nonsense is believed
        ("10.0.0.1", ["198.51.100.9, unknown, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.9:8080"], "198.51.100.9"),
        ("10.0.0.1", ["[2001:db8::1]:8080"], "2001:db8::/64"),
        ("10.0.0.1", ["2001:db8::1%eth0"], "2001:db8::/64"),
        ("2001:db8:0:5:a::1", [], "2001:db8:0:5::/64"),
        ("2001:db8:0:5:b::2", [], "2001:db8:0:5::/64"),
        ("2001:db8:ffff::1", ["198.51.100.9"], "198.51.100.9"),
        ("::ffff:192.0.2.1", [], "192.0.2.1"),
        ("::ffff:10.0.0.1", ["198.51.100.9"], "198.51.100.9"),
        (None, ["198.51.100.9"], "198.51.100.9"),  # a proxy on a Unix socket
        (None, [], "local"),
    ],
)
def test_identify(peer: str | None, forwarded: list[str], client: str) -> None:
    """From the nearest proxy outwards, as far as proxies of ours go."""
    assert Clients(TRUSTED).identify(peer, forwarded) == client


def test_a_unix_socket_is_not_trusted_by_itself() -> None:
    """Only when told so."""
    assert Clients().identify(None, ["198.51.100.9"]) == "local"
    assert Clients(TRUSTED[:1]).identify("testclient", ["198.51.100.9"]) == "testclient"


def test_a_long_header_is_not_read_whole() -> None:
    """No chain of proxies is that long; the end of it decides."""
    forwarded = ["198.51.100.9" + ", 10.0.0.2" * 10_000]
    assert Clients(TRUSTED).identify("10.0.0.1", forwarded) == "10.0.0.2"


@pytest.mark.parametrize("wrong", ["10.0.0.1/8", "proxy", ""])
def test_a_wrong_proxy_is_named(wrong: Any) -> None:
    """At construction."""
    with pytest.raises(ValueError, match=f"trusted_proxies={wrong!r}"):
        Clients([wrong])


def test_one_proxy_may_be_given_bare() -> None:
    """A string is one network, not letters."""
    assert Clients("10.0.0.0/8").identify("10.0.0.1", ["198.51.100.9"]) == "198.51.100.9"


def test_client_key_needs_a_request() -> None:
    """And says what is missing."""
    with pytest.raises(LookupError, match="middleware"):
        client_key()
