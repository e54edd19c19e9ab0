"""What a session leaves behind: a case that is a hypothesis until something is measured."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from graph.context import Context
from tests.unit.graph.cases import report_of, run, small, steps_of
from tools.errors import InputError
from tools.kb import open_folder


@pytest.fixture
def context(tmp_path: Path) -> Any:  # noqa: ANN401 - a generator of contexts
    made = Context(open_folder(tmp_path / "knowledge", None), learns=True)
    yield made
    made.knowledge.close()


class SimulatedTrial:
    """Answers at once with a made-up measurement, and counts."""

    def __init__(self, status: str) -> None:
        self.status, self.keys = status, list[str]()

    def run(self, key: str, scenario: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
        self.keys.append(key)
        measured = {"metric": "step time, s", "before": 2.0, "after": 1.5, "speedup": 1.33}
        return {"status": self.status, "says": "measured twice", "measured": measured}


def test_the_outcome_is_kept_as_a_hypothesis_with_its_prediction(context: Context) -> None:
    report = report_of(small(notes="n" * 20_000), context)
    case = context.knowledge.get(report["case"])
    assert case.status == "hypothesis"
    assert case.body["predicted"]["speedup"] == report["proposals"][0]["speedup"]
    assert case.body["after"] == report["proposals"][0]["plan"]
    assert "notes" not in case.body["scenario"]


def test_a_session_that_may_not_learn_leaves_nothing(context: Context) -> None:
    assert report_of(small(), replace(context, learns=False))["case"] is None
    assert all(entry.is_seed for entry in context.knowledge.entries())


@pytest.mark.parametrize("status", ["confirmed", "refuted"])
def test_a_measurement_marks_the_case(context: Context, status: str) -> None:
    trial = SimulatedTrial(status)
    outcome, events = run(small(mode="tune"), replace(context, trials=trial))
    assert steps_of(events) == ["analyzer", "proposal", "verify", "trial", "learn", "report"]
    assert trial.keys == ["s1-0"]
    assert outcome.report is not None
    case = context.knowledge.get(outcome.report["case"])
    assert case.status == status
    assert case.body["measured"]["speedup"] == 1.33
    assert [one["to"] for one in case.body["history"]][-1] == status


def test_tune_without_a_launcher_is_refused() -> None:
    with pytest.raises(InputError, match="mode"):
        run(small(mode="tune"))


def test_what_cannot_be_kept_is_an_incident_and_not_a_failure(context: Context) -> None:
    report = run(small(), context, id="not a slug")[0].report
    assert report is not None
    assert report["case"] is None
    assert "not learnt" in [one["kind"] for one in report["incidents"]]


def test_an_approval_after_the_end_keeps_one_case(context: Context) -> None:
    store = InMemorySaver()
    first, _ = run(small(), context, store)
    second, _ = run(small(), context, store, {"id": "d1", "action": "approve", "by": "ada"})
    assert first.report is not None
    assert second.report is not None
    assert first.report["case"] == second.report["case"]
    assert len([entry for entry in context.knowledge.entries() if not entry.is_seed]) == 1
