"""What is proposed for a framework with a configuration of its own can be written as that configuration."""

import pytest

from tests.unit.recommend.cases import MIXTRAL, Raw, in_framework, llama, recommendation, workload_for
from tools.errors import InfeasibleError, InputError
from tools.frameworks import export_plan, has_own_format
from tools.recommend.score import complete, score
from tools.recommend.why_not import explain_plan
from tools.scenario import framework_names, parse_scenario

DEEPSPEED = in_framework(llama(), "deepspeed")


@pytest.mark.parametrize("framework", [name for name in framework_names() if has_own_format(name)])
@pytest.mark.parametrize("raw", [llama(), MIXTRAL], ids=["dense", "moe"])
@pytest.mark.parametrize(
    "training", [{}, {"seq_len": 131072, "global_batch_size": 32}], ids=["short", "long"]
)
def test_every_proposal_can_be_exported_to_its_own_framework(
    framework: str, raw: Raw, training: dict[str, object]
) -> None:
    request = in_framework(raw, framework, **training)
    proposals = recommendation(request).proposals
    assert 1 <= len(proposals) <= 3  # data parallelism alone leaves few plans for a mixture of experts
    for proposal in proposals:
        export_plan(parse_scenario({**request, "plan": proposal.plan.model_dump()}), framework)


def test_a_constraint_of_the_user_outranks_what_the_file_can_say() -> None:
    proposals = recommendation({**DEEPSPEED, "constraints": {"recompute": "selective"}}).proposals
    assert {proposal.plan.recompute for proposal in proposals} == {"selective"}


def test_nothing_is_proposed_that_the_framework_cannot_be_told_and_the_reason_is_named() -> None:
    small = in_framework(llama(), "accelerate", global_batch_size=8)
    small["model"] |= {
        "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    }  # fmt: skip
    small["cluster"] = {"device": "h100-sxm-80gb", "num_devices": 2}
    with pytest.raises(InfeasibleError, match=r"accelerate's configuration; .*tp 2.* composes tp and cp"):
        recommendation(small)
    forced = recommendation({**small, "constraints": {"zero_stage": 0}}).proposals
    assert {proposal.plan.zero_stage for proposal in forced} == {0}


def test_a_suggestion_that_no_file_can_say_is_not_accepted() -> None:
    workload, best = workload_for(DEEPSPEED), recommendation(DEEPSPEED).proposals[0]
    plan = complete(workload, best.plan, {"recompute": "selective"})
    assert not score(workload, plan, best).accepted
    assert "checkpoints whole layers" in explain_plan(workload, plan, best.plan).why


@pytest.mark.parametrize("framework", ["torchtitan", "nanotron"])
def test_a_framework_without_mamba_layers_is_refused_by_name(framework: str) -> None:
    hybrid = {"model_type": "nemotron_h", "hybrid_override_pattern": "M*" * 16, "num_hidden_layers": 32}
    raw = in_framework(llama(), framework)
    raw["model"] |= {
        **hybrid,
        "mamba_num_heads": 64,
        "mamba_head_dim": 64,
        "ssm_state_size": 128,
        "n_groups": 8,
    }
    with pytest.raises(InputError, match=r"^training\.framework: got .* has no layers of Mamba"):
        recommendation(raw)
