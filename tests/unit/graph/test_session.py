"""Whole sessions with the expert rules: their order, their report, decisions, limits."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from graph.context import Context, Limits
from graph.events import Routed, ToolCalled
from graph.nodes.analyzer import PlanAnalysis, analyse_plan
from graph.nodes.verify import UnverifiedError
from graph.request import parse_request
from graph.state import SessionSearch, state_serializer
from tests.unit.graph.cases import data_of, report_of, run, small, steps_of, tools_of
from tools.errors import InfeasibleError, InputError
from tools.kb import open_seed
from tools.model.predict import predict
from tools.model.runs import Measured, Run
from tools.model.update import calibrate
from tools.recommend.optimize import optimize
from tools.scenario import Plan, Scenario, parse_scenario
from tools.scenario.parse import StatedScenario

REPO = Path(__file__).parents[3]
CONTRACT_KEYS = {"diagnosis", "baseline", "proposals", "rejected", "searched", "reasoner"}


def test_todays_plan_is_diagnosed_before_anything_is_proposed_and_each_step_has_its_reason() -> None:
    _, events = run(small())
    assert steps_of(events) == ["analyzer", "proposal", "verify", "learn", "report"]
    assert all(event.reason for event in events if isinstance(event, Routed))


def test_a_cold_start_analyses_the_best_plan_found() -> None:
    outcome, events = run(small(plan=None))
    assert steps_of(events) == ["proposal", "analyzer", "proposal", "verify", "learn", "report"]
    assert data_of(outcome)["baseline"] is None
    assert tools_of(events).count("search_plans") == 1


def test_a_measured_step_calibrates_the_predictions_and_is_reported_first() -> None:
    raw: dict[str, Any] = json.loads((REPO / "examples/profiled-run.json").read_text())
    report = report_of({**raw, "traces": str(REPO / raw["traces"])})
    took_s, recalibrated = report["profile"]["step_time_s"], report["diagnosis"]["recalibrated"]
    assert report["baseline"]["step_time_s"] == pytest.approx(took_s, rel=1e-6)
    assert report["profile"]["match"]["contradictions"] == []
    far, first = report["diagnosis"]["evidence"][:2]
    assert "1.5 times the predicted one" in far["says"]
    assert (first["kind"], first["ref"]) == ("profile", "step_time_s")
    assert first["says"] == f"measured {took_s:.3f} s, model {recalibrated['model_s']:.3f} s, recalibrated"
    assert report["verification"]["holds"]
    assert report["verification"]["texts_refused"] == []
    assert report["diagnosis"]["lever"]  # sharding is none: nobody is told to try another plan first
    assert report["first_step"].startswith("Keep today's plan")


def test_a_cluster_far_from_all_others_is_reported_as_such() -> None:
    scenario = parse_scenario(small())
    took_s = 4.0 * predict([scenario])[0].step_time_s
    slow = calibrate([Run(scenario=scenario, measured=Measured(step_time_s=took_s))] * 2).calibration
    used = report_of(small(), Context(calibration=slow))["calibrated_by"]
    assert [finding["kind"] for finding in used["findings"]] == ["far off"]
    assert used["baseline_without_s"] == pytest.approx(took_s / 4.0)


def test_no_target_is_slower_than_the_measured_step_but_a_persons_own_plan() -> None:
    best = optimize(parse_scenario(small(plan=None), need_plan=False)).proposals[0].plan
    notes = "We measured 0.0536 s per step."
    raw = small(plan=best.model_dump(mode="json"), notes=notes, approval="person")
    saver = InMemorySaver(serde=state_serializer())
    waiting = run(raw, checkpointer=saver)[0].waiting_for
    assert waiting is not None
    assert [proposal["plan"]["tp"] for proposal in waiting["proposals"]] == [best.tp]
    run(raw, checkpointer=saver, decision={"id": "1", "action": "edit", "plan": {"tp": 4}})
    report = data_of(run(raw, checkpointer=saver, decision={"id": "2", "action": "approve"})[0])
    assert [proposal["role"] for proposal in report["proposals"]] == ["recommended", "alternative"]
    assert report["proposals"][0]["prediction"]["step_time_s"] == pytest.approx(0.0536)
    assert report["proposals"][1]["plan"]["tp"] == 4


def test_a_report_names_what_was_published_for_the_model_on_the_device() -> None:
    raw = json.loads((REPO / "examples/llama-3.1-70b-64xh100.json").read_text())
    report = report_of(raw)
    first = report["recipes"][0]
    assert first["title"].startswith("NVIDIA's recipe for Llama-3-70B on 64 h100-sxm-80gb")
    assert "tp 4, pp 8" in first["says"]
    assert first["sources"][0]["where"].startswith("https://")
    suggested = next(plan for plan in report["considered"] if plan["origin"] == first["id"])
    assert (suggested["plan"]["tp"], suggested["plan"]["pp"]) == (4, 8)
    assert report_of(small())["recipes"] == []


@pytest.mark.parametrize("raw", [small(), small(plan=None)], ids=["today", "cold"])
def test_the_rules_propose_what_the_search_alone_proposes(raw: dict[str, Any]) -> None:
    alone = optimize(parse_scenario(raw, need_plan=False))
    told = report_of(raw)
    assert [proposal["plan"] for proposal in told["proposals"]] == [
        proposal.plan.model_dump() for proposal in alone.proposals
    ]
    assert told.keys() >= CONTRACT_KEYS
    assert told["reasoner"] == "expert-rules"
    assert told["verification"]["holds"]
    assert told["verification"]["checked"] > 50
    assert told["verification"]["texts_refused"] == []
    assert told["diagnosis"]["bottleneck"] == alone.diagnosis.bottleneck


def test_a_baseline_that_does_not_hold_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def analyse_wrongly(*given: Any, **more: Any) -> PlanAnalysis:  # noqa: ANN401 - as they are
        found = analyse_plan(*given, **more)
        return replace(found, prediction=found.prediction.model_copy(update={"step_time_s": 1e-3}))

    monkeypatch.setattr("graph.nodes.analyzer.analyse_plan", analyse_wrongly)
    with pytest.raises(UnverifiedError, match=r"baseline\.step_time_s: stated 0\.001, computed"):
        run(small())


def test_events_have_unique_keys_and_tell_who_called_what() -> None:
    _, events = run(small())
    assert len({event.key for event in events}) == len(events)
    called = next(event for event in events if isinstance(event, ToolCalled) and event.tool == "search_plans")
    told = called.model_dump()
    assert told["node"] == "proposal"
    assert told["arguments"]["scenario"]["cluster"]["num_devices"] == 8
    assert told["result"]["proposals"]
    assert called.seconds > 0
    assert "legal plans searched" in called.summary


def test_the_same_scenario_gives_the_same_report() -> None:
    first, second = report_of(small()), report_of(small())
    for outcome in (first, second):
        outcome["searched"].pop("seconds")
    assert first == second


def test_nothing_feasible_is_an_error_that_says_what_would_do() -> None:
    raw = small(plan=None, constraints={"max_memory_fraction": 0.001})
    with pytest.raises(InfeasibleError, match="GiB"):
        run(raw)


def test_time_that_is_up_ends_the_session_with_what_is_verified() -> None:
    context = Context(open_seed(), limits=Limits(session_s=-1))
    outcome, events = run(small(), context)
    assert steps_of(events)[-2:] == ["verify", "report"]
    assert outcome.report is not None


@pytest.mark.parametrize(
    ("name", "value"), [("mode", "fast"), ("approval", "boss"), ("modus", 1), ("constraints", {"tpp": 1})]
)
def test_a_wrong_request_names_the_field(name: str, value: object) -> None:
    with pytest.raises(InputError, match=name if name != "constraints" else "tpp"):
        parse_request(small(**{name: value}))


def waiting() -> InMemorySaver:
    """The store of a session that waits for a person."""
    store = InMemorySaver(serde=state_serializer())
    outcome, _ = run(small(approval="person"), checkpointer=store)
    assert outcome.report is None
    assert outcome.waiting_for is not None
    assert outcome.waiting_for["bottleneck"]
    assert outcome.waiting_for["proposals"][0]["speedup"] > 0
    return store


@pytest.mark.parametrize(
    ("action", "chosen", "verdict", "first_step"),
    [
        ("approve", 2, "ada approved proposal 2: predicted ", "Run proposal 2 on the same nodes"),
        ("reject", None, "ada rejected the proposals: nothing is to be changed.", "Keep today's plan."),
    ],
)
def test_verdict_and_first_step_follow_the_decision(
    action: str, chosen: int | None, verdict: str, first_step: str
) -> None:
    decision = {"id": "d1", "action": action, "proposal": 2, "by": "ada"}
    outcome, events = run(small(approval="person"), checkpointer=waiting(), decision=decision)
    report = data_of(outcome)
    assert "search_plans" not in tools_of(events)
    assert report["decisions"][0]["by"] == "ada"
    assert report["chosen"] == chosen
    assert report["verdict"].startswith(verdict)
    assert report["first_step"].startswith(first_step)


def test_asking_a_waiting_session_again_changes_nothing() -> None:
    outcome, events = run(small(approval="person"), checkpointer=waiting())
    assert outcome.waiting_for is not None
    assert events == []


def test_an_engineers_plan_is_scored_beside_the_others_and_asked_about_again() -> None:
    store = waiting()
    decision = {"id": "d1", "action": "submit", "plan": {"tp": 2, "recompute": "none"}, "by": "ada"}
    outcome, _ = run(small(approval="person"), checkpointer=store, decision=decision)
    assert outcome.waiting_for is not None
    final, _ = run(small(approval="person"), checkpointer=store, decision={"id": "d2", "action": "approve"})
    mine = [candidate for candidate in data_of(final)["considered"] if candidate["origin"] == "ada"]
    assert len(mine) == 1
    assert mine[0]["plan"]["tp"] == 2


def test_a_decision_after_the_end_opens_the_session_once_more() -> None:
    store = InMemorySaver(serde=state_serializer())
    first, _ = run(small(), checkpointer=store)
    decision = {"id": "d1", "action": "edit", "proposal": 1, "plan": {"micro_batch_size": 1}, "by": "ada"}
    second, events = run(small(), checkpointer=store, decision=decision)
    again, nothing = run(small(), checkpointer=store, decision=decision)
    assert steps_of(events) == ["proposal", "verify", "learn", "report"]
    assert nothing == []
    assert again.report == second.report != first.report


@pytest.mark.parametrize(
    ("decision", "field"),
    [
        ({"action": "approve", "proposal": 4}, "proposal"),
        ({"action": "submit", "plan": {"tpp": 1}}, "plan.tpp"),
        ({"action": "reject", "by": 7}, "by"),
    ],
)
def test_a_wrong_decision_names_the_field_and_loses_nothing(decision: dict[str, Any], field: str) -> None:
    store = waiting()
    with pytest.raises(InputError, match=field):
        run(small(approval="person"), checkpointer=store, decision=decision)
    outcome, _ = run(small(approval="person"), checkpointer=store)
    assert outcome.waiting_for is not None


def test_a_session_parses_its_scenario_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[StatedScenario] = []
    resolve = StatedScenario.resolve

    def counted(stated: StatedScenario, *, need_plan: bool = False) -> Scenario:
        parsed.append(stated)
        return resolve(stated, need_plan=need_plan)

    monkeypatch.setattr(StatedScenario, "resolve", counted)
    run(small())
    assert len(parsed) == 1


def test_a_checkpoint_brings_the_state_back_typed_and_equal() -> None:
    saver = InMemorySaver(serde=state_serializer())
    run(small(approval="person"), checkpointer=saver)
    kept = saver.get_tuple({"configurable": {"thread_id": "s1"}})
    assert kept is not None
    values = kept.checkpoint["channel_values"]
    assert values["request"] == parse_scenario(small())
    assert isinstance(values["search"], SessionSearch)
    assert isinstance(values["search"].proposals[0].plan, Plan)
    again = state_serializer()
    assert all(again.loads_typed(again.dumps_typed(value)) == value for value in values.values())
