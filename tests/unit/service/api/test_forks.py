"""Forks over HTTP: at which step a session goes on, and what is refused; tests/acceptance runs them."""

from typing import Any

import pytest

from service.sessions.event_store import told_events
from tests.unit.service.db.making import append_event
from tests.unit.service.served import SCENARIO, Serve, Served
from tests.unit.service.web.browsing import get, post, token

RUNS = ("coordinator", "analyzer", "coordinator", "proposal", "coordinator", "verify", "coordinator")
QUESTIONS = {"analyzer": "find_cause", "proposal": "propose_plans"}


def submitted(served: Served) -> str:
    """A session whose agents have run until the proposals were verified: events 2, 4, 6, ... are starts."""
    id = served.submit(SCENARIO | {"labels": {"team": "a"}})
    with served.app.database.begin() as conn:
        for step, node in enumerate(RUNS, 1):
            run, question = f"1/{step}/{node}", QUESTIONS.get(node, "")
            append_event(conn, id, {"key": f"{run}/1", "node": node, "kind": "started"})
            append_event(
                conn, id, {"key": f"{run}/2", "node": node, "kind": "reasoned", "question": question}
            )
    return id


def fork(served: Served, id: str, headers: dict[str, str] | None = None, **body: Any) -> Any:  # noqa: ANN401
    return served.client.post(f"/v1/sessions/{id}/fork", json=body, headers=headers)


@pytest.mark.parametrize(
    ("body", "step", "node"),
    [
        ({"step": 9}, 8, "proposal"),
        ({"step": 1}, 2, "coordinator"),
        ({"notes": "tp stays 8"}, 2, "coordinator"),
        ({"constraints": {"tp": 4}}, 8, "proposal"),
        ({"step": 15, "constraints": {"tp": 4}}, 8, "proposal"),
        ({"step": 5, "constraints": {"tp": 4}}, 4, "analyzer"),
        ({"answers": {"find_cause": {"cause": "late_host", "references": []}}}, 4, "analyzer"),
        ({"decision": {"action": "reject"}}, 14, "coordinator"),
    ],
)
def test_a_fork_begins_where_what_changes_is_read(
    served: Served, body: dict[str, Any], step: int, node: str
) -> None:
    id = submitted(served)
    answer = fork(served, id, **body)
    assert answer.status_code == 202, answer.text
    child = answer.json()
    origin = child["forked_from"]
    assert (origin["session"], origin["step"], origin["node"]) == (id, step, node)
    assert (child["state"], child["labels"]) == ("queued", {"team": "a"})
    assert answer.headers["Location"] == f"/v1/sessions/{child['id']}"
    request = served.client.get(f"/v1/sessions/{child['id']}").json()["request"]
    stated: dict[str, Any] = {name: body[name] for name in ("notes", "constraints") if name in body}
    assert request == SCENARIO | stated
    with served.app.database.read() as conn:
        for each in (id, child["id"]):
            (told,) = [event for event in told_events(conn, each) if event.kind == "forked"]
            assert (told.content["child"], told.content["step"]) == (child["id"], step)
    assert served.app.queue.unfinished([f"{child['id']}.1"])
    [audited] = served.client.get("/v1/audit", params={"target": id}).json()["items"]
    assert (audited["action"], audited["details"]) == ("session.fork", {"fork": child["id"], "step": step})


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "step"),
        ({"step": 0}, "step"),
        ({"step": 99}, "step"),
        ({"answers": {"find_couse": {}}}, "answers.find_couse"),
        ({"answers": {"find_cause": {"cause": "magic", "references": []}}}, "answers.find_cause.cause"),
        ({"answers": {"explain": {"verdict": [], "would_change": [], "rationales": []}}}, "answers.explain"),
        ({"constraints": {"tp": [3.5]}}, "constraints.tp[0]"),
        ({"notes": "x" * 10**6}, "notes"),
        ({"step": 5, "decision": {"action": "approve"}}, "step"),
        ({"notes": "x", "decision": {"action": "approve"}}, "decision"),
        ({"decision": {"action": "approve", "by": "the boss"}}, "by"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_what_is_wrong_with_a_fork_is_named_and_makes_none(
    served: Served, body: dict[str, Any], field: str
) -> None:
    answer = fork(served, submitted(served), **body)
    assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text
    assert len(served.client.get("/v1/sessions").json()["items"]) == 1


def test_a_session_of_which_nothing_happened_is_not_forked(served: Served) -> None:
    answer = fork(served, served.submit(), notes="tp stays 8")
    assert (answer.status_code, answer.json()["field"]) == (409, "state")


def test_the_same_key_makes_one_fork(served: Served) -> None:
    id, key = submitted(served), {"Idempotency-Key": "mine"}
    bodies: list[dict[str, Any]] = [{"notes": "x"}, {"notes": "x"}, {"notes": "y"}]
    first, again, other = (fork(served, id, key, **body) for body in bodies)
    assert first.json()["id"] == again.json()["id"]
    assert (other.status_code, other.json()["field"]) == (409, "Idempotency-Key")


def test_a_fork_counts_as_a_submission_and_its_decision_as_a_decision(serve: Serve) -> None:
    served = serve(key_queued=1)
    id, submitter = submitted(served), served.key("read", "submit")
    assert fork(served, id, submitter, decision={"action": "approve"}).status_code == 403
    assert fork(served, id, submitter, notes="x").status_code == 202
    assert fork(served, id, submitter, notes="y").status_code == 429


def test_the_page_states_what_was_changed_alone(served: Served) -> None:
    id = submitted(served)
    form = get(served, f"/sessions/{id}/fork?step=9")[0]
    assert "Fork from event 8" in form.text
    fields = {"csrf": token(served), "step": "9", "notes": ""}
    refused = post(served, f"/sessions/{id}/fork", {**fields, "constraints": '{"tq": 1}'})
    assert (refused.status_code, "tq" in refused.text) == (422, True)
    made = post(served, f"/sessions/{id}/fork", {**fields, "constraints": '{"tp": 4}'})
    assert made.status_code == 303
    child = served.client.get(f"/v1{made.headers['Location']}").json()
    assert {name for name, part in child["forked_from"]["changed"].items() if part} == {"step", "constraints"}
    assert f"/sessions/{id}/trail" in get(served, f"/sessions/{child['id']}")[0].text
