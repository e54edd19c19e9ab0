"""Which layers of a configuration hold attention, another token mixer, dense or expert feed-forward parts.

Families write the same thing in a dozen ways; each is read here. Sources: configuration_*.py and
modeling_*.py of huggingface/transformers, and the same files beside the weights of models that have no class
there.
"""

import math

from pydantic import JsonValue

from tools.errors import InputError
from tools.scenario.fields import JsonObject, get_object, shown, usable_count
from tools.scenario.model import MAX_LAYERS

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
MIXER_TYPES = (
    _MAMBA2_TYPES
    | _MAMBA1_TYPES
    | _DELTA_TYPES
    | _KIMI_TYPES
    | _LIGHTNING_TYPES
    | _CONV_TYPES
    | _RECURRENT_TYPES
)


def layer_fields(fields: JsonObject, count: int) -> JsonObject:
    """`layer_types`, `ffn_types` and `mixer`; empty for a model of attention layers only."""
    if fields.get("mixer") is not None or fields.get("ffn_types"):  # already in our own words
        return {name: fields.get(name) for name in ("mixer", "layer_types", "ffn_types")}
    model_type = fields.get("model_type")
    kinds = layer_kinds(fields, count)
    if model_type in _SINGLE_PART_TYPES:
        return {**_single_parts(kinds), "mixer": _mixer(fields)}
    if model_type in _PURE_MIXER_TYPES:
        return {"layer_types": ["mixer"] * count, "ffn_types": ["none"] * count, "mixer": _mixer(fields)}
    if "hybrid" in kinds:  # Zamba: a shared transformer block before some of the Mamba layers
        return {
            "layer_types": ["parallel" if kind == "hybrid" else "mixer" for kind in kinds],
            "ffn_types": ["dense" if kind == "hybrid" else "none" for kind in kinds],
            "mixer": _mixer(fields),
        }
    if model_type == "falcon_h1":
        return {"layer_types": ["parallel"] * count, "mixer": _mixer(fields)}
    mixing: list[JsonValue] = ["mixer" if kind in _MIXERS else "attention" for kind in kinds]
    if "mixer" not in mixing:
        return {"layer_types": None}
    if model_type not in MIXER_TYPES:
        other = next(kind for kind in kinds if kind in _MIXERS)
        allowed = "known only with the model_type of its family, which says how the layer is built"
        raise InputError("model.layer_types", other, allowed)
    return {"layer_types": mixing, "mixer": _mixer(fields)}


def layer_kinds(fields: JsonObject, count: int) -> list[str]:
    """The kind of each layer in the family's own word; empty if the configuration states none."""
    for name in ("layer_types", "layers_block_type"):
        stated = fields.get(name)
        if isinstance(stated, list) and stated:
            return _checked(name, stated, count)
    pattern = fields.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        letters = pattern.split("/")[0].replace("|", "")
        return _checked(
            "hybrid_override_pattern", [_NEMOTRON.get(letter, letter) for letter in letters], count
        )
    implied = _implied_kinds(fields, count)
    return _checked("layer_types", list(implied), count) if implied else []


def _implied_kinds(fields: JsonObject, count: int) -> list[str]:
    """From a family's own fields, else the pattern that its configuration class derives."""
    for read in (_from_lists, _from_period, _from_linear_block):
        if kinds := read(fields, count):
            return kinds
    if any(
        usable_count(fields.get(name)) for name in ("sliding_window_pattern", "global_attn_every_n_layers")
    ):
        return []
    if interval := usable_count(fields.get("full_attention_interval") or fields.get("layer_group_size")):
        return ["linear_attention" if (n + 1) % interval else "full_attention" for n in range(count)]
    pattern = _texts(fields.get("layer_pattern"))
    return [pattern[n % len(pattern)] for n in range(count)] if pattern else []


