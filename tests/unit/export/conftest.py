"""Scenarios to export: a dense and an MoE model on clusters that several frameworks can fill."""

import copy
from typing import Any

import pytest

EXAMPLE: dict[str, Any] = {
    "model": {
        "name": "Llama-3.1-70B",
        "num_hidden_layers": 80,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "cluster": {"device": "h100-sxm-80gb", "num_devices": 64, "devices_per_node": 8},
    "training": {
        "seq_len": 8192,
        "global_batch_size": 128,
        "precision": "bf16",
        "framework": "other",
    },
    "plan": {
        "tp": 2,
        "pp": 1,
        "vpp": 1,
        "cp": 1,
        "ep": 1,
        "dp": 32,
        "dp_shard": 32,
        "zero_stage": 3,
        "micro_batch_size": 1,
        "sequence_parallel": False,
        "recompute": "none",
    },
}


@pytest.fixture
def example() -> dict[str, Any]:
    return copy.deepcopy(EXAMPLE)
