"""Who may look, and who may act.

Looking: from this machine only, asked for by a name of this machine (so that no foreign name can be rebound to it), and
through no proxy (behind which anybody may stand); or, where all machines may, with the token. Acting: with the token,
always. The token comes in a header that no other site can make a browser send; there are no cookies.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from guarded.integrations.dashboard._http import Reply, Request, refusal

MIN_TOKEN = 16  # characters
_LOCAL_NAMES = ("localhost", "localhost.localdomain")
_PROXIED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
_SAME_SITE = ("same-origin", "none")


def problems_of(token: object, loopback_only: object, host: str | None) -> list[str]:
    """What is wrong with the rules of a dashboard; `host` is the address at which it listens itself, if it does."""
    found = []
    if token is not None and not (isinstance(token, str) and len(token) >= MIN_TOKEN and _is_visible(token)):
        found.append(f"token: must be at least {MIN_TOKEN} visible ASCII characters, or None")
    if not isinstance(loopback_only, bool):
        found.append(f"loopback_only={loopback_only!r}: must be True or False")
    elif not loopback_only and token is None:
        found.append("loopback_only=False: give a token too, since anybody may ask then")
    elif loopback_only and host is not None and not is_loopback(host):
        found.append(f"host={host!r}: other machines could reach it; that takes loopback_only=False")
    return found


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of one dashboard.

    Attributes:
        token: who knows it may act; None: nobody may.
        loopback_only: whether other machines are refused; else looking takes the token too.
    """

    token: str | None = None
    loopback_only: bool = True

    def refuse(self, request: Request, *, data: bool, act: bool = False) -> Reply | None:
        """Why a request is not answered, or None.

        Args:
            request: what was asked.
            data: whether the answer tells anything; the bare page does not.
            act: whether it changes something.
        """
        if self.loopback_only and not _is_local(request):
            return refusal(403, "Only this machine may look. See loopback_only in the docs of guarded.")
        if data and not _is_same_site(request):
            return refusal(403, "Not for other sites.")
        if act and self.token is None:
            return refusal(403, "This dashboard was given no token, so nothing can be changed through it.")
        if (act or (data and not self.loopback_only)) and not self._knows(request):
            return refusal(401, "The token is missing or wrong.", {"WWW-Authenticate": "Bearer"})
        return None

    def _knows(self, request: Request) -> bool:
        scheme, _, given = request.header("authorization").partition(" ")
        expected = (self.token or "").encode()
        return hmac.compare_digest(given.strip().encode(), expected) and scheme.lower() == "bearer"


def _is_visible(token: str) -> bool:
    return all("!" <= letter <= "~" for letter in token)


def _is_local(request: Request) -> bool:
    if request.client is None or not is_loopback(request.client):
        return False
    if any(request.header(name) for name in _PROXIED):
        return False
    return is_loopback(host_name(request.header("host")))


def _is_same_site(request: Request) -> bool:
    site = request.header("sec-fetch-site")
    if site and site not in _SAME_SITE:
        return False
    origin = request.header("origin")
    return not origin or origin.partition("://")[2].lower() == request.header("host").lower()


def host_name(host: str) -> str:
    """The name in ``name:port`` or ``[address]:port``."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def is_loopback(name: str) -> bool:
    """Whether an address or a name means this machine."""
    if name.lower().rstrip(".") in _LOCAL_NAMES:
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
