"""Parts of some families that no general field describes: shapes of their own, tables beside the layers.

Sources: modeling_*.py of huggingface/transformers.
"""

from tools.scenario.config import ModelConfig
from tools.scenario.fields import usable_count
from tools.scenario.layer_patterns import layer_kinds

_POSITION_TYPES = {"gpt2", "gpt_bigcode", "gpt_neo", "openai-gpt", "opt", "biogpt"}
"""Learned positions: a table of as many rows as the context."""
_COMPRESS_RATIOS = {
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
    "sliding_attention": 0,
}


def add_other_parts(config: ModelConfig) -> None:
    """Fields of `ModelSpec` that only this family implies."""
    if config.get("other_parameters") is not None or not config.model_type:
        return
    hidden = config.count("hidden_size")
    if config.model_type in _POSITION_TYPES:
        rows = config.count("n_positions", "max_position_embeddings")
        rows += 2 if config.model_type in ("opt", "biogpt") else 0
        config.spec["other_parameters"] = rows * hidden
    if (narrow := config.count("word_embed_proj_dim")) and narrow != hidden:
        # OPT-350M: narrow embeddings, projected in and out
        projected = config.count("vocab_size") * (narrow - hidden) + 2 * narrow * hidden
        config.spec["other_parameters"] = usable_count(config.spec.get("other_parameters")) + projected
    families = {
        "gemma4_text": _add_gemma4,
        "gemma4_unified_text": _add_gemma4,
        "gemma3n_text": _add_gemma3n,
        "deepseek_v4": _add_deepseek_v4,
        "glm_moe_dsa": _add_sparse_index,
        "minimax_m3_vl_text": _add_sparse_blocks,
        "zamba": _add_zamba,
        "zamba2": _add_zamba,
        "recurrent_gemma": _add_half_width,
        "qwen": _add_half_width,
        "arctic": _add_arctic,
        "lfm2": _add_lfm2,
        "minicpm3": _add_value_heads,
        "mamba": _add_channels,
        "mamba2": _add_channels,
        "falcon_mamba": _add_channels,
    }
    if add := families.get(str(config.get("hub_type"))) or families.get(config.model_type):
        add(config)


def _add_gemma4(config: ModelConfig) -> None:
    """Wider heads in full layers; experts beside the dense part; tables per layer in the small ones."""
    spec, count, kinds, hidden = config.spec, config.layers, layer_kinds(config), config.count("hidden_size")
    kv_heads, local_dim = usable_count(spec.get("num_key_value_heads")), usable_count(spec.get("head_dim"))
    full = sum(kind == "full_attention" for kind in kinds) or count // 6
    global_dim = config.count("global_head_dim") or 512
    global_kv = config.count("num_global_key_value_heads") or kv_heads
    spec |= {
        "sliding_head_dim": spec.get("head_dim"),
        "sliding_num_key_value_heads": kv_heads,
        "sliding_num_attention_heads": config.count("num_attention_heads"),
        "head_dim": global_dim,
        "num_key_value_heads": global_kv,
    }
    other = _per_layer_tables(config)
    # the last layers reuse keys and values of earlier ones
    shared = min(config.count("num_kv_shared_layers"), count)
    for kind in kinds[count - shared :]:
        other -= 2 * hidden * (global_kv * global_dim if kind == "full_attention" else kv_heads * local_dim)
    if shared and config.is_true("use_double_wide_mlp"):
        width = config.count("intermediate_size")
        mean = round(width * (count + shared) / count)
        other += 3 * hidden * (width * (count + shared) - mean * count)
        spec["intermediate_size"] = mean
    if config.is_true("attention_k_eq_v"):
        other -= full * hidden * global_kv * global_dim
    if config.is_true("enable_moe_block"):
        spec["ffn_types"] = ["both"] * count
    else:
        spec |= {"num_experts": 0, "num_experts_per_tok": 0}
    spec["other_parameters"] = other


def _per_layer_tables(config: ModelConfig) -> int:
    """Gemma 3n and 4: an embedding per layer, its projection from the hidden state, a gate per layer."""
    hidden, rows = config.count("hidden_size"), config.count("vocab_size_per_layer_input")
    return config.count("hidden_size_per_layer_input") * config.layers * (rows + 3 * hidden)


def _add_gemma3n(config: ModelConfig) -> None:
    """Tables per layer, a low-rank residual per layer, and products between the parallel residual streams."""
    hidden, streams = config.count("hidden_size"), config.count("altup_num_inputs")
    residuals = 2 * hidden * config.count("laurel_rank") * config.layers
    products = 2 * max(streams - 1, 0) * hidden * hidden
    config.spec["other_parameters"] = _per_layer_tables(config) + residuals + products
    widths = config.items("intermediate_size")
    if len(set(map(str, widths))) == 1:
        config.spec["intermediate_size"] = widths[0]


