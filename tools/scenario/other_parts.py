"""Parts of some families that no general field describes: shapes of their own, tables beside the layers.

Sources: modeling_*.py of huggingface/transformers.
"""

from collections.abc import Callable

from pydantic import JsonValue

from tools.scenario.fields import JsonObject, usable_count
from tools.scenario.layer_patterns import layer_kinds

_POSITION_TYPES = {"gpt2", "gpt_bigcode", "gpt_neo", "openai-gpt", "opt", "biogpt"}
"""Learned positions: a table of as many rows as the context."""
_COMPRESS_RATIOS = {
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
    "sliding_attention": 0,
}


def other_fields(fields: JsonObject, canonical: JsonObject, count: int) -> JsonObject:
    """Fields of `ModelSpec` that only this family implies."""
    model_type = fields.get("model_type")
    if fields.get("other_parameters") is not None or not isinstance(model_type, str):
        return {}
    hidden = usable_count(fields.get("hidden_size"))
    implied: JsonObject = {}
    if model_type in _POSITION_TYPES:
        rows = usable_count(fields.get("n_positions")) or usable_count(fields.get("max_position_embeddings"))
        implied["other_parameters"] = (rows + (2 if model_type in ("opt", "biogpt") else 0)) * hidden
    if (narrow := usable_count(fields.get("word_embed_proj_dim"))) and narrow != hidden:
        # OPT-350M: narrow embeddings, projected in and out
        vocabulary = usable_count(fields.get("vocab_size"))
        implied["other_parameters"] = usable_count(implied.get("other_parameters")) + (
            vocabulary * (narrow - hidden) + 2 * narrow * hidden
        )
    if family := _FAMILIES.get(str(fields.get("hub_type"))) or _FAMILIES.get(model_type):
        implied |= family(fields, canonical, count)
    return implied


def describe_left_out(name: str, block: JsonValue) -> str:
    """A part beside the text model, with its size if its shape is known (vision towers of Qwen3-VL and
    3.5)."""
    names = (
        *("depth", "hidden_size", "intermediate_size"),
        *("patch_size", "spatial_merge_size", "out_hidden_size"),
    )
    sizes = {key: usable_count(block.get(key)) for key in names} if isinstance(block, dict) else {}
    if not isinstance(block, dict) or not all(sizes.values()) or "num_position_embeddings" not in block:
        return name
    depth, hidden, width, patch, merge, out = sizes.values()
    pixels = 3 * (usable_count(block.get("temporal_patch_size")) or 2) * patch * patch
    merged = hidden * merge * merge
    outlet = merged * (merged + 1) + (merged + 1) * out
    outlets = block.get("deepstack_visual_indexes")
    deep = len(outlets) if isinstance(outlets, list) else 0
    layer = 4 * hidden * (hidden + 1) + hidden * (2 * width + 1) + width + 4 * hidden
    table = (pixels + 1 + usable_count(block.get("num_position_embeddings"))) * hidden
    total = table + depth * layer + 2 * hidden + outlet + deep * (2 * merged + outlet)
    return f"{name} ({total:,} parameters)"


def _gemma4(fields: JsonObject, canonical: JsonObject, count: int) -> JsonObject:
    """Full layers have wider heads; experts stand beside the dense part; tables per layer in the small
    ones."""
    hidden, heads = usable_count(fields.get("hidden_size")), usable_count(fields.get("num_attention_heads"))
    kv_heads = usable_count(canonical.get("num_key_value_heads"))
    full = sum(kind == "full_attention" for kind in layer_kinds(fields, count)) or count // 6
    global_dim = usable_count(fields.get("global_head_dim")) or 512
    global_kv = usable_count(fields.get("num_global_key_value_heads")) or kv_heads
    implied: JsonObject = {
        "head_dim": global_dim,
        "num_key_value_heads": global_kv,
        "sliding_head_dim": canonical.get("head_dim"),
        "sliding_num_key_value_heads": kv_heads,
        "sliding_num_attention_heads": heads,
    }
    other = _per_layer_tables(fields, count)
    # the last layers reuse keys and values of earlier ones
    shared = min(usable_count(fields.get("num_kv_shared_layers")), count)
    for kind in layer_kinds(fields, count)[count - shared :]:
        wide = kind == "full_attention"
        local_dim = usable_count(canonical.get("head_dim"))
        other -= 2 * hidden * (global_kv * global_dim if wide else kv_heads * local_dim)
    if shared and fields.get("use_double_wide_mlp") is True:
        width = usable_count(fields.get("intermediate_size"))
        mean = round(width * (count + shared) / count)
        other += 3 * hidden * (width * (count + shared) - mean * count)
        implied["intermediate_size"] = mean
    if fields.get("attention_k_eq_v") is True:
        other -= full * hidden * global_kv * global_dim
    if fields.get("enable_moe_block") is True:
        both: list[JsonValue] = ["both"] * count
        implied["ffn_types"] = both
    else:
        implied |= {"num_experts": 0, "num_experts_per_tok": 0}
    return {**implied, "other_parameters": other}


