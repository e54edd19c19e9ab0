"""What people usually run is searched first; the whole space on request, or when nothing usual fits."""

import pytest

from tests.unit.search.scenes import scenario
from tools.scenario import framework_names, practice_for
from tools.search.constraints import Constraints
from tools.search.search import Search


def test_practice_leaves_out_what_nobody_runs_and_all_brings_it_back() -> None:
    s = scenario("megatron-core")
    usual, everything = (Search(s, Constraints(space=space)).run() for space in ("practice", "all"))
    stages = usual.best.plans.sharding_stage
    assert set(stages.tolist()) <= {0, 1}
    assert set(usual.best.plans["micro_batch_size"].tolist()) <= {2**n for n in range(10)}
    assert usual.searched < everything.searched
    assert {2, 3} <= set(everything.best.plans.sharding_stage.tolist())
    assert (usual.space, everything.space) == ("practice", "all")


def test_where_nothing_usual_fits_every_legal_plan_is_searched() -> None:
    s = scenario("megatron-core")
    least = {space: Search(s, Constraints(space=space)).least_bytes() for space in ("practice", "all")}
    assert least["practice"] >= least["all"]
    usual = Search(s, Constraints(), kept=10**6).run().front.memory_bytes.min()
    every = Search(s, Constraints(space="all"), kept=10**6).run().front.memory_bytes.min()
    fraction = float((usual + every) / 2 / Search(s, Constraints(max_memory_fraction=1.0)).limit_bytes)
    tight = Search(s, Constraints(max_memory_fraction=fraction)).run()
    assert every < usual
    assert len(tight.best.step_time_s)
    assert tight.space == "all"


@pytest.mark.parametrize("framework", framework_names())
def test_every_framework_has_usual_plans_for_a_small_model_and_every_habit_a_source(framework: str) -> None:
    found = Search(scenario(framework), Constraints()).run()
    assert found.space == "practice"
    assert len(found.best.step_time_s) > 1
    assert all(rule.reason and rule.source for rule in practice_for(framework))
