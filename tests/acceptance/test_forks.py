"""Forks through a real server: what was before the step is kept and not paid again, the rest is new."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from asap_client.client import Client
from asap_client.generated.models import Event
from tests.acceptance.model import Model
from tests.acceptance.product import Server, serving
from tests.servers import empty_database


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model() as model:
        yield model


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, model: Model
) -> Iterator[Server]:
    with ExitStack() as stack:
        settings: dict[str, object] = {**model.settings}
        if request.param == "postgresql":
            running = str(request.getfixturevalue("postgres_server"))
            settings["database_url"] = stack.enter_context(empty_database(running))
        yield stack.enter_context(serving(tmp_path_factory.mktemp("product"), **settings))


@pytest.fixture(autouse=True)
def unasked(model: Model) -> None:
    model.answered.clear()


def fork(server: Server, id: str, **body: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    with server.http as http:
        answer = http.post(f"/v1/sessions/{id}/fork", json=body)
    assert answer.status_code == 202, answer.text
    return dict(answer.json())


def events(server: Server, id: str) -> list[Event]:
    """Of a session that has ended."""
    with Client(server.address) as client:
        return list(client.events(id))


def agents(server: Server, id: str) -> list[str]:
    """Those that ran, in order."""
    return [event.node for event in events(server, id) if event.kind == "started"]


def test_other_constraints_keep_the_diagnosis_and_search_again(server: Server, model: Model) -> None:
    id = server.submit(labels={"team": "a"})
    before = server.report(id)
    asked = model.answered.copy()
    child = fork(server, id, constraints={"tp": 2})
    report = server.report(child["id"])
    assert server.report(id) == before
    told = [event.content for event in events(server, child["id"]) if event.kind == "forked"]
    assert [event.content for event in events(server, id) if event.kind == "forked"] == told
    ran = agents(server, child["id"])
    assert asked["find_cause"] == model.answered["find_cause"] == 1, "the analysis was not paid twice"
    assert model.answered["propose_plans"] == asked["propose_plans"] + 1
    assert ran[:2] == ["coordinator", "proposal"]
    assert "analyzer" not in ran
    assert {entry["plan"]["tp"] for entry in report["proposals"]} == {2}
    assert {entry["plan"]["tp"] for entry in before["proposals"]} != {2}
    assert report["diagnosis"] == before["diagnosis"]
    assert (child["labels"], child["forked_from"]["session"], child["forked_from"]["node"]) == (
        {"team": "a"},
        id,
        "proposal",
    )
    assert [event["changed"] for event in told] == [["constraints"]]
    assert report["usage"]["answered"] == model.answered.total() - asked.total()


def test_a_persons_answer_takes_the_place_of_the_models(server: Server, model: Model) -> None:
    id = server.submit()
    server.report(id)
    asked = model.answered.copy()
    wanted = {"suggestions": [{"plan": {"tp": 1, "pp": 4}, "references": []}]}
    child = fork(server, id, answers={"propose_plans": wanted})
    report = server.report(child["id"])
    assert model.answered["propose_plans"] == asked["propose_plans"] == 1
    assert [
        (entry["plan"]["tp"], entry["plan"]["pp"])
        for entry in report["considered"]
        if entry["origin"] == "local"
    ] == [(1, 4)]


def test_a_session_that_waits_can_be_decided_both_ways(server: Server) -> None:
    id = server.submit(approval="person")
    server.wait(f"/v1/sessions/{id}", lambda row: row["state"] == "waiting_approval")
    rejected = server.report(fork(server, id, decision={"action": "reject"})["id"])
    own = fork(server, id, decision={"action": "submit", "plan": {"tp": 1, "pp": 2}})
    waiting = server.wait(f"/v1/sessions/{own['id']}", lambda row: row["state"] == "waiting_approval")
    again = fork(server, id, step=1, notes="tp stays 8")
    server.wait(f"/v1/sessions/{again['id']}", lambda row: row["state"] == "waiting_approval")
    assert server.session(id)["state"] == "waiting_approval"
    assert [decision["action"] for decision in rejected["decisions"]] == ["reject"]
    assert rejected["chosen"] is None
    assert waiting["forked_from"]["changed"]["decision"]["by"] == "local"
    assert again["forked_from"]["step"] <= 3
