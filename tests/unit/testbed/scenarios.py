"""Small scenarios of the reference trainer, for its unit and integration tests."""

from typing import Any

Json = dict[str, Any]

MODEL: Json = {
    "num_hidden_layers": 4, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 64,
}  # fmt: skip
MOE: Json = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ONE_RANK: Json = {
    **dict.fromkeys(("tp", "pp", "vpp", "cp", "ep", "dp", "dp_shard", "micro_batch_size"), 1),
    "zero_stage": 0, "sequence_parallel": False, "recompute": "none",
}  # fmt: skip
TRAINING: Json = {"seq_len": 16, "global_batch_size": 8, "precision": "fp32", "framework": "torch-fsdp2"}


def scenario(
    ranks: int = 1,
    plan: Json | None = None,
    model: Json | None = None,
    device: str = "cpu",
    **training: object,
) -> Json:
    return {
        "model": MODEL | (model or {}),
        "cluster": {"device": device, "num_devices": ranks, "devices_per_node": min(ranks, 2)},
        "training": TRAINING | training,
        "plan": ONE_RANK | (plan or {}),
    }


def fsdp(dp: int, stage: int = 3, **rest: object) -> Json:
    return {"dp": dp, "dp_shard": dp, "zero_stage": stage, **rest}
