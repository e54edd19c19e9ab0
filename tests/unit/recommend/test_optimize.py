"""The report of optimize(): the contract's shape, and figures that follow from one another."""

import json
from dataclasses import replace

import pytest

from tests.unit.recommend.cases import (
    MIXTRAL,
    TOO_LARGE,
    Raw,
    in_framework,
    llama,
    plan_of,
    report,
)
from tools.model.observations import with_seen
from tools.model.runs import Measured, Run
from tools.recommend.optimize import propose, workload_of
from tools.scenario import Plan, parse_scenario

PROPOSAL = {
    "rank", "role", "plan", "settings", "prediction", "speedup", "speedup_low", "speedup_high", "changes",
    "why", "rationale", "evidence", "risks", "measured", "checkpoint", "two_runs", "robustness",
}  # fmt: skip
KINDS = {"profile", "roofline", "model", "knowledge", "trial"}
WORKLOADS: dict[str, Raw] = {
    "llama": llama(),
    "cold": llama(plan=None),
    "too-large-today": llama(plan=TOO_LARGE),
    "mixtral": MIXTRAL,
    "torchtitan": in_framework(llama(), "torchtitan"),
    "constrained": llama(constraints={"tp": 4, "pp": [2, 4]}),
}
EVERY = pytest.mark.parametrize("raw", WORKLOADS.values(), ids=WORKLOADS.keys())
WITH_TODAY = pytest.mark.parametrize(
    "raw", [pytest.param(raw, id=name) for name, raw in WORKLOADS.items() if "plan" in raw]
)


@EVERY
def test_the_report_has_the_contracts_keys_and_is_json(raw: Raw) -> None:
    result = report(raw)
    assert {"diagnosis", "baseline", "proposals", "rejected", "searched", "reasoner"} <= set(result)
    assert 1 <= len(result["proposals"]) <= 3
    assert result["searched"]["plans"] >= result["searched"]["timed"] > 0
    assert result["searched"]["seconds"] > 0
    assert result["reasoner"] == "expert-rules"
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    for rank, proposal in enumerate(result["proposals"], start=1):
        assert set(proposal) == PROPOSAL
        assert (proposal["rank"], proposal["measured"]) == (rank, None)
        assert all(set(e) == {"kind", "ref", "says"} and e["kind"] in KINDS for e in proposal["evidence"])
        assert all(isinstance(risk, str) and risk for risk in proposal["risks"])
        assert all(set(c) == {"field", "from", "to"} for c in proposal["changes"])


@WITH_TODAY
def test_speedup_and_changes_are_those_from_todays_plan_if_it_can_run(raw: Raw) -> None:
    result = report(raw)
    for proposal in result["proposals"]:
        ratio = result["baseline"]["step_time_s"] / proposal["prediction"]["step_time_s"]
        if result["baseline"]["fits"]:
            assert proposal["speedup"] == pytest.approx(ratio, rel=1e-12)
            assert proposal["speedup_low"] < proposal["speedup"] < proposal["speedup_high"]
        else:
            assert proposal["speedup"] is None
        changed = plan_of(raw).model_dump()
        for change in proposal["changes"]:
            assert changed.get(change["field"]) == change["from"] != change["to"]
            is_list = change["field"] == "recompute_modules"
            changed[change["field"]] = change["to"].split(", ") if is_list else change["to"]
        assert changed == proposal["plan"]


def test_a_plan_that_does_not_fit_is_reported_and_never_called_as_good() -> None:
    result = report(WORKLOADS["too-large-today"])
    needs = result["baseline"]["peak_memory_gib"]
    assert not result["baseline"]["fits"]
    assert (result["diagnosis"]["bottleneck"], result["diagnosis"]["lever"]) == ("memory", None)
    for proposal in result["proposals"]:
        assert proposal["rationale"].startswith(f"Today's plan needs {needs:.1f} GiB of 79.1; this one fits.")
        assert "measure before you switch" not in proposal["rationale"]


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_with_the_winner_as_todays_plan_sharding_is_not_the_lever(name: str) -> None:
    winner = report(WORKLOADS[name])["proposals"][0]["plan"]
    result = report(WORKLOADS[name] | {"plan": winner})
    first = result["proposals"][0]
    assert result["diagnosis"]["lever"].startswith("Sharding is not your lever")
    assert "Look at " in result["diagnosis"]["lever"]
    assert (first["plan"], first["changes"]) == (winner, [])
    assert [first[name] for name in ("speedup", "speedup_low", "speedup_high")] == [1.0] * 3


@EVERY
def test_the_diagnosis_shares_are_of_the_breakdown_and_add_up_to_one(raw: Raw) -> None:
    result = report(raw)
    diagnosis, prediction = result["diagnosis"], result["baseline"] or result["proposals"][0]["prediction"]
    assert sum(diagnosis["shares"].values()) == pytest.approx(1.0)
    assert diagnosis["share"] == diagnosis["shares"][diagnosis["bottleneck"]]
    parts = prediction["breakdown_s"]
    compute = (parts["compute"] + parts["recompute"]) / prediction["step_time_s"]
    assert diagnosis["shares"]["compute"] == pytest.approx(compute)
    assert diagnosis["bottleneck"] == prediction["bottleneck"]


@pytest.mark.parametrize(("share", "stays"), [(0.97, True), (0.85, False)])
def test_todays_plan_stays_unless_another_is_known_to_have_run_clearly_faster(
    share: float, stays: bool
) -> None:
    """Two runs that were told have no error of a comparison of predictions between them."""
    best, other, *_ = [entry["plan"] for entry in report(llama())["proposals"]]
    workload = workload_of(parse_scenario(llama(plan=best)))
    today = workload.today()
    assert today is not None
    step_s = today.prediction.step_time_s
    runs = [
        Run(
            scenario=workload.with_plan(plan),
            measured=Measured(step_time_s=seconds),
            id=str(seconds),
            source="notes",
        )
        for plan, seconds in ((today.plan, step_s), (Plan(**other), share * step_s))
    ]
    told = replace(workload, calibration=with_seen(workload.calibration, runs))
    assert (propose(told).proposals[0].plan == today.plan) == stays
