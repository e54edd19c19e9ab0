"""Authentication: API keys, OpenID Connect tokens, browser cookies and loopback, resolved to a caller with a
tenant and scopes.
"""

import hashlib
import hmac
import ipaddress
import re
import secrets
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Literal, get_args
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from service.db.access import KeyRow, find_key, has_keys, touch_key
from service.db.engine import Database
from service.errors import ForbiddenError, IssuerError, UnauthenticatedError
from service.settings import Settings
from service.strict_json import JsonObject
from tools.errors import InputError

if TYPE_CHECKING:
    from jwt import PyJWK, PyJWKClient, PyJWKSet

Scope = Literal["read", "submit", "approve", "admin", "operator"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
MEANINGS: dict[Scope, str] = {
    "read": "see sessions, reports, traces and knowledge of its tenant; predict",
    "submit": "submit, cancel, retry and delete sessions; upload traces; search plans; add cases",
    "approve": "decide on proposals: approve, reject, edit, submit a plan of one's own; mark cases",
    "admin": "all of it, for its tenant; also read the audit log",
    "operator": "all of it; also name folders of the server as traces, and read the metrics of all tenants",
}
DEFAULT_TENANT = ""
LOCAL_ID = "local"


@dataclass(frozen=True)
class Caller:
    """Made by `Authenticator`, and by a night for the owner of its schedule."""

    name: str
    tenant: str
    scopes: frozenset[str]
    id: str
    """Tells callers apart where requests are counted."""

    def may(self, scope: Scope) -> bool:
        """A tenant's admin may do everything in it; what belongs to no tenant is the operator's."""
        if "operator" in self.scopes or scope in self.scopes:
            return True
        return scope != "operator" and "admin" in self.scopes

    @property
    def is_local(self) -> bool:
        """Whoever reaches a server without keys: the user of this machine."""
        return self.id == LOCAL_ID

    def check(self, scope: Scope) -> None:
        if not self.may(scope):
            scopes = ", ".join(sorted(self.scopes)) or "none"
            raise ForbiddenError(f"this needs the scope {scope}; {self.name} has {scopes}")

    @property
    def knowledge_tenant(self) -> str | None:
        """The knowledge base calls the default tenant None."""
        return self.tenant or None


LOCAL = Caller("local", DEFAULT_TENANT, frozenset(SCOPES), LOCAL_ID)
"""Whoever reaches a server without keys; that server listens on loopback only."""


_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


def is_tenant(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def check_tenant(name: str, field: str) -> str:
    """Empty is the default tenant."""
    if name and not is_tenant(name):
        allowed = "must be up to 100 of a-z, 0-9, '.', '_' and '-', and start with a-z or 0-9"
        raise InputError(field, name, allowed)
    return name


PREFIX = "asap"
ID_BYTES = 6
SECRET_BYTES = 32
_SHAPE = re.compile(rf"{PREFIX}_([0-9a-f]{{{2 * ID_BYTES}}})_[A-Za-z0-9_-]{{20,100}}")


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
    match = _SHAPE.fullmatch(text)
    return match.group(1) if match else None


def is_same(text: str, digest: str) -> bool:
    """In constant time."""
    return hmac.compare_digest(digest_of(text), digest)


SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost")


def is_loopback(host: str) -> bool:
    """Whether this name or address is the machine itself, whatever a name server says."""
    if host.lower().rstrip(".") in _NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_local(request: HTTPConnection) -> None:
    """Raises ForbiddenError if the request is not this machine's own."""
    client = request.client.host if request.client else ""
    if not is_loopback(client):
        raise ForbiddenError("this server has no keys, so it answers its own machine only; see 'asap keys'")
    if not is_loopback(request.url.hostname or ""):
        raise ForbiddenError(f"this server has no keys, so it does not answer for {request.url.hostname}")
    origin = request.headers.get("origin")
    if request.scope["method"] not in SAFE_METHODS and origin and not is_own_origin(origin, request):
        raise ForbiddenError(f"a page of {origin} may not change anything here")


def is_own_origin(origin: str, request: HTTPConnection) -> bool:
    """Whether the page that asks came from this server; the scheme may be a proxy's."""
    try:
        parts = urlsplit(origin)
        return (parts.hostname, parts.port) == (request.url.hostname, request.url.port)
    except ValueError:  # no address at all
        return False


COOKIE = "asap_key"
LIFE_S = 7 * 86_400
_COOKIE_SHAPE = re.compile(r"([0-9a-f]{1,32})\.([0-9]{1,12})\.([0-9a-f]{64})")


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
    match = _COOKIE_SHAPE.fullmatch(text)
    return SignedKey(match[1], int(match[2]), match[3]) if match else None


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


ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
LEEWAY_S = 30
KEYS_LIFE_S = 300
SCOPE_CLAIMS = ("scope", "scp", "scopes")
OWN_PREFIX = "asap:"
"""Issuers that serve several applications name scopes like this; plain names work too."""


class TokenReader:
    """One for each process: keys fetched from the issuer are kept for some minutes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        if settings.jwt_issuer is None:
            raise InputError("ASAP_JWT_ISSUER", None, "tokens need the issuer that makes them")
        if not settings.jwt_audience:
            raise InputError("ASAP_JWT_AUDIENCE", None, "tokens need the name of this server in them")
        if settings.jwt_keys_file is None and settings.jwt_keys_url is None:
            raise InputError(
                "ASAP_JWT_KEYS_FILE", None, "tokens need the issuer's keys: _KEYS_FILE or _KEYS_URL"
            )
        # At start: the operator can fix the file, a caller cannot.
        self._file_keys = _read_keys(settings.jwt_keys_file) if settings.jwt_keys_file else None

    def read(self, token: str) -> Caller:
        """Raises UnauthenticatedError for an invalid token, IssuerError if that cannot be known."""
        import jwt

        try:
            claims = jwt.decode(
                token,
                self._key(token),
                algorithms=ALGORITHMS,
                issuer=self._settings.jwt_issuer,
                audience=self._settings.jwt_audience,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.PyJWTError as error:
            raise UnauthenticatedError(f"the token is not valid: {error}") from None
        return self._caller(claims)

    def _key(self, token: str) -> "PyJWK":
        import jwt

        key_id = jwt.get_unverified_header(token).get("kid")
        if self._file_keys is None:
            return self._published_key(key_id or "")
        keys = self._file_keys.keys
        matching = [key for key in keys if key.key_id == key_id] if key_id is not None else keys
        if len(matching) != 1:
            raise jwt.InvalidKeyError("its key is not one of the issuer's")
        return matching[0]

    def _published_key(self, key_id: str) -> "PyJWK":
        from jwt import PyJWKClientConnectionError, PyJWKSetError

        try:
            return self._client.get_signing_key(key_id)
        except (PyJWKClientConnectionError, PyJWKSetError, OSError, ValueError) as error:
            raise IssuerError("the keys of the tokens' issuer are not available now; try again") from error

    @cached_property
    def _client(self) -> "PyJWKClient":
        from jwt import PyJWKClient

        return PyJWKClient(str(self._settings.jwt_keys_url), lifespan=KEYS_LIFE_S, timeout=5)

    def _caller(self, claims: JsonObject) -> Caller:
        subject = str(claims["sub"])[:200]
        scopes = frozenset(_scopes(claims))
        return Caller(subject, self._tenant(claims), scopes, f"token:{claims['iss']}:{subject}")

    def _tenant(self, claims: JsonObject) -> str:
        name = self._settings.jwt_tenant_claim
        if name is None:
            return DEFAULT_TENANT
        tenant = claims.get(name)
        if not isinstance(tenant, str) or not is_tenant(tenant):
            raise UnauthenticatedError(f"the token's claim {name!r} names no tenant")
        return tenant


def _read_keys(file: Path) -> "PyJWKSet":
    from jwt import PyJWKSet, PyJWTError

    try:
        return PyJWKSet.from_json(file.read_text("utf-8"))
    except (OSError, ValueError, AttributeError, PyJWTError) as error:  # an array has no attribute get
        allowed = f"must hold a JSON Web Key Set: {error}"
        raise InputError("ASAP_JWT_KEYS_FILE", str(file), allowed) from None


def _scopes(claims: JsonObject) -> list[str]:
    claim = next((claims[name] for name in SCOPE_CLAIMS if claims.get(name)), "")
    words = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else []
    names = [str(word).removeprefix(OWN_PREFIX) for word in words]
    return [name for name in names if name in SCOPES]


SCHEME = "bearer "
LOOK_AGAIN_S = 1.0
"""How soon a server that started without keys notices the first one."""
TOUCH_S = 60.0
"""When a key was last used is kept this precisely: not every read should cost a write."""
NOT_VALID = "this API key is unknown, revoked or expired"
NO_CREDENTIALS = (
    "send 'Authorization: Bearer <key>' (commands of asap do, with ASAP_API_KEY); 'asap keys add' makes one"
)


class Authenticator:
    """`host` is what the server listens on: without keys nothing but loopback is answered."""

    def __init__(self, settings: Settings, database: Database, host: str) -> None:
        self._database, self._is_local = database, is_loopback(host)
        self._tokens = TokenReader(settings) if settings.jwt_issuer else None
        secret = settings.cookie_secret
        self._cookie_secret = secret.get_secret_value() if secret else ""
        self._lock = Lock()
        self._has_keys, self._looked_at = False, float("-inf")
        self._touched: dict[str, float] = {}

    def is_open(self) -> bool:
        """Whether callers need no key. Never again once a key was made, even if all are revoked."""
        if self._tokens is not None or not self._is_local:
            return False
        now = time.monotonic()
        if not self._has_keys and now - self._looked_at > LOOK_AGAIN_S:
            with self._database.read() as conn:
                self._has_keys = has_keys(conn)
            self._looked_at = now
        return not self._has_keys

    def is_surely_open(self) -> bool:
        """Without asking the database: it said so a moment ago."""
        fresh = time.monotonic() - self._looked_at < LOOK_AGAIN_S
        return self._is_local and self._tokens is None and not self._has_keys and fresh

    def caller_of(self, request: HTTPConnection) -> Caller:
        """Raises an error of `service.errors`: Forbidden from elsewhere at a server without keys."""
        header = request.headers.get("authorization", "")
        if self.is_open():
            check_local(request)
            return LOCAL
        if not header and (cookie := request.cookies.get(COOKIE)):
            return self._by_cookie(cookie, request)
        if header[: len(SCHEME)].lower() != SCHEME:
            raise UnauthenticatedError(NO_CREDENTIALS)
        credential = header[len(SCHEME) :].strip()
        if credential.startswith(f"{PREFIX}_") or self._tokens is None:
            return self._by_key(credential)
        return self._tokens.read(credential)

    def cookie_for(self, text: str) -> tuple[str, int]:
        """What a browser that shows this API key may carry instead, and when that ends."""
        row = self._row_of(text)
        expires_s = int(min(time.time() + LIFE_S, row.expires_at or float("inf")))
        return sign(row.id, row.digest, self._cookie_secret, expires_s), expires_s

    def _by_key(self, text: str) -> Caller:
        return self._caller_of(self._row_of(text))

    def _by_cookie(self, text: str, request: HTTPConnection) -> Caller:
        signed, now_s = find_signed(text), time.time()
        row = self._find_row(signed.key_id) if signed else None
        if signed is None or row is None or not signed.holds(row.digest, self._cookie_secret, now_s):
            raise UnauthenticatedError("this browser is not signed in any more")
        if not row.is_valid(now_s):
            raise UnauthenticatedError(NOT_VALID)
        check_same_site(request)
        return self._caller_of(row)

    def _row_of(self, text: str) -> KeyRow:
        id = find_id(text)
        row = self._find_row(id) if id else None
        if row is None or not is_same(text, row.digest) or not row.is_valid(time.time()):
            raise UnauthenticatedError(NOT_VALID)
        return row

    def _find_row(self, id: str) -> KeyRow | None:
        with self._database.read() as conn:
            return find_key(conn, id)

    def _caller_of(self, row: KeyRow) -> Caller:
        self._touch(row)
        return Caller(row.name, row.tenant, frozenset(row.scopes), f"key:{row.id}")

    def _touch(self, row: KeyRow) -> None:
        now = time.monotonic()
        with self._lock:
            if now - self._touched.get(row.id, float("-inf")) < TOUCH_S:
                return
            self._touched[row.id] = now
        with self._database.begin() as conn:
            touch_key(conn, row.id)
