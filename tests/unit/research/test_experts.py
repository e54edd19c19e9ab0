"""Which published run is the expert's, and how a proposal is compared with it."""

import numpy as np
import pytest

from research.published import (
    SMALL_MODEL_SOURCE,
    Measurement,
    Offer,
    count_differences,
    expert_runs,
    offer,
    predicted_s,
)
from tests.unit.recommend.cases import llama
from tools.scenario import Plan, Scenario, parse_scenario
from tools.search.ranked import Ranked
from tools.search.search import SearchOutcome
from tools.search.space import table_of

ALL = frozenset(Plan.model_fields)


def scenario() -> Scenario:
    raw = llama()
    return parse_scenario({**raw, "plan": {**raw["plan"], "vpp": 5, "recompute": "none"}})


def plan(**update: object) -> Plan:
    today = scenario().plan
    assert today is not None
    return Plan.model_validate(today.model_dump() | update)


def measured(name: str, step_time_s: float, group: str = "a", source: str = "paper") -> Measurement:
    return Measurement(name, source, group, scenario(), ALL, step_time_s, None)


def test_the_expert_of_a_group_is_its_fastest_run() -> None:
    rows = [measured("slow", 20.0), measured("fast", 10.0), measured("lone", 30.0, group="b")]
    assert [run.id for run in expert_runs(rows)] == ["fast", "lone"]


def test_runs_of_the_small_model_source_are_left_out() -> None:
    rows = [measured("tiny", 1.0, group="t", source=SMALL_MODEL_SOURCE), measured("real", 5.0)]
    assert [run.id for run in expert_runs(rows)] == ["real"]


def differences(other: Plan, stated: frozenset[str] = ALL) -> int:
    return int(count_differences(plan(), stated, table_of([other]))[0])


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        ({}, 0),
        ({"tp": 4, "dp": 4, "dp_shard": 4}, 1),
        ({"tp": 4, "dp": 4, "dp_shard": 2}, 2),
        ({"vpp": 2, "schedule": "interleaved"}, 1),
        ({"recompute": "full", "sequence_parallel": False}, 2),
        ({"zero_stage": 0, "dp_shard": 1}, 1),
        ({"zero_stage": 3}, 1),
        ({"micro_batch_size": 2, "cp": 2, "dp_shard": 4}, 2),
    ],
    ids=str,
)
def test_differences_are_counted_by_field_with_sharding_as_one(
    update: dict[str, object], expected: int
) -> None:
    assert differences(plan(**update)) == expected


def test_what_the_source_does_not_state_does_not_count() -> None:
    other = plan(recompute="full", micro_batch_size=2, vpp=1, schedule="1f1b", zero_stage=3)
    assert differences(other, frozenset({"tp", "pp"})) == 0
    assert differences(other, frozenset({"tp", "pp", "micro_batch_size"})) == 1


def offered(other: Plan, ratio: float) -> Offer:
    s = scenario()
    time_s = predicted_s(s)
    ranked = Ranked(table_of([other]), np.array([time_s * ratio]), np.array([1.0]))
    counted = count_differences(plan(), ALL, ranked.plans)
    return Offer(measured("x", 1.0), SearchOutcome(ranked, ranked, 1, 1, 0.0), 1.0, counted, time_s)


def test_a_proposal_agrees_when_equal_or_within_two_percent_by_one_field() -> None:
    assert offered(plan(), 1.5).agrees(0)
    assert offered(plan(recompute="full"), 1.019).agrees(0)
    assert not offered(plan(recompute="full"), 1.03).agrees(0)
    assert not offered(plan(recompute="full", micro_batch_size=2), 1.0).agrees(0)


def test_an_offer_hides_the_plan_and_finds_it_again() -> None:
    """The expert's plan of this workload fits, so it is among the plans kept, at its predicted time."""
    found = offer(measured("llama", 15.0))
    row = int(np.argmin(found.differences))
    assert found.differences[row] == 0
    assert found.expert_time_s == predicted_s(scenario())
    assert found.found.best.step_time_s[row] == pytest.approx(found.expert_time_s, rel=1e-9)
    assert found.capacity_bytes == pytest.approx(79.1 * 2**30, rel=0.01)
