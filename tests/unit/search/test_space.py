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
    listed,
    scenario,
)
from tools.scenario import RECOMPUTES, Facts, Rule, Scenario, legal_mask
from tools.scenario.columns import BoolArray, encode_value, equals
from tools.search import space as space_module
from tools.search.constraints import Constraints, parse_constraints
from tools.search.space import PlanSpace, Table, count, decode_row, divisors, table_of, to_columns


def enumerated(s: Scenario, constraints: Constraints | None = None) -> Table:
    space = PlanSpace(s, replace(constraints or Constraints(), space="all"))
    cores = space.with_micro_batch(space.with_pipeline(space.with_experts(space.degrees())))
    return space.with_sharding(cores)


def with_recompute(table: Table) -> list[tuple[int, ...]]:
    rows = []
    for code in range(len(RECOMPUTES)):
        columns = {**table, "recompute": np.full(count(table), code)}
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


@EVERY_FRAMEWORK
def test_every_enumerated_plan_of_a_larger_cluster_is_legal(framework: str) -> None:
    s = scenario(framework, devices=96, batch=192)
    table = enumerated(s)
    plans = to_columns({**table, "recompute": np.zeros(count(table), dtype=np.int64)})
    assert count(table) > 1000
    assert np.all(legal_mask(Facts(s.model, s.cluster, s.training, plans)))


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


def test_a_prime_number_of_devices_has_a_space_unless_no_data_degree_divides_the_batch() -> None:
    table = enumerated(scenario("torchtitan", devices=7, batch=7))
    assert set(table["dp"].tolist()) >= {7}
    assert np.all(table["tp"] * table["pp"] * table["cp"] * table["dp"] == 7)
    assert count(enumerated(scenario("torch-fsdp", moe=False, devices=7, batch=3))) == 0


def test_divisors_are_those_of_counting() -> None:
    for number in range(1, 200):
        assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]


def test_a_plan_survives_the_way_into_a_table_and_back() -> None:
    plans = listed(counted("megatron-core", False)[::97])
    table = table_of(plans)
    assert [decode_row(table, row) for row in range(len(plans))] == [plan.model_dump() for plan in plans]


def test_a_typo_in_a_rule_is_an_error_and_not_a_rule_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules are tried on partly built tables; only a field that is yet to come may be missing."""

    def mistyped(facts: Facts) -> BoolArray:
        return equals(facts.plan.zero_stag, 0)

    rule = Rule("mistyped", "plan.tp", "a reason", "a source", mistyped)
    monkeypatch.setattr(space_module, "rules_for", lambda framework: (rule,))
    with pytest.raises(AttributeError, match="zero_stag"):
        PlanSpace(scenario("megatron-core"), Constraints()).degrees()
