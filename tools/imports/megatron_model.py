"""The model in Megatron-LM's arguments, by Hugging Face names; absent where the arguments do not state it."""

from typing import Any

from tools.imports.settings import Settings

PLAIN_NAMES = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "kv_channels": "head_dim",
    "num_experts": "num_experts",
    "moe_layer_freq": "moe_layer_freq",
}
LATENT_NAMES = {
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_head_dim": "qk_nope_head_dim",
    "qk_pos_emb_head_dim": "qk_rope_head_dim",
    "v_head_dim": "v_head_dim",
}


def read_model(settings: Settings) -> dict[str, Any]:
    model: dict[str, Any] = {ours: settings.integer(theirs) for theirs, ours in PLAIN_NAMES.items()}
    model |= _attention(settings, model) | _feed_forward(settings, model)
    model["vocab_size"] = settings.integer("padded_vocab_size") or settings.integer("vocab_size")
    # Megatron ties unless told otherwise.
    model["tie_word_embeddings"] = not settings.flag("untie_embeddings_and_output_weights")
    return {name: value for name, value in model.items() if value is not None}


def _attention(settings: Settings, model: dict[str, Any]) -> dict[str, Any]:
    grouped, groups = settings.flag("group_query_attention"), settings.integer("num_query_groups")
    latent = settings.flag("multi_latent_attention")
    parts = {ours: settings.integer(theirs) for theirs, ours in LATENT_NAMES.items()}
    if latent:
        return parts
    return {
        "num_key_value_heads": groups if grouped is not False and groups else model["num_attention_heads"]
    }


def _feed_forward(settings: Settings, model: dict[str, Any]) -> dict[str, Any]:
    gated = bool(settings.flag("swiglu"))
    stated, hidden = settings.integer("ffn_hidden_size"), model["hidden_size"]
    # arguments.py: 4 h, or 8/3 h in multiples of 64 with a gate
    usual = None if hidden is None else int((4 * hidden * 2 / 3) / 64) * 64 if gated else 4 * hidden
    width = stated or usual
    topk, expert = settings.integer("moe_router_topk"), settings.integer("moe_ffn_hidden_size")
    shared = settings.integer("moe_shared_expert_intermediate_size")
    fields: dict[str, Any] = {"gated_mlp": gated, "intermediate_size": width}
    if model["num_experts"]:
        fields |= {"num_experts_per_tok": topk or 2, "moe_intermediate_size": expert or width}
        fields |= {"shared_expert_intermediate_size": shared, "num_shared_experts": 1 if shared else None}
    return fields
