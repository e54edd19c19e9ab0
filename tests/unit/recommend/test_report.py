"""The report: the contract's shape, figures that follow from one another, and words that quote them."""

import json
import math
import re
from pathlib import Path

import pytest

from tests.unit.recommend.cases import MIXTRAL, Raw, in_framework, llama, recommendation, report
from tools.cost.predict import predict
from tools.recommend.choose import FAMILY
from tools.recommend.words import TERMS, format_same_decimals, span
from tools.scenario import Facts, Plan, columns_of, legal_mask, parse_scenario

TRACES = Path(__file__).resolve().parents[3] / "examples" / "traces" / "ddp-gloo-straggler"
PROPOSAL = {
    "rank", "plan", "prediction", "speedup", "speedup_low", "speedup_high", "changes", "rationale",
    "evidence", "risks", "measured",
}  # fmt: skip
KINDS = {"profile", "roofline", "model", "knowledge", "trial"}
TOO_LARGE = {
    "tp": 1, "pp": 1, "cp": 1, "ep": 1, "dp": 64, "dp_shard": 1, "zero_stage": 0, "micro_batch_size": 1,
    "recompute": "none",
}  # fmt: skip
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
    "raw",
    [r for r in WORKLOADS.values() if "plan" in r],
    ids=[n for n, r in WORKLOADS.items() if "plan" in r],
)


@EVERY
def test_the_report_has_the_contract_s_keys_and_is_json(raw: Raw) -> None:
    found = report(raw)
    assert {"diagnosis", "baseline", "proposals", "rejected", "searched", "reasoner"} <= set(found)
    assert 1 <= len(found["proposals"]) <= 3
    assert found["searched"]["plans"] >= found["searched"]["timed"] > 0
    assert found["searched"]["seconds"] > 0
    assert found["reasoner"] == "expert-rules"
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@EVERY
def test_a_proposal_has_the_contract_s_keys_exactly(raw: Raw) -> None:
    for rank, one in enumerate(report(raw)["proposals"], start=1):
        assert set(one) == PROPOSAL
        assert one["rank"] == rank
        assert one["measured"] is None
        assert all(set(e) == {"kind", "ref", "says"} and e["kind"] in KINDS for e in one["evidence"])
        assert all(isinstance(risk, str) and risk for risk in one["risks"])
        assert all(set(c) == {"field", "from", "to"} for c in one["changes"])


@EVERY
def test_proposals_fit_are_legal_and_keep_the_training_contract(raw: Raw) -> None:
    """The prediction is that of the same scenario under the proposed plan, with nothing else changed."""
    s = parse_scenario(raw, need_plan=False)
    plans = [Plan.model_validate(one["plan"]) for one in report(raw)["proposals"]]
    assert legal_mask(Facts(s.model, s.cluster, s.training, columns_of(plans))).all()
    again = predict([s.model_copy(update={"plan": plan, "id": None}) for plan in plans])
    assert [one["prediction"] for one in report(raw)["proposals"]] == [one.model_dump() for one in again]
    for one in report(raw)["proposals"]:
        assert one["prediction"]["fits"]
        rate = one["prediction"]["tokens_per_s_per_device"] * s.cluster.num_devices
        tokens = rate * one["prediction"]["step_time_s"]
        assert tokens == pytest.approx(s.training.global_batch_size * s.training.seq_len)


@EVERY
def test_proposals_belong_to_different_families(raw: Raw) -> None:
    plans = [one["plan"] for one in report(raw)["proposals"]]
    families = {(*(plan[name] for name in FAMILY), plan["zero_stage"] >= 3) for plan in plans}
    assert len(families) == len(plans)


@WITH_TODAY
def test_the_speed_up_is_the_baseline_over_the_prediction_inside_its_interval(raw: Raw) -> None:
    found = report(raw)
    for one in found["proposals"]:
        ratio = found["baseline"]["step_time_s"] / one["prediction"]["step_time_s"]
        assert one["speedup"] == pytest.approx(ratio, rel=1e-12)
        assert one["speedup_low"] < one["speedup"] < one["speedup_high"]


@WITH_TODAY
def test_changes_turn_todays_plan_into_the_proposal(raw: Raw) -> None:
    today = parse_scenario(raw).plan
    assert today is not None
    for one in report(raw)["proposals"]:
        changed = today.model_dump()
        for change in one["changes"]:
            assert changed[change["field"]] == change["from"] != change["to"]
            changed[change["field"]] = change["to"]
        assert changed == one["plan"]


