"""The facts of a situation: the names that playbooks may use, with the plan's own figures."""

from pathlib import Path

from tests.unit.recommend.cases import MIXTRAL, Raw, llama
from tools.kb.conditions import FACTS
from tools.recommend.diagnosis import read_profile
from tools.recommend.optimize import workload_of
from tools.recommend.situation import Facts, situation
from tools.scenario import parse_scenario

TRACES = Path(__file__).resolve().parents[3] / "examples" / "traces" / "ddp-gloo-straggler"


def facts(raw: Raw, profiled: bool = False) -> Facts:
    workload = workload_of(parse_scenario(raw))
    assert workload.scenario.plan is not None
    prediction = workload.predict([workload.scenario.plan])[0]
    profile = read_profile(str(TRACES)) if profiled else None
    return situation(workload, workload.scenario.plan, prediction, profile)


def test_every_fact_that_a_condition_may_name_is_there() -> None:
    assert set(facts(llama(), profiled=True)) - {"schedule"} == set(FACTS)


def test_facts_of_a_profile_are_absent_without_traces() -> None:
    assert not any(name.startswith("profile.") for name in facts(llama()))
    assert facts(llama())["profiled"] is False
    assert facts(llama(), profiled=True)["profile.straggler"] is True


def test_the_facts_are_those_of_the_plan() -> None:
    found = facts(llama())
    assert found["architecture"] == "dense"
    assert round(float(str(found["parameters_b"]))) == 71
    assert found["nodes"] == 8
    assert found["tp_spans_nodes"] is False
    assert abs(sum(float(str(v)) for k, v in found.items() if k.startswith("share.")) - 1.0) < 1e-9


def test_groups_that_leave_the_node_are_seen() -> None:
    raw = {**MIXTRAL, "plan": {**MIXTRAL["plan"], "tp": 1, "pp": 1, "ep": 8, "dp": 64, "dp_shard": 64}}
    found = facts(raw)
    assert found["dp_shard_spans_nodes"] is True
    assert found["ep_spans_nodes"] is False
    assert found["architecture"] == "moe"
