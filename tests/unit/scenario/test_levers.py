"""Levers are data: what a framework offers, in which release, on which device, for which plan."""

from typing import Any

import pytest

from tests.unit.frameworks.scenarios import build
from tools.hardware import device_names, get_device
from tools.scenario import Scenario
from tools.scenario.frameworks import framework_names
from tools.scenario.levers import PLAN_SETTINGS, Lever, framework_levers, offered_levers
from tools.scenario.spec import Plan

EXPERTS = {"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 2048}
ALL = [(name, lever) for name in framework_names() for lever in framework_levers(name)]


def moe(plan: dict[str, Any], **training: str) -> Scenario:
    return build({"ep": 8, "dp_shard": 64, "zero_stage": 1, "tp": 1, "dp": 64} | plan, EXPERTS, **training)


def offers(scenario: Scenario, setting: str) -> set[bool | str]:
    levers = offered_levers(scenario)
    return {lever.value for lever in levers if lever.setting == setting and lever.suits(scenario)}


@pytest.mark.parametrize(("framework", "lever"), ALL, ids=lambda item: getattr(item, "setting", item))
def test_a_lever_names_a_value_that_a_scenario_can_state_and_its_source(framework: str, lever: Lever) -> None:
    assert lever.source.startswith("https://")
    assert set(lever.generations) <= {get_device(name).generation for name in device_names()}
    if lever.setting in PLAN_SETTINGS:
        fields = {"recompute": "selective", "recompute_modules": [lever.value]}
        plan = {"pp": 2, "vpp": 2, "dp": 16, "dp_shard": 16, "schedule": lever.value}
        scenario = build(fields if lever.setting == "recompute_modules" else plan)
        assert isinstance(scenario.plan, Plan)
    else:
        stated = build({}, None, None, **{lever.setting: lever.value})
        assert getattr(stated.training, lever.setting) == lever.value


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
