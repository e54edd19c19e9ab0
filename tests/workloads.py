"""Workloads as JSON, for tests that import the product and for those that only call it from outside."""

from typing import Any

SMALL: dict[str, Any] = {
    "model": {
        "name": "small", "num_hidden_layers": 4, "hidden_size": 2048, "intermediate_size": 8192,
        "num_attention_heads": 16, "vocab_size": 32000,
    },
    "cluster": {"device": "h100-sxm-80gb", "num_devices": 8},
    "training": {
        "seq_len": 2048, "global_batch_size": 16, "precision": "bf16", "framework": "megatron-core",
    },
    "plan": {
        "tp": 8, "pp": 1, "cp": 1, "ep": 1, "dp": 1, "dp_shard": 1, "zero_stage": 0, "micro_batch_size": 1,
        "recompute": "full",
    },
}  # fmt: skip
"""Searched in a moment, with a poor plan."""
