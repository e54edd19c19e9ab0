"""Converts a Hugging Face `config.json` to a `ModelSpec`, including which layers hold experts or use a
sliding window.

Covers decoder-only transformers: dense, GQA, MLA, sliding window, MoE.
"""

from functools import lru_cache

from pydantic import JsonValue

from tools.errors import InputError
from tools.names import NEAR_MISS, nearest
from tools.scenario import vocabulary as words
from tools.scenario.fields import JsonObject, get_object, shown, usable_count
from tools.scenario.spec import MAX_LAYERS, ModelSpec

_WINDOWED = {"sliding_attention", "chunked_attention"}
_ATTENTION = _WINDOWED | {"full_attention", "attention", "global_attention"}


def expert_fields(fields: JsonObject) -> JsonObject:
    """Widths of the experts and the layers that have them; empty for a dense model."""
    if fields.get("num_experts") is None or fields["num_experts"] == 0:
        return {"num_experts": 0}
    width, shared = fields.get("moe_intermediate_size"), fields.get("num_shared_experts")
    if width is None:
        width = fields.get("intermediate_size")
    if shared is None and fields.get("model_type") in words.SHARED_EXPERT_TYPES:
        shared = 1
    dense = next((fields[key] for key in words.DENSE_WIDTHS if fields.get(key) is not None), None)
    widths: JsonObject = {"moe_intermediate_size": width, "num_shared_experts": shared}
    widths |= {} if dense is None else {"intermediate_size": dense}
    return widths | _shared_width(fields, width, shared) | _expert_layers(fields)


def _shared_width(fields: JsonObject, width: JsonValue, shared: JsonValue) -> JsonObject:
    """Shared experts are stated as a number of experts or as one width: keep both, in agreement."""
    stated, expert = fields.get("shared_expert_intermediate_size"), usable_count(width)
    if stated is not None:
        return {"num_shared_experts": usable_count(stated) / expert} if expert else {}
    if isinstance(shared, int | float) and not isinstance(shared, bool) and 0 < shared < 1e6:
        return {"shared_expert_intermediate_size": round(shared * expert)}
    return {}


def _expert_layers(fields: JsonObject) -> JsonObject:
    count = min(usable_count(fields.get("num_hidden_layers")), MAX_LAYERS)
    for name in ("moe_layer_freq", "mlp_layer_types", "moe_layers", "mlp_only_layers"):
        stated = fields.get(name)
        if isinstance(stated, list) and (stated or name == "moe_layer_freq"):
            return _pattern(name, stated, _layers_with_experts(name, stated, fields, count), count)
    return {}


def _layers_with_experts(name: str, stated: list[JsonValue], fields: JsonObject, count: int) -> set[int]:
    if name in ("moe_layer_freq", "mlp_layer_types"):
        _check_flags(name, stated, count)
        return {layer for layer, flag in enumerate(stated[:count]) if flag in (1, "sparse", "moe")}
    listed = {layer for layer in stated if isinstance(layer, int)}
    if name == "moe_layers":
        return listed
    every = usable_count(fields.get("moe_layer_freq")) or 1
    return {layer for layer in range(count) if layer not in listed and (layer + 1) % every == 0}


def _check_flags(name: str, stated: list[JsonValue], count: int) -> None:
    known = (0, 1) if name == "moe_layer_freq" else ("dense", "sparse", "moe")
    words = " and ".join(map(str, known))
    if len(stated) < count:
        raise InputError(
            f"model.{name}",
            shown(stated),
            f"allowed: a list of {words} with an entry for each of {count} layers",
        )
    for flag in stated:
        if isinstance(flag, bool) or flag not in known:
            raise InputError(f"model.{name}", shown(flag), f"allowed: a list of {words}, one per layer")


