"""With a model configured, every way to use the product asks it: the endpoint counts, the report names it."""

import json
import os
import sys
from collections.abc import Collection, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.acceptance.model import NAME, Model
from tests.acceptance.product import Server, serving
from tests.acceptance.studio import STUDIO, studio
from tests.integration.llm.replies import Seen
from tests.integration.service.api_process import ASAP, REPO, asap, environment
from tests.workloads import SMALL

QUESTIONS = {"find_cause", "propose_plans", "revise_worklist", "explain"}
"""Asked in every session."""
QUICK_TRAINER = REPO / "tests/integration/trials/quick_trainer.py"
PEOPLE = 4


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> dict[str, str]:
    if request.param == "sqlite":
        return {}
    return {"database_url": str(request.getfixturevalue("postgres_url"))}


@pytest.fixture
def model() -> Iterator[Model]:
    with Model() as model:
        yield model


def assert_by_the_model(report: dict[str, Any], model: Model, least: Set[str] = QUESTIONS) -> None:
    """What it was asked it has answered, and what it wrote stands in the report under its name."""
    assert set(model.answered) >= least
    assert report["reasoner"] == NAME
    assert report["authors"]["rationale 1"] == NAME
    assert report["usage"]["answered"] == model.answered.total()
    assert report["usage"]["fell_back"] == 0
    assert report["incidents"] == []


def test_a_session_its_questions_and_a_night_ask_the_model(
    tmp_path: Path, database: dict[str, str], model: Model
) -> None:
    """One server, as a platform, a person and a nightly team would use it."""
    usual = {"trace_roots": json.dumps([str(tmp_path)]), "compute_processes": 2}
    with serving(tmp_path, **usual, **database, **model.settings) as server:
        id = server.submit()
        assert_by_the_model(server.report(id), model)
        _assert_within_its_context(model.seen)
        assert model.looked_up["find_knowledge"] > 0
        assert model.looked_up["predict_plan"] > 0
        _assert_people_are_answered_together(server, id, model)
        model.answered.clear()
        assert_by_the_model(_report_of_a_night(server, tmp_path), model)
        assert server.metric("asap_llm_tokens_total") > 0
        assert server.metric("asap_unexpected_errors_total") == 0


