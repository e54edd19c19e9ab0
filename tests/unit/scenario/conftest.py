"""A scenario that is right, for tests that then make one thing wrong."""

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
        "head_dim": 128,
        "vocab_size": 128256,
        "gated_mlp": True,
        "tie_word_embeddings": False,
    },
    "cluster": {"device": "h100-sxm-80gb", "num_devices": 64, "devices_per_node": 8},
    "training": {
        "seq_len": 8192,
        "global_batch_size": 128,
        "precision": "bf16",
        "framework": "megatron-core",
        "flash_attention": True,
    },
    "plan": {
        "tp": 4,
        "pp": 2,
        "vpp": 5,
        "cp": 1,
        "ep": 1,
        "dp": 8,
        "dp_shard": 8,
        "zero_stage": 1,
        "micro_batch_size": 1,
        "sequence_parallel": True,
        "recompute": "none",
    },
}


@pytest.fixture
def example() -> dict[str, Any]:
    return copy.deepcopy(EXAMPLE)
