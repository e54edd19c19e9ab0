"""What the tools answer over HTTP: hardware, predictions, plan search, knowledge."""

import asyncio
from collections import Counter
from threading import Event
from typing import Any

import pytest

from service.http import limits as turns
from service.http.limits import QUESTIONS_AT_A_TIME, RETRY_AFTER_S, TENANT_QUESTIONS, Progress
from service.http.problems import ApiError
from service.http.state import AppState
from service.runtime import LazyKnowledge, open_knowledge
from tests.integration.service.at_work import wait_for
from tests.unit.service.served import SCENARIO, Serve, Served
from tools.hardware import device_names
from tools.kb import KnowledgeError
from tools.model.basis import explained
from tools.scenario import parse_scenario

CASE: dict[str, Any] = {
    "id": "our-racks",
    "title": "Tensor parallelism inside the node",
    "story": "Two nodes shared a tensor-parallel group, and it was split.",
    "bottleneck": "communication",
}


def test_every_device_is_listed_and_one_has_its_sources(served: Served) -> None:
    listed = served.client.get("/v1/hardware").json()
    assert [device["name"] for device in listed] == list(device_names())
    assert "sources" not in listed[0]
    one = served.client.get("/v1/hardware/h100").json()
    assert one["name"] == "h100-sxm-80gb"
    assert one["sources"]


def test_a_prediction_is_the_tool_s(served: Served) -> None:
    answer = served.client.post("/v1/predict", json=SCENARIO | {"id": 7})
    assert answer.json() == explained(parse_scenario(SCENARIO | {"id": 7})).model_dump(mode="json")


def test_a_batch_keeps_its_order_and_reports_errors_in_place(served: Served) -> None:
    wrong = SCENARIO | {"id": "bad", "plan": SCENARIO["plan"] | {"tp": 3}}
    answer = served.client.post(
        "/v1/predict/batch", json=[SCENARIO | {"id": "a"}, wrong, SCENARIO | {"id": "b"}]
    )
    assert [answered["id"] for answered in answer.json()] == ["a", "bad", "b"]
    assert ["error" in answered for answered in answer.json()] == [False, True, False]
    assert answer.json()[1]["field"].startswith("plan.")


def test_a_large_search_and_one_of_traces_are_sent_to_a_session(served: Served) -> None:
    large = {**SCENARIO, "plan": None, "cluster": {**SCENARIO["cluster"], "num_devices": 4096}}
    for body, field in ((large, "cluster.num_devices"), ({**SCENARIO, "traces": "/etc"}, "traces")):
        answer = served.client.post("/v1/plans/search", json=body)
        assert (answer.status_code, answer.json()["field"]) == (422, field)
        assert "session" in answer.json()["allowed"]


def test_work_that_cannot_be_stopped_is_answered_in_time_and_keeps_its_turn(serve: Serve) -> None:
    served, go_on = serve(request_s=0.05), Event()
    with pytest.raises(ApiError, match="not done"):
        served.app.run_search(lambda progress: go_on.wait(10))
    assert served.app.searches.acquire(blocking=False)
    assert not served.app.searches.acquire(blocking=False)
    go_on.set()
    assert served.app.searches.acquire(timeout=10)


def test_searches_beyond_a_few_at_a_time_are_told_to_come_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "RETRY_AFTER_S", 0)
    while served.app.searches.acquire(blocking=False):
        pass
    answer = served.client.post("/v1/plans/search", json=SCENARIO)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "0")


