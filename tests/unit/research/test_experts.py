"""Which published run is the expert's, and what the search offers for its workload."""

import numpy as np

from research.published import SMALL_MODEL_SOURCE, Measurement, expert_runs, offer
from tests.unit.recommend.cases import llama
from tools.recommend.choose import FAMILY
from tools.scenario import Plan, Scenario, parse_scenario

ALL = frozenset(Plan.model_fields)


def scenario(**training: object) -> Scenario:
    raw = llama()
    plan = {**raw["plan"], "vpp": 5, "recompute": "none"}
    return parse_scenario({**raw, "plan": plan, "training": {**raw["training"], **training}})


def measured(name: str, step_time_s: float, group: str = "a", source: str = "paper") -> Measurement:
    return Measurement(name, source, group, scenario(), ALL, step_time_s, None)


def test_the_expert_of_a_group_is_its_fastest_run() -> None:
    rows = [measured("slow", 20.0), measured("fast", 10.0), measured("lone", 30.0, group="b")]
    assert [run.id for run in expert_runs(rows)] == ["fast", "lone"]


def test_runs_of_tiny_models_and_from_before_flash_attention_are_left_out() -> None:
    old = Measurement("old", "paper", "o", scenario(flash_attention=False), ALL, 1.0, None)
    tiny = measured("tiny", 1.0, group="t", source=SMALL_MODEL_SOURCE)
    assert [run.id for run in expert_runs([old, tiny, measured("real", 5.0)])] == ["real"]


def test_an_offer_hides_the_plan_and_finds_its_family_again() -> None:
    found = offer(measured("llama", 15.0))
    assert found.workload.scenario.plan is None
    degrees = np.stack([found.found.best.plans[name] for name in FAMILY], axis=1)
    assert np.any(np.all(degrees == np.array(found.family), axis=1))
    assert len(np.unique(degrees, axis=0)) > 5


def test_a_frozen_offer_keeps_the_experts_sharding_and_recomputation() -> None:
    found = offer(measured("llama", 15.0), frozen=True).found.best.plans
    plan = scenario().plan
    assert plan is not None
    assert set(found["zero_stage"][found["dp_shard"] > 1].tolist()) == {plan.zero_stage}
    assert set(found["recompute"].tolist()) == {0}
