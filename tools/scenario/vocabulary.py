"""What Hugging Face configurations call the fields of a model, and what their model types imply.

Names and defaults: huggingface/transformers, src/transformers/models/*/configuration_*.py. Data only.
"""

from tools.scenario.model import ModelSpec

TEXT_BLOCKS = ("text_config", "llm_config", "language_config", "thinker_config", "language_model_config")
"""Where multimodal configurations hold the decoder."""
SUB_BLOCKS = ("ffn_config", "attn_config")
"""Parts of a decoder's own fields (DBRX, MPT)."""
OUTER = ("name", "_name_or_path", "tie_word_embeddings", "is_encoder_decoder", "_class_name", "left_out")
"""Fields beside a text block that concern the decoder too."""

_SYNONYMS_OF = {
    "num_hidden_layers": "n_layer n_layers num_layers num_blocks",
    "hidden_size": "n_embd n_embed d_model",
    "intermediate_size": "n_inner ffn_hidden_size ffn_dim d_ff dim_ff dff",
    "num_attention_heads": "n_head n_heads num_heads attention_heads",
    "num_key_value_heads": "num_kv_heads n_head_kv n_kv_heads kv_n_heads num_query_groups "
    "multi_query_group_num",
    "head_dim": "dim_head attention_head_dim kv_channels",
    "vocab_size": "padded_vocab_size",
    "num_experts": "num_local_experts n_routed_experts num_routed_experts moe_num_experts num_moe_experts",
    "num_experts_per_tok": "experts_per_token num_experts_per_token num_experts_per_topk moe_top_k moe_topk "
    "moe_k top_k_experts moe_router_topk num_selected_experts",
    "shared_expert_intermediate_size": "share_expert_dim moe_shared_intermediate_size "
    "shared_intermediate_size moe_shared_expert_intermediate_size",
    "moe_latent_size": "routed_expert_hidden_size",
    "sliding_num_attention_heads": "swa_num_attention_heads",
    "sliding_num_key_value_heads": "swa_num_key_value_heads",
    "sliding_head_dim": "swa_head_dim",
    "attn_output_gate": "attention_output_gate",
    "moe_intermediate_size": "expert_ffn_hidden_size moe_ffn_hidden_size",
    "num_shared_experts": "n_shared_experts num_shared_expert moe_num_shared_experts",
    "first_k_dense_replace": "moe_layer_start_index num_dense_layers",
    "moe_layer_freq": "decoder_sparse_step interleave_moe_layer_step moe_layer_interval",
    "n_group": "moe_router_num_groups n_expert_groups num_expert_group",
    "topk_group": "moe_router_group_topk n_limited_groups",
    "num_nextn_predict_layers": "mtp_num_hidden_layers mtp_num_layers num_mtp_layers",
    "sliding_window_pattern": "_sliding_window_pattern",
}
SYNONYMS = {synonym: name for name, synonyms in _SYNONYMS_OF.items() for synonym in synonyms.split()}

