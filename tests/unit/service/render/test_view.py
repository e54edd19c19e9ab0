"""What every format shows: the scenario as it was read, the plans beside each other, nothing said twice."""

from tests.unit.graph.cases import Raw
from tests.unit.service.render.scenes import COLD, SCORED, SMALL, session, view_of


def test_the_title_names_what_runs_where_and_the_contract_what_is_comparable() -> None:
    view = view_of(SMALL, session(SMALL))
    assert view.title == "small model on 8 x h100-sxm-80gb"
    assert view.contract == "200 M parameters, megatron-core, bf16, global batch 16, sequence length 2,048"


def test_todays_plan_comes_before_the_proposals_and_a_cold_start_has_neither_it_nor_gains() -> None:
    names = [plan.name for plan in view_of(SMALL, session(SMALL)).plans]
    assert names == ["today", *(f"proposal {rank}" for rank in range(1, len(names)))]
    cold = view_of(COLD, session(COLD)).plans
    assert all(plan.gain is None and plan.name != "today" for plan in cold)


def test_memory_that_accepted_notes_state_is_the_limit_shown() -> None:
    noted = SMALL | {"notes": "only 40 GiB of memory can be used"}
    statement = {"quote": "40 GiB of memory", "kind": "override", "field": "memory_gib", "value": 40}
    report = session(SMALL) | {"notes": {"accepted": [statement], "refused": [], "says": None}}
    assert view_of(noted, report).capacity_gib == 40
    assert view_of(SMALL, session(SMALL)).capacity_gib > 70


def test_the_interval_is_not_a_risk_of_its_own_and_the_rationale_is_not_repeated_as_evidence() -> None:
    report = session(SMALL)
    first = report["proposals"][0]
    first["risks"] = ["the prediction's 80% interval is 1 to 2 s", "a real one"]
    first["rationale"] = "Because of this. Known since long."
    first["evidence"] = [
        {"kind": "knowledge", "ref": "x", "says": "known since long"},
        {"kind": "model", "ref": "memory_gib", "says": "it fits"},
    ]
    shown = view_of(SMALL, report).proposals[0]
    assert shown.risks == ["a real one"]
    assert [item.says for item in shown.evidence] == ["it fits"]


def test_another_cluster_whose_best_plan_is_a_proposal_says_so() -> None:
    report = session(SMALL)
    best, other = report["proposals"][0]["plan"], {**report["proposals"][0]["plan"], "micro_batch_size": 7}
    report["sensitivity"] = [
        {"if": "less", "best": best, "step_time_s": 2.0, "stays": False, "says": "the fastest becomes it"},
        {"if": "more", "best": other, "step_time_s": 3.0, "stays": True, "says": "the fastest plan stays"},
        {"if": "none", "best": None, "stays": False, "says": "nothing legal fits"},
    ]
    told = dict(view_of(SMALL, report).other_clusters)
    assert told["less"] == "proposal 1 (2.00 s)"
    assert "micro-batch 7" in told["more"]
    assert told["none"] == "nothing legal fits"


def test_the_result_of_each_plan_that_was_considered() -> None:
    report = session(SMALL)
    slower: Raw = {**SCORED, "origin": "book", "step_time_ratio": 1.25}
    report["considered"] = [
        slower,
        {**slower, "binding": "memory", "why": "needs more"},
        {**slower, "plan": report["proposals"][0]["plan"]},
    ]
    results = [result for _, _, result in view_of(SMALL, report).considered]
    assert results == ["step 25.0% longer than proposal 1", "needs more", "proposal 1"]


def test_parts_too_small_to_be_seen_in_any_bar_are_not_named() -> None:
    view = view_of(SMALL, session(SMALL))
    assert "ep_comm_exposed" not in view.step_terms
    assert "compute" in view.step_terms
    assert "activations" in view.memory_terms
