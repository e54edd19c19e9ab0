"""What a session leaves behind: a case that is a hypothesis until something is measured."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from graph.context import Context, Limits
from tests.unit.graph.cases import data_of, report_of, run, small
from tests.unit.graph.simulated_trials import SimulatedTrials, failed, measured
from tools.errors import InputError
from tools.kb import Entry, open_folder, open_seed


@pytest.fixture
def context(tmp_path: Path) -> Any:  # noqa: ANN401 - a generator of contexts
    made = Context(open_folder(tmp_path / "knowledge", None), saves_cases=True)
    yield made
    made.knowledge.close()


def body_of(case: Entry) -> dict[str, Any]:
    return case.json_body()


def test_the_outcome_is_kept_as_a_hypothesis_with_its_prediction(context: Context) -> None:
    report = report_of(small(notes="n" * 20_000), context)
    case = context.knowledge.get(report["case"])
    assert case.status == "hypothesis"
    assert body_of(case)["predicted"]["speedup"] == report["proposals"][0]["speedup"]
    assert body_of(case)["after"] == report["proposals"][0]["plan"]
    assert "notes" not in body_of(case)["scenario"]


def test_the_same_advice_is_one_case_however_often_it_is_asked_for(context: Context) -> None:
    first, second = (run(small(), context, id=id)[0] for id in ("one", "two"))
    assert data_of(first)["case"] == data_of(second)["case"]
    (case,) = (entry for entry in context.knowledge.entries() if not entry.is_seed)
    assert body_of(case)["sources"][0]["where"] == "one"


def test_the_same_advice_to_two_tenants_is_two_cases(context: Context) -> None:
    ours, theirs = (run(small(), context, tenant=tenant)[0] for tenant in ("ours", "theirs"))
    assert data_of(ours)["case"] != data_of(theirs)["case"]


def test_a_session_that_may_not_learn_leaves_nothing(context: Context) -> None:
    assert report_of(small(), replace(context, saves_cases=False))["case"] is None
    assert all(entry.is_seed for entry in context.knowledge.entries())


@pytest.mark.parametrize(
    ("takes", "status"),
    [
        (0.5, "confirmed"),
        (2.0, "refuted"),
        (1.001, "hypothesis"),
        (failed("out_of_memory"), "refuted"),
        (failed("not_started"), "hypothesis"),
        (measured(0.5, losses=[10.0, 10.0, 10.0]), "refuted"),
        (measured(0.5, fingerprint={"nodes": {"n2": 8}}), "hypothesis"),
    ],
    ids=["faster", "slower", "inside the noise", "its fault", "the cluster's", "does not train", "elsewhere"],
)
def test_each_trial_is_kept_with_what_it_showed(context: Context, takes: Any, status: str) -> None:  # noqa: ANN401
    trials = SimulatedTrials(lambda plan: 1.0 if plan["recompute"] == "full" else takes)
    outcome, _ = run(small(mode="tune"), replace(context, trials=trials, limits=Limits(trials=2)))
    case = context.knowledge.get("session-s1-trial-1")
    assert (case.id, case.status) == (data_of(outcome)["case"], status)
    assert body_of(case)["after"] == trials.orders[1].plan.model_dump()
    assert body_of(case)["predicted"]["step_time_s"] > 0
    assert body_of(case).get("measured", {}).get("step_time_s") == (
        takes if isinstance(takes, float) else None
    )


def test_a_baseline_is_not_a_case(context: Context) -> None:
    trials = SimulatedTrials(lambda plan: 1.0)
    run(small(mode="tune"), replace(context, trials=trials, limits=Limits(trials=1)))
    assert len(trials.orders) == 1
    assert all(entry.is_seed for entry in context.knowledge.entries())


def test_tune_without_a_launcher_is_refused() -> None:
    with pytest.raises(InputError, match="mode"):
        run(small(mode="tune"))


def test_what_cannot_be_kept_is_an_incident_and_not_a_failure() -> None:
    report = report_of(small(), Context(open_seed(), saves_cases=True))
    assert report["case"] is None
    assert "not learnt" in [incident["kind"] for incident in report["incidents"]]


def test_an_approval_after_the_end_keeps_one_case(context: Context) -> None:
    store = InMemorySaver()
    first, _ = run(small(), context, store)
    second, _ = run(small(), context, store, {"id": "d1", "action": "approve", "by": "ada"})
    assert data_of(first)["case"] == data_of(second)["case"]
    assert len([entry for entry in context.knowledge.entries() if not entry.is_seed]) == 1
