"""Which layers of a configuration hold attention, another token mixer, dense or expert feed-forward parts.

Families write the same thing in a dozen ways; each is read here. Sources: configuration_*.py and
modeling_*.py of huggingface/transformers, and the same files beside the weights of models that have no class
there.
"""

import math

from pydantic import JsonValue

from tools.errors import InputError
from tools.scenario.config import ModelConfig
from tools.scenario.fields import shown

WINDOWED = ("sliding_attention", "chunked_attention", "local_attention", "local")
_ATTENTION = (
    *WINDOWED, "full_attention", "attention", "global_attention", "global", "self_attention", "sparse",
    "compressed_sparse_attention", "heavily_compressed_attention", "deepseek_sparse_attention",
    "minimax_m3_sparse", "indexed_attention",
)  # fmt: skip
_MIXERS = (
    "linear_attention", "mamba", "mamba2", "conv", "short_conv", "recurrent", "kda", "linear", "mixer",
    "gated_delta_net",
)  # fmt: skip
_NEMOTRON = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_SINGLE_PART_TYPES = {"nemotron_h"}
"""A layer is a token mixer or a feed-forward part, not both."""
_PURE_MIXER_TYPES = {"mamba", "mamba2", "falcon_mamba"}
_MAMBA2_TYPES = {"mamba2", "bamba", "granitemoehybrid", "falcon_h1", "nemotron_h", "zamba2"}
_MAMBA1_TYPES = {"mamba", "falcon_mamba", "jamba", "zamba"}
_DELTA_TYPES = {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid"}
_KIMI_TYPES = {"kimi_linear", "bailing_hybrid"}
_LIGHTNING_TYPES = {"minimax"}
_CONV_TYPES = {"lfm2", "lfm2_moe"}
_RECURRENT_TYPES = {"recurrent_gemma"}
MIXER_TYPES = {
    *_MAMBA2_TYPES, *_MAMBA1_TYPES, *_DELTA_TYPES, *_KIMI_TYPES, *_LIGHTNING_TYPES, *_CONV_TYPES,
    *_RECURRENT_TYPES,
}  # fmt: skip
_KNOWN = (*_ATTENTION, *_MIXERS, "mlp", "moe", "none", "parallel", "hybrid")


def add_layers(config: ModelConfig) -> None:
    """`layer_types`, `ffn_types` and `mixer`; nothing for a model of attention layers only."""
    if config.get("mixer") is not None or config.get("ffn_types"):  # already in our own words
        return
    model_type, kinds, count = config.model_type, layer_kinds(config), config.layers
    mixing = ["mixer" if kind in _MIXERS else "attention" for kind in kinds]
    feeding: list[str] = []
    if model_type in _SINGLE_PART_TYPES:
        # Nemotron-H: a layer that mixes tokens has no feed-forward part and the other way round.
        feeding = [{"mlp": "dense", "moe": "moe"}.get(kind, "none") for kind in kinds]
        mixing = [mixes if feeds == "none" else "none" for mixes, feeds in zip(mixing, feeding, strict=True)]
        config.spec |= _predicting(config)
        if "moe" not in kinds:
            config.spec |= {"num_experts": 0, "num_experts_per_tok": 0}
    elif model_type in _PURE_MIXER_TYPES:
        mixing, feeding = ["mixer"] * count, ["none"] * count
    elif "hybrid" in kinds:  # Zamba: a shared transformer block before some of the Mamba layers
        mixing = ["parallel" if kind == "hybrid" else "mixer" for kind in kinds]
        feeding = ["dense" if kind == "hybrid" else "none" for kind in kinds]
    elif model_type == "falcon_h1":
        mixing = ["parallel"] * count
    elif "mixer" not in mixing:
        config.spec["layer_types"] = None
        return
    elif model_type not in MIXER_TYPES:
        other = next(kind for kind in kinds if kind in _MIXERS)
        rule = "known only with the model_type of its family, which says how the layer is built"
        raise InputError("model.layer_types", other, rule)
    config.spec |= {"layer_types": [*mixing], "mixer": {**_mixer(config)}}
    if feeding:
        config.spec["ffn_types"] = [*feeding]


def _predicting(config: ModelConfig) -> dict[str, JsonValue]:
    """Multi-token prediction of Nemotron-H: the layers of a depth have a pattern of their own, or each depth
    stands behind a slash of the model's ("M*ME/*E/*E")."""
    stated, depths = (str(config.get(f"{which}hybrid_override_pattern") or "") for which in ("mtp_", ""))
    patterns: list[str] = depths.split("/")[1:]
    fields: dict[str, JsonValue] = {"num_nextn_predict_layers": len(patterns)} if patterns else {}
    letters = stated or "".join(patterns[:1])
    return fields | ({"layers_per_nextn": len(letters)} if letters else {})


def layer_kinds(config: ModelConfig) -> list[str]:
    """The kind of each layer in the family's own word; empty if the configuration states none."""
    count, pattern = config.layers, config.get("hybrid_override_pattern")
    name = next((name for name in ("layer_types", "layers_block_type") if config.items(name)), "")
    kinds: list[JsonValue] = config.items(name)
    if not kinds and isinstance(pattern, str):
        name, letters = "hybrid_override_pattern", pattern.split("/")[0].replace("|", "")
        kinds = [_NEMOTRON.get(letter, letter) for letter in letters]
    elif not kinds:
        name, kinds = "layer_types", [*_implied_kinds(config, count)]
        if not kinds:
            return []
    for kind in kinds:
        if not isinstance(kind, str) or kind not in _KNOWN:
            raise InputError(f"model.{name}", shown(kind), f"allowed: {', '.join(sorted(_KNOWN))}")
    if len(kinds) < count:
        rule = f"allowed: a list with an entry for each of {count} layers"
        raise InputError(f"model.{name}", shown(kinds), rule)
    return [str(kind) for kind in kinds[:count]]


def _implied_kinds(config: ModelConfig, count: int) -> list[str]:
    """From a family's own fields, else the pattern that its configuration class derives."""
    if blocks := config.texts("block_types") or config.texts("_block_types"):
        return [blocks[n % len(blocks)] for n in range(count)]
    for name, zero, other in (  # a flag per layer
        ("attn_type_list", "linear_attention", "attention"),
        ("hybrid_layer_pattern", "full_attention", "sliding_attention"),
    ):
        if flags := config.ints(name):
            return [other if flag else zero for flag in flags[:count]]
    for name, others in (("attn_layer_indices", "mamba"), ("full_attn_idxs", "conv")):
        if isinstance(config.get(name), list):  # layers by their number
            listed = set(config.ints(name))
            if count:
                return ["full_attention" if n in listed else others for n in range(count)]
    period, offset = config.count("attn_layer_period"), config.get("attn_layer_offset")
    if period and config.model_type == "jamba" and count:
        return ["attention" if n % period == offset else "mamba" for n in range(count)]
    if isinstance(config.get("linear_attn_config"), dict) and count:  # Kimi: by their number, from 1
        full = config.section("linear_attn_config").ints("full_attn_layers")
        return ["full_attention" if n + 1 in full else "kda" for n in range(count)]
    if config.count("sliding_window_pattern", "global_attn_every_n_layers"):
        return []
    if interval := config.count("full_attention_interval", "layer_group_size"):
        return ["linear_attention" if (n + 1) % interval else "full_attention" for n in range(count)]
    pattern = config.texts("layer_pattern")
    return [pattern[n % len(pattern)] for n in range(count)] if pattern else []


def _mixer(config: ModelConfig) -> dict[str, str | int]:
    model_type, hidden, count = config.model_type, config.count("hidden_size"), config.count
    heads, dim = count("num_attention_heads"), count("head_dim")
    if model_type in _MAMBA1_TYPES:
        inner = (count("mamba_expand", "expand") or 2) * hidden
        if model_type in _PURE_MIXER_TYPES:
            inner = count("intermediate_size") or inner
        return {
            "kind": "mamba",
            "inner_size": inner,
            "state_size": count("mamba_d_state", "state_size", "ssm_state_size") or 16,
            "conv_kernel": count("mamba_d_conv", "conv_kernel") or 4,
            "low_rank": count("mamba_dt_rank", "time_step_rank") or math.ceil(hidden / 16),
        }
    if model_type in _MAMBA2_TYPES:
        if model_type != "mamba2":
            heads = count("mamba_num_heads", "mamba_n_heads", "n_mamba_heads")
            dim = count("mamba_head_dim", "mamba_d_head", "mamba_headdim")
        inner = count("mamba_d_ssm") or heads * dim or (count("mamba_expand", "expand") or 2) * hidden
        state = count("ssm_state_size", "mamba_d_state", "state_size") or 128
        return {
            "kind": "mamba2",
            "inner_size": inner,
            "key_size": (count("n_groups", "mamba_n_groups", "mamba_ngroups") or 1) * state,
            "state_size": state,
            "num_heads": heads or inner // max(dim, 1),
            "conv_kernel": count("conv_kernel", "mamba_d_conv") or 4,
        }
    if model_type in _DELTA_TYPES:
        key_heads = count("linear_num_key_heads") or heads
        value_heads = count("linear_num_value_heads") or heads
        key_dim = count("linear_key_head_dim") or 3 * hidden // (4 * max(key_heads, 1))
        return {
            "kind": "gated_delta_net",
            "inner_size": value_heads * (count("linear_value_head_dim") or 2 * key_dim),
            "key_size": key_heads * key_dim,
            "state_size": key_dim,
            "num_heads": value_heads,
            "conv_kernel": count("linear_conv_kernel_dim"),
        }
    if model_type in _KIMI_TYPES:
        block = config.section("linear_attn_config")
        heads = block.count("num_heads") or count("linear_num_heads") or heads
        dim = block.count("head_dim") or count("linear_head_dim") or dim
        kernel = block.count("short_conv_kernel_size")
        return {
            "kind": "kimi_delta_attention",
            "inner_size": heads * dim,
            "key_size": heads * dim,
            "state_size": dim,
            "num_heads": heads,
            "conv_kernel": kernel or count("linear_conv_kernel_dim", "short_conv_kernel_size"),
            "low_rank": dim if model_type == "kimi_linear" else 0,
        }
    if model_type in _LIGHTNING_TYPES:
        dim = dim or hidden // max(heads, 1)
        width = heads * dim
        sizes = {"inner_size": width, "key_size": width, "state_size": dim, "num_heads": heads}
        return {"kind": "linear_attention", **sizes}
    if model_type in _CONV_TYPES:
        return {"kind": "short_conv", "inner_size": hidden, "conv_kernel": count("conv_L_cache") or 3}
    return {
        "kind": "rg_lru",
        "inner_size": count("lru_width") or hidden,
        "num_heads": heads,
        "conv_kernel": count("conv1d_width") or 4,
    }
