"""Tokens of an issuer: only what it signed, for us, now."""

import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from service.access.tokens import TokenReader
from service.errors import UnauthenticatedError
from service.settings import Settings
from tests.unit.service.served import Serve
from tools.errors import InputError

ISSUER, AUDIENCE = "https://issuer.example", "asap"
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
STRANGER = rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    keys = [
        RSAAlgorithm.to_jwk(RSA_KEY.public_key(), as_dict=True) | {"kid": "r", "alg": "RS256", "use": "sig"},
        ECAlgorithm.to_jwk(EC_KEY.public_key(), as_dict=True) | {"kid": "e", "alg": "ES256", "use": "sig"},
    ]
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": keys}))
    stated = {"jwt_issuer": ISSUER, "jwt_audience": AUDIENCE, "jwt_tenant_claim": "team"}
    return stated | {"jwt_keys_file": file}


def token(key: Any = RSA_KEY, kid: str | None = "r", algorithm: str = "RS256", **claims: object) -> str:  # noqa: ANN401
    given = {
        "iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": time.time() + 60, "team": "research",
        "scope": "openid asap:read submit", **claims,
    }  # fmt: skip
    held = {name: value for name, value in given.items() if value is not None}
    return jwt.encode(held, key, algorithm, headers={"kid": kid} if kid else None)


def test_a_token_says_who_for_which_tenant_and_what(settings: dict[str, Any]) -> None:
    caller = TokenReader(Settings(**settings)).read(token())
    assert (caller.name, caller.tenant) == ("alice", "research")
    assert caller.scopes == {"read", "submit"}


def test_scopes_may_come_as_a_list_and_by_each_of_the_issuer_s_keys(settings: dict[str, Any]) -> None:
    caller = TokenReader(Settings(**settings)).read(
        token(EC_KEY, "e", "ES256", scope=None, scp=["asap:approve", 7])
    )
    assert caller.name == "alice"
    assert caller.scopes == {"approve"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"iss": "https://other.example"},
        {"aud": "another-service"},
        {"exp": time.time() - 120},
        {"exp": None},
        {"sub": None},
        {"nbf": time.time() + 3600},
        {"team": None},
        {"team": "No Tenant"},
        {"team": ""},
        {"key": STRANGER},
        {"kid": "unknown"},
        {"kid": None},
        {"nonce": "n-0S6_WzA2Mj"},
        {"at_hash": "MTIzNDU2Nzg5MDEyMzQ1Ng"},
        {"typ": "ID"},
        {"token_use": "id"},
        pytest.param({"key": "", "algorithm": "none"}, id="no signature"),
        pytest.param({"key": "s" * 64, "algorithm": "HS256"}, id="a shared secret is no signature"),
    ],
)
def test_a_token_that_does_not_hold_is_refused(settings: dict[str, Any], wrong: dict[str, Any]) -> None:
    with pytest.raises(UnauthenticatedError):
        TokenReader(Settings(**settings)).read(token(**wrong))


def test_a_token_that_does_not_name_its_key_is_refused_though_the_issuer_has_one_only(
    settings: dict[str, Any],
) -> None:
    keys = json.loads(settings["jwt_keys_file"].read_text())["keys"]
    settings["jwt_keys_file"].write_text(json.dumps({"keys": keys[:1]}))
    assert TokenReader(Settings(**settings)).read(token()).name == "alice"
    with pytest.raises(UnauthenticatedError, match="does not name its key"):
        TokenReader(Settings(**settings)).read(token(kid=None))


@pytest.mark.parametrize("missing", ["jwt_audience", "jwt_keys_file"])
def test_a_setting_that_tokens_need_is_asked_for(settings: dict[str, Any], missing: str) -> None:
    with pytest.raises(InputError, match=missing.upper()):
        TokenReader(Settings(**{**settings, missing: None}))


@pytest.mark.parametrize("content", [b"{}", b"[]", b"{broken", b"\xff"])
def test_a_file_without_keys_is_named_before_anybody_calls(settings: dict[str, Any], content: bytes) -> None:
    settings["jwt_keys_file"].write_bytes(content)
    with pytest.raises(InputError, match="ASAP_JWT_KEYS_FILE"):
        TokenReader(Settings(**settings))


def test_the_api_takes_tokens_and_keys_side_by_side(serve: Serve, settings: dict[str, Any]) -> None:
    served = serve(**settings)
    by_token = {"Authorization": f"Bearer {token()}"}
    assert served.client.get("/v1/sessions").status_code == 401
    id = served.submit(headers=by_token)
    assert served.client.get(f"/v1/sessions/{id}", headers=by_token).json()["owner"] == "alice"
    assert served.client.get(f"/v1/sessions/{id}", headers=served.key("read", tenant="research")).is_success
    assert served.client.get("/v1/audit", headers=by_token).status_code == 403


@pytest.fixture
def published(settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The settings with an address in place of the file; `answer` is what is found there."""
    answer = {"body": settings["jwt_keys_file"].read_bytes()}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer["body"])

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/keys"
    yield {**settings, "jwt_keys_file": None, "jwt_keys_url": address, "answer": answer}
    server.shutdown()
    server.server_close()


def test_keys_are_fetched_where_the_issuer_publishes_them(published: dict[str, Any]) -> None:
    published.pop("answer")
    reader = TokenReader(Settings(**published))
    assert reader.read(token()).name == "alice"
    with pytest.raises(UnauthenticatedError):
        reader.read(token(kid="unknown"))


@pytest.mark.parametrize("body", [b"<html>", b"{}", b"\xff"])
def test_an_issuer_that_gives_no_keys_is_not_the_callers_fault(
    serve: Serve, published: dict[str, Any], body: bytes
) -> None:
    published.pop("answer")["body"] = body
    answer = serve(**published).client.get("/v1/sessions", headers={"Authorization": f"Bearer {token()}"})
    assert answer.status_code == 503
    assert answer.json()["detail"] == "the keys of the tokens' issuer are not available now; try again"


def test_an_issuer_out_of_reach_is_not_the_callers_fault(serve: Serve, settings: dict[str, Any]) -> None:
    away = {**settings, "jwt_keys_file": None, "jwt_keys_url": "http://127.0.0.1:9/keys"}
    client = serve(**away).client
    assert client.get("/v1/sessions", headers={"Authorization": f"Bearer {token()}"}).status_code == 503
    assert client.get("/v1/sessions", headers={"Authorization": "Bearer nonsense"}).status_code == 401
