"""Converts a Hugging Face `config.json` to the fields of a `ModelSpec`, including which layers hold
experts, use a sliding window or mix tokens in another way than by attention.

Covers decoder-only language models, also inside multimodal ones; what is not known is refused by name.
"""

import re
from functools import lru_cache

from pydantic import JsonValue

from tools.errors import InputError
from tools.names import NEAR_MISS, nearest
from tools.scenario import vocabulary as words
from tools.scenario.families import find_outer_tie, get_family, refuse_fields, refuse_other_models
from tools.scenario.fields import JsonObject, build, get_object, refuse_unknown, shown, usable_count
from tools.scenario.layer_patterns import WINDOWED, count_layers, layer_fields, layer_kinds
from tools.scenario.model import MAX_LAYERS, MixerSpec, ModelSpec
from tools.scenario.other_parts import describe_left_out, other_fields

_EXPERT_WORDS = ("sparse", "moe", "hash_moe")


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
    if period := usable_count(fields.get("expert_layer_period")):
        offset = fields.get("expert_layer_offset") or 0
        flags: list[JsonValue] = [int(layer % period == offset) for layer in range(count)]
        return _pattern("expert_layer_period", flags, {n for n in range(count) if flags[n]}, count)
    return {}


def _layers_with_experts(name: str, stated: list[JsonValue], fields: JsonObject, count: int) -> set[int]:
    if name in ("moe_layer_freq", "mlp_layer_types"):
        _check_flags(name, stated, count)
        return {layer for layer, flag in enumerate(stated[:count]) if flag in (1, *_EXPERT_WORDS)}
    listed = {layer for layer in stated if isinstance(layer, int)}
    if name == "moe_layers":
        return listed
    every = usable_count(fields.get("moe_layer_freq")) or 1
    return {layer for layer in range(count) if layer not in listed and (layer + 1) % every == 0}


def _check_flags(name: str, stated: list[JsonValue], count: int) -> None:
    known = (0, 1) if name == "moe_layer_freq" else ("dense", *_EXPERT_WORDS)
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
    count = count_layers(fields)
    kinds = layer_kinds(fields, count)
    window = _window_tokens(fields)
    if not window or fields.get("sliding_window_every") is not None:
        return {"sliding_window": window}
    every = _every(fields, kinds)
    return {"sliding_window": window if every else 0, "sliding_window_every": every or 1.0}


def _window_tokens(fields: JsonObject) -> JsonValue:
    """Chunked attention (Llama 4) counts as a window of one chunk: an upper bound of what a token sees."""
    window, used = fields.get("sliding_window"), fields.get("use_sliding_window")
    for name in ("attention_window_size", "attention_chunk_size"):
        window = fields.get(name) if window is None else window
    if used is None:
        used = fields.get("model_type") not in words.NO_WINDOW_BY_DEFAULT_TYPES
    return window if window is not None and used is True else 0


def _every(fields: JsonObject, kinds: list[str]) -> float:
    pattern, model_type = usable_count(fields.get("sliding_window_pattern")), fields.get("model_type")
    if kinds and model_type in words.LOCAL_ATTENTION_TYPES:
        return len(kinds) / max(sum(kind == "attention" for kind in kinds), 1)
    if kinds and model_type not in words.COMPRESSED_TYPES:
        windowed = sum(kind in WINDOWED for kind in kinds)
        return len(kinds) / windowed if windowed else 0.0
    if not pattern:
        pattern = usable_count(fields.get("global_attn_every_n_layers"))
    if not pattern and (first := usable_count(fields.get("max_window_layers"))):
        count = count_layers(fields)  # the layers from there on are windowed (Qwen2, dots)
        return count / (count - first) if first < count else 0.0
    if model_type in words.CHUNKED_TYPES:
        pattern = words.CHUNKED_PATTERN
    if pattern:  # one full layer closes every `pattern` layers
        return pattern / (pattern - 1) if pattern > 1 else 0.0
    return 2.0 if model_type in words.EVERY_SECOND_WINDOW_TYPES else 1.0


MAX_FIELDS = 1000
"""Each is compared with every known name; real configurations have some 200."""


def parse_model(stated: JsonObject) -> ModelSpec:
    """The typed model; raises InputError for the first field that is wrong."""
    fields = canonical_model(stated)
    if (mixer := fields.pop("mixer", None)) is None:
        return build(ModelSpec, fields, "model.")
    block = get_object(mixer, "model.mixer")
    refuse_unknown(block, set(MixerSpec.model_fields), "model.mixer.")
    return build(ModelSpec, {**fields, "mixer": build(MixerSpec, block, "model.mixer.")}, "model.")


def canonical_model(stated: JsonObject) -> JsonObject:
    """The fields of `ModelSpec` that the given model states or implies; their types are checked later."""
    config = _flatten(stated)
    refuse_other_models({**stated, **config})
    refuse_fields(config)
    if not (stated.keys() | config.keys()) & {"architectures", "transformers_version"}:
        _refuse_near_misses(config)  # written by hand: a near miss is a mistake
    fields = _complete(_renamed(config))
    canonical = {key: value for key, value in fields.items() if key in ModelSpec.model_fields}
    count = count_layers(fields)
    canonical |= {"num_hidden_layers": count} if count else {}
    for implied in (_attention_fields, _mlp_fields, expert_fields, window_fields):
        canonical |= implied(fields)
    canonical |= layer_fields(fields, count)
    canonical |= other_fields(fields, canonical, count)
    return {"name": _name(config)} | {key: value for key, value in canonical.items() if value is not None}


def _complete(fields: JsonObject) -> JsonObject:
    """With what the configuration class supplies for fields that the file leaves out."""
    model_type = fields.get("model_type")
    if not isinstance(model_type, str):
        return fields
    family = get_family(model_type)
    return {**family.defaults, **fields, "model_type": family.model_type, "hub_type": model_type}


