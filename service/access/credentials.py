"""API keys, and the signed cookies that a browser carries in place of one."""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

PREFIX = "asap"
ID_BYTES = 6
SECRET_BYTES = 32
KEY_SHAPE = re.compile(rf"{PREFIX}_([0-9a-f]{{{2 * ID_BYTES}}})_[A-Za-z0-9_-]{{20,100}}")
COOKIE = "asap_key"
LIFE_S = 7 * 86_400
COOKIE_SHAPE = re.compile(r"([0-9a-f]{1,32})\.([0-9]{1,12})\.([0-9a-f]{64})")


@dataclass(frozen=True)
class NewKey:
    id: str
    text: str
    """Shown once, when the key is made."""
    digest: str


def new_key() -> NewKey:
    id = secrets.token_hex(ID_BYTES)
    text = f"{PREFIX}_{id}_{secrets.token_urlsafe(SECRET_BYTES)}"
    return NewKey(id, text, digest_of(text))


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def find_id(text: str) -> str | None:
    """The id in a key; None if the text is not one of our keys."""
    match = KEY_SHAPE.fullmatch(text)
    return match.group(1) if match else None


def is_same(text: str, digest: str) -> bool:
    """In constant time."""
    return hmac.compare_digest(digest_of(text), digest)


@dataclass(frozen=True)
class SignedKey:
    key_id: str
    expires_s: int
    signature: str

    def holds(self, digest: str, secret: str, now_s: float) -> bool:
        made = _signature(self.key_id, self.expires_s, digest, secret)
        return hmac.compare_digest(made, self.signature) and now_s < self.expires_s


def sign(key_id: str, digest: str, secret: str, expires_s: int) -> str:
    return f"{key_id}.{expires_s}.{_signature(key_id, expires_s, digest, secret)}"


def find_signed(text: str) -> SignedKey | None:
    """None if the text is not one of our cookies; whether it is valid is checked later."""
    match = COOKIE_SHAPE.fullmatch(text)
    return SignedKey(match[1], int(match[2]), match[3]) if match else None


def _signature(key_id: str, expires_s: int, digest: str, secret: str) -> str:
    key = hashlib.sha256(f"{secret}/{digest}".encode()).digest()
    return hmac.new(key, f"asap-cookie/{key_id}/{expires_s}".encode(), hashlib.sha256).hexdigest()
