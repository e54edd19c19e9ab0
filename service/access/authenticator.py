"""Authentication: API keys, OpenID Connect tokens, browser cookies and loopback, resolved to a caller."""

import ipaddress
import time
from threading import Lock
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from service.access.auth import LOCAL, Caller
from service.access.credentials import COOKIE, LIFE_S, PREFIX, find_id, find_signed, is_same, sign
from service.access.store import KeyRow, find_key, has_keys, touch_key
from service.access.tokens import TokenReader
from service.db.engine import Database
from service.errors import ForbiddenError, UnauthenticatedError
from service.settings import Settings

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
LOOPBACK_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost")
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
            row = self._row_of_cookie(cookie)
            check_same_site(request)
        elif header[: len(SCHEME)].lower() != SCHEME:
            raise UnauthenticatedError(NO_CREDENTIALS)
        else:
            credential = header[len(SCHEME) :].strip()
            if self._tokens is not None and not credential.startswith(f"{PREFIX}_"):
                return self._tokens.read(credential)
            row = self._row_of_key(credential)
        now = time.monotonic()
        with self._lock:
            is_due = now - self._touched.get(row.id, float("-inf")) >= TOUCH_S
            self._touched[row.id] = now if is_due else self._touched[row.id]
        if is_due:
            with self._database.begin() as conn:
                touch_key(conn, row.id)
        return Caller(row.name, row.tenant, frozenset(row.scopes), f"key:{row.id}")

    def cookie_for(self, text: str) -> tuple[str, int]:
        """What a browser that shows this API key may carry instead, and when that ends."""
        row = self._row_of_key(text)
        expires_s = int(min(time.time() + LIFE_S, row.expires_at or float("inf")))
        return sign(row.id, row.digest, self._cookie_secret, expires_s), expires_s

    def _row_of_cookie(self, text: str) -> KeyRow:
        signed, now_s = find_signed(text), time.time()
        row = self._find_row(signed.key_id) if signed else None
        if signed is None or row is None or not signed.holds(row.digest, self._cookie_secret, now_s):
            raise UnauthenticatedError("this browser is not signed in any more")
        if not row.is_valid(now_s):
            raise UnauthenticatedError(NOT_VALID)
        return row

    def _row_of_key(self, text: str) -> KeyRow:
        id = find_id(text)
        row = self._find_row(id) if id else None
        if row is None or not is_same(text, row.digest) or not row.is_valid(time.time()):
            raise UnauthenticatedError(NOT_VALID)
        return row

    def _find_row(self, id: str) -> KeyRow | None:
        with self._database.read() as conn:
            return find_key(conn, id)


def is_loopback(host: str) -> bool:
    """Whether this name or address is the machine itself, whatever a name server says."""
    if host.lower().rstrip(".") in LOOPBACK_NAMES:
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
        raise ForbiddenError(f"cross-origin request refused: it comes from a page of {origin}")


def is_own_origin(origin: str, request: HTTPConnection) -> bool:
    """Whether the page that asks came from this server; the scheme may be a proxy's."""
    try:
        parts = urlsplit(origin)
        return (parts.hostname, parts.port) == (request.url.hostname, request.url.port)
    except ValueError:  # no address at all
        return False


def check_same_site(request: HTTPConnection) -> None:
    """A browser sends cookies with requests that other sites' pages make: those may change nothing."""
    if request.scope["method"] in SAFE_METHODS:
        return
    origin = request.headers.get("origin", "")
    if not is_own_origin(origin, request):
        page = origin or "an unknown site"
        raise ForbiddenError(f"cross-origin request refused: it comes from a page of {page}")
