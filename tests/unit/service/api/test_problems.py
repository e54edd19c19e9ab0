"""Every error is a problem document that names the field, and none tells how the server is made."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from httpx2 import Response
from sqlalchemy.exc import IntegrityError, OperationalError

from service.http.problems import KINDS, MEDIA_TYPE, Problem
from service.planner import api as hardware
from tests.unit.service.served import SCENARIO, Serve, Served

JSON = {"Content-Type": "application/json"}


def problem(answer: Response, status: int, kind: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == MEDIA_TYPE
    found: dict[str, Any] = answer.json()
    Problem.model_validate(found)
    assert found["type"] == f"urn:asap:problem:{kind}"
    assert found["status"] == status == KINDS[kind][0]
    assert found["request_id"] == answer.headers["X-Request-Id"]
    return found


WRONG: list[tuple[str, dict[str, Any] | None, str, str]] = [
    ("/v1/predict", SCENARIO | {"plan": SCENARIO["plan"] | {"tp": 3}}, "plan.dp", "must equal num_devices"),
    ("/v1/predict", SCENARIO | {"clutser": {}}, "clutser", "did you mean cluster"),
    ("/v1/predict", {"model": {}}, "cluster", "got nothing"),
    ("/v1/predict/batch", SCENARIO, "body", "an array"),
    ("/v1/sessions", SCENARIO | {"webhok": "x"}, "webhok", "did you mean webhook"),
    ("/v1/sessions", SCENARIO | {"lables": "x"}, "lables", "did you mean labels"),
    ("/v1/sessions", SCENARIO | {"mod": "x"}, "mod", "did you mean mode"),
    ("/v1/sessions?limit=many", None, "limit", ""),
    ("/v1/sessions?stat=completed", None, "stat", "did you mean state"),
    ("/v1/sessions?page_token=x&limit=2", None, "page_token", "allowed: "),
    ("/v1/hardware?vendor=amd", None, "vendor", "no parameters"),
]


@pytest.mark.parametrize(("path", "body", "field", "says"), WRONG)
def test_what_is_wrong_is_named_with_what_is_allowed(
    served: Served, path: str, body: dict[str, Any] | None, field: str, says: str
) -> None:
    answer = served.client.post(path, json=body) if body else served.client.get(path)
    found = problem(answer, 422, "wrong-input")
    assert found["field"] == field
    assert says in found["detail"]
    assert found["allowed"] in found["detail"]


@pytest.mark.parametrize(
    "body",
    [
        "{",
        '{"a": NaN}',
        '{"a": 1e999}',
        '{"a": 1, "a": 2}',
        '{"a": ' * 70 + "1" + "}" * 70,
        '{"a": "\\u0000"}',
        '{"a": ["\\ud800"]}',
        '{"\\udc00": 1}',
        "\xff",
    ],
)
def test_json_that_no_one_could_mean_is_refused(served: Served, body: str) -> None:
    answer = served.client.post("/v1/predict", content=body.encode("latin-1"), headers=JSON)
    assert problem(answer, 400, "not-json")["field"] == "body"


@pytest.mark.parametrize("address", ["/v1/hardware/a%00b", "/v1/sessions?text=a%00b"])
def test_nul_in_an_address_is_refused(served: Served, address: str) -> None:
    problem(served.client.get(address), 400, "bad-request")


def test_a_body_that_is_absent_or_not_declared_as_json_is_refused(served: Served) -> None:
    answer = served.client.post("/v1/predict", content="{}", headers={"Content-Type": "text/plain"})
    problem(answer, 415, "unsupported-media-type")
    assert problem(served.client.post("/v1/predict", headers=JSON), 400, "bad-request")["field"] == "body"


def pieces() -> Iterator[bytes]:
    yield from [b" " * 1000] * 3


def test_a_body_that_says_it_is_too_large_or_comes_in_too_many_pieces_is_refused(serve: Serve) -> None:
    client = serve(max_body_bytes=2000).client
    for content in (b" " * 2001, pieces()):
        problem(client.post("/v1/predict", content=content, headers=JSON), 413, "too-large")


def test_an_unexpected_error_shows_nothing_but_is_in_the_log(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("internals: hunter2")

    monkeypatch.setattr(hardware, "device_names", fail)
    with caplog.at_level(logging.INFO):
        answer = served.client.get("/v1/hardware", headers={"X-Request-Id": "find-me"})
    found = problem(answer, 500, "internal")
    assert "hunter2" not in answer.text
    assert "Traceback" not in answer.text
    assert found["request_id"] == "find-me"
    failures = [record for record in caplog.records if record.exc_info]
    assert "hunter2" in str(failures[0].exc_info)


def test_a_database_that_is_down_is_to_be_tried_again_and_another_mistake_with_it_is_ours(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OperationalError("SELECT 1", {}, Exception("connection to 10.0.0.7 refused"))

    monkeypatch.setattr(served.app.database, "read", fail)
    answer = served.client.get("/v1/sessions")
    problem(answer, 503, "unavailable")
    assert answer.headers["Retry-After"] == "1"
    assert "10.0.0.7" not in answer.text
    assert "SELECT" not in answer.text

    def mistake() -> None:
        raise IntegrityError("INSERT", {}, Exception("duplicate"))

    monkeypatch.setattr(served.app.database, "read", mistake)
    problem(served.client.get("/v1/sessions"), 500, "internal")


def test_a_secret_that_is_given_as_a_value_is_not_repeated(served: Served, scenario: dict[str, Any]) -> None:
    scenario["cluster"]["device"] = "asap_0123456789ab_" + "s3cret" * 5
    answer = served.client.post("/v1/predict", json=scenario)
    assert answer.status_code == 422
    assert "s3cret" not in answer.text


@pytest.mark.parametrize(
    ("given", "taken"), [("abc-123", True), ("a" * 65, False), ("a b", False), ("", False), ("é", False)]
)
def test_a_request_id_is_taken_over_when_it_is_a_plain_word(served: Served, given: str, taken: bool) -> None:
    answer = served.client.get("/healthz", headers={b"X-Request-Id": given.encode("latin-1")})
    assert (answer.headers["X-Request-Id"] == given) is taken
    assert answer.headers["X-Request-Id"]


def test_every_request_is_one_line_in_the_log(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "asap.http"):
        served.client.get("/v1/hardware/h100-sxm-80gb")
    (line,) = [vars(record) for record in caplog.records if record.name == "asap.http"]
    assert (line["method"], line["route"], line["status"]) == ("GET", "/v1/hardware/{name}", 200)
    assert line["caller"] == "local"
