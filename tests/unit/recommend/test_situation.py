"""The facts of a situation that playbooks may name, a playbook's moves on a real plan, and whether a
proposal makes them."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.unit.recommend.cases import MIXTRAL, TRACES, Raw, llama, plan_of, workload_for
from tools.kb.conditions import FACTS
from tools.recommend.diagnosis import read_profile
from tools.recommend.report import PlanFields
from tools.recommend.situation import Facts, agrees, resolve_moves, situation

SCENARIO = workload_for(llama()).scenario
TODAY = plan_of(llama())


def facts(raw: Raw, profiled: bool = False) -> Facts:
    workload, plan = workload_for(raw), plan_of(raw)
    return situation(
        workload, plan, workload.predict([plan])[0], read_profile(str(TRACES)) if profiled else None
    )


def test_every_fact_that_a_condition_may_name_is_there_and_those_of_a_profile_only_with_traces() -> None:
    profiled, plain = facts(llama(), profiled=True), facts(llama())
    assert set(profiled) - {"schedule"} == set(FACTS)
    assert profiled["profile.straggler"] is True
    assert plain["profiled"] is False
    assert not any(name.startswith("profile.") for name in plain)


def test_a_plan_that_recomputes_named_modules_has_facts_that_a_session_can_keep() -> None:
    selective = {**MIXTRAL["plan"], "recompute": "selective", "recompute_modules": ["layernorm", "moe_act"]}
    kept = facts({**MIXTRAL, "plan": selective})
    assert kept["recompute"] == "selective"
    assert TypeAdapter(Facts).validate_python(kept) == kept


@pytest.mark.parametrize(
    ("move", "fields"),
    [
        ({"tp": "/2"}, {"tp": TODAY.tp // 2}),
        ({"micro_batch_size": "x2"}, {"micro_batch_size": 2}),
        ({"tp": "devices_per_node"}, {"tp": 8}),
        ({"dp_shard": "all_data_ranks"}, {"dp_shard": TODAY.dp * TODAY.cp}),
        ({"dp_shard": "all_data_ranks", "tp": "/2"}, {"dp_shard": 2 * TODAY.dp, "tp": TODAY.tp // 2}),
        ({"cp": "x2", "dp_shard": "all_data_ranks"}, {"cp": 2, "dp_shard": TODAY.dp}),
        ({"dp": 8, "dp_shard": "all_data_ranks"}, {"dp": 8, "dp_shard": 8}),
        ({"recompute": "selective", "zero_stage": 1}, {"recompute": "selective", "zero_stage": 1}),
    ],
)
def test_a_move_becomes_figures_of_the_plan(move: dict[str, Any], fields: dict[str, Any]) -> None:
    assert resolve_moves([move], TODAY, SCENARIO) == [fields]


def test_sharding_over_all_data_ranks_of_a_plan_with_one_is_over_those_of_the_changed_plan() -> None:
    """Defect 5: "dp 8, ZeRO 3 over 1"."""
    alone = TODAY.model_copy(update={"tp": 8, "pp": 8, "dp": 1, "dp_shard": 1, "zero_stage": 0})
    move: PlanFields = {"tp": "/8", "zero_stage": 3, "dp_shard": "all_data_ranks"}
    assert resolve_moves([move], alone, SCENARIO) == [{"tp": 1, "zero_stage": 3, "dp_shard": 8}]


@pytest.mark.parametrize(
    ("move", "agreed"),
    [
        ({"tp": TODAY.tp // 2}, True),
        ({"tp": TODAY.tp * 2}, False),
        ({"recompute": "none"}, True),
        ({"recompute": "selective"}, False),
        ({"tp": TODAY.tp // 2, "pp": TODAY.pp * 2}, False),
        ({}, False),
    ],
)
def test_a_proposal_agrees_with_a_move_in_its_direction_only(move: PlanFields, agreed: bool) -> None:
    after = TODAY.model_copy(update={"tp": TODAY.tp // 4, "recompute": "none"})
    assert agrees(move, TODAY, after) is agreed
