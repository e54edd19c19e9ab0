"""Tokens of an OpenID Connect issuer (JWT): signature, issuer, audience and times checked, claims read.

Only asymmetric signatures are taken: with a shared secret whoever checks a token could also make one.
"""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.auth.caller import DEFAULT_TENANT, SCOPES, Caller
from service.auth.errors import IssuerError, UnauthenticatedError
from service.auth.tenants import is_tenant
from service.settings import Settings
from tools.errors import InputError

if TYPE_CHECKING:
    from jwt import PyJWK, PyJWKClient, PyJWKSet

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
        # At once: it is whoever starts the server that can mend the file, not a caller.
        self._file_keys = _read_keys(settings.jwt_keys_file) if settings.jwt_keys_file else None

    def read(self, token: str) -> Caller:
        """Raises UnauthenticatedError for a token that does not hold, IssuerError where that is unknown."""
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
            raise UnauthenticatedError(f"the token does not hold: {error}") from None
        return self._caller(claims)

    def _key(self, token: str) -> "PyJWK":
        import jwt

        wanted = jwt.get_unverified_header(token).get("kid")
        if self._file_keys is None:
            return self._published_key(wanted or "")
        keys = self._file_keys.keys
        found = [key for key in keys if key.key_id == wanted] if wanted is not None else keys
        if len(found) != 1:
            raise jwt.InvalidKeyError("its key is not one of the issuer's")
        return found[0]

    def _published_key(self, wanted: str) -> "PyJWK":
        from jwt import PyJWKClientConnectionError, PyJWKSetError

        try:
            return self._client.get_signing_key(wanted)
        except (PyJWKClientConnectionError, PyJWKSetError, OSError, ValueError) as error:
            raise IssuerError("the keys of the tokens' issuer cannot be had now; try again") from error

    @cached_property
    def _client(self) -> "PyJWKClient":
        from jwt import PyJWKClient

        return PyJWKClient(str(self._settings.jwt_keys_url), lifespan=KEYS_LIFE_S, timeout=5)

    def _caller(self, claims: Mapping[str, Any]) -> Caller:
        subject = str(claims["sub"])[:200]
        scopes = frozenset(_scopes(claims))
        return Caller(subject, self._tenant(claims), scopes, f"token:{claims['iss']}:{subject}")

    def _tenant(self, claims: Mapping[str, Any]) -> str:
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


def _scopes(claims: Mapping[str, Any]) -> list[str]:
    given = next((claims[name] for name in SCOPE_CLAIMS if claims.get(name)), "")
    words = given.split() if isinstance(given, str) else given if isinstance(given, list) else []
    names = [str(word).removeprefix(OWN_PREFIX) for word in words]
    return [name for name in names if name in SCOPES]
