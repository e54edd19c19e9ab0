"""Addresses of servers that the user names."""

from urllib.parse import SplitResult, urlsplit

from tools.errors import InputError


def parse_address(field: str, address: str) -> SplitResult:
    """Its parts, if it is one of http or https and holds no secret; the message repeats none either."""
    # What stands before an @ may be a password, and after a ? or # a key.
    shown = address.rpartition("@")[2].partition("?")[0].partition("#")[0]
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, or half of an IPv6 address
        usable = False
    if not usable:
        raise InputError(field, shown, "must be an http or https address")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InputError(field, shown, "must hold no user, password or query; give a key as such")
    return parts
