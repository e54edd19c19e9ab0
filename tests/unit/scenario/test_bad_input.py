"""Every class of bad input gives one line that names the field, what was given and what is allowed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.scenario.conftest import ABSENT, Changes, example, refusal
from tools.errors import InputError
from tools.scenario import parse_scenario
from tools.scenario.spec import TRAINING_OPTIONS

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_random_json_is_not_a_scenario(value: object) -> None:
    with pytest.raises(InputError) as caught:
        parse_scenario(value)
    assert isinstance(value, dict) or caught.value.path == "scenario"


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("modl", "model"),
        ("model.hiden_size", "hidden_size"),
        ("model.num_hidden_layer", "num_hidden_layers"),
        ("model.vocabsize", "vocab_size"),
        ("model.num_expert_per_tok", "num_experts_per_tok"),
        ("cluster.num_device", "num_devices"),
        ("training.seq_length", "seq_len"),
        ("training.globl_batch_size", "global_batch_size"),
        ("plan.tensor_parallel", "sequence_parallel"),
        ("plan.microbatch_size", "micro_batch_size"),
        ("plan.zero", "zero_stage"),
    ],
)
def test_a_misspelt_field_is_answered_with_the_nearest(path: str, meant: str) -> None:
    error = refusal({path: 8})
    assert error.path == path
    assert meant in error.rule


NUMBERS = [
    *(f"model.{name}" for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")),
    *("cluster.num_devices", "training.seq_len", "training.global_batch_size"),
    *(
        f"plan.{name}"
        for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "dp_shard", "micro_batch_size")
    ),
]


MOE = {"model.num_experts": 8, "model.num_experts_per_tok": 2}
WRONG: list[tuple[Changes, str, str]] = [
    # degrees, names and kinds
    ({"plan.zero_stage": -1}, "plan.zero_stage", "allowed: an integer from 0 to 3"),
    ({"plan.zero_stage": 4}, "plan.zero_stage", "allowed: an integer from 0 to 3"),
    ({"plan.dp": 16}, "plan.dp", "must equal num_devices (64), but 4 * 2 * 1 * 16 = 128"),
    ({f"plan.{name}": 10**6 for name in ("tp", "pp", "cp", "dp")}, "plan.dp", "num_devices (64)"),
    ({"cluster.device": "h100-sxm-80g"}, "cluster.device", "h100-sxm-80gb"),
    ({"cluster.device": 7}, "cluster.device", "allowed: "),
    ({"cluster.overrides": [1]}, "cluster.overrides", "allowed: "),
    ({"training.framework": "megatorn-core"}, "training.framework", "did you mean megatron-core"),
    ({"training.precision": "nvfp4"}, "training.precision", "h100-sxm-80gb has fp32, tf32, fp16, bf16"),
    ({"training.precision": "int8"}, "training.precision", "h100-sxm-80gb has fp32, tf32, fp16, bf16"),
    ({"training.precision": "bf-16"}, "training.precision", "allowed: "),
    ({"training.flash_attention": "yes"}, "training.flash_attention", "allowed: "),
    ({"plan.recompute": "some"}, "plan.recompute", "allowed: "),
    ({"plan.schedule": "dualpipe"}, "plan.schedule", "allowed: "),
    ({"plan.sequence_parallel": 1}, "plan.sequence_parallel", "allowed: "),
    ({"model.gated_mlp": "silu"}, "model.gated_mlp", "allowed: "),
    ({"model.name": 70}, "model.name", "allowed: "),
    *(({"cluster.name": name}, "cluster.name", "at most 200 characters") for name in ("", 7, "x" * 201)),
    *(({"id": value}, "id", "") for value in (True, ["a"], "x" * 201, float("nan"))),
    *(({name: value}, name, "") for name, value in (("constraints", []), ("traces", 3), ("notes", {}))),
    # a model that contradicts itself
    ({"model.num_key_value_heads": 12}, "model.num_key_value_heads", ""),
    ({"model.head_dim": None, "model.num_attention_heads": 63}, "model.num_attention_heads", ""),
    ({"model.intermediate_size": 0}, "model.intermediate_size", ""),
    ({"model.kv_lora_rank": 512}, "model.qk_nope_head_dim", ""),
    ({"model.num_experts": 8}, "model.num_experts_per_tok", ""),
    (MOE | {"model.num_experts_per_tok": 9}, "model.num_experts_per_tok", ""),
    (MOE | {"model.first_k_dense_replace": 80}, "model.first_k_dense_replace", ""),
    (MOE | {"model.n_group": 3}, "model.n_group", ""),
    (MOE | {"model.n_group": 4, "model.topk_group": 5}, "model.topk_group", ""),
    (MOE | {"model.topk_group": 1}, "model.topk_group", ""),
    ({"model.n_layer": 40}, "model.n_layer", ""),
    ({"model.layer_types": ["linear_attention"]}, "model.layer_types", ""),
    ({"model.text_config": 3}, "model.text_config", ""),
    # the network
    ({"cluster.topology": []}, "cluster.topology", ""),
    ({"cluster.topology.oversubscripton": 2}, "cluster.topology.oversubscripton", ""),
    ({"cluster.topology.network": "ring"}, "cluster.topology.network", ""),
    ({"cluster.topology.oversubscription": 0.5}, "cluster.topology.oversubscription", ""),
    *(
        ({"cluster.topology.torus_dimensions": value}, "cluster.topology.torus_dimensions", part)
        for value, part in (([4, 4, 3], ""), (64, ""), ([10**6] * 1000, "num_devices (64)"))
    ),
    ({"cluster.topology.torus_dimensions": [-8, -8]}, "cluster.topology.torus_dimensions[0]", ""),
    # options of training
    *(
        ({"training.software_date": value}, "training.software_date", "2026-06")
        for value in ("2026-13", "2026-6", "June 2026", "2026-06\n", 202606)
    ),
    ({"training.moe_dispatcher": "deep-ep"}, "training.moe_dispatcher", "hybridep (did you mean deepep"),
    ({"training.moe_dispatcher": 1}, "training.moe_dispatcher", "alltoall, allgather, deepep, hybridep"),
    ({"training.overlap_moe_communication": "yes"}, "training.overlap_moe_communication", "true or false"),
    ({"training.cuda_graph": 1}, "training.cuda_graph", "none, scoped, full"),
    ({"training.optimizer_offload": "cpu"}, "training.optimizer_offload", "true or false"),
    *(
        ({"training.capacity_factor": value}, "training.capacity_factor", "above 0 and at most 1,000")
        for value in (0, float("inf"), "1.0")
    ),
    ({"training.lora": 16}, "training.lora", "a JSON object"),
    ({"training.lora.rank": 0}, "training.lora.rank", "an integer from 1 to 1,000,000"),
    ({"training.lora": {"rank": 16, "targets": []}}, "training.lora.targets", "attention"),
    ({"training.lora": {"rank": 16, "targets": ["mlp", "head"]}}, "training.lora.targets", "attention"),
    ({"training.lora": {"rank": 16, "alpha": 32}}, "training.lora.alpha", "rank, targets"),
    ({"training.lora": {"rank": 16, "weight_bits": 5}}, "training.lora.weight_bits", "4, 8 or 16"),
    # how much is recomputed, of 80 layers on two stages
    ({"plan.recompute": "selective", "plan.recompute_layers": 4}, "plan.recompute_layers", ""),
    ({"plan.recompute": "full", "plan.recompute_layers": 0}, "plan.recompute_layers", ""),
    ({"plan.recompute": "full", "plan.recompute_layers": 41}, "plan.recompute_layers", ""),
    ({"plan.recompute": "full", "plan.recompute_modules": ["mlp"]}, "plan.recompute_modules", ""),
    ({"plan.recompute": ABSENT, "plan.recompute_modules": ["mlp"]}, "plan.recompute_modules", ""),
    *(
        ({"plan.recompute": "selective", "plan.recompute_modules": value}, "plan.recompute_modules", "")
        for value in ([], [1], "mlp")
    ),
    # what is long or unprintable is not repeated
    ({"plan.a\nb\x1b[2J": 1}, "plan.a?b?[2J", ""),
    ({f"model.field_{number}": number for number in range(1001)}, "model", "at most 1,000 fields"),
    ({"traces": "x" * 4097}, "traces", "allowed: a text of at most 4,096 characters"),
]


@pytest.mark.parametrize(("changes", "field", "part"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_value_is_named_with_what_is_allowed(changes: Changes, field: str, part: str) -> None:
    error = refusal(changes)
    assert error.path == field
    assert part in error.rule


MODEL_FIELDS = (
    "head_dim num_key_value_heads intermediate_size num_experts num_local_experts num_experts_per_tok"
    " moe_layer_freq layer_types mlp_only_layers sliding_window sliding_window_pattern model_type hidden_act"
    " moe_layers text_config shared_expert_intermediate_size kv_lora_rank qk_nope_head_dim"
    " num_shared_experts n_head name n_group topk_group"
)
PATHS = [
    *NUMBERS,
    *(f"model.{name}" for name in MODEL_FIELDS.split()),
    *(f"cluster.{name}" for name in ("device", "devices_per_node", "overrides", "topology", "name")),
    *(f"training.{name}" for name in ("precision", "framework", "flash_attention", *TRAINING_OPTIONS)),
    *(f"plan.{name}" for name in ("zero_stage", "sequence_parallel", "recompute", "schedule", "other")),
]


@given(st.dictionaries(st.sampled_from(PATHS), JSON | st.integers(1, 64), min_size=1, max_size=4))
def test_random_values_give_a_scenario_or_one_line(changes: dict[str, Any]) -> None:
    message = ""
    try:
        parse_scenario(example(changes))
    except InputError as error:
        message = str(error)
    assert len(message.splitlines()) <= 1
