"""Scenarios by a few words, for the tests of the cost model: a model, a device and the degrees of a plan."""

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tools.model.constants import memory_settings, resolve
from tools.model.predict import Costs, evaluate
from tools.physics.encode import encode
from tools.physics.inputs import Array, Coefficients, Inputs, RowKeys
from tools.physics.memory import MemorySettings
from tools.scenario import Plan, Scenario, parse_scenario
from tools.scenario.spec import TRAINING_OPTIONS

LLAMA_8B: dict[str, Any] = {
    "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
}  # fmt: skip
LLAMA_70B = LLAMA_8B | {
    "num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64,
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 14336}
DEEPSEEK_V3 = {
    "num_hidden_layers": 61, "hidden_size": 7168, "intermediate_size": 18432, "num_attention_heads": 128,
    "num_key_value_heads": 128, "vocab_size": 129280, "num_experts": 256, "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048, "num_shared_experts": 1, "first_k_dense_replace": 3, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip
GPT_OSS_120B = {
    "num_hidden_layers": 36, "hidden_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 64, "vocab_size": 201088, "num_experts": 128, "num_experts_per_tok": 4,
    "moe_intermediate_size": 2880, "sliding_window": 128, "sliding_window_every": 2,
}  # fmt: skip
GPT_3 = {
    "num_hidden_layers": 96, "hidden_size": 12288, "intermediate_size": 49152, "num_attention_heads": 96,
    "vocab_size": 51200, "gated_mlp": False, "tie_word_embeddings": True,
}  # fmt: skip
NEMOTRON = {
    "model_type": "nemotron_h", "hybrid_override_pattern": "ME*EM-ME" * 4, "hidden_size": 8192,
    "num_attention_heads": 64, "num_key_value_heads": 8, "mamba_num_heads": 256, "n_routed_experts": 64,
    "num_experts_per_tok": 4, "moe_latent_size": 2048,
}  # fmt: skip
HYBRIDS: dict[str, dict[str, Any]] = {
    "qwen3_next": {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256, "num_experts": 64},
    "falcon_h1": {"num_attention_heads": 8, "num_key_value_heads": 8, "mamba_d_ssm": 4096},
    "jamba": {},
    "mamba2": {},
    "kimi_linear": {"num_experts": 32},
    "minimax": {"num_hidden_layers": 16},
    "recurrent_gemma": {"num_key_value_heads": 2, "num_attention_heads": 8},
    "lfm2": {"full_attn_idxs": [2, 5, 8]},
    "zamba2": {},
    "deepseek_v4": {"n_routed_experts": 32},
    "glm_moe_dsa": {"n_routed_experts": 32},
    "gemma4": {"enable_moe_block": True, "num_experts": 32, "top_k_experts": 4},
    "mimo_v2_flash": {"n_routed_experts": 32, "swa_num_key_value_heads": 8, "swa_num_attention_heads": 32,
                      "swa_head_dim": 96},
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": LLAMA_8B,
    "llama-3.1-70b": LLAMA_70B,
    "mixtral-8x7b": LLAMA_8B | EXPERTS | {"vocab_size": 32000},
    "deepseek-v3": DEEPSEEK_V3,
    "gpt-oss-120b": GPT_OSS_120B,
    "gpt-3-175b": GPT_3,
    "nemotron-3-ultra": NEMOTRON,
    **{name: {"model_type": name, **fields} for name, fields in HYBRIDS.items()},
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
    "model": "llama-3.1-70b", "device": "h100-sxm-80gb", "devices": 64, "framework": "megatron-core",
    "precision": "bf16", "seq_len": 4096, "batch": 128, "flash": True, "cluster": {}, "tp": 1, "pp": 1,
    "cp": 1, "ep": 1, "zero_stage": 1, "micro_batch_size": 1, "recompute": "none",
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
        "plan": {name: value for name, value in said.items() if name in Plan.model_fields},
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
