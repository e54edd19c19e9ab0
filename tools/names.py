"""Text that a user types: the nearest known name for a misspelt one, and addresses of servers.

The only place where ASAP guesses what a user meant.
"""

import difflib
from collections.abc import Iterable
from urllib.parse import SplitResult, urlsplit

from tools.errors import InputError

LOOSE = 0.6
NEAR_MISS = 0.88


def nearest(name: object, known: Iterable[str], *, cutoff: float = LOOSE, count: int = 3) -> list[str]:
    """Known names that look like `name`, best first; empty when nothing comes close."""
    spelt = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(str(name)[:100].lower(), spelt, n=count, cutoff=cutoff)
    return [spelt[match] for match in matches]


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The tail of an error message: the nearest names, or every allowed one if none is near."""
    names = sorted(known)
    close = nearest(name, names)
    return f"did you mean {' or '.join(close)}?" if close else f"allowed: {', '.join(names)}"


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
