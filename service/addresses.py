"""Webhook targets: parses the URL and allows public addresses only, unless the installation permits others.

The name is resolved once and the connection goes to the checked address, so DNS rebinding gains nothing.
"""

import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from tools.errors import InputError

SCHEMES = {"http": 80, "https": 443}
NAT64 = ipaddress.ip_network("64:ff9b::/96")
TRANSLATED = ipaddress.ip_network("::ffff:0:0:0/96")
"""IPv4 behind a stateless translator (RFC 2765)."""
UNICAST = ipaddress.ip_network("2000::/3")
"""All of IPv6 that is routed; the rest, such as fec0::/10 and 64:ff9b:1::/48, is local to somebody."""
IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class RefusedAddressError(Exception):
    """The name leads to a place that webhooks must not reach."""


@dataclass(frozen=True)
class Target:
    scheme: str
    host: str
    port: int
    path: str

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == SCHEMES[self.scheme] else f"{host}:{self.port}"


def parse_target(url: str, private_allowed: bool) -> Target:
    """Raises InputError for what can be seen in the address itself; names are resolved when it is used."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InputError("webhook", url, "must be an http or https address") from None
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise InputError("webhook", url, "must be an http or https address")
    if parts.username or parts.password:
        raise InputError("webhook", "an address with a password", "must not hold credentials")
    if not private_allowed and _is_private_literal(parts.hostname):
        raise InputError("webhook", url, "must lead to a public address")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not path.isascii() or any(character <= " " for character in path):
        raise InputError("webhook", url, "must be percent-encoded")
    return Target(parts.scheme, parts.hostname, port or SCHEMES[parts.scheme], path)


def resolve(target: Target, private_allowed: bool) -> str:
    """An address to connect to. Raises OSError if the name is unknown."""
    infos = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    addresses = [str(info[4][0]) for info in infos]
    for address in addresses:
        if not private_allowed and not is_public(ipaddress.ip_address(address.split("%")[0])):
            raise RefusedAddressError(f"{target.host} leads to {address}, which is not a public address")
    return addresses[0]


def is_public(address: IPAddress) -> bool:
    """An IPv4 address inside an IPv6 one is judged by itself."""
    inner = _inner(address)
    if inner is not None:
        return is_public(inner)
    if isinstance(address, ipaddress.IPv6Address) and address not in UNICAST:
        return False
    return address.is_global and not address.is_multicast


def _inner(address: IPAddress) -> ipaddress.IPv4Address | None:
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in NAT64 or address in TRANSLATED:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)


def _is_private_literal(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return not is_public(ipaddress.ip_address(host))
    except ValueError:
        return False