def _add_deepseek_v4(config: ModelConfig) -> None:
    """Compression per layer, and hyper-connections: residual streams mixed around each part."""
    count, ratios = config.layers, config.get("compress_ratios")
    if not isinstance(ratios, list):
        wide, narrow = "heavily_compressed_attention", "compressed_sparse_attention"
        default = [narrow if n % 2 and n > 1 else wide for n in range(count)]
        ratios = [_COMPRESS_RATIOS.get(kind, 0) for kind in layer_kinds(config) or default]
    streams, hidden = config.count("hc_mult"), config.count("hidden_size")
    config.spec |= {
        "v_head_dim": 0,
        "qk_rope_head_dim": 0,
        "compress_ratios": ratios[:count],
        "other_parameters": 2 * count * (2 * streams + streams * streams) * streams * hidden,
    }


def _add_sparse_index(config: ModelConfig) -> None:
    """GLM-5.2: some layers reuse the keys that an earlier layer's indexer chose."""
    types = config.items("indexer_types")[: config.layers]
    config.spec["num_index_layers"] = sum(kind == "full" for kind in types)


def _add_sparse_blocks(config: ModelConfig) -> None:
    """MiniMax-M3: an indexer chooses blocks of keys, on some of the layers."""
    block = config.section("sparse_attention_config")
    size = block.count("sparse_block_size") or config.count("index_block_size")
    blocks = block.count("sparse_topk_blocks") or config.count("index_topk_blocks")
    flags = block.items("sparse_attention_freq")[: config.layers]
    config.spec |= {
        "index_n_heads": block.count("sparse_num_index_heads") or config.count("index_n_heads"),
        "index_head_dim": block.count("sparse_index_dim") or config.count("index_head_dim"),
        "index_topk": size * blocks,
        "num_index_layers": sum(flag == 1 for flag in flags),
    }


def _add_channels(config: ModelConfig) -> None:
    """Mamba has no attention: tensor parallelism divides its channels or heads."""
    mixer = ModelConfig(config.spec).section("mixer")
    heads = mixer.count("num_heads", "inner_size")
    config.spec |= {
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": mixer.count("inner_size") // max(heads, 1),
        "intermediate_size": 0,
    }


def _add_zamba(config: ModelConfig) -> None:
    """A transformer block of twice the width, shared by all hybrid layers, with a product after each use."""
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    width = config.count("intermediate_size") or 4 * hidden
    hybrid = sum(kind == "hybrid" for kind in layer_kinds(config))
    block = 14 * hidden * hidden + 3 * hidden * width
    shared = (config.count("num_mem_blocks") or 1) * block + hybrid * hidden * hidden
    if config.model_type == "zamba2":
        rank = config.count("adapter_rank")
        shared += hybrid * rank * (hidden + 2 * width)
        shared += hybrid * 12 * rank * hidden if config.is_true("use_shared_attention_adapter") else 0
    config.spec |= {
        "intermediate_size": width,
        "num_key_value_heads": config.count("num_key_value_heads") or heads,
        "head_dim": 2 * hidden // max(heads, 1),
        "other_parameters": shared - hybrid * (8 * hidden * hidden + 3 * hidden * width),
    }


def _add_half_width(config: ModelConfig) -> None:
    """RecurrentGemma and the first Qwen state the width of both halves of the gated part together."""
    config.spec["intermediate_size"] = config.count("intermediate_size") // 2


def _add_arctic(config: ModelConfig) -> None:
    """Experts beside a dense part that is as wide as the hidden state (Snowflake Arctic)."""
    every = config.count("moe_layer_frequency") or 1
    config.spec |= {
        "intermediate_size": config.get("hidden_size"),
        "moe_intermediate_size": config.get("intermediate_size"),
        "ffn_types": ["dense" if layer % every else "both" for layer in range(1, config.layers + 1)],
    }


def _add_lfm2(config: ModelConfig) -> None:
    """The stated width is adjusted: two thirds, times a factor, up to a multiple."""
    width = config.count("block_ff_dim", "intermediate_size")
    if config.is_true("block_auto_adjust_ff_dim"):
        width = int(2 * width / 3)
        factor, multiple = config.get("block_ffn_dim_multiplier"), config.count("block_multiple_of") or 256
        if isinstance(factor, int | float):
            width = multiple * -(-int(factor * width) // multiple)
    config.spec["intermediate_size"] = width
    if isinstance(tied := config.get("tie_embedding"), bool):
        config.spec["tie_word_embeddings"] = tied


def _add_value_heads(config: ModelConfig) -> None:
    """MiniCPM3: values of a head as wide as the hidden size allows."""
    heads, hidden = config.count("num_attention_heads"), config.count("hidden_size")
    config.spec["v_head_dim"] = config.count("v_head_dim") or hidden // max(heads, 1)
