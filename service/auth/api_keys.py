"""API keys: `asap_<id>_<secret>`. The id finds the row, the digest proves the secret, which is kept nowhere.

The secret has 256 random bits, so a plain SHA-256 is enough: nobody can try them all.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

PREFIX = "asap"
ID_BYTES = 6
SECRET_BYTES = 32
_SHAPE = re.compile(rf"{PREFIX}_([0-9a-f]{{{2 * ID_BYTES}}})_[A-Za-z0-9_-]{{20,100}}")


@dataclass(frozen=True)
class NewKey:
    id: str
    text: str
    """Shown once, to whoever asked for the key."""
    digest: str


def new_key() -> NewKey:
    id = secrets.token_hex(ID_BYTES)
    text = f"{PREFIX}_{id}_{secrets.token_urlsafe(SECRET_BYTES)}"
    return NewKey(id, text, digest_of(text))


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def find_id(text: str) -> str | None:
    """The id in a key; None for what is no key of ours."""
    found = _SHAPE.fullmatch(text)
    return found.group(1) if found else None


def is_same(text: str, digest: str) -> bool:
    """Takes as long for a near miss as for a far one."""
    return hmac.compare_digest(digest_of(text), digest)
