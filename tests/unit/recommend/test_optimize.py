"""The report of optimize(): the contract's shape, and figures that follow from one another."""

import json

import pytest

from tests.unit.recommend.cases import (
    MIXTRAL,
    TOO_LARGE,
    TRACES,
    Raw,
    in_framework,
    llama,
    plan_of,
    recommendation,
    report,
)
from tools.cost.predict import predict
from tools.recommend.choose import FAMILY
from tools.scenario import Facts, Plan, columns_of, legal_mask, parse_scenario

PROPOSAL = {
    "rank", "role", "plan", "settings", "prediction", "speedup", "speedup_low", "speedup_high", "changes",
    "rationale", "evidence", "risks", "measured",
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


@EVERY
def test_proposals_fit_are_legal_and_keep_the_training_contract(raw: Raw) -> None:
    """The prediction is that of the same scenario under the proposed plan, with nothing else changed."""
    s, proposals = parse_scenario(raw, need_plan=False), report(raw)["proposals"]
    plans = [Plan.model_validate(proposal["plan"]) for proposal in proposals]
    assert legal_mask(Facts(s.model, s.cluster, s.training, columns_of(plans))).all()
    again = predict([s.model_copy(update={"plan": plan, "id": None}) for plan in plans])
    assert [proposal["prediction"] for proposal in proposals] == [p.model_dump() for p in again]
    for prediction in again:
        assert prediction.fits
        tokens = prediction.tokens_per_s_per_device * s.cluster.num_devices * prediction.step_time_s
        assert tokens == pytest.approx(s.training.global_batch_size * s.training.seq_len)
    families = {(*(getattr(plan, name) for name in FAMILY), plan.zero_stage >= 3) for plan in plans}
    assert len(families) == len(plans)


@WITH_TODAY
def test_speedup_and_changes_are_those_from_todays_plan(raw: Raw) -> None:
    result = report(raw)
    for proposal in result["proposals"]:
        ratio = result["baseline"]["step_time_s"] / proposal["prediction"]["step_time_s"]
        assert proposal["speedup"] == pytest.approx(ratio, rel=1e-12)
        assert proposal["speedup_low"] < proposal["speedup"] < proposal["speedup_high"]
        changed = plan_of(raw).model_dump()
        for change in proposal["changes"]:
            assert changed.get(change["field"]) == change["from"] != change["to"]
            is_list = change["field"] == "recompute_modules"
            changed[change["field"]] = change["to"].split(", ") if is_list else change["to"]
        assert changed == proposal["plan"]


def test_a_cold_start_has_no_baseline_and_no_speedup_and_the_same_proposals() -> None:
    result = report(WORKLOADS["cold"])
    assert (result["baseline"], result["diagnosis"]["lever"]) == (None, None)
    for proposal in result["proposals"]:
        assert [proposal[name] for name in ("speedup", "speedup_low", "speedup_high")] == [None] * 3
        assert proposal["changes"] == []
        assert f"{proposal['prediction']['step_time_s']:.3g} s per step" in proposal["rationale"]
    plans = [
        [proposal["plan"] for proposal in report(WORKLOADS[name])["proposals"]] for name in ("llama", "cold")
    ]
    assert plans[0] == plans[1]


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


def test_a_plan_far_from_the_best_is_not_advised_to_look_elsewhere() -> None:
    slow = TOO_LARGE | {"tp": 8, "pp": 8, "dp": 1, "recompute": "full"}
    result = report(llama(plan=slow))
    assert result["diagnosis"]["lever"] is None
    assert result["proposals"][0]["speedup_low"] > 1.0
    assert "measure before you switch" not in result["proposals"][0]["rationale"]


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


def test_constraints_bind_every_proposal() -> None:
    for proposal in recommendation(WORKLOADS["constrained"]).proposals:
        assert proposal.plan.tp == 4
        assert proposal.plan.pp in (2, 4)


def test_levers_beyond_the_contract_are_reported_and_never_proposed() -> None:
    result = report(llama())
    levers = {lever["lever"]: lever["throughput_ratio"] for lever in result["beyond_contract"]}
    assert set(levers) == {"precision fp8", "twice the global batch"}
    assert levers["precision fp8"] > 1.2
    assert levers["twice the global batch"] == pytest.approx(1.0, abs=0.05)
    assert all(proposal["prediction"]["mfu"] < 0.6 for proposal in result["proposals"])


def test_a_scenario_with_traces_is_diagnosed_by_what_they_show() -> None:
    diagnosis = recommendation(llama(traces=str(TRACES))).diagnosis
    assert diagnosis.profile is not None
    assert diagnosis.bottleneck == diagnosis.profile.bottleneck
    assert diagnosis.evidence[0].kind == "profile"