def _pattern(name: str, stated: list[JsonValue], experts: set[int], count: int) -> JsonObject:
    """The pair (leading dense layers, every n-th) with the same number of expert layers, evenly spaced; if
    there is none, the leading dense layers and a list of 0 and 1."""
    ordered = sorted(layer for layer in experts if 0 <= layer < count)
    if not ordered:
        allowed = f"allowed: at least one of the {count} layers with experts, because num_experts is given"
        raise InputError(f"model.{name}", shown(stated), allowed)
    every = ordered[1] - ordered[0] if len(ordered) > 1 else max(count, 1)
    first = ordered[0]
    leading = first if first >= every else 0
    spaced = ordered == list(range(first, count, every))
    if spaced and len(ordered) == count // every - leading // every:
        return {"first_k_dense_replace": leading, "moe_layer_freq": every}
    flags: list[JsonValue] = [int(layer in experts) for layer in range(count)]
    return {"first_k_dense_replace": first, "moe_layer_freq": flags}


def window_fields(fields: JsonObject) -> JsonObject:
    """The window, and one windowed layer among how many (1 = all, 2 = alternating, 1.2 = five of six)."""
    kinds = fields.get("layer_types")
    for kind in kinds if isinstance(kinds, list) else []:
        if not isinstance(kind, str) or kind not in _ATTENTION:
            raise InputError("model.layer_types", shown(kind), f"allowed: {', '.join(sorted(_ATTENTION))}")
    window = _window_tokens(fields)
    if not window or fields.get("sliding_window_every") is not None:
        return {"sliding_window": window}
    every = _every(fields, kinds)
    return {"sliding_window": window if every else 0, "sliding_window_every": every or 1.0}


def _window_tokens(fields: JsonObject) -> JsonValue:
    """Chunked attention (Llama 4) counts as a window of one chunk: an upper bound of what a token sees."""
    window, used = fields.get("sliding_window"), fields.get("use_sliding_window")
    if window is None:
        window = fields.get("attention_chunk_size")
    if used is None:
        used = fields.get("model_type") not in words.NO_WINDOW_BY_DEFAULT_TYPES
    return window if window is not None and used is True else 0


def _every(fields: JsonObject, kinds: object) -> float:
    if isinstance(kinds, list):
        windowed = sum(kind in _WINDOWED for kind in kinds)
        return len(kinds) / windowed if windowed else 0.0
    pattern, model_type = usable_count(fields.get("sliding_window_pattern")), fields.get("model_type")
    if model_type in words.CHUNKED_TYPES:
        pattern = words.CHUNKED_PATTERN
    if pattern:  # one full layer closes every `pattern` layers
        return pattern / (pattern - 1) if pattern > 1 else 0.0
    return 2.0 if model_type in words.EVERY_SECOND_WINDOW_TYPES else 1.0


MAX_FIELDS = 1000
"""Each is compared with every known name; real configurations have some 200."""


def canonical_model(stated: JsonObject) -> JsonObject:
    """The fields of `ModelSpec` that the given model states or implies; their types are checked later."""
    config = _flatten(stated)
    _refuse_near_misses(config)
    fields = _renamed(config)
    canonical = {key: value for key, value in fields.items() if key in ModelSpec.model_fields}
    for implied in (_attention_fields, _mlp_fields, expert_fields, window_fields):
        canonical |= implied(fields)
    return {"name": _name(config)} | {key: value for key, value in canonical.items() if value is not None}


def _flatten(stated: JsonObject) -> JsonObject:
    """Multi-modal and older configurations hold the decoder's fields in a block of their own."""
    config = {key: value for key, value in stated.items() if key not in words.NESTED}
    for block in words.NESTED:
        if stated.get(block) is not None:
            config |= get_object(stated[block], f"model.{block}")
    if len(config) > MAX_FIELDS:
        raise InputError("model", shown(config), f"allowed: at most {MAX_FIELDS:,} fields")
    return config


def _refuse_near_misses(config: JsonObject) -> None:
    for key in config:
        if close := _near_miss(str(key)):
            hint = f"unknown field, did you mean {close}?"
            raise InputError(f"model.{key}", shown(config[key]), hint)


