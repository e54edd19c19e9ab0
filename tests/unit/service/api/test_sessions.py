"""Sessions over HTTP: submitted once, listed without gaps, moved by people, and every decision kept."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.service.db.making import list_decisions
from tests.unit.service.served import SCENARIO, Serve, Served


def get(served: Served, path: str, **params: object) -> Any:  # noqa: ANN401 - any JSON
    answer = served.client.get(path, params=params)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_submitted_session_is_queued_and_says_where_it_is(served: Served) -> None:
    answer = served.client.post("/v1/sessions", json=SCENARIO | {"labels": {"team": "a"}, "priority": 7})
    assert answer.status_code == 202
    session = answer.json()
    assert session["state"] == "queued"
    assert answer.headers["Location"] == session["links"]["self"] == f"/v1/sessions/{session['id']}"
    assert (session["model"], session["device"], session["num_devices"]) == ("tiny", "h100-sxm-80gb", 8)
    assert (session["labels"], session["priority"], session["owner"]) == ({"team": "a"}, 7, "local")
    assert session["created_at"].endswith("Z")
    assert served.app.queue.unfinished([f"{session['id']}.1"])


def test_the_same_key_gives_the_same_session_and_with_another_body_a_conflict(served: Served) -> None:
    key = {"Idempotency-Key": "k1"}
    assert served.submit(headers=key) == served.submit(headers=key)
    assert len(get(served, "/v1/sessions")["items"]) == 1
    answer = served.client.post("/v1/sessions", json=SCENARIO | {"priority": 1}, headers=key)
    assert answer.status_code == 409
    assert answer.json()["field"] == "Idempotency-Key"


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"mode": "guess"}, "mode"),
        ({"approval": "dog"}, "approval"),
        ({"priority": 10}, "priority"),
        ({"labels": {"a b": "c"}}, "labels"),
        ({"labels": {"a": "x" * 201}}, "labels.a"),
        ({"labels": {str(n): "" for n in range(33)}}, "labels"),
        ({"labels": {"a": 1}}, "labels.a"),
        ({"webhook": "https://example.org/hook"}, "webhook"),
        ({"budget": {"tokens": -1}}, "budget.tokens"),
        ({"budget": {"dollars": 1}}, "budget.dollars"),
        ({"constraints": {"tp": [3.5]}}, "constraints.tp[0]"),
        ({"traces": "trace:" + "0" * 32}, "traces"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_what_is_wrong_with_a_submission_is_named(served: Served, wrong: dict[str, Any], field: str) -> None:
    answer = served.client.post("/v1/sessions", json=SCENARIO | wrong)
    assert answer.status_code == 422, answer.text
    assert answer.json()["field"] == field


@pytest.mark.parametrize(
    "url", ["ftp://a.example", "http://10.0.0.1/", "https://user:pw@a.example", "nonsense"]
)
def test_a_webhook_must_be_a_public_address(serve: Serve, url: str) -> None:
    served = serve(webhook_secret="sign-with-this")
    answer = served.client.post("/v1/sessions", json=SCENARIO | {"webhook": url})
    assert (answer.status_code, answer.json()["field"]) == (422, "webhook")
    assert "pw@" not in answer.text
    id = served.submit(SCENARIO | {"webhook": "https://a.example/hook?token=t0k3n"})
    for path in (f"/v1/sessions/{id}", "/v1/sessions", f"/sessions/{id}", f"/v1/sessions/{id}/events"):
        accept = "text/html" if path.startswith("/sessions") else "application/json"
        answer = served.client.get(path, headers={"Accept": accept})
        assert answer.status_code == 200
        assert "t0k3n" not in answer.text
    assert served.client.get(f"/v1/sessions/{id}").json()["webhook"] == "https://a.example/..."


def test_a_folder_of_the_server_is_for_the_operator_and_below_the_roots(serve: Serve, tmp_path: Path) -> None:
    root, body = tmp_path / "profiles", SCENARIO | {"traces": f"{tmp_path}/profiles/run"}
    served = serve(trace_roots=(root,))
    served.submit(SCENARIO | {"traces": f"{root}/run"})
    for scopes in (("read", "submit"), ("admin",)):
        answer = served.client.post("/v1/sessions", json=body, headers=served.key(*scopes))
        assert (answer.status_code, answer.json()["field"]) == (422, "traces")
    operator = served.key("operator")
    served.submit(body, headers=operator)
    for elsewhere in ("/etc", f"{root}/../data", str(served.app.settings.data_dir / "traces")):
        answer = served.client.post("/v1/sessions", json=body | {"traces": elsewhere}, headers=operator)
        assert "ASAP_TRACE_ROOTS" in answer.text


def test_without_roots_only_the_user_of_a_server_without_keys_names_folders(served: Served) -> None:
    body = SCENARIO | {"traces": "some/folder"}
    served.submit(body)
    answer = served.client.post("/v1/sessions", json=body, headers=served.key("operator"))
    assert (answer.status_code, answer.json()["field"]) == (422, "traces")


FILTERS: list[tuple[dict[str, object], list[str]]] = [
    ({"state": "failed"}, ["b"]),
    ({"state": "queued"}, ["c", "a"]),
    ({"device": "a100-sxm-80gb"}, ["c"]),
    ({"model": "tiny"}, ["c", "b", "a"]),
    ({"model": "other"}, []),
    ({"label": "name=b"}, ["b"]),
    ({"label": "name"}, ["c", "b", "a"]),
    ({"label": ["name=b", "missing"]}, []),
    ({"text": "RACKS blue"}, ["a"]),
    ({"text": "%"}, []),
]


def test_lists_are_filtered_newest_first_and_paged_through(served: Served) -> None:
    cluster = SCENARIO["cluster"] | {"device": "a100-sxm-80gb"}
    served.submit(SCENARIO | {"labels": {"name": "a"}, "notes": "the blue racks"})
    served.end(served.submit(SCENARIO | {"labels": {"name": "b"}}), "failed")
    served.submit(SCENARIO | {"labels": {"name": "c"}, "cluster": cluster})

    def names(page: dict[str, Any]) -> list[str]:
        return [item["labels"]["name"] for item in page["items"]]

    for filters, found in FILTERS:
        assert names(get(served, "/v1/sessions", **filters)) == found, filters
    first = get(served, "/v1/sessions", limit=2)
    rest = get(served, "/v1/sessions", limit=2, cursor=first["next_cursor"])
    assert (names(first), names(rest), rest["next_cursor"]) == (["c", "b"], ["a"], None)


@pytest.mark.parametrize("query", ["cursor=nonsense", "limit=0", "limit=501", "state=odd", "label=%3Dx"])
def test_a_wrong_filter_is_named(served: Served, query: str) -> None:
    answer = served.client.get(f"/v1/sessions?{query}")
    assert (answer.status_code, answer.json()["field"]) == (422, query.partition("=")[0])


def test_a_queued_session_is_cancelled_at_once_and_again_changes_nothing(served: Served) -> None:
    path = f"/v1/sessions/{served.submit()}"
    for _ in range(2):
        answer = served.client.post(f"{path}/cancel")
        assert (answer.status_code, answer.json()["state"]) == (202, "cancelled")
    assert [item["action"] for item in get(served, "/v1/audit")["items"]] == ["session.cancel"]


@pytest.mark.parametrize(
    ("state", "action"),
    [("completed", "cancel"), ("queued", "retry"), ("queued", "decision"), ("queued", "delete")],
)
def test_what_does_not_suit_the_state_is_a_conflict(served: Served, state: str, action: str) -> None:
    id = served.submit()
    if state != "queued":
        served.end(id, state, report={})
    if action == "delete":
        answer = served.client.delete(f"/v1/sessions/{id}")
    else:
        body = {"action": "approve"} if action == "decision" else None
        answer = served.client.post(f"/v1/sessions/{id}/{action}", json=body)
    assert (answer.status_code, answer.json()["field"]) == (409, "state")


def test_a_failed_session_is_retried_as_a_new_attempt_that_is_queued(served: Served) -> None:
    id = served.submit()
    served.end(id, "failed", error={"kind": "failed", "message": "no luck", "field": None})
    assert get(served, f"/v1/sessions/{id}")["error"]["message"] == "no luck"
    answer = served.client.post(f"/v1/sessions/{id}/retry")
    assert (answer.status_code, answer.json()["state"], answer.json()["attempt"]) == (202, "queued", 2)
    assert answer.json()["error"] is None
    assert served.app.queue.unfinished([f"{id}.2"])


@pytest.mark.parametrize(
    "decision",
    [
        {"action": "approve"},
        {"action": "reject", "comment": "too risky"},
        {"action": "edit", "proposal": 1, "plan": {"micro_batch_size": 2}},
        {"action": "submit", "plan": {"tp": 4, "dp": 2}},
    ],
)
def test_a_decision_is_kept_queued_and_audited(served: Served, decision: dict[str, Any]) -> None:
    id = served.wait_for_approval()
    header = served.key("approve", "admin", name="alice") | {"X-Request-Id": "r-7"}
    answer = served.client.post(f"/v1/sessions/{id}/decision", json=decision, headers=header)
    assert (answer.status_code, answer.json()["state"]) == (202, "queued")
    with served.app.database.read() as conn:
        (kept,) = list_decisions(conn, id)
    assert (kept["action"], kept["by"]) == (decision["action"], "alice")
    assert served.app.queue.unfinished([f"{id}.2"])
    (row,) = served.client.get("/v1/audit", params={"target": id}, headers=header).json()["items"]
    assert (row["who"], row["action"], row["request_id"]) == ("alice", "session.decide", "r-7")
    assert row["details"]["decision"]["action"] == decision["action"]


@pytest.mark.parametrize("by", ["id", "header"])
def test_a_decision_sent_twice_counts_once(served: Served, by: str) -> None:
    id = served.wait_for_approval()
    body = {"action": "approve"} | ({"id": "mine"} if by == "id" else {})
    headers = {"Idempotency-Key": "mine"} if by == "header" else {}
    for _ in range(2):
        answer = served.client.post(f"/v1/sessions/{id}/decision", json=body, headers=headers)
        assert answer.status_code == 202
    with served.app.database.read() as conn:
        assert len(list_decisions(conn, id)) == 1
    assert len(get(served, "/v1/audit")["items"]) == 1


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"action": "maybe"}, "action"),
        ({}, "action"),
        ({"action": "approve", "proposal": 4}, "proposal"),
        ({"action": "approve", "plan": {"tp": 1}}, "plan"),
        ({"action": "submit"}, "plan"),
        ({"action": "submit", "plan": {"pt": 1}}, "plan.pt"),
        ({"action": "submit", "plan": {"tp": {"a": 1}}}, "plan.tp"),
        ({"action": "edit", "plan": {"recompute_modules": [[]]}}, "plan.recompute_modules"),
        ({"action": "edit", "plan": {"tp": 1.5}}, "plan.tp"),
        ({"action": "approve", "by": "somebody else"}, "by"),
        ({"action": "approve", "comment": "x" * 4001}, "comment"),
        ({"action": "approve", "extra": 1}, "extra"),
    ],
)
def test_what_is_wrong_with_a_decision_is_named(served: Served, wrong: dict[str, Any], field: str) -> None:
    answer = served.client.post(f"/v1/sessions/{served.wait_for_approval()}/decision", json=wrong)
    assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text


def test_a_name_labels_and_a_remark_are_changed_at_any_time_and_found(served: Served) -> None:
    id = served.submit(SCENARIO | {"name": "first", "labels": {"team": "a"}})
    path = f"/v1/sessions/{id}"
    changed = served.client.patch(path, json={"name": " after  the switch ", "remark": "kept for May"})
    assert changed.status_code == 200, changed.text
    assert [changed.json()[field] for field in ("name", "labels", "remark")] == [
        "after the switch",
        {"team": "a"},
        "kept for May",
    ]
    relabelled = served.client.patch(path, json={"labels": {"team": "b"}, "name": None}).json()
    assert (relabelled["name"], relabelled["labels"]) == (None, {"team": "b"})
    for query in ("text=may", "label=team=b"):
        assert [item["id"] for item in served.client.get(f"/v1/sessions?{query}").json()["items"]] == [id]
    assert served.client.get("/v1/sessions?label=team=a").json()["items"] == []
    wrong = served.client.patch(path, json={"remark": "x" * 5000})
    assert (wrong.status_code, wrong.json()["field"]) == (422, "remark")
