"""Levers are data: what a framework offers, in which release, on which device, for which plan."""

from typing import Any, get_args

import numpy as np
import pytest

from tests.unit.frameworks.scenarios import build
from tools.cost.predict import predict
from tools.hardware.catalogue import GENERATIONS
from tools.scenario import Facts, Scenario, columns_of
from tools.scenario.levers import NEEDS, PLAN_SETTINGS, Lever, framework_levers, offered_levers
from tools.scenario.spec import Framework, Plan, TrainingSpec

EXPERTS = {"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 2048}
ALL = [(name, lever) for name in get_args(Framework) for lever in framework_levers(name)]


def moe(plan: dict[str, Any], **training: str) -> Scenario:
    return build({"ep": 8, "dp_shard": 64, "zero_stage": 1, "tp": 1, "dp": 64} | plan, EXPERTS, **training)


def offers(scenario: Scenario, setting: str) -> set[bool | str]:
    levers = offered_levers(scenario)
    return {lever.value for lever in levers if lever.setting == setting and lever.suits(scenario)}


@pytest.mark.parametrize(("framework", "lever"), ALL, ids=lambda item: getattr(item, "setting", item))
def test_a_lever_names_a_value_that_a_scenario_can_state_and_its_source(framework: str, lever: Lever) -> None:
    assert lever.source.startswith("https://")
    assert set(lever.generations) <= set(GENERATIONS)
    if lever.setting in PLAN_SETTINGS:
        fields = {"recompute": "selective", "recompute_modules": [lever.value]}
        plan = {"pp": 2, "vpp": 2, "dp": 16, "dp_shard": 16, "schedule": lever.value}
        scenario = build(fields if lever.setting == "recompute_modules" else plan)
        assert isinstance(scenario.plan, Plan)
    else:
        stated = build({}, None, None, **{lever.setting: lever.value})
        assert getattr(stated.training, lever.setting) == lever.value


def test_every_need_is_used() -> None:
    assert {need for _, lever in ALL for need in lever.needs} == set(NEEDS)


@pytest.mark.parametrize(
    ("date", "dispatchers"),
    [
        ("2024-10", {"alltoall", "allgather"}),
        ("2025-06", {"alltoall", "allgather", "deepep"}),
        (None, {"alltoall", "allgather", "deepep", "hybridep"}),
    ],
)
def test_a_release_offers_what_it_has(date: str | None, dispatchers: set[str]) -> None:
    dated = {"software_date": date} if date else {}
    assert offers(moe({}, framework="megatron-core", **dated), "moe_dispatcher") == dispatchers


def test_fused_dispatch_needs_nvidias_devices() -> None:
    plan = {"tp": 1, "dp": 64, "dp_shard": 64, "ep": 8, "zero_stage": 1}
    amd = build(plan, EXPERTS, device="mi300x", framework="megatron-core")
    assert offers(amd, "moe_dispatcher") == {"alltoall", "allgather"}


@pytest.mark.parametrize(
    ("change", "is_offered"),
    [
        ({}, True),
        ({"recompute": "full"}, False),
        ({"ep": 1}, False),
        ({"pp": 2, "dp": 32, "dp_shard": 32}, False),
        ({"pp": 2, "vpp": 2, "dp": 32, "dp_shard": 32}, True),
        ({"recompute": "selective", "recompute_modules": ["moe"]}, False),
        ({"recompute": "selective", "recompute_modules": ["moe_act"]}, True),
    ],
)
def test_overlap_of_experts_is_offered_where_megatron_takes_it(
    change: dict[str, Any], is_offered: bool
) -> None:
    scenario = moe(change, framework="megatron-core")
    assert (True in offers(scenario, "overlap_moe_communication")) is is_offered


def test_many_plans_are_judged_as_each_alone() -> None:
    changes: list[dict[str, Any]] = [{}, {"ep": 1}, {"recompute": "full"}, {"zero_stage": 0, "dp_shard": 1}]
    scenarios = [moe(change, framework="megatron-core") for change in changes]
    first = scenarios[0]
    columns = columns_of([scenario.plan for scenario in scenarios if scenario.plan])
    facts = Facts(first.model, first.cluster, first.training, columns)
    for lever in framework_levers("megatron-core"):
        together = np.broadcast_to(lever.fits(facts), len(scenarios)).tolist()
        assert together == [lever.suits(scenario) for scenario in scenarios], lever.setting


@pytest.mark.parametrize("field", [name for name in TrainingSpec.model_fields if name.startswith("overlap_")])
def test_overlap_never_slows_a_prediction(field: str) -> None:
    plan = {"tp": 4, "dp": 16, "dp_shard": 16, "zero_stage": 1, "sequence_parallel": True, "ep": 8}
    off, on = (
        build(plan, EXPERTS, None, framework="megatron-core", **{field: state}) for state in (False, True)
    )
    slow, fast = predict([off, on])
    assert fast.step_time_s < slow.step_time_s
