"""The search space is the set of legal plans: every one of them once, and nothing else."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.unit.search.scenes import (
    BOTH_MODELS,
    EVERY_FRAMEWORK,
    FIELDS,
    counted,
    every_legal_plan,
    scenario,
)
from tools.scenario import RECOMPUTES, PlanColumns, PlanFacts, Rule, Scenario
from tools.scenario.columns import BoolArray, encode_value, equals
from tools.search import space as space_module
from tools.search.constraints import Constraints, parse_constraints
from tools.search.space import PlanSpace


def enumerated(s: Scenario, constraints: Constraints | None = None) -> PlanColumns:
    space = PlanSpace(s, replace(constraints or Constraints(), space="all"))
    cores = space.with_micro_batch(space.with_pipeline(space.with_experts(space.degrees())))
    return space.with_sharding(cores)


def with_recompute(table: PlanColumns) -> list[tuple[int, ...]]:
    rows = []
    for code in range(len(RECOMPUTES)):
        columns = {**table, "recompute": np.full(table.rows, code)}
        rows += [tuple(row) for row in np.stack([columns[name] for name in FIELDS], axis=1).tolist()]
    return rows


@EVERY_FRAMEWORK
@BOTH_MODELS
def test_the_space_is_what_counting_all_values_finds_legal(framework: str, moe: bool) -> None:
    s = scenario(framework, moe)
    expected = {tuple(row) for row in counted(framework, moe).tolist()}
    rows = with_recompute(enumerated(s))
    assert len(expected) > 200
    assert len(rows) == len(set(rows)), "a plan is produced twice"
    assert set(rows) == expected


@pytest.mark.parametrize("framework", ["nanotron", "internevo", "torch-fsdp2"])
def test_the_other_frameworks_spaces_are_complete_too(framework: str) -> None:
    s = scenario(framework, moe=False)
    assert set(with_recompute(enumerated(s))) == {tuple(row) for row in every_legal_plan(s).tolist()}


CONSTRAINTS: list[dict[str, Any]] = [
    {"tp": 2},
    {"tp": [1, 4], "pp": 2},
    {"cp": 1, "ep": [2, 4], "etp": 1},
    {"zero_stage": 1},
    {"zero_stage": [0, 3], "dp_shard": [1, 4]},
    {"micro_batch_size": 2, "sequence_parallel": True},
    {"vpp": [1, 2], "schedule": "interleaved"},
    {"dp": 8},
]


@pytest.mark.parametrize("stated", CONSTRAINTS, ids=str)
def test_constraints_leave_just_the_plans_that_obey_them(stated: dict[str, Any]) -> None:
    s = scenario("megatron-core")
    wanted = parse_constraints(stated, None)
    rows = set(with_recompute(enumerated(s, wanted)))
    coded = {name: {encode_value(name, v) for v in values} for name, values in wanted.allowed.items()}
    obeying = {
        row
        for row in with_recompute(enumerated(s))
        if all(row[FIELDS.index(name)] in values for name, values in coded.items())
    }
    # a stage of ZeRO that the user insists on is kept where there is but one rank to shard over
    assert rows
    assert obeying <= rows
    for row in rows - obeying:
        plan = dict(zip(FIELDS, row, strict=True))
        assert (plan["dp"] * plan["cp"], plan["dp_shard"]) == (1, 1)
        assert plan["zero_stage"] in wanted.allowed["zero_stage"]
    assert bool(rows - obeying) == (stated == {"zero_stage": 1})


def test_a_typo_in_a_rule_is_an_error_and_not_a_rule_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules are tried on partly built tables; only a field that is yet to come may be missing."""

    def mistyped(facts: PlanFacts) -> BoolArray:
        return equals(facts.plan.zero_stag, 0)

    rule = Rule("mistyped", "plan.tp", "a reason", "a source", mistyped)
    monkeypatch.setattr(space_module, "rules_for", lambda framework: (rule,))
    with pytest.raises(AttributeError, match="zero_stag"):
        PlanSpace(scenario("megatron-core"), Constraints()).degrees()
