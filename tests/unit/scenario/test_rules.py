"""Framework rules: each refuses what the framework refuses, for one plan and for many alike."""

import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.scenario.conftest import Changes, example, parsed, parsed_plan, refusal
from tools.errors import InputError
from tools.scenario import (
    Plan,
    PlanColumns,
    PlanFacts,
    Scenario,
    get_framework,
    legal_mask,
    parse_scenario,
    rules_for,
)
from tools.scenario.frameworks import framework_names
from tools.scenario.rules import check_plan, numbers_of

FRAMEWORKS = framework_names()
MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 4096}


def stated(framework: str, plan: dict[str, Any], model: dict[str, Any], **training: int) -> Changes:
    fields = {f"training.{name}": value for name, value in training.items()}
    fields |= {f"plan.{name}": value for name, value in plan.items()}
    return (
        fields | {f"model.{name}": value for name, value in model.items()} | {"training.framework": framework}
    )


def facts_of(scenario: Scenario, plans: list[Plan]) -> PlanFacts:
    return PlanFacts(scenario.model, scenario.cluster, scenario.training, PlanColumns.of(plans))


MLA = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
WINDOWED = {"sliding_window": 128, "sliding_window_every": 2}
MAMBA = {
    "model_type": "nemotron_h", "hybrid_override_pattern": "M*" * 40, "mamba_num_heads": 64,
    "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
}  # fmt: skip
FLAT: dict[str, Any] = {
    "tp": 1, "pp": 1, "vpp": 1, "cp": 1, "dp": 64, "dp_shard": 64, "zero_stage": 3, "sequence_parallel": None,
}  # fmt: skip
BROKEN: list[tuple[str, dict[str, Any], dict[str, Any], str, str]] = [
    # framework, plan, model, field, part of the reason
    ("other", {"dp_shard": 3}, {}, "plan.dp_shard", "must divide dp * cp (8 * 1 = 8)"),
    ("other", {"micro_batch_size": 3}, {}, "training.global_batch_size", "8 * 3 = 24"),
    ("other", {"ep": 2}, {}, "plan.ep", "dense model"),
    ("other", {"ep": 16}, MOE, "plan.ep", "must divide the 8 experts"),
    ("other", FLAT | {"ep": 8, "etp": 16}, MOE, "plan.ep", "8 * 16 = 128"),
    ("other", {"pp": 1, "dp": 16, "vpp": 2}, {}, "plan.vpp", "must be 1 if pp is 1"),
    ("other", {"schedule": "1f1b"}, {}, "plan.schedule", "vpp is 5"),
    ("other", {"vpp": 1, "schedule": "interleaved"}, {}, "plan.schedule", "vpp is 1"),
    ("other", {"vpp": 41}, {}, "plan.pp", "must not exceed the 80 layers"),
    ("other", {"tp": 32, "dp": 1, "dp_shard": 1}, {"num_attention_heads": 48, "num_key_value_heads": 48},
     "plan.tp", "48 attention heads"),
    ("megatron-core", {"vpp": 7}, {}, "plan.vpp", "80 layers"),
    ("megatron-core", {"vpp": 50}, {}, "plan.pp", "must not exceed the 80 layers"),
    ("megatron-core", {"pp": 16, "dp": 1, "dp_shard": 1, "micro_batch_size": 16}, {}, "plan.vpp", "= 8)"),
    ("megatron-core", {"vpp": 1, "schedule": "zero_bubble"}, {}, "plan.schedule", "1f1b and interleaved"),
    ("megatron-core", {}, {"num_attention_heads": 66, "num_key_value_heads": 66}, "plan.tp", "66 attention"),
    ("megatron-core", {}, {"num_attention_heads": 96, "num_key_value_heads": 6}, "plan.tp", "or be a mult"),
    ("megatron-core", {}, {"intermediate_size": 28674}, "plan.tp", "28674"),
    ("megatron-core", {"zero_stage": 3}, {}, "plan.zero_stage", "pp is 2"),
    ("megatron-core", {"sequence_parallel": False}, MOE, "plan.sequence_parallel", "tp is 4"),
    ("megatron-core", {"etp": 4}, MOE | {"moe_intermediate_size": 4098}, "plan.etp", "(4098)"),
    ("torchtitan", {"tp": 16, "dp": 2, "dp_shard": 2, "zero_stage": 3}, {}, "plan.tp", "8 key/value heads"),
    ("torchtitan", {"zero_stage": 1}, {}, "plan.zero_stage", "no stage 1"),
    ("torchtitan", {"zero_stage": 3}, {"tie_word_embeddings": True}, "plan.pp", "tied embeddings"),
    ("torchtitan", {"zero_stage": 3, "vpp": 1, "schedule": "zero_bubble"}, {}, "plan.schedule", "vpp is 1"),
    ("torchtitan", {"zero_stage": 3, "vpp": 1, "micro_batch_size": 16}, {}, "plan.pp", "not 1"),
    ("torchtitan", {"zero_stage": 3, "pp": 1, "vpp": 1, "cp": 2, "dp_shard": 1}, {}, "plan.dp_shard", "(2)"),
    ("torchtitan", FLAT | {"dp_shard": 4, "ep": 8}, MOE, "plan.ep", "dp_shard * tp (4 * 1 = 4)"),
    ("torchtitan", FLAT | {"ep": 8, "etp": 2}, MOE, "plan.etp", "1 or tp"),
    ("torch-fsdp", {"zero_stage": 3, "vpp": 1}, {}, "plan.pp", "no pipeline"),
    ("torch-fsdp", FLAT | {"cp": 2, "dp": 32}, {}, "plan.cp", "must be 1"),
    ("torch-fsdp", FLAT | {"zero_stage": 1}, {}, "plan.zero_stage", "FULL_SHARD"),
    ("torch-fsdp2", FLAT | {"zero_stage": 1}, {}, "plan.zero_stage", "no stage 1"),
    ("maxtext", {"vpp": 7}, {}, "plan.pp", "equal chunks"),
    ("maxtext", {"vpp": 1}, {"num_hidden_layers": 79}, "plan.pp", "79 layers"),
    ("maxtext", {"schedule": "interleaved"}, {}, "plan.schedule", "gpipe"),
    ("maxtext", {"micro_batch_size": 16}, {}, "plan.pp", "= 1)"),
    ("maxtext", {"tp": 16, "dp": 2, "dp_shard": 2}, {}, "plan.tp", "8 key/value heads"),
    ("maxtext", {"tp": 8, "dp": 4, "dp_shard": 4, "ep": 8}, MOE, "plan.ep", "must divide dp (4)"),
    ("deepspeed", {}, {}, "plan.vpp", "must be 1"),
    ("deepspeed", {"vpp": 1, "schedule": "gpipe"}, {}, "plan.schedule", "1f1b"),
    ("deepspeed", {"vpp": 1, "zero_stage": 2}, {}, "plan.zero_stage", "pp is 2"),
    ("deepspeed", FLAT | {"ep": 8}, MOE, "plan.zero_stage", "2 or less"),
    ("deepspeed", FLAT | {"zero_stage": 1, "dp_shard": 8}, {}, "plan.dp_shard", "zero_stage 3"),
    ("deepspeed", FLAT | {"tp": 8, "cp": 8, "dp": 1, "dp_shard": 1}, {"num_attention_heads": 32},
     "plan.cp", "32 attention heads"),
    ("internevo", {"vpp": 3}, {}, "plan.vpp", "must divide the 80 layers"),
    ("internevo", {"micro_batch_size": 16}, {}, "plan.vpp", "multiple of pp (2)"),
    *(
        (name, FLAT | {"cp": 2, "dp": 32}, MAMBA, "plan.cp", "layers of Mamba or linear attention")
        for name in ("huggingface", "accelerate", "deepspeed")
    ),
    *(
        (name, FLAT | {"cp": 2, "dp": 32}, WINDOWED, "plan.cp", "see 128 of 8192 tokens")
        for name in ("huggingface", "accelerate")
    ),
    ("nanotron", {"vpp": 1, "ep": 2}, MOE, "plan.ep", "exchange none"),
    ("nanotron", {"vpp": 1}, MLA, "training.framework", "no multi-head latent attention"),
    ("maxtext", {"vpp": 1}, MAMBA, "training.framework", "no mixer but the gated delta net"),
    ("nanotron", {}, {}, "plan.vpp", "must be 1"),
    ("nanotron", {"vpp": 1, "zero_stage": 2}, {}, "plan.zero_stage", "0 or 1"),
    ("nanotron", {"vpp": 1, "schedule": "zero_bubble"}, {}, "plan.schedule", "1f1b and gpipe"),
    ("nanotron", {"vpp": 1, "dp_shard": 2}, {}, "plan.dp_shard", "all data ranks"),
    ("nanotron", {"vpp": 1, "schedule": "1f1b", "pp": 4, "dp": 4, "dp_shard": 4, "micro_batch_size": 16}, {},
     "plan.pp", "not 2"),
]  # fmt: skip


