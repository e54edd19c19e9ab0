"""What Hugging Face configurations call the fields of a model, and what their model types imply.

Names and defaults: huggingface/transformers, src/transformers/models/*/configuration_*.py. Data only.
"""

NESTED = ("text_config", "llm_config", "language_config", "thinker_config", "ffn_config", "attn_config")

SYNONYMS = {
    "n_layer": "num_hidden_layers",
    "n_layers": "num_hidden_layers",
    "num_layers": "num_hidden_layers",
    "n_embd": "hidden_size",
    "n_embed": "hidden_size",
    "d_model": "hidden_size",
    "n_inner": "intermediate_size",
    "ffn_hidden_size": "intermediate_size",
    "ffn_dim": "intermediate_size",
    "d_ff": "intermediate_size",
    "n_head": "num_attention_heads",
    "n_heads": "num_attention_heads",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "n_head_kv": "num_key_value_heads",
    "n_kv_heads": "num_key_value_heads",
    "kv_n_heads": "num_key_value_heads",
    "num_query_groups": "num_key_value_heads",
    "multi_query_group_num": "num_key_value_heads",
    "kv_channels": "head_dim",
    "padded_vocab_size": "vocab_size",
    "num_local_experts": "num_experts",
    "n_routed_experts": "num_experts",
    "num_routed_experts": "num_experts",
    "moe_num_experts": "num_experts",
    "num_moe_experts": "num_experts",
    "experts_per_token": "num_experts_per_tok",
    "num_experts_per_token": "num_experts_per_tok",
    "num_experts_per_topk": "num_experts_per_tok",
    "moe_top_k": "num_experts_per_tok",
    "moe_topk": "num_experts_per_tok",
    "moe_k": "num_experts_per_tok",
    "moe_router_topk": "num_experts_per_tok",
    "num_selected_experts": "num_experts_per_tok",
    "expert_ffn_hidden_size": "moe_intermediate_size",
    "moe_ffn_hidden_size": "moe_intermediate_size",
    "n_shared_experts": "num_shared_experts",
    "num_shared_expert": "num_shared_experts",
    "moe_num_shared_experts": "num_shared_experts",
    "shared_intermediate_size": "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size": "shared_expert_intermediate_size",
    "moe_layer_start_index": "first_k_dense_replace",
    "num_dense_layers": "first_k_dense_replace",
    "decoder_sparse_step": "moe_layer_freq",
    "interleave_moe_layer_step": "moe_layer_freq",
    "moe_layer_interval": "moe_layer_freq",
    "moe_router_num_groups": "n_group",
    "n_expert_groups": "n_group",
    "num_expert_group": "n_group",
    "moe_router_group_topk": "topk_group",
    "n_limited_groups": "topk_group",
    "mtp_num_hidden_layers": "num_nextn_predict_layers",
    "mtp_num_layers": "num_nextn_predict_layers",
    "num_mtp_layers": "num_nextn_predict_layers",
    "_sliding_window_pattern": "sliding_window_pattern",
}

# Read by the translation, though no field of a ModelSpec bears the name.
INPUTS = {
    "model_type", "hidden_act", "hidden_activation", "activation_function", "multi_query",
    "new_decoder_architecture", "intermediate_size_mlp", "dense_intermediate_size", "mlp_only_layers",
    "mlp_layer_types", "layer_types",
    "sliding_window_pattern", "use_sliding_window", "attention_chunk_size",
    "expansion_ratio", "moe_layers",
}  # fmt: skip

# Real fields that look like a known one but mean something else, found by comparing all the names.
IGNORED = {
    "conf_attention_chunk_size", "conf_num_attention_heads", "encoder_sparse_step", "layer_type",
    "mlp_activation_function", "n_groups", "num_self_attention_heads", "o_lora_rank", "qk_channels",
    "v_channels", "sliding_windows", "swa_num_attention_heads", "swa_num_key_value_heads",
    "unpadded_vocab_size",
}  # fmt: skip

GATED_ACTIVATIONS = {"silu", "swish", "gelu_pytorch_tanh"}
UNGATED_TYPES = {
    "gpt2", "gptj", "gpt_neo", "gpt_neox", "gpt_bigcode", "bloom", "opt", "mpt", "falcon", "phi",
    "starcoder2", "nemotron", "codegen", "persimmon", "xglm", "bert", "roberta",
}  # fmt: skip
GATED_TYPES = {"gemma", "gemma2", "gemma3", "gemma3_text", "recurrent_gemma", "gpt_oss"}
TIED_TYPES = {
    "gpt2", "gpt_neo", "gpt_bigcode", "bloom", "opt", "mpt", "falcon", "gemma", "gemma2", "gemma3",
    "gemma3_text", "cohere", "cohere2", "starcoder2", "ernie4_5", "ernie4_5_moe", "smollm3", "xglm",
}  # fmt: skip
FOUR_TIMES_WIDE_TYPES = {"gpt2", "gptj", "gpt_neo", "gpt_bigcode", "bloom", "mpt", "falcon", "codegen"}
SHARED_EXPERT_TYPES = {"llama4", "llama4_text"}
CHUNKED_TYPES = {"llama4", "llama4_text"}
CHUNKED_PATTERN = 4
DENSE_WIDTHS = ("intermediate_size_mlp", "dense_intermediate_size")
EVERY_SECOND_WINDOW_TYPES = {"gemma2", "gpt_oss"}
NO_WINDOW_BY_DEFAULT_TYPES = {"qwen2", "qwen2_moe", "qwen3", "qwen3_moe"}

TOPOLOGY_SYNONYMS = {
    "fast_domain_devices": "nvlink_domain_size",
    "nvlink_domain": "nvlink_domain_size",
    "nvlink_domain_devices": "nvlink_domain_size",
    "kind": "network",
    "type": "network",
    "oversubscription_ratio": "oversubscription",
    "torus": "torus_dimensions",
    "torus_dims": "torus_dimensions",
}