def _from_lists(fields: JsonObject, count: int) -> list[str]:
    """A word or a flag per layer, or the layers of one kind by their number."""
    if blocks := _texts(fields.get("block_types") or fields.get("_block_types")):
        return [blocks[n % len(blocks)] for n in range(count)]
    for name, zero, other in (
        ("attn_type_list", "linear_attention", "attention"),
        ("hybrid_layer_pattern", "full_attention", "sliding_attention"),
    ):
        if flags := _ints(fields.get(name)):
            return [other if flag else zero for flag in flags[:count]]
    for name, others in (("attn_layer_indices", "mamba"), ("full_attn_idxs", "conv")):
        if isinstance(fields.get(name), list):
            listed = set(_ints(fields[name]))
            return ["full_attention" if n in listed else others for n in range(count)]
    return []


def _from_period(fields: JsonObject, count: int) -> list[str]:
    """Jamba: every n-th layer holds attention."""
    period, offset = usable_count(fields.get("attn_layer_period")), fields.get("attn_layer_offset")
    if not period or fields.get("model_type") != "jamba":
        return []
    return ["attention" if n % period == offset else "mamba" for n in range(count)]


def _from_linear_block(fields: JsonObject, count: int) -> list[str]:
    """Kimi: layers of full attention by their number, from 1."""
    if not isinstance(fields.get("linear_attn_config"), dict):
        return []
    block = get_object(fields["linear_attn_config"], "model.linear_attn_config")
    attention = {layer - 1 for layer in _ints(block.get("full_attn_layers"))}
    return ["full_attention" if n in attention else "kda" for n in range(count)]


def _checked(name: str, stated: list[JsonValue] | list[str], count: int) -> list[str]:
    known = (*_ATTENTION, *_MIXERS, "mlp", "moe", "none", "parallel", "hybrid")
    for kind in stated:
        if not isinstance(kind, str) or kind not in known:
            raise InputError(f"model.{name}", shown(kind), f"allowed: {', '.join(sorted(known))}")
    if len(stated) < count:
        allowed = f"allowed: a list with an entry for each of {count} layers"
        raise InputError(f"model.{name}", shown(stated), allowed)
    return [str(kind) for kind in stated[:count]]


def _single_parts(kinds: list[str]) -> JsonObject:
    """Nemotron-H: a layer that mixes tokens has no feed-forward part and the other way round."""
    feeding: list[JsonValue] = [{"mlp": "dense", "moe": "moe"}.get(kind, "none") for kind in kinds]
    mixing: list[JsonValue] = [
        "none" if kind in ("mlp", "moe") else "mixer" if kind in _MIXERS else "attention" for kind in kinds
    ]
    no_experts: JsonObject = {} if "moe" in kinds else {"num_experts": 0, "num_experts_per_tok": 0}
    return {"layer_types": mixing, "ffn_types": feeding, **no_experts}


def count_layers(fields: JsonObject) -> int:
    """Stated, or the length of the pattern (Nemotron 3 states no number)."""
    stated = usable_count(fields.get("num_hidden_layers"))
    for name in ("layers_block_type", "hybrid_override_pattern"):
        pattern = fields.get(name)
        if isinstance(pattern, str):
            pattern = [*pattern.split("/")[0].replace("|", "")]
        if isinstance(pattern, list) and pattern:
            return min(len(pattern), MAX_LAYERS)
    return min(stated, MAX_LAYERS)