@pytest.mark.parametrize(("framework", "plan", "model", "field", "part"), BROKEN)
def test_a_framework_refuses_with_its_reason(
    framework: str, plan: dict[str, Any], model: dict[str, Any], field: str, part: str
) -> None:
    error = refusal(stated(framework, plan, model))
    assert error.path == field
    assert part in error.rule


LEGAL: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("megatron-core", {"tp": 16, "dp": 2, "dp_shard": 2}, {}),  # two ranks share a key/value head
    ("megatron-core", {"vpp": 1}, {"num_hidden_layers": 79}),  # first and last stage may differ
    ("megatron-core", {"vpp": 4}, {"num_hidden_layers": 126}),  # embedding and loss take a place each
    ("megatron-core", {"etp": 4}, {}),  # means nothing without experts
    ("megatron-core", {"tp": 1, "dp": 32, "dp_shard": 4, "sequence_parallel": True}, {}),
    ("torchtitan", {"zero_stage": 3, "vpp": 3}, {}),  # 80 layers over 6 chunks
    ("deepspeed", {"vpp": 1, "pp": 2}, {"num_hidden_layers": 79}),
    ("deepspeed", FLAT | {"dp_shard": 8}, {}),
    ("other", {"zero_stage": 2, "vpp": 1}, {"num_hidden_layers": 126}),
    ("maxtext", {"vpp": 1}, MOE | {"num_hidden_layers": 61, "first_k_dense_replace": 3}),
    ("nanotron", {"vpp": 1, "cp": 2, "dp": 4, "dp_shard": 4}, {}),
    ("deepspeed", FLAT | {"cp": 2, "dp": 32}, WINDOWED),  # Ulysses: attention sees the whole sequence
    ("huggingface", FLAT | {"cp": 2, "dp": 32}, WINDOWED | {"sliding_window": 8192}),
    ("torchtitan", {"tp": 16, "dp": 2, "dp_shard": 2, "zero_stage": 3}, MLA),  # no key/value heads to split
]