def test_a_question_to_a_model_keeps_its_place_until_its_work_ends_and_others_are_told_to_come_again(
    serve: Serve,
) -> None:
    """A tenant that has its share is told so; another still finds a place, until all are taken."""
    served = serve(llm_base_url="http://127.0.0.1:9/v1", llm_model="m")
    questions, go_on = served.app.questions, Event()

    async def ask_all() -> Counter[str]:
        def think(progress: Progress) -> None:
            go_on.wait(30)

        async def ask(tenant: str) -> str:
            try:
                await questions.answer(tenant, 0.2, think)
            except ApiError as error:
                return error.kind
            return "answered"

        tenants = [f"t{number}" for number in range(QUESTIONS_AT_A_TIME // TENANT_QUESTIONS + 1)]
        return Counter(await asyncio.gather(*(ask(tenant) for tenant in tenants for _ in range(6))))

    told = asyncio.run(ask_all())
    assert told["out-of-time"] == QUESTIONS_AT_A_TIME
    assert told["quota"] == (6 - TENANT_QUESTIONS) * QUESTIONS_AT_A_TIME // TENANT_QUESTIONS
    assert told["unavailable"] == 6
    answer = served.client.post("/v1/sessions/none/ask", json={"question": "why?"})
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, str(RETRY_AFTER_S))
    go_on.set()
    wait_for(
        lambda: served.client.post("/v1/sessions/none/ask", json={"question": "why?"}).status_code == 404, 30
    )


def test_an_explanation_names_what_speaks_against_a_plan(served: Served) -> None:
    body = {"scenario": SCENARIO, "plan": {"tp": 8}}
    found = served.client.post("/v1/plans/explain", json=body).json()
    assert found["why"]
    assert found["binding"] in ("rule", "memory", "time", "constraint", "none")
    assert found["winner"]["tp"]


def test_knowledge_is_listed_page_by_page(served: Served) -> None:
    first = served.client.get("/v1/knowledge?limit=3&kind=playbook").json()
    query = {"limit": 3, "kind": "playbook", "cursor": first["next_cursor"]}
    second = served.client.get("/v1/knowledge", params=query).json()
    ids = [item["id"] for item in (*first["items"], *second["items"])]
    assert len(set(ids)) == 6
    assert served.client.get("/v1/knowledge?cursor=nowhere").json()["field"] == "cursor"


def test_knowledge_is_found_by_words_and_facets(served: Served) -> None:
    query = {"q": "pipeline bubble", "bottleneck": "pipeline", "num_devices": "64", "limit": "3"}
    found = served.client.get("/v1/knowledge/search", params=query).json()
    assert len(found["items"]) == 3
    assert found["methods"] == ["lexical", "facets"]
    assert found["limitation"]
    entry = found["items"][0]["entry"]
    assert served.client.get(f"/v1/knowledge/{entry['id']}").json() == entry


def replace_knowledge(app: AppState, base: LazyKnowledge) -> None:
    object.__setattr__(app, "usecases", {**app.usecases, LazyKnowledge: base})


@pytest.fixture
def learning(serve: Serve) -> Served:
    served = serve()
    replace_knowledge(served.app, LazyKnowledge(lambda: open_knowledge(served.app.settings)))
    return served


def test_a_tenant_s_case_is_its_own_and_marks_are_audited(learning: Served) -> None:
    mine, other = learning.key("admin", tenant="mine", name="me"), learning.key("admin", tenant="other")
    added = learning.client.post("/v1/knowledge", json=CASE, headers=mine)
    assert (added.status_code, added.json()["is_own"]) == (201, True), added.text
    assert learning.client.get("/v1/knowledge/our-racks", headers=other).status_code == 404
    assert learning.client.post("/v1/knowledge", json=CASE, headers=mine).status_code == 201
    mark = {"status": "refuted", "reason": "slower"}
    marked = learning.client.post("/v1/knowledge/our-racks/mark", json=mark, headers=mine).json()
    assert marked["status"] == "refuted"
    assert marked["body"]["history"][-1]["by"] == "me"
    (row,) = learning.client.get("/v1/audit", headers=mine).json()["items"]
    assert (row["action"], row["target"], row["details"]["status"]) == ("case.mark", "our-racks", "refuted")


def test_a_store_that_does_not_answer_is_unavailable(served: Served) -> None:
    def fail() -> Any:  # noqa: ANN401
        raise KnowledgeError("the store does not answer")

    replace_knowledge(served.app, LazyKnowledge(fail))
    answer = served.client.get("/v1/knowledge")
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:asap:problem:unavailable")