def _mixer(fields: JsonObject) -> JsonObject:
    model_type, hidden = fields.get("model_type"), usable_count(fields.get("hidden_size"))
    heads, dim = usable_count(fields.get("num_attention_heads")), usable_count(fields.get("head_dim"))
    if model_type in _MAMBA1_TYPES:
        return _mamba1(fields, hidden)
    if model_type in _MAMBA2_TYPES:
        return _mamba2(fields, hidden)
    if model_type in _DELTA_TYPES:
        key_heads = _first(fields, "linear_num_key_heads") or heads
        value_heads = _first(fields, "linear_num_value_heads") or heads
        key_dim = _first(fields, "linear_key_head_dim") or 3 * hidden // (4 * max(key_heads, 1))
        value_dim = _first(fields, "linear_value_head_dim") or 2 * key_dim
        return {
            "kind": "gated_delta_net",
            "inner_size": value_heads * value_dim,
            "key_size": key_heads * key_dim,
            "state_size": key_dim,
            "num_heads": value_heads,
            "conv_kernel": _first(fields, "linear_conv_kernel_dim"),
        }
    if model_type in _KIMI_TYPES:
        block = fields.get("linear_attn_config")
        block = block if isinstance(block, dict) else {}
        heads = usable_count(block.get("num_heads")) or _first(fields, "linear_num_heads") or heads
        dim = usable_count(block.get("head_dim")) or _first(fields, "linear_head_dim") or dim
        kernel = usable_count(block.get("short_conv_kernel_size"))
        return {
            "kind": "kimi_delta_attention",
            "inner_size": heads * dim,
            "key_size": heads * dim,
            "state_size": dim,
            "num_heads": heads,
            "conv_kernel": kernel or _first(fields, "linear_conv_kernel_dim", "short_conv_kernel_size"),
            "low_rank": dim if model_type == "kimi_linear" else 0,
        }
    if model_type in _LIGHTNING_TYPES:
        dim = dim or hidden // max(heads, 1)
        width = heads * dim
        sizes = {"inner_size": width, "key_size": width, "state_size": dim, "num_heads": heads}
        return {"kind": "linear_attention", **sizes}
    if model_type in _CONV_TYPES:
        return {
            "kind": "short_conv",
            "inner_size": hidden,
            "conv_kernel": _first(fields, "conv_L_cache") or 3,
        }
    return {
        "kind": "rg_lru",
        "inner_size": _first(fields, "lru_width") or hidden,
        "num_heads": heads,
        "conv_kernel": _first(fields, "conv1d_width") or 4,
    }


def _mamba1(fields: JsonObject, hidden: int) -> JsonObject:
    inner = (_first(fields, "mamba_expand", "expand") or 2) * hidden
    if fields.get("model_type") in _PURE_MIXER_TYPES:
        inner = _first(fields, "intermediate_size") or inner
    return {
        "kind": "mamba",
        "inner_size": inner,
        "state_size": _first(fields, "mamba_d_state", "state_size", "ssm_state_size") or 16,
        "conv_kernel": _first(fields, "mamba_d_conv", "conv_kernel") or 4,
        "low_rank": _first(fields, "mamba_dt_rank", "time_step_rank") or math.ceil(hidden / 16),
    }


def _mamba2(fields: JsonObject, hidden: int) -> JsonObject:
    heads = _first(fields, "mamba_num_heads", "mamba_n_heads", "n_mamba_heads")
    dim = _first(fields, "mamba_head_dim", "mamba_d_head", "mamba_headdim")
    if fields.get("model_type") == "mamba2":
        heads, dim = _first(fields, "num_attention_heads"), _first(fields, "head_dim")
    inner = _first(fields, "mamba_d_ssm") or heads * dim
    inner = inner or (_first(fields, "mamba_expand", "expand") or 2) * hidden
    state = _first(fields, "ssm_state_size", "mamba_d_state", "state_size") or 128
    groups = _first(fields, "n_groups", "mamba_n_groups", "mamba_ngroups") or 1
    return {
        "kind": "mamba2",
        "inner_size": inner,
        "key_size": groups * state,
        "state_size": state,
        "num_heads": heads or inner // max(dim, 1),
        "conv_kernel": _first(fields, "conv_kernel", "mamba_d_conv") or 4,
    }


def _first(fields: JsonObject, *names: str) -> int:
    return next((value for name in names if (value := usable_count(fields.get(name)))), 0)


def _ints(value: JsonValue) -> list[int]:
    return [item for item in value if isinstance(item, int)] if isinstance(value, list) else []


def _texts(value: JsonValue) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
