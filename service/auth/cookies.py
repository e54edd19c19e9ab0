"""The cookie of a browser that signed in with an API key: which key, until when, signed.

The signature is made with the key's digest and, where it is set, the installation's own secret. So every
replica can check it, a key that is revoked takes its browsers along, and nothing is kept anywhere. Without
the secret whoever can read the database could make such a cookie.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass

from starlette.requests import HTTPConnection

from service.auth.errors import ForbiddenError
from service.auth.loopback import SAFE_METHODS, is_own_origin

COOKIE = "asap_key"
LIFE_S = 7 * 86_400
_SHAPE = re.compile(r"([0-9a-f]{1,32})\.([0-9]{1,12})\.([0-9a-f]{64})")


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
    """None for what is no cookie of ours; whether it holds is another question."""
    found = _SHAPE.fullmatch(text)
    return SignedKey(found[1], int(found[2]), found[3]) if found else None


def check_same_site(request: HTTPConnection) -> None:
    """A browser sends cookies with requests that other sites' pages make: those may change nothing."""
    if request.scope["method"] in SAFE_METHODS:
        return
    origin = request.headers.get("origin", "")
    if not is_own_origin(origin, request):
        raise ForbiddenError(f"a page of {origin or 'an unknown site'} may not change anything here")


def _signature(key_id: str, expires_s: int, digest: str, secret: str) -> str:
    key = hashlib.sha256(f"{secret}/{digest}".encode()).digest()
    return hmac.new(key, f"asap-cookie/{key_id}/{expires_s}".encode(), hashlib.sha256).hexdigest()
