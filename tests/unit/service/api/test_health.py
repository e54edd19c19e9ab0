"""Health, readiness and metrics, and the headers that every answer has."""

from contextlib import closing
from pathlib import Path

from starlette.testclient import TestClient

from graph.events import IncidentReported, Reasoned, ToolCalled
from service.app import create_app, make_app_state
from service.db.engine import open_database
from service.http.limits import MAX_CALLERS, RateLimit
from service.http.metrics import Metrics
from service.sessions.dispatch import session_queue
from service.settings import Settings
from tests.unit.service.served import BASE, LOOPBACK, Serve, Served


def test_health_needs_no_key(served: Served) -> None:
    served.key("read")
    assert served.client.get("/healthz").json()["status"] == "ok"
    assert served.client.get("/readyz").json()["ready"] is True


def test_a_database_without_its_tables_is_not_ready(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    with closing(open_database(settings.database)) as database:
        app = create_app(make_app_state(settings, database, session_queue(database)))
        answer = TestClient(app, BASE, client=LOOPBACK).get("/readyz")
    assert answer.status_code == 503
    wrong = {name for name, check in answer.json()["checks"].items() if not check["ok"]}
    assert wrong == {"migrations", "queue"}


def test_a_chroma_server_that_does_not_answer_is_not_ready_and_keeps_its_secret(serve: Serve) -> None:
    answer = serve(chroma_url="http://user:hunter2@127.0.0.1:9").client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["checks"]["knowledge"]["ok"] is False
    assert "hunter2" not in answer.text


def test_a_worker_s_port_answers_health_only(served: Served) -> None:
    app = create_app(served.app, only_health=True)
    client = TestClient(app, BASE, client=LOOPBACK)
    assert client.get("/healthz").status_code == 200
    assert client.get("/metrics").status_code == 200
    assert client.get("/v1/sessions").status_code == 404
    assert client.get("/sessions").status_code == 404


def test_measures_do_not_grow_with_addresses_and_methods_that_callers_make_up(served: Served) -> None:
    for number in range(3):
        served.client.get(f"/no/such/{number}")
        served.client.request(f"MADEUP{number}", "/v1/sessions")
    text = served.client.get("/metrics").text
    assert 'route="unknown",status="404"} 3.0' in text
    assert 'method="other"' in text
    assert "/no/such" not in text
    assert "MADEUP" not in text


def test_a_session_s_events_are_measured(served: Served) -> None:
    metrics: Metrics = served.app.metrics
    metrics.observe_wait(0.3)
    metrics.observe_event(ToolCalled(node="analyzer", seconds=0.2))
    metrics.observe_event(Reasoned(node="report", question="verdict", tokens=40, seconds=2))
    metrics.observe_event(IncidentReported(node="report", incident="timeout"))
    ours = IncidentReported(incident="unexpected error", error="KeyError", place="graph.context:7")
    metrics.observe_event(ours)
    text = metrics.text().decode()
    assert "asap_queue_wait_seconds_count 1.0" in text
    assert 'asap_step_seconds_count{kind="tool",node="analyzer"} 1.0' in text
    assert 'asap_llm_tokens_total{question="verdict"} 40.0' in text
    assert 'asap_endpoint_faults_total{kind="timeout"} 1.0' in text
    assert 'asap_unexpected_errors_total{error="KeyError",place="graph.context:7"} 1.0' in text


def test_every_answer_has_the_security_headers(served: Served) -> None:
    expected = {
        "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "same-origin",
        "Cache-Control": "no-store",
    }  # fmt: skip
    for path in ("/healthz", "/v1/sessions", "/v1/nothing", "/openapi.json"):
        headers = served.client.get(path).headers
        assert {name: headers[name] for name in expected} == expected, path
        assert "script-src 'self'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert "server" not in headers


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_refused_request_does_not_lengthen_the_wait() -> None:
    clock = Clock()
    limit = RateLimit(6, clock=clock)
    assert limit.wait_s("a") == 0
    assert {limit.wait_s("a") for _ in range(5)} == {10}
    clock.now = 10.0
    assert limit.wait_s("a") == 0


def test_a_cost_that_is_known_afterwards_is_owed() -> None:
    clock = Clock()
    limit = RateLimit(60, 60.0, clock)
    assert limit.wait_s("a", 70.0, owes=True) == 0
    assert limit.wait_s("a", 0.0) == 10
    clock.now = 10.0
    assert limit.wait_s("a", 0.0) == 0


def test_only_so_many_callers_are_remembered() -> None:
    limit = RateLimit(1, clock=Clock())
    for number in range(MAX_CALLERS + 1):
        limit.wait_s(str(number))
    assert limit.wait_s("1") > 0
    assert limit.wait_s("0") == 0, "forgotten"
