"""What every format shows: the scenario as it was read, the plans beside each other, nothing said twice."""

from tests.unit.graph.cases import Raw
from tests.unit.service.render.scenes import SCORED, SMALL, session, view_of


def test_memory_that_accepted_notes_state_is_the_limit_shown() -> None:
    noted = SMALL | {"notes": "only 40 GiB of memory can be used"}
    statement = {"quote": "40 GiB of memory", "kind": "override", "field": "memory_gib", "value": 40}
    report = session(SMALL) | {"notes": {"accepted": [statement], "refused": [], "says": None}}
    assert view_of(noted, report).workload.capacity_gib == 40
    assert view_of(SMALL, session(SMALL)).workload.capacity_gib > 70


def test_the_interval_is_not_a_risk_of_its_own_and_the_rationale_is_not_repeated_as_evidence() -> None:
    report = session(SMALL)
    first = report["proposals"][0]
    first["risks"] = ["a real one", first["risks"][-1]]
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