@WITH_TODAY
def test_the_rationale_quotes_terms_of_the_two_breakdowns(raw: Raw) -> None:
    found = report(raw)
    before, by_words = found["baseline"]["breakdown_s"], {words: term for term, words in TERMS.items()}
    told = 0
    for one in found["proposals"]:
        after = one["prediction"]["breakdown_s"]
        for words, old, new in re.findall(
            r"([a-zA-Z][a-z -]*?) \(([\d.e-]+) to ([\d.e-]+) s\)", one["rationale"]
        ):
            term = next(by_words[w] for w in by_words if words.lower().removeprefix("and ").endswith(w))
            assert [old, new] == format_same_decimals(before[term], after[term])
            told += 1
    assert told >= len(found["proposals"])


@WITH_TODAY
def test_what_shrinks_shrinks_and_what_grows_grows(raw: Raw) -> None:
    for one in report(raw)["proposals"]:
        for part in re.split(r"[;.] ", one["rationale"]):
            pairs = re.findall(r"\(([\d.e-]+) to ([\d.e-]+) s\)", part)
            if re.search(r"shrinks?\b", part):
                assert all(float(old) >= float(new) for old, new in pairs)
            if re.search(r"grows?\b", part):
                assert all(float(old) <= float(new) for old, new in pairs)


def test_a_cold_start_has_no_baseline_and_no_speed_up() -> None:
    found = report(WORKLOADS["cold"])
    assert found["baseline"] is None
    assert found["diagnosis"]["lever"] is None
    for one in found["proposals"]:
        assert (one["speedup"], one["speedup_low"], one["speedup_high"], one["changes"]) == (
            None,
            None,
            None,
            [],
        )
        assert f"{one['prediction']['step_time_s']:.3g} s per step" in one["rationale"]


def test_todays_plan_does_not_change_what_is_proposed() -> None:
    plans = [[one["plan"] for one in report(WORKLOADS[name])["proposals"]] for name in ("llama", "cold")]
    assert plans[0] == plans[1]


def test_a_plan_that_does_not_fit_is_told_so_and_never_called_as_good() -> None:
    found = report(WORKLOADS["too-large-today"])
    needs = found["baseline"]["peak_memory_gib"]
    assert not found["baseline"]["fits"]
    assert found["diagnosis"]["bottleneck"] == "memory"
    assert found["diagnosis"]["lever"] is None
    for one in found["proposals"]:
        assert one["rationale"].startswith(f"Today's plan needs {needs:.1f} GiB of 79.1; this one fits.")
        assert "measure before you switch" not in one["rationale"]


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_with_the_winner_as_todays_plan_sharding_is_not_the_lever(name: str) -> None:
    raw = WORKLOADS[name]
    winner = report(raw)["proposals"][0]["plan"]
    found = report(raw | {"plan": winner})
    first = found["proposals"][0]
    assert found["diagnosis"]["lever"].startswith("Sharding is not your lever")
    assert "Look at " in found["diagnosis"]["lever"]
    assert first["plan"] == winner
    assert (first["speedup"], first["speedup_low"], first["speedup_high"], first["changes"]) == (
        1.0,
        1.0,
        1.0,
        [],
    )


def test_a_plan_far_from_the_best_is_not_told_to_look_elsewhere() -> None:
    slow = {
        "tp": 8,
        "pp": 8,
        "cp": 1,
        "ep": 1,
        "dp": 1,
        "dp_shard": 1,
        "zero_stage": 0,
        "micro_batch_size": 1,
    }
    found = report(llama(plan=slow | {"recompute": "full"}))
    assert found["diagnosis"]["lever"] is None
    assert found["proposals"][0]["speedup_low"] > 1.0
    assert "measure before you switch" not in found["proposals"][0]["rationale"]


@WITH_TODAY
def test_a_difference_inside_the_error_of_a_comparison_is_called_that(raw: Raw) -> None:
    found = report(raw)
    for one in found["proposals"]:
        half_width = math.log(one["speedup_high"] / one["speedup"])
        inside = abs(math.log(one["speedup"])) <= half_width and found["baseline"]["fits"]
        assert ("inside the error of a comparison: measure" in one["rationale"]) == inside


@EVERY
def test_every_proposal_tells_its_interval_and_a_tight_memory(raw: Raw) -> None:
    for one in report(raw)["proposals"]:
        p = one["prediction"]
        interval = span(p["step_time_low_s"], p["step_time_high_s"])
        assert any(f"{interval} s" in risk for risk in one["risks"])
        assert any("GiB of memory are left" in risk for risk in one["risks"]) == (
            p["peak_memory_gib"] > 0.95 * 79.1
        )