@lru_cache(maxsize=10_000)  # a batch repeats the same few keys, and comparing names is slow
def _near_miss(key: str) -> str | None:
    """The known field that the key must have meant; None for a known one and for one unlike any."""
    known = set(ModelSpec.model_fields) | set(words.SYNONYMS) | words.INPUTS
    if key in known or key in words.IGNORED:
        return None
    return next(iter(nearest(key, known, cutoff=NEAR_MISS, count=1)), None)


def _renamed(config: JsonObject) -> JsonObject:
    """Synonyms under their canonical names; two that contradict each other are an error."""
    fields = {key: value for key, value in config.items() if key not in words.SYNONYMS}
    if not isinstance(fields.get("model_type"), str):
        fields.pop("model_type", None)
    for synonym, canonical in words.SYNONYMS.items():
        value = config.get(synonym)
        if value is None:
            continue
        stated = fields.get(canonical)
        if stated is not None and stated != value:
            raise InputError(
                f"model.{synonym}", shown(value), f"must equal {canonical}, of which it is a synonym"
            )
        fields[canonical] = value
    return fields


def _name(config: JsonObject) -> JsonValue:
    stated = (config.get(key) for key in ("name", "_name_or_path", "model_type"))
    return next((value for value in stated if value is not None), "")


def _attention_fields(fields: JsonObject) -> JsonObject:
    kv_heads = fields.get("num_key_value_heads")
    if fields.get("multi_query") is True and fields.get("new_decoder_architecture") is not True:
        kv_heads = 1  # Falcon and GPT-BigCode: the flag wins over a stated number of heads
    elif kv_heads is None:
        kv_heads = fields.get("num_attention_heads")
    return {"num_key_value_heads": kv_heads, "head_dim": _head_dim(fields)}


def _head_dim(fields: JsonObject) -> JsonValue:
    """Under MLA a query head is its two parts, whatever `head_dim` says (DeepSeek states the rotary part)."""
    parts = usable_count(fields.get("qk_nope_head_dim")) + usable_count(fields.get("qk_rope_head_dim"))
    if usable_count(fields.get("kv_lora_rank")) and parts:
        return parts
    heads, hidden = usable_count(fields.get("num_attention_heads")), usable_count(fields.get("hidden_size"))
    if fields.get("head_dim") is not None or not heads or not hidden:
        return fields.get("head_dim")
    if hidden % heads:
        allowed = f"must divide hidden_size ({hidden}) if head_dim is not given"
        raise InputError("model.num_attention_heads", heads, allowed)
    return hidden // heads


def _mlp_fields(fields: JsonObject) -> JsonObject:
    model_type = fields.get("model_type")
    implied: JsonObject = {}
    if fields.get("gated_mlp") is None:
        implied["gated_mlp"] = _is_gated(fields)
    if fields.get("tie_word_embeddings") is None:
        implied["tie_word_embeddings"] = model_type in words.TIED_TYPES
    if fields.get("intermediate_size") is None and model_type in words.FOUR_TIMES_WIDE_TYPES:
        ratio = usable_count(fields.get("expansion_ratio")) or 4
        implied["intermediate_size"] = ratio * usable_count(fields.get("hidden_size")) or None
    return implied


def _is_gated(fields: JsonObject) -> bool:
    """SwiGLU and its kin have a gate; plain GELU and ReLU blocks have none (arXiv 2002.05202)."""
    model_type = fields.get("model_type")
    if model_type in words.UNGATED_TYPES or model_type in words.GATED_TYPES:
        return model_type in words.GATED_TYPES
    stated = (fields.get(key) for key in ("hidden_activation", "hidden_act", "activation_function"))
    activation = next((value.lower() for value in stated if isinstance(value, str)), "silu")
    return "glu" in activation or "gated" in activation or activation in words.GATED_ACTIVATIONS
