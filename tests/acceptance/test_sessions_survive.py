"""What used to end a session, or to silence its model: through the service, each session now completes."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.model import NAME, Model
from tests.acceptance.product import Server, serving
from tests.integration.llm import replies
from tests.integration.llm.replies import Played, Seen

OWN_CASE = {
    "id": "our-small-tp2",
    "title": "host overhead of a small dense model on 8 H100: tp 8 to tp 2",
    "story": "Host and other overhead took half of the step at tp 8, recomputing fully; tp 2 removed it.",
    "device": "h100-sxm-80gb",
    "num_devices": 8,
}
"""As the help of `asap kb add` shows one: without a lesson and without sources."""


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model() as model:
        yield model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model: Model) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("product"), compute_processes=2, **model.settings) as server:
        yield server
        assert server.metric("asap_unexpected_errors_total") == 0


@pytest.fixture(autouse=True)
def as_before(model: Model) -> Iterator[None]:
    yield
    model.before = lambda seen: None


def assert_by_the_model(report: dict[str, Any]) -> None:
    assert report["authors"]["rationale 1"] == NAME
    assert report["usage"]["fell_back"] == 0


def test_an_invalid_answer_beside_a_call_of_another_tool_is_mended(server: Server, model: Model) -> None:
    turns = count()

    def invalid_once(seen: Seen) -> Played | None:
        if seen.question != "propose_plans" or next(turns) > 0:
            return None
        wrong: list[tuple[str, dict[str, Any]]] = [
            ("Suggestions", {"suggestions": "tp 4"}),
            ("sensitivity", {}),
        ]
        return replies.calls(*wrong)(seen)

    model.before = invalid_once
    report = server.report(server.submit())
    assert next(turns) > 1, "the model was asked to mend it"
    assert_by_the_model(report)


def test_a_persons_own_case_without_lesson_and_sources_is_shown(server: Server) -> None:
    with server.http as http:
        added = http.post("/v1/knowledge", json=OWN_CASE)
        assert added.status_code == 201, added.text
    id = server.submit()
    (case,) = [case for case in server.report(id)["cases"] if case["id"] == OWN_CASE["id"]]
    assert (case["lesson"], case["sources"]) == (OWN_CASE["story"], [])
    with server.http as http:
        for form in ("text/markdown", "text/html"):
            shown = http.get(f"/v1/sessions/{id}/report", headers={"Accept": form})
            assert shown.status_code == 200
            assert str(OWN_CASE["title"]) in shown.text
        assert http.get(f"/sessions/{id}").status_code == 200


@pytest.mark.parametrize("notes", ["tp must be 7", "leave 99% memory free", "use at least 9 pipeline stages"])
def test_notes_that_leave_no_plan_become_a_question_and_the_session_goes_on(
    server: Server, notes: str
) -> None:
    report = server.report(server.submit(notes=notes))
    assert report["proposals"]
    assert report["notes"]["accepted"] == []
    (question,) = report["questions"]
    assert question["quotes"] == [notes]
    assert "no" in question["text"]
    assert_by_the_model(report)


def test_a_number_of_five_thousand_digits_in_notes_is_no_number(server: Server) -> None:
    notes = f"tp must be {'9' * 5000}. Keep pp at 1. Leave {'9' * 400}% memory free."
    report = server.report(server.submit(notes=notes))
    assert [(read["field"], read["value"]) for read in report["notes"]["accepted"]] == [("pp", 1)]
    assert_by_the_model(report)


def test_a_usage_that_no_checkpoint_holds_ends_no_session(tmp_path: Path, model: Model) -> None:
    met = count()

    def endless(seen: Seen) -> Played | None:
        if seen.question != "propose_plans":
            return None
        next(met)
        usage = {**replies.USAGE, "prompt_tokens": 10**30}
        return replies.calls(("Suggestions", {"suggestions": []}), usage=usage)(seen)

    model.before = endless
    with serving(tmp_path, **model.settings) as server:
        assert server.report(server.submit())["proposals"]
    assert next(met) > 0


BREAKS_A_QUESTION = """
import importlib.abc, importlib.util, sys

class Breaking(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "graph.middleware":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def run_and_break(module):
            run(module)
            module.Requests._settings = lambda *_: None.missing

        spec.loader.exec_module = run_and_break
        return spec

sys.meta_path.insert(0, Breaking())
"""


def test_an_error_of_our_own_is_counted_and_the_session_completes_by_the_rules(
    tmp_path: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python runs a sitecustomize of its path at start: the fault is in the process, not in a copy of it."""
    (tmp_path / "sitecustomize.py").write_text(BREAKS_A_QUESTION)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    asked = model.requests
    with serving(tmp_path, **model.settings) as server:
        report = server.report(server.submit())
        counted = server.metric("asap_unexpected_errors_total")
    assert model.requests == asked
    assert counted == report["usage"]["fell_back"] > 0
    (incident,) = report["incidents"]
    assert (incident["kind"], incident["error"]) == ("unexpected error", "AttributeError")
    assert set(report["authors"].values()) == {"expert-rules"}
