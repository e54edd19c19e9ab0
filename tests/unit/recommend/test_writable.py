"""What is proposed for a framework with a configuration of its own can be written as that configuration."""

import pytest

from tests.unit.recommend.cases import MIXTRAL, Raw, llama
from tools.frameworks import export_plan
from tools.recommend.optimize import optimize, workload_of
from tools.recommend.report import Proposal
from tools.recommend.score import complete, score
from tools.recommend.why_not import explain_plan
from tools.recommend.workload import OWN_FORMATS
from tools.scenario import parse_scenario

LONG = {"seq_len": 131072, "global_batch_size": 32}


def workload(framework: str, moe: bool, training: dict[str, object], **changed: object) -> Raw:
    raw: Raw = MIXTRAL if moe else llama()
    given = {**raw, "training": {**raw["training"], "framework": framework, **training}, **changed}
    return {name: value for name, value in given.items() if name != "plan"}


def proposals(raw: Raw) -> list[Proposal]:
    return optimize(parse_scenario(raw, need_plan=False)).proposals


@pytest.mark.parametrize("framework", OWN_FORMATS)
@pytest.mark.parametrize("moe", [False, True])
@pytest.mark.parametrize("training", [{}, LONG])
def test_every_proposal_can_be_exported_to_its_own_framework(
    framework: str, moe: bool, training: dict[str, object]
) -> None:
    raw = workload(framework, moe, training)
    found = proposals(raw)
    assert len(found) == 3
    for one in found:
        export_plan(parse_scenario({**raw, "plan": one.plan.model_dump()}), OWN_FORMATS[framework])


def test_what_runs_today_may_go_on_though_no_file_says_it() -> None:
    raw = workload("deepspeed", False, {})
    split = {**llama()["plan"], "tp": 2, "pp": 1, "dp": 32, "dp_shard": 32, "sequence_parallel": True}
    found = proposals({**raw, "plan": {**split, "zero_stage": 1, "vpp": 1, "recompute": "none"}})
    assert any(one.plan.sequence_parallel for one in found)


def test_a_constraint_of_the_user_outranks_what_the_file_can_say() -> None:
    found = proposals(workload("deepspeed", False, {}, constraints={"recompute": "selective"}))
    assert {one.plan.recompute for one in found} == {"selective"}


def test_a_suggestion_that_no_file_can_say_is_not_accepted() -> None:
    raw = workload("deepspeed", False, {})
    found, best = workload_of(parse_scenario(raw, need_plan=False)), proposals(raw)[0]
    winner = best.plan
    plan = complete(found, winner, {"recompute": "selective"})
    assert not score(found, plan, best).accepted
    assert "checkpoints whole layers" in explain_plan(found, plan, winner).why
