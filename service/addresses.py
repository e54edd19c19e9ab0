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
LOCAL_NAT64 = ipaddress.ip_network("64:ff9b:1::/48")
"""A translator of somebody's own (RFC 8215)."""
TRANSLATED = ipaddress.ip_network("::ffff:0:0:0/96")
"""IPv4 behind a stateless translator (RFC 2765)."""
UNICAST = ipaddress.ip_network("2000::/3")
"""All of IPv6 that is routed; the rest, such as fec0::/10 and 64:ff9b:1::/48, is local to somebody."""
PROTOCOLS = ipaddress.ip_network("192.0.0.0/24")
"""For protocols, not for hosts (RFC 6890), but for Oracle's metadata at 192.0.0.192."""
METADATA = {
    ipaddress.ip_address(text)
    for text in (
        "169.254.169.254", "169.254.170.2", "169.254.170.23", "fd00:ec2::254", "fd00:ec2::23",
        "168.63.129.16", "fd20:ce::254", "192.0.0.192", "fd00:c1::a9fe:a9fe", "100.100.100.200",
    )
}  # fmt: skip
"""Where clouds (AWS with ECS and EKS, Azure, GCP, Oracle, Alibaba) give any process on a machine its
credentials. Refused even if private addresses are allowed."""
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
    literal = _find_literal(parts.hostname)
    is_local = parts.hostname == "localhost" or parts.hostname.endswith(".localhost")
    if (is_local and not private_allowed) or (literal and not _is_allowed(literal, private_allowed)):
        raise InputError("webhook", url, "must lead to a public address")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not path.isascii() or any(character <= " " for character in path):
        raise InputError("webhook", url, "must be percent-encoded")
    return Target(parts.scheme, parts.hostname, port or SCHEMES[parts.scheme], path)


def origin_of(url: str) -> str:
    """What of an address may be shown: its path may hold a token."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}/..."


def resolve(target: Target, private_allowed: bool) -> str:
    """An address to connect to. Raises OSError if the name is unknown."""
    infos = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    addresses = [str(info[4][0]) for info in infos]
    for address in addresses:
        if not _is_allowed(ipaddress.ip_address(address.split("%")[0]), private_allowed):
            raise RefusedAddressError(f"{target.host} leads to {address}, which is not a public address")
    return addresses[0]


def is_public(address: IPAddress) -> bool:
    """An IPv4 address inside an IPv6 one is judged by itself."""
    inner = _innermost(address)
    if inner in METADATA or inner in PROTOCOLS or address in LOCAL_NAT64:
        return False
    return inner.is_global and not inner.is_multicast and (inner.version == 4 or inner in UNICAST)


def _is_allowed(address: IPAddress, private_allowed: bool) -> bool:
    return is_public(address) or (private_allowed and _innermost(address) not in METADATA)


def _innermost(address: IPAddress) -> IPAddress:
    if not isinstance(address, ipaddress.IPv6Address):
        return address
    if address in NAT64 or address in LOCAL_NAT64 or address in TRANSLATED:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else address)


def _find_literal(host: str) -> IPAddress | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
