"""Which published run is the expert's, and what the search offers for its workload."""

import numpy as np

from research.published import Measurement, offer
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
