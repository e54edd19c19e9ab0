"""Converts a Hugging Face `config.json` to the fields of a `ModelSpec`, including which layers hold
experts, use a sliding window or mix tokens in another way than by attention.

Covers decoder-only language models, also inside multimodal ones; what is not known is refused by name.
"""

from pydantic import JsonValue

from tools.errors import InputError
from tools.scenario import vocabulary as words
from tools.scenario.config import ModelConfig
from tools.scenario.fields import JsonObject, build, shown, usable_count
from tools.scenario.layer_patterns import WINDOWED, add_layers, layer_kinds
from tools.scenario.model import ModelSpec
from tools.scenario.other_parts import add_other_parts

_EXPERT_WORDS = ("sparse", "moe", "hash_moe")


def parse_model(stated: JsonObject) -> ModelSpec:
    """The typed model; raises InputError for the first field that is wrong."""
    return build(ModelSpec, canonical_model(stated), "model.")


def canonical_model(stated: JsonObject) -> JsonObject:
    """The fields of `ModelSpec` that the given model states or implies; their types are checked later."""
    config = ModelConfig.of(stated)
    config.spec = {key: value for key, value in config.fields.items() if key in ModelSpec.model_fields}
    if config.layers:
        config.spec["num_hidden_layers"] = config.layers
    for add in (_add_attention, _add_feed_forward, _add_experts, _add_windows, add_layers, add_other_parts):
        add(config)
    name = config.first("name", "_name_or_path", "hub_type")
    stated_fields = {key: value for key, value in config.spec.items() if value is not None}
    return {"name": "" if name is None else name, **stated_fields}


def _add_attention(config: ModelConfig) -> None:
    kv_heads, heads = (
        config.first("num_key_value_heads", "num_attention_heads"),
        config.get("num_attention_heads"),
    )
    if config.is_true("multi_query") and not config.is_true("new_decoder_architecture"):
        kv_heads = 1  # Falcon and GPT-BigCode: the flag wins over a stated number of heads
    elif config.get("multi_query_attention") is False:
        kv_heads = heads
    config.spec |= {"num_key_value_heads": kv_heads, "head_dim": config.get("head_dim")}
    if config.model_type in words.OUTPUT_GATE_TYPES and config.get("attn_output_gate") is None:
        config.spec["attn_output_gate"] = True
    # Under MLA a query head is its two parts, whatever `head_dim` says (DeepSeek states the rotary part).
    parts = config.count("qk_nope_head_dim") + config.count("qk_rope_head_dim")
    count, hidden = config.count("num_attention_heads"), config.count("hidden_size")
    if config.count("kv_lora_rank") and parts:
        config.spec["head_dim"] = parts
    elif config.get("head_dim") is None and count and hidden:
        if hidden % count and not config.model_type:
            rule = f"must divide hidden_size ({hidden}) if head_dim is not given"
            raise InputError("model.num_attention_heads", count, rule)
        config.spec["head_dim"] = hidden // count


def _add_feed_forward(config: ModelConfig) -> None:
    """SwiGLU and its kin have a gate; plain GELU and ReLU blocks have none (arXiv 2002.05202)."""
    model_type = config.model_type
    if config.get("gated_mlp") is None:
        names = ("hidden_activation", "mlp_hidden_act", "hidden_act", "activation_function")
        stated = (config.get(name) for name in names)
        activation = next((value.lower() for value in stated if isinstance(value, str)), "silu")
        is_gated = "glu" in activation or "gated" in activation or activation in words.GATED_ACTIVATIONS
        has_gate = model_type in words.GATED_TYPES or (is_gated and model_type not in words.UNGATED_TYPES)
        config.spec["gated_mlp"] = has_gate
    if config.get("tie_word_embeddings") is None:
        config.spec["tie_word_embeddings"] = model_type in words.TIED_TYPES
    if config.get("intermediate_size") is None and model_type in words.FOUR_TIMES_WIDE_TYPES:
        ratio = config.count("expansion_ratio") or 4
        config.spec["intermediate_size"] = ratio * config.count("hidden_size") or None


def _add_experts(config: ModelConfig) -> None:
    """Widths of the experts and the layers that have them."""
    if config.get("num_experts") in (None, 0):
        config.spec["num_experts"] = 0
        return
    width, shared = (
        config.first("moe_intermediate_size", "intermediate_size"),
        config.get("num_shared_experts"),
    )
    if shared is None and config.model_type in words.SHARED_EXPERT_TYPES:
        shared = 1
    config.spec |= {"moe_intermediate_size": width, "num_shared_experts": shared}
    if (dense := config.first(*words.DENSE_WIDTHS)) is not None:
        config.spec["intermediate_size"] = dense
    # Shared experts are stated as a number of experts or as one width: keep both, in agreement.
    stated, expert = config.get("shared_expert_intermediate_size"), usable_count(width)
    if stated is not None and expert:
        config.spec["num_shared_experts"] = usable_count(stated) / expert
    elif (
        stated is None
        and isinstance(shared, int | float)
        and not isinstance(shared, bool)
        and 0 < shared < 1e6
    ):
        config.spec["shared_expert_intermediate_size"] = round(shared * expert)
    _add_expert_layers(config)