def test_slower_links_are_a_risk_of_the_size_that_a_prediction_gives() -> None:
    raw = llama()
    one = report(raw)["proposals"][0]
    risk = next(r for r in one["risks"] if "half the network bandwidth" in r)
    slow = json.loads(json.dumps(raw | {"plan": one["plan"]}))
    slow["cluster"]["overrides"] = {"inter_node_gbps_per_device": 200}
    longer = predict([parse_scenario(slow)])[0].step_time_s / one["prediction"]["step_time_s"] - 1.0
    assert f"{longer:.0%} longer" in risk


@pytest.mark.parametrize("gbps", [0.41, 399_000])
def test_links_near_the_limits_of_an_override_can_still_be_halved_and_doubled(gbps: float) -> None:
    raw = llama()
    raw["cluster"] = raw["cluster"] | {"overrides": {"inter_node_gbps_per_device": gbps}}
    found = report(raw)
    halved = next(one for one in found["sensitivity"] if one["if"] == "half the bandwidth between nodes")
    assert halved["step_time_s"] >= found["pareto"][0]["step_time_s"]


@EVERY
def test_the_diagnosis_shares_are_of_the_breakdown_and_add_up_to_one(raw: Raw) -> None:
    found = report(raw)
    diagnosis = found["diagnosis"]
    told = found["baseline"] or found["proposals"][0]["prediction"]
    assert sum(diagnosis["shares"].values()) == pytest.approx(1.0)
    assert diagnosis["share"] == diagnosis["shares"][diagnosis["bottleneck"]]
    compute = told["breakdown_s"]["compute"] / told["step_time_s"]
    assert diagnosis["shares"]["compute"] == pytest.approx(compute)
    assert diagnosis["bottleneck"] == told["bottleneck"]


def test_constraints_bind_every_proposal() -> None:
    for one in report(WORKLOADS["constrained"])["proposals"]:
        assert one["plan"]["tp"] == 4
        assert one["plan"]["pp"] in (2, 4)


def test_a_faster_plan_behind_a_preferred_one_is_told() -> None:
    for raw in WORKLOADS.values():
        proposals = report(raw)["proposals"]
        times = [one["prediction"]["step_time_s"] for one in proposals]
        for i, one in enumerate(proposals):
            overtaken = any(later < times[i] for later in times[i + 1 :])
            assert any(e["kind"] == "knowledge" for e in one["evidence"]) == overtaken


@EVERY
def test_the_pareto_front_falls_in_memory_as_time_rises(raw: Raw) -> None:
    front = report(raw)["pareto"]
    times, memory = ([point[name] for point in front] for name in ("step_time_s", "peak_memory_gib"))
    assert 1 <= len(front) <= 20
    assert times == sorted(times)
    assert memory == sorted(memory, reverse=True)
    assert all(m <= 0.92 * 79.11 for m in memory)
    assert times[0] <= min(one["prediction"]["step_time_s"] for one in report(raw)["proposals"]) * (1 + 1e-9)


def test_sensitivity_names_a_plan_and_time_for_each_case() -> None:
    found = report(llama())
    fastest = found["pareto"][0]["step_time_s"]
    by_case = {case["if"]: case for case in found["sensitivity"]}
    assert len(by_case) == 6
    assert by_case["32 devices"]["step_time_s"] > fastest > by_case["128 devices"]["step_time_s"]
    assert by_case["half the bandwidth between nodes"]["step_time_s"] >= fastest
    assert by_case["twice the bandwidth between nodes"]["step_time_s"] <= fastest
    assert by_case["a tenth less memory"]["step_time_s"] >= fastest
    for case in found["sensitivity"]:
        assert case["best"] is not None
        assert case["says"].startswith("the fastest ")


def test_levers_beyond_the_contract_are_told_and_never_proposed() -> None:
    found = report(llama())
    levers = {one["lever"]: one for one in found["beyond_contract"]}
    assert set(levers) == {"precision fp8", "twice the global batch"}
    assert levers["precision fp8"]["throughput_ratio"] > 1.2
    assert levers["twice the global batch"]["throughput_ratio"] == pytest.approx(1.0, abs=0.05)
    assert all(one["prediction"]["mfu"] < 0.6 for one in found["proposals"])


def test_a_scenario_with_traces_is_diagnosed_by_what_they_show() -> None:
    found = recommendation(llama(traces=str(TRACES)))
    profile = found.diagnosis.profile
    assert profile is not None
    assert found.diagnosis.bottleneck == profile.bottleneck
    assert found.diagnosis.evidence[0].kind == "profile"
