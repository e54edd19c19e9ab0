"""OpenID Connect tokens: whose they are, checked against their issuer's keys."""

from typing import TYPE_CHECKING

from service.access.auth import DEFAULT_TENANT, SCOPES, Caller, is_tenant
from service.errors import IssuerError, UnauthenticatedError
from service.settings import Settings
from tools.errors import InputError

if TYPE_CHECKING:
    from jwt import PyJWK

ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
LEEWAY_S = 30
KEYS_LIFE_S = 300
SCOPE_CLAIMS = ("scope", "scp", "scopes")
OF_ID_TOKENS = frozenset({"nonce", "at_hash", "c_hash"})
"""Claims that only an ID token has (OpenID Connect Core, 2 and 3.3.2.11): it says who signed in, to whom they
signed in, and lets nobody in elsewhere."""
OWN_PREFIX = "asap:"
"""Issuers that serve several applications name scopes like this; plain names work too."""


class TokenReader:
    """One for each process: keys fetched from the issuer are kept for some minutes.

    jwt is imported where it is used: most installations have keys of their own and no issuer.
    """

    def __init__(self, settings: Settings) -> None:
        from jwt import PyJWKClient, PyJWKSet, PyJWTError

        self._settings = settings
        for name, is_set, rule in (
            ("ISSUER", settings.jwt_issuer, "tokens need the issuer that makes them"),
            ("AUDIENCE", settings.jwt_audience, "tokens need the name of this server in them"),
            (
                "KEYS_FILE",
                settings.jwt_keys_file or settings.jwt_keys_url,
                "tokens need the issuer's keys: _KEYS_FILE or _KEYS_URL",
            ),
        ):
            if not is_set:
                raise InputError(f"ASAP_JWT_{name}", None, rule)
        file, url = settings.jwt_keys_file, settings.jwt_keys_url
        try:  # at start: the operator can fix the file, a caller cannot
            self._file_keys = PyJWKSet.from_json(file.read_text("utf-8")) if file else None
        except (OSError, ValueError, AttributeError, PyJWTError) as error:  # an array has no attribute get
            rule = f"must hold a JSON Web Key Set: {error}"
            raise InputError("ASAP_JWT_KEYS_FILE", str(file), rule) from None
        self._client = None if url is None else PyJWKClient(url, lifespan=KEYS_LIFE_S, timeout=5)

    def read(self, token: str) -> Caller:
        """Raises UnauthenticatedError for an invalid token, IssuerError if that cannot be known."""
        import jwt

        try:
            claims = jwt.decode(
                token,
                self._find_key(token),
                algorithms=ALGORITHMS,
                issuer=self._settings.jwt_issuer,
                audience=self._settings.jwt_audience,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.PyJWTError as error:
            raise UnauthenticatedError(f"the token is not valid: {error}") from None
        kinds = {str(claims.get(name)).lower() for name in ("typ", "token_use")}  # Keycloak's and Cognito's
        if "id" in kinds or OF_ID_TOKENS & claims.keys():
            raise UnauthenticatedError("the token is not valid: it is an ID token; send an access token")
        name = self._settings.jwt_tenant_claim
        tenant = claims.get(name) if name else DEFAULT_TENANT
        if not isinstance(tenant, str) or (name and not is_tenant(tenant)):
            raise UnauthenticatedError(f"the token's claim {name!r} names no tenant")
        claim = next((claims[name] for name in SCOPE_CLAIMS if claims.get(name)), "")
        words = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else []
        scopes = {str(word).removeprefix(OWN_PREFIX) for word in words} & {*SCOPES}
        subject = str(claims["sub"])[:200]
        return Caller(subject, tenant, frozenset(scopes), f"token:{claims['iss']}:{subject}")

    def _find_key(self, token: str) -> "PyJWK":
        import jwt

        key_id = jwt.get_unverified_header(token).get("kid")
        if not key_id:
            raise jwt.InvalidKeyError("it does not name its key (kid)")
        if self._client is not None and self._file_keys is None:
            try:
                return self._client.get_signing_key(key_id)
            except (jwt.PyJWKClientConnectionError, jwt.PyJWKSetError, OSError, ValueError) as error:
                unavailable = "the keys of the tokens' issuer are not available now; try again"
                raise IssuerError(unavailable) from error
        keys = self._file_keys.keys if self._file_keys else []
        matching = [key for key in keys if key.key_id == key_id]
        if len(matching) != 1:
            raise jwt.InvalidKeyError("its key is not one of the issuer's")
        return matching[0]
