"""How many fields may change: none leaves today's plan, and more never finds a slower one."""

import pytest

from tests.unit.search.scenes import counted, listed, scenario
from tools.cost.predict import predict
from tools.scenario import Plan, Scenario
from tools.search.constraints import Constraints
from tools.search.search import Found, Search, count_changes
from tools.search.space import decode_row, table_of


def with_today(plan: Plan, memory_gib: float = 80.0) -> Scenario:
    s = scenario("torchtitan", memory_gib=memory_gib)
    return s.model_copy(update={"plan": plan})


def search(s: Scenario, most: int | None) -> Found:
    return Search(s, Constraints(max_changes=most)).run()


@pytest.mark.parametrize("row", [5, 1300, 2600, 4100, 5900])
def test_no_change_leaves_todays_plan_whatever_its_recomputation_and_sequence_parallelism(row: int) -> None:
    today = listed(counted("torchtitan", True)[row : row + 1])[0]
    s = with_today(today)
    found = search(s, 0)
    plans = [decode_row(found.best.plans, i) for i in range(len(found.best.step_time_s))]
    assert today.model_dump() in plans
    following = {"dp", "dp_shard", "schedule"}
    assert all(
        {k: p[k] for k in p if k not in following} == today.model_dump(exclude=following) for p in plans
    )
    prediction = predict([s])[0]
    assert found.best.step_time_s[0] <= prediction.step_time_s * (1 + 1e-9)


def test_more_changes_never_find_a_slower_plan_and_all_changes_find_the_best() -> None:
    s = with_today(listed(counted("torchtitan", True)[4100:4101])[0])
    best = [float(search(s, most).best.step_time_s[0]) for most in range(12)]
    assert best == sorted(best, reverse=True)
    assert best[0] > best[-1]
    assert best[-1] == pytest.approx(float(search(s, None).best.step_time_s[0]), rel=1e-12)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_plan_returned_changes_more_than_is_allowed(most: int) -> None:
    s = with_today(listed(counted("torchtitan", True)[2600:2601])[0])
    found = search(s, most)
    assert s.plan is not None
    assert max(count_changes(s.plan, found.best.plans)) == most
    assert max(count_changes(s.plan, found.front.plans)) <= most


def test_degrees_that_follow_from_others_are_not_counted() -> None:
    plan = {
        "tp": 2, "pp": 2, "vpp": 1, "cp": 1, "ep": 1, "etp": 1, "dp": 2, "dp_shard": 2, "zero_stage": 1,
        "micro_batch_size": 1, "sequence_parallel": True, "recompute": "none", "schedule": "1f1b",
    }  # fmt: skip
    today = Plan.model_validate(plan)

    def changes(**update: object) -> int:
        return int(count_changes(today, table_of([Plan.model_validate({**plan, **update})]))[0])

    assert changes() == 0
    assert changes(tp=1, dp=4, dp_shard=4) == 1
    assert changes(tp=1, dp=4, dp_shard=2) == 1
    assert changes(tp=1, dp=8, dp_shard=4, pp=1) == 3
    assert changes(vpp=2, schedule="interleaved") == 1
    assert changes(recompute="full", sequence_parallel=False, zero_stage=3) == 3
