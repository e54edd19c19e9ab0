"""What is proposed for a framework with a configuration of its own can be written as that configuration."""

import pytest

from tests.unit.recommend.cases import MIXTRAL, Raw, in_framework, llama, recommendation, workload_for
from tools.frameworks import export_plan
from tools.recommend.score import complete, score
from tools.recommend.why_not import explain_plan
from tools.recommend.workload import CONFIGURED
from tools.scenario import parse_scenario

DEEPSPEED = in_framework(llama(), "deepspeed")


@pytest.mark.parametrize("framework", CONFIGURED)
@pytest.mark.parametrize("raw", [llama(), MIXTRAL], ids=["dense", "moe"])
@pytest.mark.parametrize(
    "training", [{}, {"seq_len": 131072, "global_batch_size": 32}], ids=["short", "long"]
)
def test_every_proposal_can_be_exported_to_its_own_framework(
    framework: str, raw: Raw, training: dict[str, object]
) -> None:
    request = in_framework(raw, framework, **training)
    proposals = recommendation(request).proposals
    assert len(proposals) == 3
    for proposal in proposals:
        export_plan(parse_scenario({**request, "plan": proposal.plan.model_dump()}), framework)


def test_what_runs_today_may_go_on_though_no_file_says_it() -> None:
    split = {**llama()["plan"], "tp": 2, "pp": 1, "dp": 32, "dp_shard": 32, "sequence_parallel": True}
    today = {**split, "zero_stage": 1, "vpp": 1, "recompute": "none"}
    proposals = recommendation({**DEEPSPEED, "plan": today}).proposals
    assert any(proposal.plan.sequence_parallel for proposal in proposals)


def test_a_constraint_of_the_user_outranks_what_the_file_can_say() -> None:
    proposals = recommendation({**DEEPSPEED, "constraints": {"recompute": "selective"}}).proposals
    assert {proposal.plan.recompute for proposal in proposals} == {"selective"}


def test_a_suggestion_that_no_file_can_say_is_not_accepted() -> None:
    workload, best = workload_for(DEEPSPEED), recommendation(DEEPSPEED).proposals[0]
    plan = complete(workload, best.plan, {"recompute": "selective"})
    assert not score(workload, plan, best).accepted
    assert "checkpoints whole layers" in explain_plan(workload, plan, best.plan).why
