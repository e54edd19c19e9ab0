"""Who may call: keys with scopes and tenants; and without any key, this machine only."""

import re
import time

import pytest

from service.access.auth import MEANINGS
from service.access.authenticator import is_loopback
from service.access.credentials import digest_of, find_id, is_same, new_key
from service.access.store import list_keys, revoke_key
from tests.unit.service.served import SCENARIO, Serve, Served


def test_a_key_is_found_by_its_id_and_proved_by_its_digest() -> None:
    key = new_key()
    assert new_key().text != key.text
    assert find_id(key.text) == key.id
    assert is_same(key.text, key.digest)
    assert not is_same(key.text[:-1], key.digest)
    assert key.digest == digest_of(key.text) != key.text


@pytest.mark.parametrize(
    "text", ["", "asap_", "asap_xyz_secret", "asap_0123456789ab_", "other_0123456789ab_" + "x" * 30]
)
def test_what_is_not_a_key_has_no_id(text: str) -> None:
    assert find_id(text) is None


def test_without_any_key_this_machine_may_do_everything(served: Served) -> None:
    assert served.submit()
    assert served.client.get("/metrics").status_code == 200


def test_the_first_key_closes_the_server(served: Served) -> None:
    served.key("read")
    answer = served.client.get("/v1/sessions")
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_a_server_whose_keys_are_all_revoked_stays_closed(served: Served) -> None:
    header = served.key("read")
    with served.app.database.begin() as conn:
        revoke_key(conn, list_keys(conn)[0].id)
    assert served.client.get("/v1/sessions", headers=header).status_code == 401
    assert served.client.get("/v1/sessions").status_code == 401


@pytest.mark.parametrize(
    "header", ["", "Basic dXNlcjpwYXNz", "Bearer", "Bearer nothing", "Bearer asap_0123456789ab_" + "x" * 43]
)
def test_wrong_credentials_are_refused_alike(served: Served, header: str) -> None:
    served.key("read")
    answer = served.client.get("/v1/sessions", headers={"Authorization": header})
    assert answer.status_code == 401


def test_a_wrong_secret_and_an_unknown_key_get_the_same_words(served: Served) -> None:
    real = served.key("read")["Authorization"]
    wrong = {"Authorization": real[:-4] + "AAAA"}
    unknown = {"Authorization": "Bearer asap_0123456789ab_" + "x" * 43}
    details = {
        served.client.get("/v1/sessions", headers=headers).json()["detail"] for headers in (wrong, unknown)
    }
    assert len(details) == 1


def test_an_expired_key_is_refused(served: Served) -> None:
    assert served.client.get(
        "/v1/sessions", headers=served.key("read", expires_at=time.time() + 60)
    ).is_success
    late = served.key("read", expires_at=time.time() - 1)
    assert served.client.get("/v1/sessions", headers=late).status_code == 401


def test_the_use_of_a_key_is_noted(served: Served) -> None:
    served.client.get("/v1/sessions", headers=served.key("read"))
    with served.app.database.read() as conn:
        assert list_keys(conn)[0].used_at == pytest.approx(time.time(), abs=60)


SCOPES = {
    "POST /v1/predict": "read",
    "POST /v1/predict/batch": "read",
    "POST /v1/plans/against": "read",
    "POST /v1/sessions/{id}/decision": "approve",
    "POST /v1/knowledge/{id}/mark": "approve",
    "GET /v1/audit": "admin",
    "GET /metrics": "operator",
}
"""Of the operations whose method does not say it: GET is read, all others are submit."""
BODIES: dict[str, object] = {
    "/v1/sessions/{id}/decision": {"action": "approve"},
    "/v1/knowledge/{id}/mark": {"status": "refuted", "reason": "because"},
    "/v1/knowledge": {"id": "x"},
    "/v1/traces": {"name": "x"},
    "/v1/plans/against": {"scenario": SCENARIO, "against": "x"},
}


def test_every_operation_but_health_needs_its_scope(served: Served) -> None:
    paths = served.client.get("/openapi.json").json()["paths"]
    operations = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    closed = [(method, path) for method, path in operations if path not in ("/healthz", "/readyz")]
    assert {f"{method} {path}" for method, path in closed} >= SCOPES.keys()
    keys = {str(scope): served.key(scope) for scope in MEANINGS}
    for method, path in closed:
        scope = SCOPES.get(f"{method} {path}", "read" if method == "GET" else "submit")
        most = {"admin"} if scope == "operator" else {"read", "submit", "approve"}
        others = served.key(*(most - {scope}))
        place = re.sub(r"\{\w+\}", "1", path)
        body = BODIES.get(path, SCENARIO) if method == "POST" else None
        refused = served.client.request(method, place, json=body, headers=others)
        assert refused.status_code == 403, (method, path, refused.text)
        assert scope in refused.json()["detail"]
        for enough in (scope, "operator"):
            allowed = served.client.request(method, place, json=body, headers=keys[enough])
            assert allowed.status_code != 403, (method, path, enough)