def _flatten(stated: JsonObject) -> JsonObject:
    """Multimodal configurations hold the decoder's fields in a block of their own, some in one inside
    that."""
    config = stated
    while block := next((name for name in words.TEXT_BLOCKS if config.get(name) is not None), None):
        inner = get_object(config[block], f"model.{block}")
        kept = {key: config[key] for key in words.OUTER if key in config}
        if "model_type" not in inner and isinstance(config.get("model_type"), str):
            kept["model_type"] = config["model_type"]  # the type of what holds it says which text model it is
        left_out = _other_modalities(config)
        config = {**kept, **inner, **_outer_tie(config)}
        if left_out:
            config["left_out"] = [*_texts(kept.get("left_out")), *left_out]
    if config is stated and (left_out := _other_modalities(config)):
        config = {**config, "left_out": [*left_out]}
    for block in words.SUB_BLOCKS:
        if config.get(block) is not None:
            config = {**get_object(config[block], f"model.{block}"), **config}
    if len(config) > MAX_FIELDS:
        raise InputError("model", shown(config), f"allowed: at most {MAX_FIELDS:,} fields")
    return config


def _outer_tie(config: JsonObject) -> JsonObject:
    """In a multimodal model the outer flag decides, or the default of its class."""
    tied = config.get("tie_word_embeddings")
    if tied is None and isinstance(config.get("model_type"), str):
        tied = find_outer_tie(str(config["model_type"]))
    return {} if tied is None else {"tie_word_embeddings": tied}


def _other_modalities(config: JsonObject) -> list[str]:
    return [
        describe_left_out(key, value) for key, value in config.items() if value and is_other_modality(key)
    ]


_SHAPE_WORDS = re.compile(
    r"layer|expert|head|width|_dim|size|rank|block|conv|mamba|ssm|window|sparse|compress|index|mtp|nextn|mixer|gate|"
    r"residual|shared|attn|attention|pattern|hash|latent|stream"
)
_OTHER_WORDS = re.compile(
    r"token|rope|rotary|layernorm|dropout|_ids?$|dtype|scaling|init|theta|image|audio|video|vision|patch|prob|beam|"
    r"chunk_size|length|temperature|softcap|quant|_loss|aux|time_step|hidden_act|router|ep_size|position|qk_norm|"
    r"_bias|rescale|multiplier|in_fp32|kernel|ignore_index|qk_head_dim|group_size"
)


def unread_fields(stated: JsonObject) -> list[str]:
    """Fields that say something about the shape of the model, by their names, and are not read."""
    return [
        key
        for key, value in _flatten(stated).items()
        if value
        and not words.is_read(key)
        and key not in ModelSpec.model_fields
        and not is_other_modality(key)
        and _SHAPE_WORDS.search(key)
        and not _OTHER_WORDS.search(key)
    ]


def is_other_modality(key: str) -> bool:
    """Whether a block of a configuration describes something else than the text model."""
    parts = ("vision", "visual", "audio", "image", "video", "speech", "talker", "code2wav", "vq")
    return key.endswith("_config") and any(part in key for part in parts)


def _texts(value: JsonValue) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


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
        if value is None or synonym in words.OTHER_MEANINGS.get(str(config.get("model_type")), ()):
            continue
        stated = fields.get(canonical)
        if stated is not None and stated != value:
            raise InputError(
                f"model.{synonym}", shown(value), f"must equal {canonical}, of which it is a synonym"
            )
        fields[canonical] = value
    return {key: _uniform(value) if key in words.PER_LAYER else value for key, value in fields.items()}


def _uniform(value: JsonValue) -> JsonValue:
    """One number, if a list says the same for every layer (Hunyuan)."""
    if isinstance(value, list) and len(value) > 1 and all(item == value[0] for item in value):
        return value[0]
    return value


def _name(config: JsonObject) -> JsonValue:
    stated = (config.get(key) for key in ("name", "_name_or_path", "model_type"))
    return next((value for value in stated if value is not None), "")


def _attention_fields(fields: JsonObject) -> JsonObject:
    kv_heads = fields.get("num_key_value_heads")
    if fields.get("multi_query") is True and fields.get("new_decoder_architecture") is not True:
        kv_heads = 1  # Falcon and GPT-BigCode: the flag wins over a stated number of heads
    elif kv_heads is None or fields.get("multi_query_attention") is False:
        kv_heads = fields.get("num_attention_heads")
    implied: JsonObject = {"num_key_value_heads": kv_heads, "head_dim": _head_dim(fields)}
    if fields.get("model_type") in words.OUTPUT_GATE_TYPES and fields.get("attn_output_gate") is None:
        implied["attn_output_gate"] = True
    return implied


def _head_dim(fields: JsonObject) -> JsonValue:
    """Under MLA a query head is its two parts, whatever `head_dim` says (DeepSeek states the rotary part)."""
    parts = usable_count(fields.get("qk_nope_head_dim")) + usable_count(fields.get("qk_rope_head_dim"))
    if usable_count(fields.get("kv_lora_rank")) and parts:
        return parts
    heads, hidden = usable_count(fields.get("num_attention_heads")), usable_count(fields.get("hidden_size"))
    if fields.get("head_dim") is not None or not heads or not hidden:
        return fields.get("head_dim")
    if hidden % heads and fields.get("model_type") is None:
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
    names = ("hidden_activation", "mlp_hidden_act", "hidden_act", "activation_function")
    stated = (fields.get(key) for key in names)
    activation = next((value.lower() for value in stated if isinstance(value, str)), "silu")
    return "glu" in activation or "gated" in activation or activation in words.GATED_ACTIVATIONS
