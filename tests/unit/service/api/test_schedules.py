"""/v1/schedules and /v1/workloads over HTTP."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from service.schedules.dispatch import NIGHTS
from service.schedules.store import set_run
from tests.unit.service.served import SCENARIO, Serve, Served
from tools.nightly.result import NightReport, NightResult, report_of

NAMES = "/v1/schedules"
EXAMPLES = Path(__file__).resolve().parents[4] / "examples"


def body(**parts: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of a schedule
    one = {"name": "llama", "scenario": copy.deepcopy(SCENARIO), "uploads": "llama-*"}
    return {"name": "nightly", "cron": "30 5 * * *", "zone": "Europe/Berlin", "workloads": [one], **parts}


def test_a_schedule_is_added_shown_paused_resumed_and_removed(served: Served) -> None:
    client = served.client
    made = client.post(NAMES, json=body())
    assert made.status_code == 201
    id = made.json()["id"]
    assert made.headers["Location"] == f"{NAMES}/{id}"
    shown = client.get(f"{NAMES}/nightly").json()
    assert (shown["id"], shown["state"], shown["cron"], shown["zone"]) == (
        id, "active", "30 5 * * *", "Europe/Berlin",
    )  # fmt: skip
    assert shown["next_at"].endswith(("03:30:00Z", "04:30:00Z"))
    assert client.post(f"{NAMES}/{id}/pause").json()["state"] == "paused"
    assert client.get(f"{NAMES}/{id}").json()["next_at"] is None
    assert client.post(f"{NAMES}/{id}/resume").json()["state"] == "active"
    assert [item["id"] for item in client.get(NAMES).json()["items"]] == [id]
    assert client.delete(f"{NAMES}/{id}").status_code == 204
    assert client.get(f"{NAMES}/{id}").status_code == 404


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"cron": "99 5 * * *"}, "cron"),
        ({"cron": 5}, "cron"),
        ({"zone": "Mars/Olympus"}, "zone"),
        ({"mode": "tune"}, "mode"),
        ({"workloads": []}, "workloads"),
        ({"workloads": [{"name": "x", "scenario": {}, "uploads": "u"}]}, "workloads[0].scenario.model"),
        ({"recipients": {"emails": ["anna@team.example"]}}, "recipients.emails"),
        ({"recipients": {"webhooks": ["https://example.com/x"]}}, "recipients.webhooks"),
        ({"recipients": {"slack": ["http://127.0.0.1/token"]}}, "recipients.slack"),
        ({"recipients": {"slack": ["ftp://example.com"]}}, "recipients.slack"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_what_is_wrong_is_a_problem_that_names_the_field(
    served: Served, parts: dict[str, Any], field: str
) -> None:
    answer = served.client.post(NAMES, json=body(**parts))
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["field"] == field
    assert "token" not in answer.text


def test_tuning_is_for_installations_with_launch_templates_and_workloads_they_can_run(serve: Serve) -> None:
    served = serve(launch_templates=EXAMPLES / "launch-templates.toml", launch_template="reference-local")
    small = json.loads((EXAMPLES / "traces/gpt-ddp-gloo/base.json").read_text())
    tuned = body(mode="tune", workloads=[{"name": "gpt", "scenario": small, "uploads": "gpt-*"}])
    assert served.client.post(NAMES, json={**tuned, "budget": {"device_hours": 1}}).status_code == 201
    for parts, field in (
        ({"template": "nobody-knows"}, "template"),
        ({"policy": {"fields": ["recompute"]}}, "policy"),
        ({"approval": "policy", "policy": {"fields": ["colour"]}}, "policy.fields"),
    ):
        answer = served.client.post(NAMES, json={**tuned, "name": "other", **parts})
        assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_paths_of_the_server_are_for_the_operator_and_below_the_roots(serve: Serve, tmp_path: Path) -> None:
    """A tenant's admin could read every tenant's uploads by a pattern."""
    root = tmp_path / "profiles"
    root.mkdir()
    (root / "link").symlink_to("/etc")
    served = serve(trace_roots=(root,))
    admin, operator = served.key("admin", tenant="a"), served.key("operator")

    def add(pattern: str, headers: dict[str, str]) -> int:
        given = body(name=f"n{len(pattern)}")
        given["workloads"][0] |= {"uploads": None, "traces": pattern}
        return served.client.post(NAMES, json=given, headers=headers).status_code

    assert add(f"{root}/*", admin) == 422
    assert add(f"{root}/*/run", operator) == 201
    for elsewhere in ("/etc/*", f"{root}/../data/traces/*", f"{root}/link/*", f"{root}x/*", "*"):
        assert add(elsewhere, operator) == 422
    sly = body(name="sly")
    sly["workloads"][0]["scenario"]["traces"] = "/etc"
    field = served.client.post(NAMES, json=sly, headers=operator).json()["field"]
    assert field == "workloads[0].scenario.traces"


def test_scopes_and_tenants_are_kept_apart(served: Served) -> None:
    reader, submitter = served.key("read", tenant="a"), served.key("read", "submit", tenant="a")
    stranger = served.key("admin", tenant="b")
    assert served.client.post(NAMES, json=body(), headers=reader).status_code == 403
    id = served.client.post(NAMES, json=body(), headers=submitter).json()["id"]
    for action in ("pause", "resume", "run"):
        assert served.client.post(f"{NAMES}/{id}/{action}", headers=reader).status_code == 403
        assert served.client.post(f"{NAMES}/{id}/{action}", headers=stranger).status_code == 404
    assert served.client.delete(f"{NAMES}/{id}", headers=stranger).status_code == 404
    assert served.client.get(NAMES, headers=stranger).json()["items"] == []
    assert served.client.get(f"{NAMES}/{id}", headers=reader).status_code == 200


def test_addresses_with_tokens_are_not_shown(serve: Serve) -> None:
    served = serve(webhook_secret="s", webhook_private=True)
    given = body(
        recipients={"slack": ["https://hooks.example/T0/B0/secret"], "webhooks": ["http://10.0.0.1/secret"]}
    )
    made = served.client.post(NAMES, json=given)
    assert made.status_code == 201
    assert "secret" not in made.text
    assert made.json()["definition"]["recipients"]["slack"] == ["https://hooks.example/..."]
    assert "secret" not in served.client.get(NAMES).text


def finish(served: Served, run_id: str, report: NightReport) -> None:
    """What a worker would do."""
    with served.app.database.begin() as conn:
        row = NIGHTS.claim(conn, run_id, "test", 1)
        assert row
        set_run(conn, row, state="completed", outcome=report.outcome, report=report, deliveries=[])


def broken_result() -> NightResult:
    return NightResult(name="llama", status="broken", reason="nothing is there", hours_per_day=24.0)


def broken_report(run_id: str) -> NightReport:
    return report_of([broken_result()], "Night", 1.79e9, run_id, "0.2.0", 1.79e9)


def test_a_run_is_asked_for_and_its_report_is_fetched_in_three_forms(served: Served) -> None:
    client = served.client
    client.post(NAMES, json=body())
    run = client.post(f"{NAMES}/nightly/run")
    assert (run.status_code, run.json()["trigger"], run.json()["state"]) == (202, "manual", "queued")
    place = f"{NAMES}/nightly/runs/{run.json()['id']}"
    early = client.get(f"{place}/report")
    assert (early.status_code, early.json()["field"]) == (409, "state")
    finish(served, run.json()["id"], broken_report(run.json()["id"]))
    assert client.get(place).json()["outcome"] == "broken"
    assert client.get(f"{NAMES}/nightly").json()["last_run"]["outcome"] == "broken"
    assert [item["id"] for item in client.get(f"{NAMES}/nightly/runs").json()["items"]] == [run.json()["id"]]
    assert client.get(f"{place}/report").json()["workloads"][0]["name"] == "llama"
    markdown = client.get(f"{place}/report", headers={"Accept": "text/markdown"})
    assert "| llama | not read |" in markdown.text
    page = client.get(f"{place}/report", headers={"Accept": "text/html"})
    assert page.headers["content-security-policy"].startswith("default-src 'none'; style-src 'sha256-")
    assert '<a href="workloads/llama">' in page.text
    one = client.get(f"{place}/workloads/llama", headers={"Accept": "text/html"})
    assert "nothing is there" in one.text.lower()
    assert client.get(f"{place}/workloads/other").status_code == 404
    assert client.get(f"{place}/report", headers={"Accept": "image/png"}).status_code == 406


def test_every_change_is_in_the_audit_log(served: Served) -> None:
    served.client.post(NAMES, json=body())
    for action in ("pause", "resume", "run"):
        served.client.post(f"{NAMES}/nightly/{action}")
    served.client.delete(f"{NAMES}/nightly")
    actions = [entry["action"] for entry in served.client.get("/v1/audit").json()["items"]]
    assert actions == [f"schedule.{name}" for name in ("remove", "run", "resume", "pause", "add")]