def _per_layer_tables(fields: JsonObject, count: int) -> int:
    """Gemma 3n and 4: an embedding per layer, its projection from the hidden state, and a gate in every
    layer."""
    hidden = usable_count(fields.get("hidden_size"))
    width = usable_count(fields.get("hidden_size_per_layer_input"))
    rows = usable_count(fields.get("vocab_size_per_layer_input"))
    return width * (rows * count + hidden * count + 2 * hidden * count)


def _gemma3n(fields: JsonObject, canonical: JsonObject, count: int) -> JsonObject:
    """Tables per layer, a low-rank residual per layer, and products between the parallel residual streams."""
    hidden, streams = usable_count(fields.get("hidden_size")), usable_count(fields.get("altup_num_inputs"))
    other = _per_layer_tables(fields, count) + 2 * hidden * usable_count(fields.get("laurel_rank")) * count
    widths = fields.get("intermediate_size")
    implied: JsonObject = {"other_parameters": other + 2 * max(streams - 1, 0) * hidden * hidden}
    if isinstance(widths, list) and widths and len(set(map(str, widths))) == 1:
        implied["intermediate_size"] = widths[0]
    return implied


def _deepseek_v4(fields: JsonObject, canonical: JsonObject, count: int) -> JsonObject:
    """Compression per layer, and hyper-connections: several residual streams mixed before and after each
    part."""
    ratios = fields.get("compress_ratios")
    implied: JsonObject = {"v_head_dim": 0, "qk_rope_head_dim": 0}
    if not isinstance(ratios, list):
        kinds = layer_kinds(fields, count)
        if not kinds:
            kinds = [
                "compressed_sparse_attention" if n % 2 else "heavily_compressed_attention"
                for n in range(count)
            ]
            kinds[1:2] = ["heavily_compressed_attention"] * len(kinds[1:2])
        compressed: list[JsonValue] = [_COMPRESS_RATIOS.get(kind, 0) for kind in kinds]
        implied["compress_ratios"] = compressed
    else:
        implied["compress_ratios"] = ratios[:count]
    streams, hidden = usable_count(fields.get("hc_mult")), usable_count(fields.get("hidden_size"))
    implied["other_parameters"] = 2 * count * (2 * streams + streams * streams) * streams * hidden
    return implied


def _sparse_index(fields: JsonObject, canonical: JsonObject, count: int) -> JsonObject:
    """GLM-5.2: some layers reuse the keys that an earlier layer's indexer chose."""
    types = fields.get("indexer_types")
    own = sum(kind == "full" for kind in types[:count]) if isinstance(types, list) else 0
    return {"num_index_layers": own}


def _sparse_blocks(fields: JsonObject, canonical: JsonObject, count: int) -> JsonObject:
    """MiniMax-M3: an indexer chooses blocks of keys, on some of the layers."""
    stated = fields.get("sparse_attention_config")
    block = stated if isinstance(stated, dict) else {}
    heads = usable_count(block.get("sparse_num_index_heads")) or usable_count(fields.get("index_n_heads"))
    dim = usable_count(block.get("sparse_index_dim")) or usable_count(fields.get("index_head_dim"))
    size = usable_count(block.get("sparse_block_size")) or usable_count(fields.get("index_block_size"))
    blocks = usable_count(block.get("sparse_topk_blocks")) or usable_count(fields.get("index_topk_blocks"))
    flags = block.get("sparse_attention_freq")
    own = sum(flag == 1 for flag in flags[:count]) if isinstance(flags, list) else 0
    sizes: JsonObject = {"index_n_heads": heads, "index_head_dim": dim, "index_topk": size * blocks}
    return {**sizes, "num_index_layers": own}


