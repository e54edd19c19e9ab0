"""A scenario to export, on a cluster that every framework can fill."""

from typing import Any

from tools.scenario import Scenario, parse_scenario

MODEL: dict[str, Any] = {
    "num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64,
    "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
PLAN: dict[str, Any] = {
    "tp": 2, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "dp": 32, "dp_shard": 32, "zero_stage": 3,
    "micro_batch_size": 1, "sequence_parallel": False, "recompute": "none",
}  # fmt: skip
TRAINING: dict[str, Any] = {
    "seq_len": 8192, "global_batch_size": 128, "precision": "bf16", "framework": "other",
}  # fmt: skip
DEVICE_OF_PRECISION = {"mxfp8": "b200", "nvfp4": "b200", "int8": "tpu-v6e"}


def build(
    plan: dict[str, Any],
    model: dict[str, Any] | None = None,
    device: str | None = None,
    **training: str | bool,
) -> Scenario:
    device = device or DEVICE_OF_PRECISION.get(str(training.get("precision")), "h100-sxm-80gb")
    return parse_scenario(
        {
            "model": MODEL | (model or {}),
            "cluster": {"device": device, "num_devices": 64},
            "training": TRAINING | training,
            "plan": PLAN | plan,
        }
    )
