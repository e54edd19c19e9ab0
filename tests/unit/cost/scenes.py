"""Scenarios by a few words, for the tests of the cost model: a model, a device and the degrees of a plan."""

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tools.cost.constants import Coefficients, RowKeys, resolve
from tools.cost.encode import encode
from tools.cost.inputs import Array, Inputs
from tools.cost.memory import MemorySettings, memory_settings
from tools.cost.predict import Costs, evaluate
from tools.scenario import Scenario, parse_scenario
from tools.scenario.spec import TRAINING_OPTIONS

LLAMA: dict[str, Any] = {"head_dim": 128, "num_key_value_heads": 8, "vocab_size": 128256}
MODELS: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": LLAMA
    | {
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
    },
    "llama-3.1-70b": LLAMA
    | {
        "num_hidden_layers": 80,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_attention_heads": 64,
    },
    "mixtral-8x7b": {
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 32000,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 14336,
    },
    "deepseek-v3": {
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "vocab_size": 129280,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "num_shared_experts": 1,
        "first_k_dense_replace": 3,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    },
    "gpt-oss-120b": {
        "num_hidden_layers": 36,
        "hidden_size": 2880,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 201088,
        "num_experts": 128,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 2880,
        "sliding_window": 128,
        "sliding_window_every": 2,
    },
    "qwen3-next": {
        "model_type": "qwen3_next",
        "num_hidden_layers": 48,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_value_heads": 32,
        "num_experts": 64,
    },
    "nemotron-3-ultra": {
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "ME*EM-ME" * 4,
        "hidden_size": 8192,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "mamba_num_heads": 256,
        "n_routed_experts": 64,
        "num_experts_per_tok": 4,
        "moe_latent_size": 2048,
    },
    "falcon-h1": {
        "model_type": "falcon_h1",
        "num_hidden_layers": 24,
        "hidden_size": 2048,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "mamba_d_ssm": 4096,
        "mamba_n_heads": 64,
    },
    "jamba": {"model_type": "jamba"},
    "mamba2": {"model_type": "mamba2"},
    "kimi-linear": {"model_type": "kimi_linear", "num_experts": 32},
    "minimax": {"model_type": "minimax", "num_hidden_layers": 16},
    "recurrent-gemma": {"model_type": "recurrent_gemma", "num_key_value_heads": 2, "num_attention_heads": 8},
    "lfm2": {"model_type": "lfm2", "full_attn_idxs": [2, 5, 8]},
    "zamba2": {"model_type": "zamba2"},
    "deepseek-v4": {"model_type": "deepseek_v4", "n_routed_experts": 32},
    "glm-5": {"model_type": "glm_moe_dsa", "n_routed_experts": 32},
    "gemma-4": {"model_type": "gemma4", "enable_moe_block": True, "num_experts": 32, "top_k_experts": 4},
    "mimo-v2": {
        "model_type": "mimo_v2_flash",
        "n_routed_experts": 32,
        "swa_num_key_value_heads": 8,
        "swa_num_attention_heads": 32,
        "swa_head_dim": 96,
    },
    "gpt-3-175b": {
        "num_hidden_layers": 96,
        "hidden_size": 12288,
        "intermediate_size": 49152,
        "num_attention_heads": 96,
        "vocab_size": 51200,
        "gated_mlp": False,
        "tie_word_embeddings": True,
    },
}


@dataclass(frozen=True)
class Scene:
    """One scenario as the cost model sees it, with nothing fitted: constants are the priors."""

    scenario: Scenario
    x: Inputs
    keys: RowKeys
    c: Coefficients
    settings: MemorySettings

    def costs(self) -> Costs:
        return evaluate(self.x, self.c, self.settings)


USUAL: dict[str, Any] = {
    "model": "llama-3.1-70b",
    "device": "h100-sxm-80gb",
    "devices": 64,
    "framework": "megatron-core",
    "precision": "bf16",
    "seq_len": 4096,
    "batch": 128,
    "flash": True,
    "cluster": {},
    "tp": 1,
    "pp": 1,
    "cp": 1,
    "ep": 1,
    "zero_stage": 1,
    "micro_batch_size": 1,
    "recompute": "none",
}
PLAN = {
    "tp", "pp", "vpp", "cp", "ep", "etp", "dp", "dp_shard", "zero_stage", "micro_batch_size",
    "sequence_parallel", "recompute", "schedule", "recompute_layers", "recompute_modules",
}  # fmt: skip


def number(value: float) -> Array:
    return np.asarray(value, dtype=np.float64)


def raw_scenario(**words: object) -> dict[str, Any]:
    """dp follows from the devices; ZeRO covers all data ranks unless the plan says otherwise."""
    said: dict[str, Any] = {**USUAL, **words}
    said.setdefault("dp", said["devices"] // (said["tp"] * said["pp"] * said["cp"]))
    said.setdefault("dp_shard", said["dp"] * said["cp"])
    model = said["model"]
    return {
        "model": dict(MODELS[model]) if isinstance(model, str) else model,
        "cluster": {"device": said["device"], "num_devices": said["devices"], **said["cluster"]},
        "training": {
            "seq_len": said["seq_len"],
            "global_batch_size": said["batch"],
            "precision": said["precision"],
            "framework": said["framework"],
            "flash_attention": said["flash"],
            **{name: value for name, value in said.items() if name in TRAINING_OPTIONS},
        },
        "plan": {name: value for name, value in said.items() if name in PLAN},
    }


def scene(model: object = "llama-3.1-70b", **words: object) -> Scene:
    return _built(json.dumps(raw_scenario(model=model, **words)))


@cache
def _built(text: str) -> Scene:
    """Property tests ask for the same scenario hundreds of times."""
    scenario = parse_scenario(json.loads(text))
    x, keys = encode([scenario])
    settings = memory_settings(keys.framework, [scenario.training.precision])
    return Scene(scenario, x, keys, resolve(keys, {}), settings)