def test_another_tenant_s_things_are_not_there(served: Served) -> None:
    mine, other = served.key("admin", tenant="mine"), served.key("admin", tenant="other")
    id = served.submit(headers=mine)
    trace = served.client.post("/v1/traces", json={"name": "t"}, headers=mine).json()["id"]
    assert served.client.get("/v1/sessions", headers=other).json()["items"] == []
    assert served.client.get("/v1/traces", headers=other).json()["items"] == []
    own = f"/v1/sessions/{id}"
    asked = [
        ("GET", own),
        ("GET", f"{own}/events"),
        ("GET", f"{own}/report"),
        ("GET", f"{own}/proposals"),
        ("POST", f"{own}/cancel"),
        ("POST", f"{own}/retry"),
        ("DELETE", own),
        ("GET", f"/v1/traces/{trace}"),
        ("PUT", f"/v1/traces/{trace}/files/a.json"),
        ("DELETE", f"/v1/traces/{trace}"),
    ]
    for method, path in asked:
        answer = served.client.request(method, path, headers=other)
        assert answer.status_code == 404, (method, path, answer.text)
        unknown = path.replace(id, "0" * 32).replace(trace, "0" * 32)
        told = answer.json()["detail"].replace(id, "?").replace(trace, "?")
        same = served.client.request(method, unknown, headers=other).json()["detail"].replace("0" * 32, "?")
        assert told == same
    decision = served.client.post(f"{own}/decision", json={"action": "approve"}, headers=other)
    assert decision.status_code == 404
    fork = served.client.post(f"{own}/fork", json={"notes": "tp stays 8"}, headers=other)
    assert fork.status_code == 404
    assert served.client.get(own, headers=mine).status_code == 200


def test_a_tenant_cannot_use_another_s_upload(served: Served) -> None:
    mine, other = served.key("submit", tenant="mine"), served.key("submit", tenant="other")
    trace = served.client.post("/v1/traces", json={}, headers=mine).json()["reference"]
    answer = served.client.post("/v1/sessions", json={**SCENARIO, "traces": trace}, headers=other)
    assert answer.status_code == 422
    assert answer.json()["field"] == "traces"


def test_a_caller_from_elsewhere_is_refused_while_there_are_no_keys(serve: Serve) -> None:
    assert serve(address=("10.0.0.9", 1)).client.get("/v1/sessions").status_code == 403


def test_a_name_that_was_pointed_at_this_machine_is_refused(serve: Serve) -> None:
    assert serve(base="http://evil.example").client.get("/v1/sessions").status_code == 403
    assert serve(base="http://localhost:8000").client.get("/v1/sessions").status_code == 200


@pytest.mark.parametrize(
    ("origin", "status"),
    [("https://evil.example", 403), ("http://127.0.0.1:99", 403), ("http://127.0.0.1", 202)],
)
def test_a_page_of_another_site_cannot_submit(served: Served, origin: str, status: int) -> None:
    answer = served.client.post("/v1/sessions", json=SCENARIO, headers={"Origin": origin})
    assert answer.status_code == status


def test_a_server_that_listens_elsewhere_answers_nobody_without_a_key(serve: Serve) -> None:
    served = serve(host="0.0.0.0")
    assert served.client.get("/v1/sessions").status_code == 401
    assert served.client.get("/v1/sessions", headers=served.key("read")).status_code == 200


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("LOCALHOST.", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("example.org", False),
        ("127.0.0.1.example.org", False),
        ("", False),
    ],
)
def test_loopback_is_known_without_a_name_server(host: str, is_local: bool) -> None:
    assert is_loopback(host) is is_local


def test_too_many_requests_are_told_when_to_come_back(serve: Serve) -> None:
    served = serve(requests_per_minute=6)
    first, second = (served.client.get("/v1/hardware/x") for _ in range(2))
    assert (first.status_code, second.status_code) == (404, 429)
    assert 1 <= int(second.headers["Retry-After"]) <= 10


def test_guessing_keys_is_limited_too(serve: Serve) -> None:
    served = serve(requests_per_minute=6)
    good = served.key("read")
    wrong = {"Authorization": "Bearer asap_0123456789ab_" + "x" * 43}
    assert [served.client.get("/v1/sessions", headers=wrong).status_code for _ in range(2)] == [401, 429]
    assert served.client.get("/v1/sessions", headers=good).status_code == 200
