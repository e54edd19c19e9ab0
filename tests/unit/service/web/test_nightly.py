"""The fleet and the schedules: what is wasted first, what a night said, and what can be done about it."""

import json
from typing import Any

import pytest

from tests.unit.service.nightly.builders import store_workload
from tests.unit.service.served import SCENARIO, Served
from tests.unit.service.web.browsing import Page, get, post, token
from tools.nightly.result import NightResult, OpenProposal
from tools.scenario import Plan

BODY: dict[str, Any] = {
    "name": "nightly",
    "cron": "30 5 * * *",
    "zone": "Europe/Berlin",
    "workloads": [{"name": "llama", "scenario": SCENARIO, "uploads": "llama-*"}],
}


def workload(
    served: Served,
    name: str,
    wasted: float,
    reason: str,
    status: str = "broken",
    proposal: OpenProposal | None = None,
) -> None:
    result = NightResult(
        name=name,
        status="broken",
        reason=reason,
        hours_per_day=24.0,
        lost_device_hours_per_day=wasted,
        proposal=proposal,
    )
    with served.app.database.begin() as conn:
        store_workload(conn, name, wasted, status, result)


def proposed(summary: str) -> OpenProposal:
    degrees = dict.fromkeys(("pp", "vpp", "cp", "ep", "etp", "dp", "dp_shard", "micro_batch_size"), 1)
    options = {"zero_stage": 0, "sequence_parallel": False, "recompute": None, "schedule": "1f1b"}
    plan = Plan.model_validate({"tp": 2, **degrees, **options})
    texts = dict.fromkeys(("rationale", "verdict", "first_step", "session_id"))
    speedups = dict.fromkeys(("speedup", "speedup_low", "speedup_high", "changes", "measured"))
    content = {"plan": plan, "summary": summary, "since": 0.0, "reason": "it is time", "waits": False}
    return OpenProposal.model_validate({**content, **texts, **speedups})


def test_a_workload_whose_schedule_is_removed_wastes_nothing_and_keeps_its_history(served: Served) -> None:
    assert served.client.post("/v1/schedules", json=BODY).status_code == 201
    workload(served, "llama", 120.0, "", proposal=proposed("tp 2"))
    assert "840" in get(served, "/fleet")[1].text
    assert served.client.delete("/v1/schedules/nightly").status_code == 204
    _, page = get(served, "/fleet")
    assert "840" not in page.text
    assert "Its schedule was removed" in page.text
    assert "tp 2" not in page.text
    assert served.client.get("/v1/workloads/llama").json()["outcome"]["proposal"]["summary"] == "tp 2"


def test_a_schedule_is_added_paused_resumed_run_and_removed_by_its_page(served: Served) -> None:
    given = {"csrf": token(served, "/schedules/new"), "definition": json.dumps(BODY)}
    made = post(served, "/schedules/new", given)
    assert made.status_code == 303, made.text
    place = made.headers["location"]
    assert "llama" in get(served, "/schedules")[1].text
    for action, said in (("pause", "paused"), ("resume", "active"), ("run", "manual")):
        assert post(served, f"{place}/{action}", {"csrf": given["csrf"]}).status_code == 303
        assert said in get(served, place)[1].text
    assert post(served, f"{place}/remove", {"csrf": given["csrf"]}).headers["location"] == "/schedules"
    assert get(served, place)[0].status_code == 404


FIELDS = {
    "name": "nightly",
    "time": "05:30",
    "days": "weekdays",
    "zone": "Europe/Berlin",
    "workloads[0].name": "llama",
    "workloads[0].scenario": json.dumps(SCENARIO),
    "workloads[0].source": "uploads",
    "workloads[0].pattern": "llama-*",
    "reoptimize": "yes",
}


def test_the_fields_of_the_form_are_a_schedule(served: Served) -> None:
    session = served.submit()
    second = {
        "workloads[1].name": "like-it",
        "workloads[1].session": session,
        "workloads[1].pattern": "like-*",
    }
    sent = {**FIELDS, **second, "recipients.when": "alarm", "csrf": token(served, "/schedules/new")}
    made = post(served, "/schedules/new", sent)
    assert made.status_code == 303, made.text
    kept = served.client.get("/v1/schedules/nightly").json()
    assert (kept["cron"], kept["zone"]) == ("30 5 * * 1-5", "Europe/Berlin")
    first, other = kept["definition"]["workloads"]
    assert (first["uploads"], other["uploads"]) == ("llama-*", "like-*")
    assert other["scenario"]["model"] == SCENARIO["model"]
    assert kept["definition"]["recipients"]["when"] == "alarm"


@pytest.mark.parametrize(
    ("field", "typed"),
    [
        ("name", "no spaces"), ("time", "25:99"), ("zone", "Mars"), ("workloads[0].name", ""),
        ("workloads[0].scenario", "{"), ("workloads[0].scenario", ""), ("workloads[0].hours_per_day", "many"),
    ],
)  # fmt: skip
def test_a_field_that_is_wrong_is_marked_and_the_others_keep_what_was_typed(
    served: Served, field: str, typed: str
) -> None:
    answer = post(served, "/schedules/new", {**FIELDS, field: typed, "csrf": token(served, "/schedules/new")})
    assert answer.status_code == 422
    page = Page(answer.text)
    (wrong,) = [
        one for tag in ("input", "textarea", "select") for one in page.all(tag) if one.get("aria-invalid")
    ]
    assert wrong["name"] == field
    assert (
        next(one["value"] for one in page.all("input") if one.get("name") == "workloads[0].pattern")
        == "llama-*"
    )
