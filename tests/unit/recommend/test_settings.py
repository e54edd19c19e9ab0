"""Switches that leave the numerics alone are searched beside the plan, listed, priced and checked."""

import copy

from tests.unit.recommend.cases import MIXTRAL, workload_for
from tools.recommend.optimize import best_settings, optimize
from tools.recommend.proposal import recheck
from tools.scenario import parse_scenario
from tools.scenario.levers import offered_levers


def with_training(raw: dict[str, object], **training: object) -> dict[str, object]:
    changed = copy.deepcopy(raw)
    part = changed["training"]
    assert isinstance(part, dict)
    part.update(training)
    return changed


def test_settings_are_offered_by_the_framework_and_make_the_plan_faster() -> None:
    slow = with_training(MIXTRAL, moe_dispatcher="allgather", overlap_moe_communication=False)
    workload = workload_for(slow)
    for proposal in optimize(parse_scenario(slow)).proposals:
        offered = {(lever.setting, lever.value) for lever in offered_levers(workload.scenario)}
        assert {*proposal.settings.items()} <= offered
        untuned = workload.predict([proposal.plan])[0].step_time_s
        assert proposal.prediction.step_time_s <= untuned
        # nothing that is left to change helps
        assert best_settings(workload.with_settings(proposal.settings), proposal.plan) == {}


def test_the_second_computation_knows_the_settings() -> None:
    slow = with_training(MIXTRAL, moe_dispatcher="allgather")
    workload, made = workload_for(slow), optimize(parse_scenario(slow))
    assert recheck(workload, made.proposals, made.baseline).holds
    forgotten = [proposal.model_copy(update={"settings": {}}) for proposal in made.proposals]
    assert not recheck(workload, forgotten, made.baseline).holds