# Read by the translation, though no field of a ModelSpec bears the name.
INPUTS = {
    "model_type", "hub_type", "moe_layer_frequency", "hidden_act", "hidden_activation",
    "activation_function", "mlp_hidden_act", "multi_query",
    "activation", "new_decoder_architecture", "multi_query_attention", "intermediate_size_mlp",
    "dense_intermediate_size", "prefix_dense_intermediate_size", "mlp_only_layers", "mlp_layer_types",
    "sliding_window_pattern", "use_sliding_window", "attention_chunk_size", "attention_window_size",
    "expansion_ratio", "moe_layers", "moe_layer_end_index", "enable_moe_block", "use_moe",
    # layer patterns
    "layers_block_type", "hybrid_override_pattern", "mtp_hybrid_override_pattern", "block_types",
    "_block_types", "attn_type_list",
    "attn_layer_indices", "attn_layer_period", "attn_layer_offset", "expert_layer_period",
    "expert_layer_offset", "full_attn_idxs", "full_attention_interval", "hybrid_layer_pattern",
    "hybrid_layer_ids", "global_attn_every_n_layers", "layer_group_size", "max_window_layers",
    "layer_pattern", "no_rope_layer_interval", "attention_layers", "window_size",
    # other token mixers
    "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
    "linear_conv_kernel_dim", "linear_attn_config", "linear_num_heads", "linear_head_dim",
    "short_conv_kernel_size", "conv_L_cache", "conv_dim", "lru_width", "conv1d_width", "expand",
    "state_size", "ssm_state_size", "conv_kernel", "time_step_rank", "n_groups", "mamba_num_heads",
    "mamba_head_dim", "mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv",
    "mamba_expand", "mamba_d_ssm", "mamba_dt_rank", "n_mamba_heads", "mamba_headdim", "mamba_ngroups",
    # sparse and compressed attention
    "indexer_types", "sparse_attention_config", "index_block_size", "index_topk_blocks",
    "compress_rates", "hc_mult", "num_hash_layers", "num_kv_shared_layers",
    "attention_k_eq_v", "num_global_key_value_heads", "global_head_dim",
    # parameters outside of layers
    "n_positions", "max_position_embeddings", "hidden_size_per_layer_input", "vocab_size_per_layer_input",
    "learned_pos_emb", "max_seq_len", "word_embed_proj_dim", "attention_bias", "mlp_bias",
    "use_double_wide_mlp", "block_ff_dim", "tie_embedding", "adapter_rank", "use_shared_attention_adapter",
    "num_mem_blocks",
    "attention_hidden_size", "block_auto_adjust_ff_dim", "block_ffn_dim_multiplier", "block_multiple_of",
    "parallel_attn_mlp_res", "num_attention_heads_per_layer", "gating", "block_configs",
    "moe_intermediate_sizes", "zero_expert_num", "laurel_rank", "altup_num_inputs",
}  # fmt: skip

# Real fields that look like a known one but mean something else, found by comparing all the names.
IGNORED = {
    "conf_attention_chunk_size", "conf_num_attention_heads", "encoder_sparse_step", "layer_type",
    "mlp_activation_function", "num_self_attention_heads", "qk_channels", "v_channels", "sliding_windows",
    "unpadded_vocab_size", "qk_head_dim", "moe_layer_start_index", "left_out",
}  # fmt: skip

PER_LAYER = {
    "intermediate_size", "moe_intermediate_size", "num_experts", "num_experts_per_tok", "num_shared_experts",
}  # fmt: skip
"""Numbers that some families state for every layer."""
OTHER_MEANINGS = {"zamba2": ("kv_channels", "num_query_groups"), "xlstm": ("num_blocks",)}
"""Synonyms that mean something else in a family."""

LOCAL_ATTENTION_TYPES = {"recurrent_gemma"}
COMPRESSED_TYPES = {"deepseek_v4"}
OUTPUT_GATE_TYPES = {"beam", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "afmoe"}
GATED_ACTIVATIONS = {"silu", "swish", "gelu_pytorch_tanh"}
UNGATED_TYPES = {
    "gpt2", "gptj", "gpt_neo", "gpt_neox", "gpt_bigcode", "bloom", "opt", "mpt", "falcon", "phi",
    "starcoder2", "nemotron", "codegen", "persimmon", "xglm", "bert", "roberta",
}  # fmt: skip
GATED_TYPES = {
    "gemma", "gemma2", "gemma3", "gemma3_text", "recurrent_gemma", "gpt_oss", "bitnet", "zamba", "zamba2",
    "minimax_m3_vl_text", "kimi_linear", "glm", "glm4", "exaone", "grok", "dbrx",
}  # fmt: skip
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


def is_read(name: str) -> bool:
    """Whether a field of a configuration class says anything about the shape of the model."""
    return name in SYNONYMS or name in INPUTS or name in ModelSpec.model_fields