def _add_expert_layers(config: ModelConfig) -> None:
    count = config.layers
    for name in ("moe_layer_freq", "mlp_layer_types", "moe_layers", "mlp_only_layers"):
        stated = config.get(name)
        if not isinstance(stated, list) or not (stated or name == "moe_layer_freq"):
            continue
        listed = set(config.ints(name))
        if name == "moe_layers":
            experts = listed
        elif name == "mlp_only_layers":
            every = config.count("moe_layer_freq") or 1
            experts = {layer for layer in range(count) if layer not in listed and (layer + 1) % every == 0}
        else:
            known = (0, 1) if name == "moe_layer_freq" else ("dense", *_EXPERT_WORDS)
            choices = " and ".join(map(str, known))
            if len(stated) < count:
                rule = f"allowed: a list of {choices} with an entry for each of {count} layers"
                raise InputError(f"model.{name}", shown(stated), rule)
            for flag in stated:
                if isinstance(flag, bool) or flag not in known:
                    rule = f"allowed: a list of {choices}, one per layer"
                    raise InputError(f"model.{name}", shown(flag), rule)
            experts = {layer for layer, flag in enumerate(stated[:count]) if flag in (1, *_EXPERT_WORDS)}
        _add_pattern(config, name, stated, experts)
        return
    if period := config.count("expert_layer_period"):
        offset = config.get("expert_layer_offset") or 0
        flags: list[JsonValue] = [int(layer % period == offset) for layer in range(count)]
        _add_pattern(config, "expert_layer_period", flags, {n for n in range(count) if flags[n]})


def _add_pattern(config: ModelConfig, name: str, stated: list[JsonValue], experts: set[int]) -> None:
    """The pair (leading dense layers, every n-th) with the same number of expert layers, evenly spaced; if
    there is none, the leading dense layers and a list of 0 and 1."""
    count = config.layers
    ordered = sorted(layer for layer in experts if 0 <= layer < count)
    if not ordered:
        rule = f"allowed: at least one of the {count} layers with experts, because num_experts is given"
        raise InputError(f"model.{name}", shown(stated), rule)
    every = ordered[1] - ordered[0] if len(ordered) > 1 else max(count, 1)
    first = ordered[0]
    leading = first if first >= every else 0
    spaced = ordered == list(range(first, count, every))
    if spaced and len(ordered) == count // every - leading // every:
        config.spec |= {"first_k_dense_replace": leading, "moe_layer_freq": every}
    else:
        flags: list[JsonValue] = [int(layer in experts) for layer in range(count)]
        config.spec |= {"first_k_dense_replace": first, "moe_layer_freq": flags}


def _add_windows(config: ModelConfig) -> None:
    """The window, and one windowed layer among how many (1 = all, 2 = alternating, 1.2 = five of six).

    Chunked attention (Llama 4) counts as a window of one chunk: an upper bound of what a token sees.
    """
    kinds = layer_kinds(config)
    window = config.first("sliding_window", "attention_window_size", "attention_chunk_size")
    used = config.get("use_sliding_window")
    if used is None:
        used = config.model_type not in words.NO_WINDOW_BY_DEFAULT_TYPES
    config.spec["sliding_window"] = window if window is not None and used is True else 0
    if config.spec["sliding_window"] and config.get("sliding_window_every") is None:
        every = _windowed_every(config, kinds)
        config.spec["sliding_window_every"] = every or 1.0
        if not every:
            config.spec["sliding_window"] = 0


def _windowed_every(config: ModelConfig, kinds: list[str]) -> float:
    """0 if no layer is windowed."""
    model_type, count = config.model_type, config.layers
    if kinds and model_type in words.LOCAL_ATTENTION_TYPES:
        return len(kinds) / max(sum(kind == "attention" for kind in kinds), 1)
    if kinds and model_type not in words.COMPRESSED_TYPES:
        windowed = sum(kind in WINDOWED for kind in kinds)
        return len(kinds) / windowed if windowed else 0.0
    pattern = config.count("sliding_window_pattern", "global_attn_every_n_layers")
    if not pattern and (first := config.count("max_window_layers")):
        # The layers from there on are windowed (Qwen2, dots).
        return count / (count - first) if first < count else 0.0
    if model_type in words.CHUNKED_TYPES:
        pattern = words.CHUNKED_PATTERN
    if pattern:  # one full layer closes every `pattern` layers
        return pattern / (pattern - 1) if pattern > 1 else 0.0
    return 2.0 if model_type in words.EVERY_SECOND_WINDOW_TYPES else 1.0