@pytest.mark.parametrize(("framework", "plan", "model"), LEGAL)
def test_what_a_framework_can_run_is_accepted(
    framework: str, plan: dict[str, Any], model: dict[str, Any]
) -> None:
    parsed(stated(framework, plan, model))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_rule_has_a_reason_that_can_be_quoted_and_a_source(framework: str) -> None:
    numbers = numbers_of(facts_of(parsed(), [parsed_plan()]))
    assert get_framework(framework).rules
    for rule in rules_for(framework):
        quoted = {name for _, name, _, _ in string.Formatter().parse(rule.reason) if name}
        assert quoted <= set(numbers), rule
        assert rule.field.split(".")[-1] in numbers
        assert len(rule.source) > 10


DEGREES = st.sampled_from([1, 2, 3, 4, 5, 8, 16, 64])
PLANS = st.builds(
    Plan,
    tp=DEGREES, pp=DEGREES, vpp=DEGREES, cp=DEGREES, ep=DEGREES, etp=DEGREES, dp=DEGREES, dp_shard=DEGREES,
    zero_stage=st.integers(0, 3), micro_batch_size=DEGREES, sequence_parallel=st.booleans(),
    recompute=st.sampled_from([None, "none", "selective", "full"]),
    schedule=st.sampled_from(["1f1b", "interleaved", "zero_bubble", "gpipe"]),
)  # fmt: skip


@pytest.mark.parametrize("framework", FRAMEWORKS)
@given(plans=st.lists(PLANS, min_size=1, max_size=20), moe=st.booleans())
@settings(max_examples=25)
def test_many_plans_at_once_are_judged_as_one_by_one(framework: str, plans: list[Plan], moe: bool) -> None:
    changes = stated(framework, {}, MOE if moe else {}) | {"plan": None}
    scenario = parse_scenario(example(changes), need_plan=False)
    legal = legal_mask(facts_of(scenario, plans))
    assert legal.shape == (len(plans),)
    for plan, is_legal in zip(plans, legal, strict=True):
        if is_legal:
            check_plan(facts_of(scenario, [plan]))
        else:
            with pytest.raises(InputError):
                check_plan(facts_of(scenario, [plan]))