def _assert_within_its_context(seen: Sequence[Seen]) -> None:
    """Of one session, counted as it arrives: messages and descriptions of tools, four characters a token."""
    sizes = [(len(json.dumps([each.messages, each.body.get("tools")])) // 4, each.question) for each in seen]
    assert {question for _, question in sizes} >= QUESTIONS
    assert max(sizes)[0] <= 12_000, sizes
    assert sum(size for size, _ in sizes) <= 35_000, sizes


def _assert_people_are_answered_together(server: Server, id: str, model: Model) -> None:
    """The model answers nobody before it has heard everybody: none is turned away while it thinks."""
    everybody = Barrier(PEOPLE)

    def meet(seen: Seen) -> None:
        if seen.question == "answer_question" and not any(note["role"] == "tool" for note in seen.messages):
            everybody.wait(60.0)

    def ask(number: int) -> dict[str, Any]:
        with server.http as http:
            answer = http.post(f"/v1/sessions/{id}/ask", json={"question": f"What limits it? ({number})"})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    model.before = meet
    with ThreadPoolExecutor(PEOPLE) as people:
        answers = list(people.map(ask, range(PEOPLE)))
    assert model.answered["answer_question"] == PEOPLE
    assert {answer["by"] for answer in answers} == {NAME}
    assert [answer["incidents"] for answer in answers] == [[]] * PEOPLE


def _report_of_a_night(server: Server, folder: Path) -> dict[str, Any]:
    """Of the session that a night began because the job has a better plan."""
    nights = folder / "job"
    nights.mkdir()
    for number in range(3):
        (nights / f"{number:03}.json").write_text(json.dumps({"night": number, "step_times_s": [0.12] * 3}))
        os.utime(nights / f"{number:03}.json", (1.79e9 + 86_400 * number,) * 2)
    job = {"name": "job", "scenario": SMALL, "metrics": str(nights / "*.json")}
    with server.http as http:
        added = http.post("/v1/schedules", json={"name": "nightly", "cron": "30 5 * * *", "workloads": [job]})
        assert added.status_code == 201, added.text
        run = http.post("/v1/schedules/nightly/run").json()
        night = server.wait(f"/v1/schedules/nightly/runs/{run['id']}", lambda row: row["finished_at"])
        assert night["state"] == "completed", night
        (result,) = http.get(f"/v1/schedules/nightly/runs/{run['id']}/report").json()["workloads"]
    assert result["proposal"] is not None, result
    return server.report(result["proposal"]["session_id"])


@pytest.mark.parametrize(
    ("without", "streams"),
    [((), True), ((), False), (("tools",), True), (("tools", "json_schema", "json_object"), True)],
    ids=["tool calls streamed", "tool calls", "JSON schema", "plain text"],
)
def test_a_kept_command_asks_the_model_in_whatever_way_it_answers(
    tmp_path: Path, without: Collection[str], streams: bool
) -> None:
    words = ("optimize", "--session", "kept", "--json", "-")
    with Model(without, streams) as model:
        done = asap(tmp_path, *words, standard_input=json.dumps(SMALL), **model.settings)
        assert done.returncode == 0, done.stderr
        assert_by_the_model(json.loads(done.stdout), model)
    assert bool(model.looked_up) == (not without)


def test_a_tuning_session_asks_the_model_and_measures(tmp_path: Path, model: Model) -> None:
    command = [sys.executable, str(QUICK_TRAINER), "{scenario}", "{out}", "{steps}", "0"]
    (tmp_path / "templates.toml").write_text(
        '[[template]]\nname = "quick"\nlauncher = "local"\nlimits = { wall_s = 60, devices = 8 }\n'
        f"command = {json.dumps(command)}\n"
    )
    limits = {"session_trials": 1, "trial_steps": 6, "trial_runs": 1}
    templates = {"launch_templates": tmp_path / "templates.toml"}
    with serving(tmp_path, **templates, **limits, **model.settings) as server:
        report = server.report(server.submit(mode="tune"))
    assert len(report["trials"]) == 1
    assert len(list((tmp_path / "data/jobs").glob("*/out/starts.txt"))) == 1
    # Once trials have told, nothing is left for the worklist.
    assert_by_the_model(report, model, least=QUESTIONS - {"revise_worklist"})


def test_an_assistant_over_mcp_asks_the_model(tmp_path: Path, model: Model) -> None:
    process = StdioServerParameters(
        command=ASAP[0], args=["mcp"], cwd=str(tmp_path), env=environment(tmp_path, **model.settings)
    )

    async def optimize() -> dict[str, Any]:
        async with Client(stdio_client(process)) as client:
            answer = await client.call_tool("optimize", {"scenario": SMALL})
            return dict(answer.structured_content or {})

    answer = anyio.run(optimize)
    assert set(model.answered) >= QUESTIONS
    assert "Proposal 1 (" in answer["explanation"], "it is written from the model's claims"
    assert answer["incidents"] == []


@pytest.mark.skipif(not STUDIO.exists(), reason="`make test` installs langgraph dev in .venv-studio")
def test_a_run_in_studio_asks_the_model(tmp_path: Path, model: Model) -> None:
    with studio(tmp_path, **model.settings) as http:
        thread = http.post("/threads", json={}).json()["thread_id"]
        run = {"assistant_id": "asap", "input": {"request": SMALL}}
        state = http.post(f"/threads/{thread}/runs/wait", json=run)
    assert state.status_code == 200, state.text
    assert_by_the_model(state.json()["report"], model)


def test_the_doctor_asks_the_model_as_a_session_does(tmp_path: Path, model: Model) -> None:
    done = asap(tmp_path, "doctor", "--json", **model.settings)
    (found,) = [
        line for text in done.stdout.splitlines() if (line := json.loads(text))["what"] == "language model"
    ]
    assert model.answered.total() == 1
    assert (found["state"], done.returncode) == ("ok", 0), found
