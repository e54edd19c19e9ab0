"""The model that a MaxText configuration describes, by Hugging Face names.

Names and defaults: src/maxtext/configs/base.yml, types.py and configs/models/*.yml of
AI-Hypercomputer/maxtext.
"""

from tools.errors import InputError
from tools.frameworks.importing import ModelFields
from tools.frameworks.reading import SettingsReader

MODEL_FIELDS = {
    "base_num_decoder_layers": "num_hidden_layers",
    "base_emb_dim": "hidden_size",
    "base_mlp_dim": "intermediate_size",
    "base_num_query_heads": "num_attention_heads",
    "base_num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "base_moe_mlp_dim": "moe_intermediate_size",
    "moe_expert_input_dim": "moe_latent_size",
    "num_experts": "num_experts",
    "num_experts_per_tok": "num_experts_per_tok",
    "shared_experts": "num_shared_experts",
    "first_num_dense_layers": "first_k_dense_replace",
    "interleave_moe_layer_step": "moe_layer_freq",
    "n_routing_groups": "n_group",
    "topk_routing_group": "topk_group",
    "mtp_num_layers": "num_nextn_predict_layers",
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_nope_head_dim": "qk_nope_head_dim",
    "qk_rope_head_dim": "qk_rope_head_dim",
    "v_head_dim": "v_head_dim",
    "sliding_window_size": "sliding_window",
}
LATENT_FIELDS = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
DELTA_NET_FIELDS = {
    "gdn_conv_kernel_dim": "linear_conv_kernel_dim",
    "gdn_key_head_dim": "linear_key_head_dim",
    "gdn_value_head_dim": "linear_value_head_dim",
    "gdn_num_key_heads": "linear_num_key_heads",
    "gdn_num_value_heads": "linear_num_value_heads",
}
DELTA_NET_BLOCKS = {"qwen3_next": "qwen3_next", "qwen3_5": "qwen3_5_moe_text"}
INDEXER_FIELDS = {
    "indexer_n_heads": "index_n_heads",
    "indexer_head_dim": "index_head_dim",
    "indexer_topk": "index_topk",
}
WINDOW_CYCLES = {"gemma2": 2, "gpt_oss": 2, "gemma3": 6, "gemma4": 6, "gemma4_small": 6, "olmo3": 4}
"""Length of the layer cycle: one layer per cycle attends to the whole sequence, the others to a window."""
MERGED_LAYERS = {"gemma2": 2}
"""Layers that the file counts as one."""
UNKNOWN_PARTS = {
    "engram_layers": "n-gram memory layers",
    "mhc_expansion_rate": "hyper-connections outside of DeepSeek-V4",
    "num_experts_per_layer": "a number of experts per layer",
}
DEFAULT_HEAD_DIM = 128  # base.yml
DEFAULT_VOCABULARY = 32_000  # base.yml


def read_model(settings: SettingsReader) -> ModelFields:
    """The model by Hugging Face names; only what is changed if the file names one of MaxText's model
    files."""
    sizes = {name: settings.integer(setting, minimum=0) for setting, name in MODEL_FIELDS.items()}
    block = settings.word("decoder_block") or "llama2"
    hidden, layers = sizes["hidden_size"], sizes["num_hidden_layers"]
    if hidden is None or layers is None:
        return {name: value for name, value in sizes.items() if value is not None}
    for name, what in UNKNOWN_PARTS.items():
        if settings.has(name) and block != "deepseek4":
            raise InputError(f"maxtext: {name}", settings.text(name), f"not supported: {what}")
    layers = sizes["num_hidden_layers"] = layers * MERGED_LAYERS.get(block, 1)
    sizes["head_dim"] = sizes["head_dim"] or DEFAULT_HEAD_DIM
    sizes["vocab_size"] = sizes["vocab_size"] or DEFAULT_VOCABULARY
    if settings.word("attention_type") != "mla" and block != "deepseek4":
        sizes |= dict.fromkeys(LATENT_FIELDS)
    if (sizes["num_experts"] or 0) < 2:
        sizes |= {"num_experts": 0, "num_experts_per_tok": None, "moe_intermediate_size": None}
    elif not sizes["moe_intermediate_size"]:
        sizes["moe_intermediate_size"] = sizes["intermediate_size"]
    activations = settings.items("mlp_activations") or ["silu", "linear"]
    model: ModelFields = {
        **sizes,
        "gated_mlp": len(activations) > 1,
        "tie_word_embeddings": bool(settings.flag("logits_via_embedding")),
        **_other_layers(settings, block, layers),
    }
    positions = settings.integer("trainable_position_size", minimum=-1) or 0
    if positions > 0:
        model["other_parameters"] = positions * hidden
    return {name: value for name, value in model.items() if value is not None}


def _other_layers(settings: SettingsReader, block: str, count: int) -> ModelFields:
    """Windows, delta nets, indexers, compressed attention, and layers with shapes of their own."""
    cycle = settings.integer("inhomogeneous_layer_cycle_interval") or WINDOW_CYCLES.get(block, 1)
    if block in DELTA_NET_BLOCKS:
        delta = {name: settings.integer(setting) for setting, name in DELTA_NET_FIELDS.items()}
        return {
            **delta,
            "model_type": DELTA_NET_BLOCKS[block],
            "layer_types": _cycle("linear_attention", cycle, count),
            "shared_expert_intermediate_size": settings.integer("base_moe_mlp_dim"),
        }
    indexer = INDEXER_FIELDS if block == "deepseek4" or settings.flag("use_indexer") else {}
    fields: ModelFields = {name: settings.integer(setting) for setting, name in indexer.items()}
    if block == "deepseek4":
        return {
            **fields,
            "o_groups": settings.integer("o_groups"),
            "o_lora_rank": settings.integer("o_lora_rank"),
            "model_type": "deepseek_v4",
            "compress_ratios": settings.items("compress_ratios"),
            "hc_mult": settings.integer("mhc_expansion_rate"),
        }
    if block in ("gemma4", "gemma4_small"):
        per_layer = ("hidden_size_per_layer_input", "vocab_size_per_layer_input", "num_kv_shared_layers")
        return {
            **{name: settings.integer(name, minimum=0) or 0 for name in per_layer},
            "global_head_dim": settings.integer("global_head_dim", minimum=0),
            "num_global_key_value_heads": settings.integer("global_num_kv_heads", minimum=0),
            "attention_k_eq_v": bool(settings.flag("share_kv_projections")),
            "use_double_wide_mlp": bool(settings.flag("use_double_wide_mlp")),
            "enable_moe_block": (settings.integer("num_experts") or 1) > 1,
            "model_type": "gemma4_text",
            "layer_types": _cycle("sliding_attention", cycle, count),
        }
    if chunk := settings.integer("chunk_attn_window_size", minimum=0):
        return {**fields, "sliding_window": chunk, "sliding_window_every": 4 / 3}
    if cycle > 1 and settings.has("sliding_window_size"):
        fields["sliding_window_every"] = cycle / (cycle - 1)
    return fields


def _cycle(kind: str, cycle: int, count: int) -> list[str]:
    """Every `cycle`-th layer attends to the whole sequence."""
    return [kind if layer % cycle else "full_attention" for layer in range(1, count + 1)]