def _pure_mixer(fields: JsonObject, canonical: JsonObject, count: int) -> JsonObject:
    """Mamba has no attention: tensor parallelism divides its channels or heads."""
    mixer = canonical.get("mixer")
    sizes = mixer if isinstance(mixer, dict) else {}
    heads = usable_count(sizes.get("num_heads")) or usable_count(sizes.get("inner_size"))
    dim = usable_count(sizes.get("inner_size")) // max(heads, 1)
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": dim,
        "intermediate_size": 0,
    }


def _zamba(fields: JsonObject, canonical: JsonObject, count: int) -> JsonObject:
    """A transformer block of twice the width, shared by all hybrid layers, with a product after each use."""
    hidden, heads = usable_count(fields.get("hidden_size")), usable_count(fields.get("num_attention_heads"))
    width = usable_count(fields.get("intermediate_size")) or 4 * hidden
    hybrid = sum(kind == "hybrid" for kind in layer_kinds(fields, count))
    blocks = usable_count(fields.get("num_mem_blocks")) or 1
    block = 14 * hidden * hidden + 3 * hidden * width
    shared = blocks * block + hybrid * hidden * hidden
    if fields.get("model_type") == "zamba2":
        rank = usable_count(fields.get("adapter_rank"))
        shared += hybrid * rank * (hidden + 2 * width)
        shared += hybrid * 12 * rank * hidden if fields.get("use_shared_attention_adapter") is True else 0
    counted = hybrid * (8 * hidden * hidden + 3 * hidden * width)
    return {
        "intermediate_size": width,
        "num_key_value_heads": usable_count(fields.get("num_key_value_heads")) or heads,
        "head_dim": 2 * hidden // max(heads, 1),
        "other_parameters": shared - counted,
    }


def _half_wide(fields: JsonObject, canonical: JsonObject, count: int) -> JsonObject:
    """RecurrentGemma and the first Qwen state the width of both halves of the gated part together."""
    return {"intermediate_size": usable_count(fields.get("intermediate_size")) // 2}


def _arctic(fields: JsonObject, canonical: JsonObject, count: int) -> JsonObject:
    """Experts beside a dense part that is as wide as the hidden state (Snowflake Arctic)."""
    every = usable_count(fields.get("moe_layer_frequency")) or 1
    kinds: list[JsonValue] = ["dense" if (layer + 1) % every else "both" for layer in range(count)]
    return {
        "intermediate_size": fields.get("hidden_size"),
        "moe_intermediate_size": fields.get("intermediate_size"),
        "ffn_types": kinds,
    }


def _lfm2(fields: JsonObject, canonical: JsonObject, count: int) -> JsonObject:
    """The stated width is adjusted: two thirds, times a factor, up to a multiple."""
    width = usable_count(fields.get("block_ff_dim")) or usable_count(fields.get("intermediate_size"))
    if fields.get("block_auto_adjust_ff_dim") is True:
        width = int(2 * width / 3)
        factor = fields.get("block_ffn_dim_multiplier")
        multiple = usable_count(fields.get("block_multiple_of")) or 256
        if isinstance(factor, int | float):
            width = multiple * -(-int(factor * width) // multiple)
    tied = fields.get("tie_embedding")
    return {"intermediate_size": width, **({"tie_word_embeddings": tied} if isinstance(tied, bool) else {})}


def _value_heads(fields: JsonObject, canonical: JsonObject, count: int) -> JsonObject:
    """MiniCPM3: values of a head as wide as the hidden size allows."""
    heads, hidden = usable_count(fields.get("num_attention_heads")), usable_count(fields.get("hidden_size"))
    return {"v_head_dim": usable_count(fields.get("v_head_dim")) or hidden // max(heads, 1)}


_FAMILIES: dict[str, Callable[[JsonObject, JsonObject, int], JsonObject]] = {
    "gemma4_text": _gemma4,
    "deepseek_v4": _deepseek_v4,
    "glm_moe_dsa": _sparse_index,
    "minimax_m3_vl_text": _sparse_blocks,
    "gemma4_unified_text": _gemma4,
    "gemma3n_text": _gemma3n,
    "zamba": _zamba,
    "zamba2": _zamba,
    "recurrent_gemma": _half_wide,
    "qwen": _half_wide,
    "arctic": _arctic,
    "lfm2": _lfm2,
    "minicpm3": _value_heads,
    "mamba": _pure_mixer,
    "mamba2": _pure_mixer,
    "falcon_mamba": _pure_mixer,
}
