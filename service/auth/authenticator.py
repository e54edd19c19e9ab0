"""From the header Authorization, or a signed-in browser's cookie, to a caller."""

import time
from threading import Lock

from starlette.requests import HTTPConnection

from service.auth.api_keys import PREFIX, find_id, is_same
from service.auth.caller import LOCAL, Caller
from service.auth.cookies import COOKIE, LIFE_S, check_same_site, find_signed, sign
from service.auth.errors import UnauthenticatedError
from service.auth.loopback import check_local, is_loopback
from service.auth.tokens import TokenReader
from service.settings import Settings
from service.store.database import Database
from service.store.keys import KeyRow, find_key, has_keys, touch_key

SCHEME = "bearer "
LOOK_AGAIN_S = 1.0
"""A server that began without keys finds the first one so soon."""
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
        """Raises an error of `service.auth.errors`: Forbidden from elsewhere at a server without keys."""
        given = request.headers.get("authorization", "")
        if self.is_open():
            check_local(request)
            return LOCAL
        if not given and (cookie := request.cookies.get(COOKIE)):
            return self._by_cookie(cookie, request)
        if given[: len(SCHEME)].lower() != SCHEME:
            raise UnauthenticatedError(NO_CREDENTIALS)
        credential = given[len(SCHEME) :].strip()
        if credential.startswith(f"{PREFIX}_") or self._tokens is None:
            return self._by_key(credential)
        return self._tokens.read(credential)

    def cookie_for(self, text: str) -> tuple[str, int]:
        """What a browser that shows this API key may carry instead, and when that ends."""
        row = self._row_of(text)
        expires_s = int(min(time.time() + LIFE_S, row.expires_at or float("inf")))
        return sign(row.id, row.digest, self._cookie_secret, expires_s), expires_s

    def _by_key(self, text: str) -> Caller:
        return self._known(self._row_of(text))

    def _by_cookie(self, text: str, request: HTTPConnection) -> Caller:
        given, now_s = find_signed(text), time.time()
        row = self._find_row(given.key_id) if given else None
        if given is None or row is None or not given.holds(row.digest, self._cookie_secret, now_s):
            raise UnauthenticatedError("this browser is not signed in any more")
        if not row.is_valid(now_s):
            raise UnauthenticatedError(NOT_VALID)
        check_same_site(request)
        return self._known(row)

    def _row_of(self, text: str) -> KeyRow:
        id = find_id(text)
        row = self._find_row(id) if id else None
        if row is None or not is_same(text, row.digest) or not row.is_valid(time.time()):
            raise UnauthenticatedError(NOT_VALID)
        return row

    def _find_row(self, id: str) -> KeyRow | None:
        with self._database.read() as conn:
            return find_key(conn, id)

    def _known(self, row: KeyRow) -> Caller:
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
